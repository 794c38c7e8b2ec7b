"""What NVML snapshots say: compared with the last health of each GPU, only a change is a fact.

A node at rest costs a dozen comparisons a GPU and writes nothing; counters are judged by their
growth since first sight, never by their value.
"""

from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from evidence.decisions import Cause, EvidenceRef, Recovery, Witness
from evidence.records import GpuFrame, GpuSnapshot, GpuStatus, GpuTick
from rules.age import CLOCK_WAS_SET, aged, with_clock
from rules.cards import find_slot, is_other_card, known_card, moved_card, put_cards
from rules.degraded import seldom, sightings
from rules.health_flags import ECC, FLAGS, ODD_FLAGS, OVER, STATUS, words_of_growth
from rules.heat import heated
from rules.host_state import Fact, FactKind, GpuHealth, GpuName, HostState
from rules.nvml_events import event_fact
from rules.readings import RAW, as_before, believed, grown, or_last, to_be_noted
from rules.stage import reckonable
from rules.tables import Rules
from rules.thresholds import Thresholds
from rules.widening import NODE_LOST

__all__ = ["observe"]

#: NVML codes that are about the driver or the container, not about one card.
#: Source: nvml.h: 4 no permission, 9 driver not loaded, 12 no library, 17 operating system,
#: 18 library and driver of different versions.
_SERVICE_CODES = frozenset({4, 9, 12, 17, 18})
_CORRUPTED_INFOROM = 14
_UNKNOWN_ERROR = 999
_NO_CHANGE: dict[str, GpuHealth] = {}
#: After frames were noted, those of so long are searched for what is degraded: an agent reads what
#: changes slowly every ten seconds, and a node that is well costs next to nothing in between.
_LOOK = timedelta(seconds=15)


def observe(
    state: HostState, frame: GpuFrame, arrived: datetime, rules: Rules
) -> tuple[HostState, list[Fact], set[str]]:
    """Take one frame: the new state (the same object when nothing changed), facts, GPUs read anew.

    The last are GPUs whose health somebody waited for, so that their incidents are judged again.
    """
    limits = rules.thresholds
    state = _swapped(state, frame)
    known, error = state.health, state.nvml_error
    facts: list[Fact] = []
    awaited: set[str] = set()
    now = min(reckonable(frame.ticks[-1].at if frame.ticks else arrived), arrived)
    state = with_clock(state, now, arrived)
    stale = to_be_noted(state.frames_at, now, frame.host, limits.seen_every_s)
    seldom_read = seldom(frame) if stale or _just_noted(state.frames_at, now) else None
    newest = _newest(frame) if stale else None
    for tick in frame.ticks:
        # When a GPU was last seen stands in the newest tick; the others say only what changed.
        noting = tick is newest
        if tick.events:
            facts += _events(state, frame, tick, arrived, rules)
        if tick.error != error and not _events_alone(tick):
            error = tick.error
            told = _service(frame, tick, arrived, limits)
            facts.append(aged(told, told.at, state.behind_s, limits))
        odd = sightings(tick, known, arrived, limits) if tick is seldom_read else _NO_CHANGE
        for gpu in tick.gpus:
            key = gpu.pci or find_slot(state, gpu.uuid, gpu.index) or f"index-{gpu.index}"
            health = known.get(key)
            if (
                health is not None
                and not noting
                and not (odd and key in odd)
                and as_before(gpu, health, tick.at, limits)
            ):
                continue
            reading = _Reading(frame, tick, gpu, key, arrived, rules, stale=noting)
            reading.behind_s = state.behind_s
            last = odd.get(key) or health or moved_card(state, gpu.uuid)
            new = reading.take(last, fresh=health is None)
            if new != health:
                known = dict(known) if known is state.health else known
                known[key] = new
                facts += reading.facts
                if health is None or (health.wanted_at is not None and new.wanted_at is None):
                    awaited.add(key)
    if stale:
        state = replace(state, health=known, nvml_error=error, frames_at=now)
        return state, facts, awaited | _out_of_order(state)
    if known is not state.health or error != state.nvml_error:
        state = replace(state, health=known, nvml_error=error)
    return state, facts, awaited


def _just_noted(noted: datetime | None, now: datetime) -> bool:
    return noted is None or now - noted <= _LOOK


def _events(
    state: HostState, frame: GpuFrame, tick: GpuTick, arrived: datetime, rules: Rules
) -> list[Fact]:
    told = [event_fact(frame, event, arrived, state, rules) for event in tick.events]
    return [fact for fact in told if fact is not None]


def _newest(frame: GpuFrame) -> GpuTick | None:
    return next((tick for tick in reversed(frame.ticks) if tick.gpus), None)


def _events_alone(tick: GpuTick) -> bool:
    """Whether a tick tells events only: nothing about how NVML answers."""
    return bool(tick.events) and not tick.gpus and tick.error is None


def _swapped(state: HostState, frame: GpuFrame) -> HostState:
    """The state after the cards that the last tick shows in the slots of others moved in."""
    others = {}
    for gpu in frame.ticks[-1].gpus if frame.ticks else ():
        health = state.health.get(gpu.pci or "")
        if gpu.pci is None or (not state.names and health is not None and health.uuid == gpu.uuid):
            continue  # nearly all: nothing to be asked
        if is_other_card(known_card(state, gpu.pci), gpu.uuid):
            others[gpu.pci] = GpuName(uuid=gpu.uuid, serial=gpu.serial, index=gpu.index)
    return put_cards(state, others) if others else state


def _out_of_order(state: HostState) -> set[str]:
    """Parts that stay bad: whether that lasts is asked again as often as frames are noted."""
    bad = {pci for pci, health in state.health.items() if health.status is not GpuStatus.OK}
    if bad:
        bad.add(NODE_LOST)
    return bad | {"node:service"} if state.nvml_error is not None else bad


def _ref(frame: GpuFrame, at: datetime, text: str) -> EvidenceRef:
    return EvidenceRef(
        id=frame.id, source="gpu", at=at, host=frame.host, file=frame.file, text=text
    )


def _service(frame: GpuFrame, tick: GpuTick, arrived: datetime, limits: Thresholds) -> Fact:
    kind, words = FactKind.RECOVERED, "NVML answers again"
    if tick.error is not None:
        detail = f", {tick.error_text}" if tick.error_text else ""
        kind = FactKind.SERVICE
        words = f"NVML does not answer on the whole node (code {tick.error}{detail})"
    at = min(reckonable(tick.at), arrived)
    return Fact(
        ref=_ref(frame, at, words),
        name=f"nvml-{tick.error}",
        kind=kind,
        witness=Witness.HEALTH,
        subject="node:service",
        topic="gpu",
        at=at,
        arrived=arrived,
        due=arrived + timedelta(seconds=limits.settle_s),
        words=words,
        seq=frame.seq,
        rank=37,
        weight=0.3,
        cause=Cause.NODE,
        recovery=Recovery.RESTART_SERVICE,
    )


class _Reading:
    """One snapshot of one GPU against its last health; `take` gives the new one and fills facts."""

    def __init__(
        self,
        frame: GpuFrame,
        tick: GpuTick,
        gpu: GpuSnapshot,
        key: str,
        arrived: datetime,
        rules: Rules,
        *,
        stale: bool,
    ) -> None:
        self._frame = frame
        self._gpu = gpu
        self._key = key
        self._arrived = arrived
        self._rules = rules
        self._limits = rules.thresholds
        self._at = min(reckonable(tick.at), arrived)
        self._stale = stale
        self.behind_s = 0.0
        self.facts: list[Fact] = []

    def take(self, last: GpuHealth | None, *, fresh: bool) -> GpuHealth:
        gpu = self._gpu
        if last is None or is_other_card(last.uuid, gpu.uuid):
            last, fresh = GpuHealth(first_at=self._at), True
        elif last.seen_at is not None and timedelta(0) < last.seen_at - self._at < CLOCK_WAS_SET:
            return last  # an older snapshot that came late undoes nothing
        if fresh:
            first = _ref(self._frame, self._at, self._words_of_counts())
            last = replace(last, first_at=self._at, first=first)
        if gpu.status is not GpuStatus.OK:
            return self._bad(last)
        return self._good(last)

    def _words_of_counts(self) -> str:
        gpu = self._gpu
        return (
            f"GPU {self._key} first seen: status {gpu.status}, uncorrectable ECC"
            f" volatile {gpu.ecc_volatile_uncorrected}, aggregate {gpu.ecc_aggregate_uncorrected}"
        )

    def _fact(self, name: str, words: str, **said: Any) -> Fact:  # noqa: ANN401 (Fact's fields)
        limits = self._limits
        if name in self._rules.policy.hard_facts:
            said.setdefault("hard", name)
            said.setdefault("at_once", True)
        fact = Fact(
            ref=_ref(self._frame, self._at, f"GPU {self._key}: {words}"),
            name=name,
            kind=said.pop("kind", FactKind.HEALTH),
            witness=Witness.HEALTH,
            subject=self._key,
            topic="gpu",
            at=self._at,
            arrived=self._arrived,
            due=self._arrived + timedelta(seconds=limits.settle_s),
            words=words,
            seq=self._frame.seq,
            **said,
        )
        fact = aged(fact, self._at, self.behind_s, limits)
        self.facts.append(fact)
        return fact

    # --- a GPU that does not answer properly --------------------------------------------------

    def _bad(self, last: GpuHealth) -> GpuHealth:
        gpu = self._gpu
        same = gpu.status is last.status and gpu.error == last.error
        since = last.bad_since if same and last.bad_since is not None else self._at
        told = same and last.bad_told
        kept = last.standing if same else tuple(f for f in last.standing if f.name not in STATUS)
        health = replace(
            last,
            uuid=last.uuid or gpu.uuid,
            serial=last.serial or gpu.serial,
            index=gpu.index,
            raw=RAW(gpu),
            status=gpu.status,
            error=gpu.error,
            bad_since=since,
            bad_told=told,
            standing=kept,
            hot_since=None,
            hot_told=False,
            hot_at=None,
            hot_due=None,
        )
        if told:
            return health
        fact, told = self._bad_fact(self._at - since, first=not same or last.bad_since is None)
        standing = (*kept, fact) if fact is not None else kept
        return replace(health, bad_told=told, standing=standing)

    def _bad_fact(self, lasted: timedelta, *, first: bool) -> tuple[Fact | None, bool]:
        """The fact due after a bad answer has lasted so long, and whether it is the last one."""
        status, limits = self._gpu.status, self._limits
        if status is GpuStatus.LOST:
            uncounted = self._gpu.error is None
            return self._fact(
                "gpu-lost",
                "NVML does not count the GPU any more"
                if uncounted
                else f"NVML says the GPU is lost (code {self._gpu.error})",
                rank=88,
                weight=0.95,
                cause=Cause.GPU_LOST,
                recovery=Recovery.REBOOT_NODE,
            ), True
        if status is GpuStatus.RESET_REQUIRED:
            return self._reset_required(lasted, first=first)
        if self._gpu.error in _SERVICE_CODES or lasted.total_seconds() < limits.unresponsive_s:
            return None, self._gpu.error in _SERVICE_CODES
        if status is GpuStatus.TIMEOUT:
            words = f"NVML calls have not returned for {lasted.total_seconds():.0f} s"
            return self._fact(
                "unresponsive",
                words,
                rank=49,
                weight=0.4,
                cause=Cause.GPU_FIRMWARE,
                recovery=Recovery.RESET_GPU,
            ), True
        unknown = self._gpu.error == _UNKNOWN_ERROR
        cause = Cause.GPU_LOST if unknown else Cause.UNKNOWN
        if self._gpu.error == _CORRUPTED_INFOROM:
            cause = Cause.GPU_FIRMWARE
        return self._fact(
            "nvml-error",
            f"NVML fails on it with code {self._gpu.error}",
            rank=48,
            weight=0.4 if unknown else 0.3,
            cause=cause,
            recovery=Recovery.DIAGNOSE,
        ), True

    def _reset_required(self, lasted: timedelta, *, first: bool) -> tuple[Fact | None, bool]:
        if lasted.total_seconds() >= self._limits.service_wait_s:
            minutes = self._limits.service_wait_s / 60
            return self._fact(
                "driver-reset-required",
                f"NVML has asked for a reset (code 16) for more than {minutes:.0f} minutes",
                rank=47,
                weight=0.9,
                cause=Cause.GPU_LOST,
                recovery=Recovery.RESET_GPU,
            ), True
        if not first:
            return None, False
        return self._fact(
            "reset-required",
            "NVML asks for a reset (code 16)",
            rank=47,
            weight=0.4,
            cause=Cause.GPU_LOST,
            recovery=Recovery.RESET_GPU,
        ), False

    # --- a GPU that answers -------------------------------------------------------------------

    def _good(self, last: GpuHealth) -> GpuHealth:
        gpu = self._gpu
        doubted: list[int] = []
        volatile = believed(gpu.ecc_volatile_uncorrected, last.volatile, last, doubted)
        aggregate = believed(gpu.ecc_aggregate_uncorrected, last.aggregate, last, doubted)
        growth_volatile = last.growth_volatile + grown(last.volatile, volatile)
        growth_aggregate = last.growth_aggregate
        if aggregate is not None and last.aggregate is not None:
            growth_aggregate += max(0, aggregate - last.aggregate)
        grew = growth_volatile > last.growth_volatile or growth_aggregate > last.growth_aggregate
        answered = last.wanted_at is not None and self._at >= last.wanted_at
        health = replace(
            last,
            uuid=gpu.uuid,
            serial=gpu.serial or last.serial,
            index=gpu.index,
            raw=RAW(gpu),
            status=gpu.status,
            error=None,
            volatile=volatile,
            aggregate=aggregate,
            doubted=tuple(doubted),
            # What could not be read (in MIG mode: not supported) is as it was when it could.
            sram=or_last(gpu.sram_threshold_exceeded, last.sram),
            pending=or_last(gpu.remap_pending, last.pending),
            failure=or_last(gpu.remap_failure, last.failure),
            retired_pending=or_last(gpu.retired_pending, last.retired_pending),
            recovery_action=or_last(gpu.recovery_action, last.recovery_action),
            growth_volatile=growth_volatile,
            growth_aggregate=growth_aggregate,
            grown_at=self._at if grew else last.grown_at,
            bad_since=None,
            bad_told=False,
            wanted_at=None if answered else last.wanted_at,
        )
        health = heated(gpu, health, self._at, self._arrived, self._limits)
        health = self._tell(health)
        if health == last and not self._stale:
            return last
        seen = _ref(self._frame, self._at, f"GPU {self._key} read; {words_of_growth(health)}")
        return replace(health, seen_at=self._at, seen=seen)

    def _tell(self, last: GpuHealth) -> GpuHealth:
        """Every fact that holds now: those told before as they were, new ones told anew."""
        before = {fact.name: fact for fact in last.standing}
        now: list[Fact] = []
        told = last.growth_told
        flags = FLAGS | ODD_FLAGS if last.odd else FLAGS
        for name, flag in flags.items():
            if not flag.holds(last, self._limits):
                continue
            known = before.get(name)
            counted = name in (ECC, OVER)
            if known is None or (counted and last.growth >= 2 * last.growth_told):
                known = self._fact(name, flag.words(last), **flag.said)
                told = last.growth if counted else told
            now.append(known)
        gone = sorted(before.keys() - {fact.name for fact in now} - {ECC, OVER})
        if gone and not any(fact.name not in (ECC, OVER) for fact in now):
            words = f"read well again: {', '.join(gone)} no longer holds"
            self._fact("recovered", words, kind=FactKind.RECOVERED)
        return replace(last, standing=tuple(now), growth_told=told)
