"""The three witnesses about one GPU, kernel log, health, collective: accuse, clear, or blind.

Blind is not clean: a witness clears only when it was heard after the event and had nothing to say.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from evidence.decisions import EvidenceRef, Says, Status, Testimony, Witness
from evidence.records import GpuStatus
from rules.catalog import Role
from rules.gathering import hardware, root_of
from rules.health_flags import ECC
from rules.host_state import Fact, FactKind, GpuHealth, HostState
from rules.thresholds import Thresholds

__all__ = ["SPOKEN", "Hearing", "hear", "listed", "weighed"]

_SOFTWARE = frozenset({Role.APPLICATION, Role.CONSEQUENCE})
#: What the witnesses are called in a sentence.
SPOKEN = {
    Witness.KERNEL: "kernel",
    Witness.HEALTH: "NVML",
    Witness.COLLECTIVE: "collective",
    Witness.FABRIC: "fabric",
}
_MISSING = {
    Witness.KERNEL: "kernel log of the host",
    Witness.HEALTH: "NVML snapshots of the GPU after the event",
    Witness.COLLECTIVE: "NCCL or PyTorch log of the job on it",
}


@dataclass(frozen=True, slots=True)
class Hearing:
    """What all witnesses said about one GPU, and the records on which silence rests."""

    kernel: Testimony
    health: Testimony
    collective: Testimony
    refs: tuple[EvidenceRef, ...] = field(default=())

    @property
    def testimony(self) -> tuple[Testimony, ...]:
        """All answers, kernel first."""
        return (self.kernel, self.health, self.collective)

    @property
    def accusers(self) -> tuple[Testimony, ...]:
        """Those that accuse."""
        return tuple(one for one in self.testimony if one.says is Says.ACCUSES)

    @property
    def anyone_clears(self) -> bool:
        """Whether a witness that was heard says that the GPU is well."""
        return any(one.says is Says.CLEARS for one in self.testimony)

    @property
    def missing(self) -> tuple[str, ...]:
        """What would have to be read for the blind to see."""
        return tuple(_MISSING[one.witness] for one in self.testimony if one.says is Says.BLIND)


def hear(
    subject: str,
    facts: Sequence[Fact],
    state: HostState,
    event: datetime,
    limits: Thresholds,
    *,
    repeats: str = "",
) -> Hearing:
    """Question the three witnesses about the GPU ``subject`` and an event at ``event``.

    ``repeats`` are words for application errors that repeat across users: the kernel log then
    accuses where it would have cleared.
    """
    kernel, kernel_ref = _kernel(facts, state, event, limits, repeats)
    health, health_refs = _health(subject, facts, state, event, limits)
    refs = (*((kernel_ref,) if kernel_ref else ()), *health_refs)
    return Hearing(kernel, health, _collective(facts), refs)


def listed(facts: Iterable[Fact]) -> str:
    """Facts in words, equal ones counted: ``Xid 48 (...), Xid 94 (...) 9 times``."""
    counts: Counter[str] = Counter()
    for fact in facts:
        counts[fact.words] += fact.count
    return ", ".join(f"{words} {n} times" if n > 1 else words for words, n in counts.items())


def weighed(testimony: Iterable[Testimony]) -> str:
    """Who says what and how much it weighs: ``kernel accuses (0.80), NVML is blind``."""
    return ", ".join(
        f"{SPOKEN[one.witness]} is blind"
        if one.says is Says.BLIND
        else f"{SPOKEN[one.witness]} {one.says} ({one.weight:.2f})"
        for one in testimony
    )


def _kernel(
    facts: Sequence[Fact], state: HostState, event: datetime, limits: Thresholds, repeats: str
) -> tuple[Testimony, EvidenceRef | None]:
    said = [f for f in facts if f.witness is Witness.KERNEL and f.kind is not FactKind.RECOVERED]
    accusing = [fact for fact in said if hardware(fact)]
    if accusing:
        root = root_of(accusing)
        others = _others(root, said)
        words = root.words + (f", with {others}" if others else "")
        weight = max(fact.weight for fact in accusing)
        return _says(Witness.KERNEL, Says.ACCUSES, words, weight), None
    if repeats:
        return _says(Witness.KERNEL, Says.ACCUSES, repeats, _REPEATS_WEIGHT), None
    if said:
        words = f"only what applications cause: {listed(said)}"
        return _says(Witness.KERNEL, Says.CLEARS, words, 0.5), None
    fresh = timedelta(seconds=limits.kernel_fresh_s)
    heard = state.kernel_seen_at
    if heard is None or event - heard > fresh:
        return _says(Witness.KERNEL, Says.BLIND, "no kernel log of this host was read"), None
    if state.overrun_at is not None and abs(state.overrun_at - event) < fresh:
        return _says(Witness.KERNEL, Says.BLIND, "the kernel log lost lines about then"), None
    words = "the kernel log names no fault of this GPU"
    return _says(Witness.KERNEL, Says.CLEARS, words, 0.3), state.kernel_seen


_REPEATS_WEIGHT = 0.4


def _others(root: Fact, said: Sequence[Fact]) -> str:
    codes: Counter[str] = Counter()
    for fact in said:
        if fact is not root:
            codes[f"Xid {fact.code}" if fact.kind is FactKind.XID else fact.words] += fact.count
    return ", ".join(f"{name} ({n} times)" if n > 1 else name for name, n in codes.items())


def _health(
    subject: str, facts: Sequence[Fact], state: HostState, event: datetime, limits: Thresholds
) -> tuple[Testimony, tuple[EvidenceRef, ...]]:
    health = state.health.get(subject)
    told = {f.name: f for f in facts if f.witness is Witness.HEALTH and hardware(f)}
    until = max((fact.at for fact in facts), default=event)
    until += timedelta(seconds=limits.incident_window_s)
    standing = {} if health is None else _standing(health, event, until, limits)
    accusing = list((standing | told).values())
    first = () if health is None or health.first is None else (health.first,)
    if accusing:
        if "ecc-growth" in told or "ecc-growth" in standing:
            accusing = [fact for fact in accusing if fact.name != "ecc-uncorrectable"]
        weight = max(fact.weight for fact in accusing)
        words = "; ".join(fact.words for fact in accusing)
        refs = tuple(fact.ref for fact in standing.values())
        return _says(Witness.HEALTH, Says.ACCUSES, words, weight), (*first, *refs)
    if health is None:
        return _says(Witness.HEALTH, Says.BLIND, "NVML was not read on this GPU"), ()
    seen = health.seen_at
    if health.status is not GpuStatus.OK:
        return _says(Witness.HEALTH, Says.BLIND, f"NVML answers {health.status}"), first
    if seen is None or seen < event + timedelta(seconds=limits.health_lag_s):
        return _says(Witness.HEALTH, Says.BLIND, "NVML was not read since the event"), ()
    refs = (*first, health.seen) if health.seen is not None else first
    words = f"NVML read the GPU without a fault at {seen:%H:%M:%S} UTC"
    return _says(Witness.HEALTH, Says.CLEARS, words, 0.5), refs


def _standing(
    health: GpuHealth, event: datetime, until: datetime, limits: Thresholds
) -> dict[str, Fact]:
    """What stood against the GPU then; errors that were counted long before are history."""
    long_ago = event - timedelta(seconds=limits.forget_after_s)
    grown = health.grown_at is None or health.grown_at >= long_ago
    return {
        fact.name: fact
        for fact in health.standing
        if fact.at <= until and (grown or fact.name != ECC)
    }


def _collective(facts: Sequence[Fact]) -> Testimony:
    said = [fact for fact in facts if fact.kind is FactKind.COLLECTIVE and fact.suspicion]
    if not said:
        return _says(Witness.COLLECTIVE, Says.BLIND, "no job on it was heard to stall")
    last = max(said, key=lambda fact: (fact.suspicion.observed_at, fact.order))  # type: ignore[union-attr]
    suspicion = last.suspicion
    assert suspicion is not None
    if suspicion.status in (Status.VICTIM, Status.SOFTWARE) or suspicion.says is Says.CLEARS:
        return _says(Witness.COLLECTIVE, Says.CLEARS, suspicion.reason, suspicion.weight or 0.3)
    if suspicion.status is Status.INSUFFICIENT or suspicion.says is Says.BLIND:
        return _says(Witness.COLLECTIVE, Says.BLIND, suspicion.reason)
    return _says(Witness.COLLECTIVE, Says.ACCUSES, suspicion.reason, last.weight)


def _says(witness: Witness, says: Says, words: str, weight: float = 0.0) -> Testimony:
    return Testimony(witness=witness, says=says, weight=round(weight, 3), words=words[:400])
