"""A host that is not heard any more: a fact, and never proof that anything of it is broken.

Only a host that told regularly (NVML frames) can fall silent; whatever its agent sends shows that
it lives. What counts is when records arrive and when ticks do, not what a host's clock says, so
that a worker which reads a backlog finds nobody silent. Silence alone is ``insufficient``, and
``suspected`` when another witness speaks: a job that waits for the host, its links going down.
What is planned explains it. Whether the pipeline is silent and not the host, only the isolation
stage can see (`rules.outage`).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from evidence.decisions import (
    Cause,
    EvidenceRef,
    Recovery,
    Says,
    Status,
    Testimony,
    Verdict,
    Witness,
)
from evidence.identity import digest
from evidence.records import ContextKind
from rules.context import announced
from rules.host_state import Fact, FactKind, HostState, Incident, Window
from rules.scene import Judgement, Scene, node_domain, witness
from rules.thresholds import Thresholds
from rules.widening import NODE_DARK, NODE_SILENT, links_down

__all__ = ["RULE", "TOGETHER", "heard", "is_gathered", "judge_silent", "look"]

#: The rule's name, and the mark (``muted``) of a verdict that waits for those of other hosts.
RULE = "silent-node"
TOGETHER = "told with the other silent hosts"
_AGAIN = frozenset({NODE_SILENT})
_NOTHING: frozenset[str] = frozenset()
_TICK = timedelta(microseconds=1)
#: What makes an agent be silent by somebody's wish.
_PLANNED = frozenset(
    {
        ContextKind.REBOOT,
        ContextKind.MAINTENANCE,
        ContextKind.DRAIN,
        ContextKind.DRIVER_UPGRADE,
    }
)


def is_gathered(verdict: Verdict) -> bool:
    """Whether a host's verdict of its silence waits to be told with those of other hosts."""
    return verdict.rule == RULE and verdict.muted == TOGETHER


def heard(
    state: HostState, now: datetime, limits: Thresholds, *, noted: bool = False
) -> tuple[HostState, frozenset[str]]:
    """Note that a host was heard at ``now``, by the broker's clock, and what is to be judged again.

    Written as seldom as frames are noted (``noted``: they just were), and at once when it had been
    silent. A host that never sent a frame is not waited for.
    """
    if state.frames_at is None:
        return state, _NOTHING
    last = state.noted_at
    was_silent = last is not None and state.silent_at is None
    news = noted or last is None or was_silent or state.silent_asked
    if not news and last is not None and now - last < timedelta(seconds=2 * limits.seen_every_s):
        return state, _NOTHING
    after = timedelta(seconds=limits.silent_after_s)
    state = replace(state, noted_at=now, silent_at=now + after, silent_asked=False)
    return state, _AGAIN if was_silent else _NOTHING


def look(state: HostState, now: datetime, limits: Thresholds) -> tuple[HostState, list[Fact]]:
    """Look, on a tick, whether the host fell silent; the fact of it when it did.

    It takes two looks with time running on between them: after a gap in the ticks themselves the
    first one says nothing, and a plan puts it off.
    """
    if state.silent_at is None or now < state.silent_at or state.noted_at is None:
        return state, []
    plan = _plan(state, now)
    if plan is not None:
        return replace(state, silent_at=plan.until + _TICK, silent_asked=False), []
    again = timedelta(seconds=limits.silent_again_s)
    if not state.silent_asked or now - state.silent_at >= again:
        return replace(state, silent_at=now + again, silent_asked=True), []
    return replace(state, silent_at=None, silent_asked=False), [_fact(state, now, limits)]


def _plan(state: HostState, now: datetime) -> Window | None:
    """What is planned for the host now; the latest to end."""
    plans = [
        window
        for window in state.windows
        if window.kind in _PLANNED and window.pci is None and window.at <= now <= window.until
    ]
    return max(plans, key=lambda window: (window.until, window.ref.id), default=None)


def _fact(state: HostState, now: datetime, limits: Thresholds) -> Fact:
    assert state.noted_at is not None
    words = f"nothing was heard of it since {state.noted_at:%H:%M:%S} UTC"
    return Fact(
        ref=_last_word(state),
        name="silent",
        kind=FactKind.HOST,
        witness=Witness.HEALTH,
        subject=NODE_SILENT,
        topic="",
        at=state.noted_at,
        arrived=now,
        due=now + timedelta(seconds=limits.settle_s),
        words=words,
        rank=10,
    )


def _last_word(state: HostState) -> EvidenceRef:
    """The last record by which the host was known to live, as far as it is kept."""
    seen = [health.seen or health.first for health in state.health.values()]
    known = [ref for ref in (*seen, state.kernel_seen) if ref is not None and ref.at is not None]
    if known:
        return max(known, key=lambda ref: (ref.at, ref.id))
    name = digest("silent", state.host, state.noted_at)
    return EvidenceRef(id=name, source="gpu", at=state.frames_at, host=state.host)


# --- What is said of it ---------------------------------------------------------------------------


def judge_silent(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement | None:
    """What is said of a silent host: what is missing, who else speaks, and that it is back."""
    root = max(facts, key=lambda fact: fact.order)
    state = scene.state
    name = state.host or "The node"
    if state.silent_at is not None:
        return _back(root, scene, f"{name} is heard again.") if incident.revision else None
    beside = _beside(incident, root, scene)
    dark = any(other.subject == NODE_DARK for other in scene.others(incident))
    if dark and not incident.revision:
        return None  # named in the node's verdict
    plan = _plan(state, scene.now)
    why = f" {name}'s {announced(plan)} explains it." if plan is not None else ""
    also = f" Beside that, {beside[0].words[:200]}." if beside else ""
    alone = not beside and plan is None
    return Judgement(
        root=root,
        status=Status.SUSPECTED if beside and plan is None else Status.INSUFFICIENT,
        cause=Cause.NODE if beside else Cause.UNKNOWN,
        domain=node_domain(state),
        confidence=0.3 if beside and plan is None else 0.1,
        reason=f"{name} fell silent: {root.words}.{also}{why}",
        recovery=Recovery.DIAGNOSE,
        testimony=(
            Testimony(witness=Witness.HEALTH, says=Says.BLIND, words=root.words),
            *(witness(fact) for fact in beside[:2]),
        ),
        missing=(
            "whether the node answers (ping, its BMC)",
            "whether its agent runs and reaches Kafka",
        ),
        explained_by=None if plan is None else plan.ref.id,
        refs=() if plan is None else (plan.ref,),
        recheck=None if plan is None else plan.until + _TICK,
        muted=TOGETHER if alone else None,
    )


def _back(root: Fact, scene: Scene, reason: str) -> Judgement:
    return Judgement(
        root=root,
        status=Status.RECOVERED,
        cause=Cause.UNKNOWN,
        domain=node_domain(scene.state),
        confidence=0.7,
        reason=reason,
        testimony=(Testimony(witness=Witness.HEALTH, says=Says.CLEARS, words=reason),),
    )


def _beside(incident: Incident, root: Fact, scene: Scene) -> list[Fact]:
    """What other witnesses say against the host since about when it fell silent."""
    since = root.at - timedelta(seconds=scene.limits.collective_before_s)
    found = [fact for fact in links_down(scene.state.incidents).values() if fact.at >= since]
    for other in scene.others(incident):
        for fact in other.facts:
            told = fact.suspicion
            if (
                told is not None
                and fact.witness is Witness.COLLECTIVE
                and told.says is Says.ACCUSES
                and told.status in (Status.SUSPECTED, Status.LOCALIZED)
                and fact.at >= since
            ):
                found.append(fact)
    return sorted(found, key=lambda fact: fact.order)
