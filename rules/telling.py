"""Verdicts out of judgements: an operator is told again only when something they act on changed."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from evidence.decisions import DomainKind, EvidenceRef, Says, Status, Verdict, Witness
from evidence.identity import digest
from evidence.records import GpuStatus
from rules.age import STALE
from rules.attribution import rule_of
from rules.catalog import Role
from rules.causality import culprits
from rules.gathering import hardware, incident_id, root_of
from rules.host_state import FactKind, GpuHealth, HostState, Incident
from rules.judgement import judge
from rules.scene import Judgement, Scene
from rules.tables import Rules
from rules.widening import is_gpu
from rules.witnesses import weighed

__all__ = ["EVIDENCE_MAX", "judge_open"]

#: References a verdict lists; the rest are counted in its reason.
EVIDENCE_MAX = 32
_ALL = "*"


def judge_open(
    state: HostState,
    before: tuple[Incident, ...],
    again: frozenset[str],
    now: datetime,
    rules: Rules,
) -> tuple[HostState, list[Verdict]]:
    """Judge what changed since ``before``, what is due, and what may change with it.

    ``again`` are subjects of which something else than a fact is new; ``*`` is all of them.
    """
    open_since = now - timedelta(
        seconds=rules.thresholds.collective_before_s + rules.thresholds.collective_after_s
    )
    known = {id(incident) for incident in before}
    chosen = {
        number
        for number, incident in enumerate(state.incidents)
        if (incident.news and id(incident) not in known)
        or incident.subject in again
        or _ALL in again
        or (incident.recheck is not None and incident.recheck <= now)
    }
    if any(_reaches(state.incidents[number]) for number in chosen):
        chosen |= {n for n, incident in enumerate(state.incidents) if incident.last >= open_since}
    if not chosen:
        return state, []
    incidents = [_named(incident) for incident in state.incidents]
    scene = Scene(
        replace(state, incidents=tuple(incidents)),
        rules,
        now,
        culprits(incidents, rules.thresholds),
    )
    verdicts: list[Verdict] = []
    wanted: dict[str, datetime] = {}
    for number in sorted(chosen, key=lambda n: (-_rank(incidents[n]), n)):
        incident = incidents[number]
        told = judge(incident, scene)
        incidents[number], verdict = _tell(incident, told, scene)
        if verdict is not None:
            verdicts.append(verdict)
        if told is not None and (since := _waits_for_health(incident, told, scene)) is not None:
            wanted[incident.subject] = since
    kept = tuple(
        incident if incident.revision else replace(incident, id="") for incident in incidents
    )
    health = _asked_for(state.health, wanted) if wanted else state.health
    return replace(state, incidents=kept, health=health), verdicts


def _asked_for(health: dict[str, GpuHealth], wanted: dict[str, datetime]) -> dict[str, GpuHealth]:
    """The healths with the time from which on a reading of some is waited for."""
    return health | {
        pci: replace(health[pci], wanted_at=at)
        for pci, at in wanted.items()
        if (wished := health[pci].wanted_at) is None or wished < at
    }


def _reaches(incident: Incident) -> bool:
    """Whether an incident can change what is said about other parts of the host."""
    return incident.news and any(
        fact.role in _REACHING
        or fact.kind in (FactKind.PORT, FactKind.SWITCH, FactKind.HEALTH)
        or (fact.suspicion is not None and fact.suspicion.domain.kind is DomainKind.LINK)
        for fact in incident.facts
    )


_REACHING = frozenset({Role.LOST, Role.HARDWARE, Role.LINK})


def _named(incident: Incident) -> Incident:
    """The incident with an id; before its first verdict that is its root's as it stands."""
    if incident.id:
        return incident
    told = [fact for fact in incident.facts if hardware(fact)] or list(incident.facts)
    return replace(incident, id=incident_id(incident, root_of(told)))


def _rank(incident: Incident) -> int:
    return max((fact.rank for fact in incident.facts), default=0)


def _waits_for_health(incident: Incident, told: Judgement, scene: Scene) -> datetime | None:
    """From when on a reading of NVML would let health speak; None where it would not.

    Of a fault that was heard too late, only one of the present tells anything.
    """
    health = scene.state.health.get(incident.subject)
    if not is_gpu(incident.subject) or health is None or health.status is not GpuStatus.OK:
        return None
    limits = scene.limits
    if told.muted == STALE:
        return scene.now - timedelta(seconds=limits.old_news_s + scene.state.behind_s)
    blind = any(one.witness is Witness.HEALTH and one.says is Says.BLIND for one in told.testimony)
    if not blind or told.status is Status.SOFTWARE:
        return None
    return told.root.at + timedelta(seconds=limits.health_lag_s)


def _tell(
    incident: Incident, told: Judgement | None, scene: Scene
) -> tuple[Incident, Verdict | None]:
    judged_to = max(
        (fact.at for fact in incident.facts if fact.kind is not FactKind.COLLECTIVE), default=None
    )
    if told is None:
        return replace(incident, judged_to=judged_to, recheck=None, news=False), None
    said = _said(told)
    incident = replace(
        incident,
        judged_to=judged_to,
        recheck=_recheck(told, scene.now),
        news=False,
        explained=told.explained_by is not None,
    )
    if said == incident.said:
        return incident, None
    incident = replace(
        incident,
        said=said,
        revision=incident.revision + 1,
        status=told.status,
        decided=scene.now,
    )
    return incident, _verdict(incident, told, scene)


def _recheck(told: Judgement, now: datetime) -> datetime | None:
    """A recheck that was just made is not asked for again."""
    return told.recheck if told.recheck is not None and told.recheck > now else None


def _said(told: Judgement) -> str:
    """What an operator acts on; a change of words or weights alone is no news."""
    return digest(
        told.status,
        told.cause,
        told.domain.id,
        told.domain.uuid,
        told.recovery,
        told.hard,
        told.explained_by,
        told.victim_of,
        *(f"{one.witness}={one.says}" for one in told.testimony),
        *(domain.id for domain in told.victims),
    )


def _verdict(incident: Incident, told: Judgement, scene: Scene) -> Verdict:
    state = scene.state
    refs = _evidence(incident, told)
    lines = incident.more + sum(fact.count for fact in incident.facts)
    more = max(0, lines - len(incident.facts)) + max(0, len(refs) - EVIDENCE_MAX)
    tail = f" ({more} more records of it are counted, not listed.)" if more else ""
    rule = rule_of(incident, told)
    return Verdict(
        id=digest(incident.id, incident.revision),
        incident=incident.id,
        revision=incident.revision,
        at=told.root.at,
        decided_at=scene.now,
        status=told.status,
        cause=told.cause,
        domain=told.domain,
        confidence=round(told.confidence, 3),
        reason=told.reason + _weights(told) + tail,
        recovery=told.recovery,
        hard=told.hard,
        testimony=told.testimony,
        evidence=tuple(refs[:EVIDENCE_MAX]),
        missing=told.missing,
        victims=told.victims,
        victim_of=told.victim_of,
        explained_by=told.explained_by,
        rule=rule,
        muted=told.muted or scene.rules.policy.rule(rule).muted,
        late=incident.late,
        job=told.job,
        host=state.host,
        rack=state.rack,
        leaf=state.leaf,
        pool=state.pool,
        nvlink_domain=state.nvlink_domain,
        driver=state.driver,
    )


def _weights(told: Judgement) -> str:
    """How much each witness weighs, where that is why nothing was decided."""
    if told.status not in (Status.SUSPECTED, Status.INSUFFICIENT) or not told.testimony:
        return ""
    return f" Weights: {weighed(told.testimony)}."


def _evidence(incident: Incident, told: Judgement) -> Sequence[EvidenceRef]:
    """The records behind a verdict, in the order of their events, each once."""
    timed = [(fact.at, fact.ref) for fact in incident.facts]
    timed += [(ref.at or told.root.at, ref) for ref in told.refs]
    for fact in incident.facts:
        if fact.suspicion is not None:
            timed += [(ref.at or fact.at, ref) for ref in fact.suspicion.evidence]
    once: dict[str, EvidenceRef] = {}
    for _, ref in sorted(timed, key=lambda pair: pair[0]):
        once.setdefault(ref.id, ref)
    return list(once.values())
