"""The verdict about a link to the node, or all of them: its counters, and the job that crossed it.

Counters speak of the link itself, so a fault in them is enough; what is only watched takes a job
that failed on the same node. A link that is down accuses nobody while its node may be off.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from evidence.decisions import (
    Cause,
    DomainKind,
    Recovery,
    Says,
    Status,
    Testimony,
    Witness,
)
from rules.host_state import Fact, FactKind, Incident
from rules.scene import Judgement, Scene, node_domain, witness
from rules.widening import LINK_DOWN, NODE_DARK, last_word, links_down

__all__ = ["blamed_link", "judge_dark", "judge_link"]

_DEGRADED, _FLAPPING, _OPTICS = "ib-degraded", "ib-flapping", "ib-optics"
#: What a link does whose node is off or restarts, and the words for it.
_ABSENT = {
    LINK_DOWN: " is down, and so may be the node",
    _FLAPPING: " went down and came back, as it does when its node restarts",
}


def judge_link(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement | None:
    """Judge what the fabric says of one link; None where it says nothing."""
    said = [fact for fact in facts if fact.kind is FactKind.FABRIC]
    if not said:
        return None
    last = last_word(said)
    told = last.suspicion
    assert told is not None
    felt = _felt(incident, last, scene)
    dark = any(other.subject == NODE_DARK for other in scene.others(incident))
    dark = dark and not _lives(last, scene)
    if not incident.revision and (dark or (felt is None and _only_watched(last))):
        return None  # named in the node's verdict, or nothing to tell
    status, confidence, why = _weigh(incident, last, felt, scene)
    where = scene.state.host or "the node"
    also = f" Beside it, {felt.words[:200]}" if felt is not None else ""
    return Judgement(
        root=last,
        status=status,
        cause=told.cause,
        domain=told.domain,
        confidence=confidence,
        reason=f"Link of {where}{why}: {told.reason.rstrip('.')}.{also}",
        recovery=Recovery.CHECK_LINK,
        testimony=tuple(witness(fact) for fact in (last, felt) if fact is not None),
        missing=() if felt is not None else ("NCCL log of a job that used the link",),
        victims=() if felt is None or felt.suspicion is None else felt.suspicion.victims,
        job=None if felt is None or felt.suspicion is None else felt.suspicion.job,
        recheck=_ask_again(last, scene),
    )


def _ask_again(last: Fact, scene: Scene) -> datetime | None:
    """When it must be known whether a node whose link flapped lives, and whether it was started."""
    told = last.suspicion
    assert told is not None
    if told.kind != _FLAPPING or told.status is not Status.LOCALIZED:
        return None
    return last.arrived + timedelta(seconds=2 * scene.limits.seen_every_s)


def _only_watched(last: Fact) -> bool:
    """Whether what was counted is too little to tell anybody unless a job failed beside it."""
    told = last.suspicion
    assert told is not None
    return told.status is not Status.LOCALIZED and told.kind not in (
        LINK_DOWN,
        _DEGRADED,
        _OPTICS,
    )


def _weigh(
    incident: Incident, last: Fact, felt: Fact | None, scene: Scene
) -> tuple[Status, float, str]:
    told = last.suspicion
    assert told is not None
    if told.kind == _DEGRADED:
        return Status.SUSPECTED, 0.3, " is slower than it could be"
    if told.kind in _ABSENT and not _lives(last, scene):
        return Status.SUSPECTED, 0.2, _ABSENT[told.kind]
    if told.kind in _ABSENT and _restarts(incident, last, scene):
        return Status.SUSPECTED, 0.2, " goes down with the node's others, which is the node's doing"
    agrees = felt is not None and _same_adapter(last, felt, scene)
    if told.status is Status.LOCALIZED or agrees:
        return Status.LOCALIZED, 0.9 if agrees else 0.8, " is at fault"
    if felt is not None:
        return Status.SUSPECTED, 0.4, " is one of those of a node on which a job failed"
    return Status.SUSPECTED, 0.3, " is to be watched"


def _restarts(incident: Incident, last: Fact, scene: Scene) -> bool:
    """Whether the links of the node go up and down together, or the node itself was restarted."""
    near = timedelta(seconds=scene.limits.incident_window_s)
    others = {
        other.subject
        for other in scene.others(incident)
        for fact in other.facts
        if fact.suspicion is not None
        and fact.suspicion.kind in (LINK_DOWN, _FLAPPING)
        and abs(fact.at - last.at) <= near
    }
    if scene.state.adapters > 1 and len(others) + 1 >= max(2, scene.state.adapters / 2):
        return True
    return any(abs(at - last.at) <= 2 * near for at in scene.state.boots)


def _same_adapter(last: Fact, felt: Fact, scene: Scene) -> bool:
    """Whether the job failed on the adapter of this link; a node may have only one."""
    assert last.suspicion is not None
    assert felt.suspicion is not None
    told = bool(last.suspicion.hcas and felt.suspicion.hcas)
    return told or scene.state.adapters == 1


def _lives(last: Fact, scene: Scene) -> bool:
    """Whether the node itself was heard after the link went down."""
    told = last.suspicion
    assert told is not None
    heard_at = scene.state.heard_at
    return heard_at is not None and heard_at > told.at


def _felt(incident: Incident, last: Fact, scene: Scene) -> Fact | None:
    """A job that failed to send or receive on this node while the link was bad."""
    before = timedelta(seconds=scene.limits.collective_before_s)
    for other in scene.others(incident):
        for fact in other.facts:
            told = fact.suspicion
            if (
                fact.witness is Witness.COLLECTIVE
                and told is not None
                and told.domain.kind is DomainKind.LINK
                and told.says is not Says.CLEARS
                and told.cause is Cause.IB_LINK
                and abs(fact.at - last.at) <= before
                and not _elsewhere(last, fact)
            ):
                return fact
    return None


def _elsewhere(last: Fact, felt: Fact) -> bool:
    """Whether the job's failure is told to be on other adapters than this link's."""
    assert last.suspicion is not None
    assert felt.suspicion is not None
    here, there = set(last.suspicion.hcas), set(felt.suspicion.hcas)
    return bool(here and there) and not here & there


def judge_dark(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement | None:
    """A node of which nothing is heard and all of whose links are down: its power, or a restart."""
    root = min(facts, key=lambda fact: fact.order)
    heard_at = scene.state.heard_at
    heard = heard_at is not None and heard_at > incident.last
    lit = len(links_down(scene.state.incidents)) < len(facts)
    back = heard or lit
    wait = timedelta(seconds=scene.limits.service_wait_s)
    stays = scene.now - root.at >= wait and not back
    if back and not incident.revision:
        return None
    minutes = scene.limits.service_wait_s / 60
    tail = f", for more than {minutes:.0f} minutes" if stays else ""
    name = scene.state.host or "The node"
    return Judgement(
        root=root,
        status=Status.RECOVERED if back else Status.LOCALIZED if stays else Status.SUSPECTED,
        cause=Cause.NODE,
        domain=node_domain(scene.state),
        confidence=0.8 if stays else 0.5,
        reason=f"{name} {'is heard again' if heard else 'has links that are up again'}."
        if back
        else f"{name} fell silent and all of its {len(facts)} links are down{tail}: its power, or"
        " a restart that nobody announced.",
        recovery=Recovery.DIAGNOSE,
        testimony=(
            witness(root),
            Testimony(
                witness=Witness.HEALTH,
                says=Says.ACCUSES,
                weight=0.3,
                words="nothing is heard of it",
            ),
        ),
        recheck=None if stays or back else root.at + wait,
    )


def blamed_link(incident: Incident, scene: Scene) -> Incident | None:
    """The incident of a link of this node of which the fabric speaks; None where there is none."""
    before = timedelta(seconds=scene.limits.collective_before_s)
    for other in scene.others(incident):
        for fact in other.facts:
            told = fact.suspicion
            if (
                fact.kind is FactKind.FABRIC
                and told is not None
                and told.says is Says.ACCUSES
                and told.kind != _DEGRADED
                and abs(fact.at - incident.last) <= before
                and not all(_elsewhere(fact, said) for said in incident.facts if said.suspicion)
            ):
                return other
    return None
