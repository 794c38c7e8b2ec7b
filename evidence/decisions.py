"""What the rules conclude and what follows: suspicions, verdicts, commands, holds and acks."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from evidence.records.kernel import Mig
from evidence.records.wire import OpenEnum, Wire

__all__ = [
    "Ack",
    "AckStatus",
    "Action",
    "Cause",
    "Command",
    "DeadLetter",
    "DesiredState",
    "Domain",
    "DomainKind",
    "EvidenceRef",
    "Hold",
    "Level",
    "Recovery",
    "Request",
    "RequestAction",
    "Says",
    "Status",
    "Suspicion",
    "Testimony",
    "Verdict",
    "Witness",
]


class DomainKind(StrEnum):
    """Fault domains, smallest first."""

    MIG = "mig"
    GPU = "gpu"
    NVLINK = "nvlink"
    NODE = "node"
    LINK = "link"
    SWITCH = "switch"
    RACK = "rack"
    JOB = "job"


class Domain(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part that can be at fault, with every name it is known by.

    ``JOB`` is no part: it is where a `software` or `insufficient` verdict about a whole job hangs.
    ``link`` is an NVLink number; a network link is (``switch`` GUID, ``port``).
    """

    kind: DomainKind
    host: str | None = None
    pci: str | None = None
    uuid: str | None = None
    serial: str | None = None
    index: int | None = None
    mig: Mig | None = None
    rank: int | None = None
    link: int | None = None
    switch: str | None = None
    port: int | None = None
    rack: str | None = None
    job: str | None = None

    @property
    def id(self) -> str:  # noqa: PLR0911 (one return a kind)
        """The domain's name by place: ``gpu:host/0000:3b:00``; stays when the UUID is learned."""
        match self.kind:
            case DomainKind.MIG:
                gi = None if self.mig is None else self.mig.gi
                return f"mig:{self.host}/{self.pci}/{gi}"
            case DomainKind.GPU:
                return f"gpu:{self.host}/{self.pci or self.uuid or self.index}"
            case DomainKind.NVLINK:
                return f"nvlink:{self.host}/{self.pci}/{self.link}"
            case DomainKind.NODE:
                return f"node:{self.host}"
            case DomainKind.LINK:
                return f"link:{self.switch or self.host}/{self.port}"
            case DomainKind.SWITCH:
                return f"switch:{self.switch}"
            case DomainKind.RACK:
                return f"rack:{self.rack}"
            case DomainKind.JOB:
                return f"job:{self.job}"


class Cause(OpenEnum):
    """What is wrong, in the words of operators."""

    GPU_MEMORY = "gpu-memory"
    GPU_LOST = "gpu-lost"
    GPU_FIRMWARE = "gpu-firmware"
    GPU_THERMAL = "gpu-thermal"
    GPU_POWER = "gpu-power"
    GPU_COMPUTE = "gpu-compute"
    GPU_DEGRADED = "gpu-degraded"
    NVLINK = "nvlink"
    NVSWITCH = "nvswitch"
    PCIE = "pcie"
    IB_LINK = "ib-link"
    IB_SWITCH = "ib-switch"
    NODE = "node"
    FACILITY = "facility"
    SOFTWARE = "software"
    UNKNOWN = "unknown"


class Status(StrEnum):
    """How far a verdict goes."""

    LOCALIZED = "localized"
    SUSPECTED = "suspected"
    INSUFFICIENT = "insufficient"
    SOFTWARE = "software"
    VICTIM = "victim"
    RECOVERED = "recovered"


class Witness(StrEnum):
    """The independent sources that can speak about one GPU, and the fabric when they disagree."""

    KERNEL = "kernel"
    HEALTH = "health"
    COLLECTIVE = "collective"
    FABRIC = "fabric"


class Says(StrEnum):
    """What a witness answers; blind is not clean."""

    ACCUSES = "accuses"
    CLEARS = "clears"
    BLIND = "blind"


class Testimony(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One witness's answer, its weight (0 to 1) and the words for it."""

    witness: Witness
    says: Says
    weight: float = 0.0
    words: str = ""


class EvidenceRef(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record a verdict rests on, with enough of it to read the verdict without a join."""

    id: str
    source: str
    at: datetime | None = None
    host: str | None = None
    file: str | None = None
    line: int | None = None
    text: str = ""


class Recovery(OpenEnum):
    """What brings the part back, as the driver or the catalog says it."""

    NONE = "none"
    RESTART_APP = "restart-app"
    DRAIN_RESET = "drain-and-reset-gpu"
    RESET_GPU = "reset-gpu"
    REBOOT_NODE = "reboot-node"
    REPLACE = "replace"
    CHECK_LINK = "check-link"
    RESTART_SERVICE = "restart-service"
    DIAGNOSE = "diagnose"


class Suspicion(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="suspicion/1"):
    """One source's statement about one part, sent to the host it concerns.

    ``says`` accuses or clears; ``status`` is ``software`` for positive software evidence,
    ``victim`` for a part that only suffers, ``insufficient`` when nobody can be named. ``hcas`` are
    the adapters of ``host`` that it concerns, where it is about links and they are known. ``run``
    counts how often the job began anew under the same ``attempt``, as far as its logs tell.
    """

    id: str
    at: datetime
    observed_at: datetime
    witness: Witness
    says: Says
    kind: str
    domain: Domain
    status: Status = Status.SUSPECTED
    cause: Cause = Cause.UNKNOWN
    weight: float = 0.0
    reason: str = ""
    host: str | None = None
    job: str | None = None
    attempt: int = 0
    evidence: tuple[EvidenceRef, ...] = ()
    victims: tuple[Domain, ...] = ()
    hcas: tuple[str, ...] = ()
    run: int = 0


class Verdict(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="verdict/1"):
    """Cause, domain and status of one incident; a later ``revision`` replaces an earlier one.

    ``incident`` is the id of the incident's root evidence and never changes. ``evidence`` is in
    the order in which the records were taken: replaying that list gives the same verdict.
    ``rule`` is what made it as sure as it is, and ``muted`` why nothing is done about it: the
    policy has that rule in ``shadow`` or ``off``, it is ``stale`` (heard so long after it happened
    that it may be over), or a silent host is told with the others. ``late`` counts the records that
    came too late to be judged in their order.
    """

    id: str
    incident: str
    revision: int
    at: datetime
    decided_at: datetime
    status: Status
    cause: Cause
    domain: Domain
    confidence: float
    reason: str
    recovery: Recovery = Recovery.NONE
    hard: bool = False
    testimony: tuple[Testimony, ...] = ()
    evidence: tuple[EvidenceRef, ...] = ()
    missing: tuple[str, ...] = ()
    victims: tuple[Domain, ...] = ()
    victim_of: str | None = None
    explained_by: str | None = None
    rule: str | None = None
    muted: str | None = None
    late: int = 0
    job: str | None = None
    host: str | None = None
    rack: str | None = None
    leaf: str | None = None
    pool: str | None = None
    nvlink_domain: str | None = None
    driver: str | None = None


class Action(StrEnum):
    """What a command does to its domain."""

    ISOLATE = "isolate"
    RELEASE = "release"


class Level(StrEnum):
    """How hard: no new work, stop at the next checkpoint, now."""

    CORDON = "cordon"
    DRAIN = "drain"
    EVICT = "evict"


class Command(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="command/1"):
    """Isolate or release one domain.

    ``id`` = hash(domain, action, root evidence, generation): the same decision has the same id
    however often it is sent. A consumer carries out an ``isolate`` only before ``act_by``, a
    ``dry_run`` or ``held`` (with the reason) one never.
    """

    id: str
    action: Action
    domain: Domain
    domain_id: str
    level: Level
    cause: Cause
    reason: str
    incident: str
    generation: int
    issued_at: datetime
    verdict: str | None = None
    confidence: float | None = None
    recovery: Recovery = Recovery.NONE
    act_by: datetime | None = None
    dry_run: bool = False
    held: str | None = None
    by: str = "ringfence"
    pool: str | None = None
    evidence: tuple[str, ...] = ()


class Hold(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason why a domain is out; only who set it lifts a ``firm`` one."""

    id: str
    cause: Cause
    by: str
    at: datetime
    reason: str = ""
    level: Level = Level.CORDON
    firm: bool = False


class DesiredState(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="state/1"):
    """What a domain should be now: out while it has holds. Consumers reconcile from this.

    ``note`` says why it changed where no hold tells, e.g. a command that expired. ``released_at``
    is its last return to service, ``passed_at`` the last by a person's word: evidence older than
    that counts no more.
    """

    id: str
    domain_id: str
    domain: Domain
    at: datetime
    generation: int
    isolated: bool
    level: Level | None = None
    holds: tuple[Hold, ...] = ()
    aliases: tuple[str, ...] = ()
    note: str | None = None
    released_at: datetime | None = None
    passed_at: datetime | None = None


class RequestAction(StrEnum):
    """What a person asks of the isolation stage, or did with other tools.

    ``hold`` takes a part out until its author lifts it (``lift``), whatever the evidence.
    ``resume`` lets a held command go. ``out`` and ``back`` tell that somebody drained a part, or
    returned it, without Ringfence: it counts in the budget, and nothing is commanded.
    """

    ISOLATE = "isolate"
    RELEASE = "release"
    HOLD = "hold"
    LIFT = "lift"
    RESUME = "resume"
    OUT = "out"
    BACK = "back"


class Request(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="request/1"):
    """A person's wish, by hand; only the isolation stage turns it into a command."""

    id: str
    at: datetime
    action: RequestAction
    domain: Domain
    by: str
    reason: str = ""
    level: Level = Level.CORDON


class AckStatus(StrEnum):
    """What a scheduler did about a command.

    ``REFUSED`` is a command that a consumer will not carry out: unsigned, altered, replayed, of an
    older generation, or over the consumer's own budget.
    """

    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    REFUSED = "refused"


class Ack(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="ack/1"):
    """A scheduler's answer to one command; ``took`` is what it really took out, where it knows."""

    id: str
    command: str
    domain_id: str
    at: datetime
    scheduler: str
    status: AckStatus
    detail: str = ""
    exit_code: int | None = None
    attempt: int = 1
    took_ms: int | None = None
    took: DomainKind | None = None


class DeadLetter(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="deadletter/1"):
    """A message that could not be decoded or made a step fail, byte for byte, with the error.

    One with ``resent_at`` is a note about the letter of that ``id``, without its bytes: that it is
    about to be sent to its topic again by ``resent_by``, and, once it was, to which place there
    (``resent_to``, such as ``kernel/3/88211``: topic, partition, offset).
    """

    id: str
    at: datetime
    topic: str
    error: str
    value: bytes = b""
    key: bytes | None = None
    partition: int | None = None
    offset: int | None = None
    stage: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    resent_at: datetime | None = None
    resent_by: str | None = None
    resent_to: str | None = None
