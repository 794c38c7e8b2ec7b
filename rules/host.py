"""The host stage: joins kernel log, NVML, suspicions and context of one host into verdicts.

Time comes from what arrives, never from a clock. A hard fact is judged at once; everything else
when it has settled, in the order of its event times and not of its arrival.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from evidence.decisions import DomainKind, EvidenceRef, Status, Suspicion, Verdict, Witness
from evidence.records import (
    ContextRecord,
    GpuFrame,
    InventoryRecord,
    KernelKind,
    KernelRecord,
    Tick,
)
from rules.cards import put_cards
from rules.context import take_context
from rules.gathering import gather
from rules.health import observe
from rules.heat import next_heat, overheated
from rules.host_state import Fact, FactKind, GpuName, HostState
from rules.kernel_facts import kernel_facts, kernel_ref
from rules.repeats import remember
from rules.silence import heard, look
from rules.stage import Arrived, reckonable
from rules.tables import Rules
from rules.telling import judge_open
from rules.verdict_growth import GROWTH
from rules.widening import NODE_SILENT, in_company

__all__ = ["HostState", "due", "settles", "step"]

#: Facts that wait on one host; of a storm of one code only the first are kept, the rest counted.
#: A first fact of its kind finds room up to the larger bound.
_PENDING_MAX = 128
_KINDS_MAX = 512
_SAME_MAX = 12
_BOOTS_MAX = 8
_DAY = timedelta(days=1)


def due(state: HostState) -> datetime | None:
    """The earliest time at which a Tick would do something; None when nothing waits."""
    times = (settles(state), state.silent_at)
    return min((at for at in times if at is not None), default=None)


def settles(state: HostState) -> datetime | None:
    """When what was told is judged next, the host's own silence left out; None while nothing is.

    For whoever reads logs that end: their end is no silence.
    """
    times = [fact.due for fact in state.pending]
    times += [incident.recheck for incident in state.incidents if incident.recheck is not None]
    if (heat := next_heat(state)) is not None:
        times.append(heat)
    return min(times, default=None)


def step(state: HostState, arrived: Arrived, rules: Rules) -> tuple[HostState, list[Verdict]]:
    """Take one record of a host.

    Returns the state, the same object when nothing worth writing changed, and the verdicts that
    are new or changed. A record whose offset was applied already changes nothing.
    """
    if arrived.offset is not None and arrived.offset <= state.offsets.get(arrived.topic, -1):
        return state, []
    before = state
    state, verdicts = _settle(state, arrived.at, rules)
    take = _TAKES.get(type(arrived.record))
    if take is not None:
        state, facts, again = take(state, arrived, rules)
        if facts or again:
            state, more = _weigh_in(state, facts, again, arrived.at, rules)
            verdicts += more
    if state is not before and arrived.offset is not None:
        state = replace(state, offsets={**state.offsets, arrived.topic: arrived.offset})
    return state, verdicts


# --- Settling -------------------------------------------------------------------------------------


def _settle(state: HostState, now: datetime, rules: Rules) -> tuple[HostState, list[Verdict]]:
    """Judge what has waited long enough, with what has waited half as long, part by part.

    So the lines of one event, which arrive within a fraction of a second, are judged together, and
    all that came about one part within the settling time is, whatever its order.
    """
    if not state.pending and not state.incidents:
        return state, []
    half = timedelta(seconds=rules.thresholds.settle_s / 2)
    ready: list[Fact] = []
    if any(fact.due <= now for fact in state.pending):
        settled = {fact.subject for fact in state.pending if fact.due - half <= now}
        ready = [fact for fact in state.pending if fact.subject in settled]
    waiting = any(i.recheck is not None and i.recheck <= now for i in state.incidents)
    if not ready and not waiting:
        return state, []
    if ready:
        pending = tuple(fact for fact in state.pending if fact.subject not in settled)
        state = replace(state, pending=pending)
    return _judge(state, ready, frozenset(), now, rules)


def _weigh_in(
    state: HostState, facts: list[Fact], again: frozenset[str], now: datetime, rules: Rules
) -> tuple[HostState, list[Verdict]]:
    """New facts: hard ones are judged now, with all that waits about the same part or a port."""
    together = in_company(state, facts, rules.thresholds)
    at_once = {fact.subject for fact in facts if fact.at_once} - together
    if not at_once:
        if facts:
            state = replace(state, pending=_waiting(state.pending, facts))
        return _judge(state, [], again, now, rules) if again else (state, [])
    everything = _waiting(state.pending, facts)
    ready = [f for f in everything if f.subject in at_once or f.kind is FactKind.PORT]
    pending = tuple(
        f for f in everything if f.subject not in at_once and f.kind is not FactKind.PORT
    )
    return _judge(replace(state, pending=pending), ready, again, now, rules)


def _waiting(pending: tuple[Fact, ...], facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """The waiting facts with new ones; a storm keeps its first and counts the rest."""
    kept = list(pending)
    for fact in facts:
        same = [
            known for known in kept if known.subject == fact.subject and known.name == fact.name
        ]
        if any(known.ref.id == fact.ref.id for known in same):
            continue
        room = _PENDING_MAX if same else _KINDS_MAX
        if fact.at_once or (len(same) < _SAME_MAX and len(kept) < room):
            kept.append(fact)
            continue
        if not same:
            continue  # the bound of all kinds: hundreds of kinds in two seconds carry no more
        last = max(same, key=lambda one: one.order)
        first, counted = (fact, last) if fact.order < last.order else (last, fact)
        kept[kept.index(last)] = replace(first, count=first.count + counted.count, due=last.due)
    return tuple(kept)


def _judge(
    state: HostState, ready: list[Fact], again: frozenset[str], now: datetime, rules: Rules
) -> tuple[HostState, list[Verdict]]:
    known = len(state.link_errors)
    state = remember(state, ready, rules)
    if any(fact.suspicion is not None for fact in ready):
        again |= _SILENT  # another witness may speak of a host that is silent
    if len(state.link_errors) != known:  # the same words again, but now it is a repeat
        again |= {error.pci for error in state.link_errors}
    before = state.incidents
    state = gather(state, ready, now, rules.thresholds)
    return judge_open(state, before, again, now, rules)


# --- What each record brings ----------------------------------------------------------------------

_Brought = tuple[HostState, list[Fact], frozenset[str]]
_NOTHING: frozenset[str] = frozenset()
#: Judge every open incident again.
_ALL = frozenset({"*"})
_SILENT = frozenset({NODE_SILENT})


def _kernel(state: HostState, arrived: Arrived, rules: Rules) -> _Brought:
    record = arrived.record
    assert isinstance(record, KernelRecord)
    at = arrived.at if record.at is None else min(reckonable(record.at), arrived.at)
    every = timedelta(seconds=rules.thresholds.seen_every_s)
    if state.kernel_seen_at is None or at - state.kernel_seen_at >= every:
        state = replace(
            state,
            host=state.host or record.host,
            kernel_seen_at=at,
            kernel_seen=kernel_ref(record),
        )
    state, again = heard(state, arrived.at, rules.thresholds)
    if record.kind is KernelKind.OVERRUN:
        return replace(state, overrun_at=at), [], again
    if record.kind is KernelKind.NVRM and record.pci and (record.uuid or record.serial):
        state = _name(state, record.pci, uuid=record.uuid, serial=record.serial)
    facts = kernel_facts(record, state, arrived.at, rules)
    if facts and state.host is None and record.host is not None:
        state = replace(state, host=record.host)
    return state, facts, again


def _name(state: HostState, pci: str, *, uuid: str | None, serial: str | None) -> HostState:
    """Take a name from the driver's banner, unless NVML has told: a log may be an old one."""
    if state.inventory is not None or pci in state.health:
        return state
    return put_cards(state, {pci: GpuName(uuid=uuid, serial=serial)})


def _gpu(state: HostState, arrived: Arrived, rules: Rules) -> _Brought:
    frame = arrived.record
    assert isinstance(frame, GpuFrame)
    known = state
    state, facts, awaited = observe(state, frame, arrived.at, rules)
    if state.host is None or (frame.driver is not None and frame.driver != state.driver):
        state = replace(state, host=frame.host, driver=frame.driver or known.driver)
    state, boots = _boot(state, frame.boot_id, _ref(frame, "gpu", "node started"), arrived, rules)
    noted = state.frames_at is not known.frames_at
    state, again = heard(state, arrived.at, rules.thresholds, noted=noted)
    return state, facts + boots, again.union(awaited)


def _inventory(state: HostState, arrived: Arrived, rules: Rules) -> _Brought:
    record = arrived.record
    assert isinstance(record, InventoryRecord)
    state, again = heard(state, arrived.at, rules.thresholds)
    names = {
        gpu.pci: GpuName(uuid=gpu.uuid, serial=gpu.serial, index=gpu.index) for gpu in record.gpus
    }
    text = f"{len(names)} GPUs, driver {record.driver}"
    learned = replace(
        put_cards(state, names),
        host=record.host,
        driver=record.driver or state.driver,
        rack=record.rack,
        leaf=record.leaf,
        pool=record.pool,
        nvlink_domain=record.nvlink_domain,
        adapters=len(record.hcas),
        behind_s=max(0, -(record.clock_skew_ms or 0)) / 1000,
        names=names or state.names,
        inventory=_ref(record, "inventory", text),
    )
    learned, boots = _boot(
        learned, record.boot_id, _ref(record, "inventory", "node started"), arrived, rules
    )
    same = replace(learned, inventory=state.inventory) == state
    return (state, boots, again) if same else (learned, boots, _ALL)


def _ref(record: GpuFrame | InventoryRecord, source: str, text: str) -> EvidenceRef:
    return EvidenceRef(
        id=record.id, source=source, at=record.observed_at, host=record.host, text=text
    )


def _boot(
    state: HostState, boot_id: str | None, ref: EvidenceRef, arrived: Arrived, rules: Rules
) -> tuple[HostState, list[Fact]]:
    """Count the boots of a day; kernel records are not asked, since a log may hold old boots."""
    if boot_id is None or boot_id == state.boot_id:
        return state, []
    if state.boot_id is None:
        return replace(state, boot_id=boot_id), []
    now = arrived.at
    boots = (*[at for at in state.boots if now - at < _DAY][1 - _BOOTS_MAX :], now)
    state = replace(state, boot_id=boot_id, boots=boots)
    if len(boots) < rules.thresholds.boots_in_a_day:
        return state, []
    fact = Fact(
        ref=ref,
        name="boots",
        kind=FactKind.HOST,
        witness=Witness.HEALTH,
        subject="node:boots",
        topic=arrived.topic,
        at=now,
        arrived=now,
        due=now + timedelta(seconds=rules.thresholds.settle_s),
        words=f"started {len(boots)} times within a day",
        rank=36,
        weight=0.4,
    )
    return state, [fact]


def _context(state: HostState, arrived: Arrived, rules: Rules) -> _Brought:
    record = arrived.record
    assert isinstance(record, ContextRecord)
    state = take_context(state, record, arrived.at, rules.thresholds)
    return replace(state, host=state.host or record.host), [], _ALL


def _suspicion(state: HostState, arrived: Arrived, rules: Rules) -> _Brought:
    said = arrived.record
    assert isinstance(said, Suspicion)
    kind = _KINDS.get(said.witness, FactKind.COLLECTIVE)
    if kind is not FactKind.COLLECTIVE and said.status is Status.RECOVERED:
        kind = FactKind.RECOVERED
    fact = Fact(
        ref=EvidenceRef(
            id=said.id, source="suspicions", at=said.at, host=said.host, text=said.reason[:200]
        ),
        name=f"{said.witness}-{said.kind}",
        kind=kind,
        witness=said.witness,
        subject=_subject_of(said, state),
        topic="suspicions",
        at=min(reckonable(said.at), arrived.at),
        arrived=arrived.at,
        due=arrived.at + timedelta(seconds=rules.thresholds.settle_s),
        words=said.reason or said.kind,
        rank=20,
        weight=said.weight or 0.3,
        cause=said.cause,
        suspicion=said,
    )
    return replace(state, host=state.host or said.host or said.domain.host), [fact], _NOTHING


#: What a suspicion is evidence of, where it is not a job's: the analysis of the history speaks for
#: the health of a card.
_KINDS: Mapping[Witness, FactKind] = {
    Witness.FABRIC: FactKind.FABRIC,
    Witness.HEALTH: FactKind.HEALTH,
}


def _tick(state: HostState, arrived: Arrived, rules: Rules) -> _Brought:
    """What time alone brings: a card that is hot too long by now, a host that fell silent."""
    state, facts = overheated(state, arrived.at, rules)
    state, silent = look(state, arrived.at, rules.thresholds)
    return state, facts + silent, _NOTHING


def _subject_of(said: Suspicion, state: HostState) -> str:
    domain = said.domain
    if said.witness is Witness.HEALTH:
        return f"{GROWTH}:{_pci_of(said, state) or domain.uuid or domain.id}"
    job = f"{said.job or domain.job}/{said.attempt}" + (f".{said.run}" if said.run else "")
    match domain.kind:
        case DomainKind.GPU | DomainKind.MIG | DomainKind.NVLINK:
            return _pci_of(said, state) or f"rank:{job}/{domain.rank}"
        case DomainKind.NODE:
            return "node:"
        case DomainKind.JOB:
            return f"job:{job}"
        case _:
            return f"link:{domain.id}"


def _pci_of(said: Suspicion, state: HostState) -> str | None:
    domain = said.domain
    if domain.pci is not None:
        return domain.pci
    for pci, name in state.names.items():
        by_uuid = domain.uuid is not None and name.uuid == domain.uuid
        if by_uuid or (
            domain.uuid is None and domain.index is not None and name.index == domain.index
        ):
            return pci
    for pci, health in state.health.items():
        by_uuid = domain.uuid is not None and health.uuid == domain.uuid
        if by_uuid or (
            domain.uuid is None and domain.index is not None and health.index == domain.index
        ):
            return pci
    return None


_TAKES: Mapping[type[Struct], Callable[[HostState, Arrived, Rules], _Brought]] = {
    KernelRecord: _kernel,
    GpuFrame: _gpu,
    InventoryRecord: _inventory,
    ContextRecord: _context,
    Suspicion: _suspicion,
    Tick: _tick,
}
