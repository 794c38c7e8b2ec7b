"""What a judgement is made from, the host as it stands at that moment, and what it says."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from evidence.decisions import (
    Cause,
    Domain,
    DomainKind,
    EvidenceRef,
    Recovery,
    Says,
    Status,
    Testimony,
)
from evidence.records import GpuStatus
from rules.catalog import Role
from rules.gathering import hardware
from rules.health_flags import ECC
from rules.host_state import Fact, GpuName, HostState, Incident
from rules.tables import Rules
from rules.thresholds import Thresholds
from rules.widening import NODE_LOST, is_gpu, subject_gpus

__all__ = ["Culprit", "Judgement", "Scene", "gpu_domain", "node_domain", "witness"]


@dataclass(frozen=True, slots=True)
class Culprit:
    """An incident that can have victims: only facts of the roles ``reaches`` can be its doing."""

    incident: Incident
    root: Fact
    reaches: frozenset[Role]
    words: str


@dataclass(frozen=True, slots=True)
class Scene:
    """The host at the moment of judging; ``now`` is the arrival or tick that asked for it."""

    state: HostState
    rules: Rules
    now: datetime
    culprits: tuple[Culprit, ...] = ()

    @property
    def limits(self) -> Thresholds:
        """The thresholds in force."""
        return self.rules.thresholds

    def others(self, incident: Incident) -> list[Incident]:
        """The other incidents of the host."""
        return [other for other in self.state.incidents if other is not incident]

    def lasts(self, subject: str, since: datetime) -> bool:
        """Whether the part was seen to be out of order after ``since``; silence is no sight."""
        frames = self.state.frames_at
        late = timedelta(seconds=self.limits.seen_every_s)
        return frames is not None and frames >= since - late and self.still_bad(subject)

    def still_bad(self, subject: str) -> bool:
        """Whether the part was out of order when NVML was last read."""
        if subject == NODE_LOST:
            gpus = subject_gpus(self.state)
            return bool(gpus) and all(self.still_bad(gpu) for gpu in gpus)
        if not is_gpu(subject):
            return subject == "node:service" and self.state.nvml_error is not None
        health = self.state.health.get(subject)
        if health is None:
            return False
        return health.status is not GpuStatus.OK or any(
            fact.hard is not None for fact in health.standing
        )

    def read_lately(self, subject: str) -> bool:
        """Whether NVML was read so lately that it speaks of the present."""
        health = self.state.health.get(subject)
        times = (self.state.frames_at, None if health is None else health.seen_at)
        last = max((at for at in times if at is not None), default=None)
        old = timedelta(seconds=self.limits.old_news_s + self.state.behind_s)
        return last is not None and self.now - last <= old

    def still_stands(self, subject: str, cause: Cause) -> bool:
        """Whether a reading of the present shows the fault; mere counts do not."""
        if not self.read_lately(subject):
            return False
        health = self.state.health.get(subject)
        if health is None or health.status is not GpuStatus.OK:
            return self.still_bad(subject)
        return any(
            fact.hard is not None
            or fact.crossing
            or (hardware(fact) and fact.cause is cause and fact.name != ECC)
            for fact in health.standing
        )

    def well_since(self, subject: str, event: datetime) -> bool:
        """Whether the GPU was read after ``event`` and nothing but old counts stands against it."""
        health = self.state.health.get(subject)
        if health is None or health.seen_at is None or health.seen_at <= event:
            return False
        return health.status is GpuStatus.OK and not any(
            not fact.name.startswith("ecc-") for fact in health.standing if hardware(fact)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What there is to say about one incident; ``root`` gives it its id and its time.

    ``rule`` is what made it sure, where the judge knows better than its facts tell, ``muted`` why
    nothing is to be done about it.
    """

    root: Fact
    status: Status
    cause: Cause
    domain: Domain
    confidence: float
    reason: str
    recovery: Recovery = Recovery.NONE
    hard: bool = False
    testimony: tuple[Testimony, ...] = ()
    missing: tuple[str, ...] = ()
    victims: tuple[Domain, ...] = ()
    victim_of: str | None = None
    explained_by: str | None = None
    job: str | None = None
    refs: tuple[EvidenceRef, ...] = field(default=())
    recheck: datetime | None = None
    rule: str = ""
    muted: str | None = None


def gpu_domain(state: HostState, subject: str, *, rank: int | None = None) -> Domain:
    """The GPU with every name known for it."""
    name = state.names.get(subject) or GpuName()
    health = state.health.get(subject)
    uuid = name.uuid or (health.uuid if health else None)
    index = name.index
    if index is None and health is not None and health.index != -1:
        index = health.index  # -1: the text that was read did not tell it
    if subject.startswith("index-"):
        index = int(subject.removeprefix("index-"))
    return Domain(
        kind=DomainKind.GPU,
        host=state.host,
        pci=subject if ":" in subject else None,
        uuid=uuid,
        serial=name.serial or (health.serial if health else None),
        index=index,
        rank=rank,
        rack=state.rack,
    )


def node_domain(state: HostState, **part: object) -> Domain:
    """The node, with the part of it that failed where one is named."""
    return Domain(kind=DomainKind.NODE, host=state.host, rack=state.rack, **part)  # type: ignore[arg-type]


def witness(fact: Fact, weight: float | None = None) -> Testimony:
    """A single fact as the testimony of its witness."""
    return Testimony(
        witness=fact.witness,
        says=Says.ACCUSES,
        weight=round(fact.weight if weight is None else weight, 3),
        words=fact.words,
    )
