"""Facts into incidents: what belongs together on one part, and what is a matter of the whole node.

An incident keeps its id from the first verdict on, whatever older root arrives later.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter

from msgspec.structs import replace

from evidence.decisions import Cause, Says, Status, Witness
from evidence.identity import digest
from rules.catalog import Role
from rules.context import allocation
from rules.host_state import Fact, FactKind, HostState, Incident
from rules.thresholds import Thresholds
from rules.widening import NODE_LOST, NODE_SILENT, darken, is_gpu, widen

__all__ = [
    "FACTS_MAX",
    "gather",
    "hardware",
    "incident_id",
    "is_wish",
    "root_of",
]

#: Facts an incident keeps; the rest are counted.
FACTS_MAX = 32
INCIDENTS_MAX = 32


def hardware(fact: Fact) -> bool:
    """Whether a fact, alone, speaks of hardware at all."""
    return fact.weight > 0 and fact.kind not in (FactKind.COLLECTIVE, FactKind.RECOVERED)


def root_of(facts: Iterable[Fact]) -> Fact:
    """The root-most fact: highest rank, then earliest; it explains the others."""
    return min(facts, key=lambda fact: (-fact.rank, fact.order))


def is_wish(fact: Fact) -> bool:
    """Whether a fact is only what the driver asks for: it names an action, never a culprit."""
    if fact.kind is FactKind.HEALTH:
        return fact.name in ("driver-reset-required", "drain-wanted")
    return fact.role is Role.RECOVERY


def gather(state: HostState, facts: Sequence[Fact], now: datetime, limits: Thresholds) -> HostState:
    """Place settled facts into incidents, in the order of their events."""
    incidents = list(state.incidents)
    for fact in sorted(facts, key=lambda one: one.order):
        if fact.kind is FactKind.RECOVERED:
            _recover(incidents, fact)
            continue
        subject = _subject(fact, incidents, limits)
        place = _find(incidents, subject, fact, state, limits)
        if place is None:
            incidents.append(_open(subject, fact))
        else:
            incidents[place] = _add(incidents[place], fact, limits)
    widen(incidents, state, limits)
    darken(incidents, state)
    return replace(state, incidents=tuple(_forget(incidents, now, limits)))


def _recover(incidents: list[Incident], fact: Fact) -> None:
    """Mark what was said about the part (and about all GPUs of the node) as over.

    What the driver asked for and took back before anything was said is forgotten.
    """
    for number in range(len(incidents) - 1, -1, -1):
        incident = incidents[number]
        if incident.subject == fact.subject and not incident.revision:
            facts = tuple(known for known in incident.facts if not _withdrawn(known, fact))
            if not facts:
                del incidents[number]
            elif facts != incident.facts:
                incidents[number] = replace(incident, facts=facts)
            continue
        mine = incident.subject == fact.subject or (
            incident.subject == NODE_LOST and is_gpu(fact.subject)
        )
        if mine and incident.revision and incident.first <= fact.at:
            facts = _with(incident.facts, fact)[0]
            incidents[number] = replace(incident, recovered_at=fact.at, facts=facts, news=True)


def _withdrawn(known: Fact, recovered: Fact) -> bool:
    """Whether a fact is one that a later reading of the same source shows to be nothing.

    A wish of the driver is over then, and a flag that a card keeps for good was misread.
    """
    taken_back = is_wish(known) or (known.kind is FactKind.HEALTH and known.name in _FOR_GOOD)
    return taken_back and known.witness is recovered.witness and known.at <= recovered.at


_FOR_GOOD = frozenset({"remap-failure", "sram-threshold"})


def _open(subject: str, fact: Fact) -> Incident:
    late = int(fact.old)
    return Incident(subject=subject, first=fact.at, last=fact.at, facts=(fact,), late=late)


def _subject(fact: Fact, incidents: Sequence[Incident], limits: Thresholds) -> str:
    """Where a fact belongs; an accusation that names no GPU joins the one that is broken anyway."""
    if not fact.subject.startswith(("node:", "rank:")) or not _accuses_a_card(fact):
        return fact.subject
    broken = {
        incident.subject
        for incident in incidents
        if is_gpu(incident.subject)
        and any(
            hardware(known) and _in_collective_window(known, fact, limits)
            for known in incident.facts
        )
    }
    return broken.pop() if len(broken) == 1 else fact.subject


def _accuses_a_card(fact: Fact) -> bool:
    """Whether a job names a host or rank for something that a card of it can have done."""
    suspicion = fact.suspicion
    return (
        fact.kind is FactKind.COLLECTIVE
        and suspicion is not None
        and suspicion.says is Says.ACCUSES
        and suspicion.status in (Status.SUSPECTED, Status.LOCALIZED)
        and suspicion.cause not in _NOT_A_CARD
    )


_NOT_A_CARD = frozenset({Cause.NODE, Cause.IB_LINK, Cause.IB_SWITCH, Cause.FACILITY})


def _in_collective_window(fact: Fact, stall: Fact, limits: Thresholds) -> bool:
    before = timedelta(seconds=limits.collective_before_s)
    after = timedelta(seconds=limits.collective_after_s)
    return stall.at - before <= fact.at <= stall.at + after


def _find(
    incidents: Sequence[Incident],
    subject: str,
    fact: Fact,
    state: HostState,
    limits: Thresholds,
) -> int | None:
    """The newest incident of the part that the fact belongs to."""
    found = [
        number
        for number, incident in enumerate(incidents)
        if incident.subject == subject
        and _belongs(incident, fact, limits)
        and not _of_another_job(incident, fact, state)
    ]
    return max(found, key=lambda number: incidents[number].last, default=None)


def _of_another_job(incident: Incident, fact: Fact, state: HostState) -> bool:
    """Whether both are application faults, of different attempts: those have nothing in common."""
    if fact.role not in _SOFTWARE or any(known.role not in _SOFTWARE for known in incident.facts):
        return False
    mine = allocation(state, incident.subject, incident.first)
    other = allocation(state, incident.subject, fact.at)
    if mine is None or other is None:
        return False
    return (mine.job, mine.attempt) != (other.job, other.attempt)


_SOFTWARE = frozenset({Role.APPLICATION, Role.CONSEQUENCE})


def _belongs(incident: Incident, fact: Fact, limits: Thresholds) -> bool:
    if fact.witness is Witness.COLLECTIVE:
        if all(known.witness is Witness.COLLECTIVE for known in incident.facts):
            if _of_another_run(incident, fact):
                return False
            return not is_gpu(incident.subject) or abs(fact.at - incident.last) <= timedelta(
                seconds=limits.incident_window_s
            )
        return any(
            _in_collective_window(known, fact, limits)
            for known in incident.facts
            if known.witness is not Witness.COLLECTIVE
        )
    if _lasts(incident, fact, limits):
        return True
    stalls = [known for known in incident.facts if known.witness is Witness.COLLECTIVE]
    if stalls and any(_in_collective_window(fact, stall, limits) for stall in stalls):
        return True
    window = timedelta(seconds=limits.incident_window_s)
    limit = timedelta(seconds=limits.incident_limit_s)
    return (
        incident.first - window <= fact.at <= incident.last + window
        and fact.at <= incident.first + limit
    )


def _of_another_run(incident: Incident, fact: Fact) -> bool:
    """Whether a job says it of itself again, after it had begun anew: of the part, not the card.

    A card that is suspected already is so, whichever run says it.
    """
    if fact.suspicion is None or is_gpu(incident.subject):
        return False
    job = fact.suspicion.job
    runs = {
        (known.suspicion.attempt, known.suspicion.run)
        for known in incident.facts
        if known.suspicion is not None and known.suspicion.job == job
    }
    return bool(runs) and (fact.suspicion.attempt, fact.suspicion.run) not in runs


def _lasts(incident: Incident, fact: Fact, limits: Thresholds) -> bool:
    """Whether a fact goes on with one state of the card, however slowly that gets worse.

    What was told for sure is told again after a while: by then somebody may have repaired it.
    """
    if fact.kind is not FactKind.HEALTH or incident.recovered_at is not None:
        return False
    limit = timedelta(seconds=limits.incident_limit_s)
    if incident.status is Status.LOCALIZED and fact.at > incident.last + limit:
        return False
    return any(f.kind is FactKind.HEALTH and f.cause is fact.cause for f in incident.facts)


def _add(incident: Incident, fact: Fact, limits: Thresholds) -> Incident:
    if any(known.ref.id == fact.ref.id and known.name == fact.name for known in incident.facts):
        return incident
    late = fact.old or (
        incident.judged_to is not None
        and fact.witness in (Witness.KERNEL, Witness.HEALTH)
        and fact.at < incident.judged_to - timedelta(seconds=limits.settle_s)
    )
    rest = incident.facts
    if fact.kind in (FactKind.XID, FactKind.UNKNOWN_CODE):
        if _stands_in(fact):
            if any(_one_event(fact, known, limits) for known in rest):
                return incident
        elif any(map(_stands_in, rest)):
            rest = tuple(
                known
                for known in rest
                if not (_stands_in(known) and _one_event(known, fact, limits))
            )
    facts, more = _with(rest, fact)
    repeat = not incident.explained and any(_tells_as_much(known, fact) for known in incident.facts)
    stall = fact.witness is Witness.COLLECTIVE
    return replace(
        incident,
        facts=facts,
        more=incident.more + more,
        first=incident.first if stall else min(incident.first, fact.at),
        last=incident.last if stall else max(incident.last, fact.at),
        late=incident.late + late,
        news=incident.news or not repeat,
    )


def _stands_in(fact: Fact) -> bool:
    """Whether a fact is an Xid that NVML told of, in place of the kernel's own line."""
    return fact.topic == "gpu" and fact.witness is Witness.KERNEL


def _one_event(stand_in: Fact, line: Fact, limits: Thresholds) -> bool:
    """Whether a kernel line is the text of an Xid that NVML told of; a lost number fits any."""
    if line.kind not in (FactKind.XID, FactKind.UNKNOWN_CODE) or _stands_in(line):
        return False
    near = abs(line.at - stand_in.at) <= timedelta(seconds=limits.settle_s)
    return near and stand_in.code in (None, line.code)


def _tells_as_much(known: Fact, fact: Fact) -> bool:
    """Whether a fact only repeats a known one: the hundredth line of a storm is no news."""
    return fact.kind is FactKind.XID and _TELLING(known) == _TELLING(fact)


_TELLING = attrgetter("name", "role", "hard", "link", "peer", "mig", "recovery", "caused_by")


def _with(facts: tuple[Fact, ...], fact: Fact) -> tuple[tuple[Fact, ...], int]:
    """The facts with one more, and how many were only counted for lack of room."""
    if len(facts) < FACTS_MAX:
        return tuple(sorted((*facts, fact), key=lambda one: one.order)), 0
    names = [known.name for known in facts]
    if fact.name in names:
        return facts, fact.count
    for number in range(len(facts) - 1, -1, -1):
        if names.count(names[number]) > 1:
            rest = facts[:number] + facts[number + 1 :]
            return tuple(sorted((*rest, fact), key=lambda one: one.order)), facts[number].count
    return facts, fact.count


def incident_id(incident: Incident, root: Fact) -> str:
    """The id of a new incident: its root record's, told apart where one record is several roots."""
    several = root.kind in (FactKind.HEALTH, FactKind.SERVICE) or _stands_in(root)
    if several or incident.subject in (NODE_LOST, NODE_SILENT):
        return digest(root.ref.id, incident.subject)
    return root.ref.id


# --- Forgetting -----------------------------------------------------------------------------------


def _forget(incidents: list[Incident], now: datetime, limits: Thresholds) -> list[Incident]:
    """Drop what has been quiet for a day; keep little of what has been quiet for an hour."""
    old = now - timedelta(seconds=limits.forget_after_s)
    quiet = now - timedelta(seconds=limits.incident_limit_s)
    kept = []
    for incident in incidents:
        heard = max(incident.last, incident.decided or incident.last)
        if heard < old and incident.recheck is None:
            continue
        kept.append(_shrunk(incident) if heard < quiet and incident.recheck is None else incident)
    kept.sort(key=lambda one: (one.last, one.subject))
    return kept[-INCIDENTS_MAX:]


_SHRUNK = 4


def _shrunk(incident: Incident) -> Incident:
    if len(incident.facts) <= _SHRUNK:
        return incident
    chosen = sorted(incident.facts, key=lambda fact: (-fact.rank, fact.order))[:_SHRUNK]
    facts = tuple(sorted(chosen, key=lambda one: one.order))
    dropped = len(incident.facts) - len(facts)
    return replace(incident, facts=facts, more=incident.more + dropped)
