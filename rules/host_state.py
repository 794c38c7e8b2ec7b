"""What the host stage remembers of one host, small enough to be written on every change.

Every part is named by its **subject**: a GPU by its PCI address, anything else by a word and a
colon (``node:``, ``switch:``, ``port:``, ``job:``, ``rank:``, ``link:``).
"""

from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from evidence.decisions import (
    Cause,
    EvidenceRef,
    Recovery,
    Status,
    Suspicion,
    Witness,
)
from evidence.records import ContextKind, GpuStatus, Mig
from rules.catalog import Role

__all__ = [
    "Allocation",
    "AppError",
    "Fact",
    "FactKind",
    "GpuHealth",
    "GpuName",
    "HostState",
    "Incident",
    "LinkError",
    "Sighting",
    "Window",
]


class FactKind(StrEnum):
    """Where a fact comes from; ``recovered`` ends an incident instead of feeding it."""

    XID = "xid"
    UNKNOWN_CODE = "unknown-code"
    NVRM = "nvrm"
    SWITCH = "switch"
    PORT = "port"
    HOST = "host"
    SERVICE = "service"
    HEALTH = "health"
    COLLECTIVE = "collective"
    FABRIC = "fabric"
    RECOVERED = "recovered"


class Fact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing one record says about one part, ready to be weighed.

    ``at`` is the event time, clamped to the arrival. ``hard`` is the fact's name in the policy's
    list of hard facts when it is one; ``at_once`` when it does not even wait to settle.
    ``old`` when it was read long after it was printed: what it says may be over since; ``belated``
    when it was read minutes after: NVML's later word then counts more.
    ``crossing`` marks a threshold of ours that is evidence enough without a second witness.
    ``peer`` says that the device at the other end of the link is at fault (``peer_pci``, where the
    line names it), ``own`` that this part alone is. ``pid`` is the process that the line names,
    ``unit`` the GPC and TPC.
    """

    ref: EvidenceRef
    name: str
    kind: FactKind
    witness: Witness
    subject: str
    topic: str
    at: datetime
    arrived: datetime
    due: datetime
    words: str
    seq: int = 0
    count: int = 1
    role: Role | None = None
    code: int | None = None
    rank: int = 0
    weight: float = 0.0
    cause: Cause = Cause.UNKNOWN
    recovery: Recovery = Recovery.NONE
    hard: str | None = None
    at_once: bool = False
    old: bool = False
    belated: bool = False
    crossing: bool = False
    caused_by: int | None = None
    mig: Mig | None = None
    link: int | None = None
    peer: bool = False
    peer_pci: str | None = None
    own: bool = False
    pid: int | None = None
    unit: str | None = None
    fatal: bool = False
    suspicion: Suspicion | None = None

    @property
    def order(self) -> tuple[datetime, str, str, int, str, str]:
        """Facts are taken in this order, however they arrived."""
        return (self.at, self.topic, self.ref.source, self.seq, self.ref.id, self.name)


class Incident(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about one part that belong together, and what was last said about them.

    ``id`` is fixed when the first verdict is made; ``said`` is what an operator was told, so that
    only a change is told again. ``judged_to`` is the latest event time that was judged; ``news``
    tells whether a fact came since that says more than the ones before it.
    """

    subject: str
    first: datetime
    last: datetime
    id: str = ""
    facts: tuple[Fact, ...] = ()
    more: int = 0
    revision: int = 0
    said: str = ""
    status: Status | None = None
    decided: datetime | None = None
    recheck: datetime | None = None
    recovered_at: datetime | None = None
    judged_to: datetime | None = None
    late: int = 0
    news: bool = True
    explained: bool = False


class GpuName(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What else one GPU is called."""

    uuid: str | None = None
    serial: str | None = None
    index: int | None = None


class Sighting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something degraded about a card: seen since and last, and ``told`` once it counts."""

    since: datetime
    last: datetime
    words: str
    told: bool = False


class GpuHealth(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last health of one GPU that NVML told, and how far it has come since first sight.

    ``raw`` is compared with every snapshot; ``growth`` is uncorrectable errors since
    ``first_at``, ``grown_at`` when there was the last of them; ``doubted`` are counts that a second
    reading must bear out. What cannot be read keeps its last value. ``wanted_at`` asks for a
    reading at or after that time; ``standing`` are the facts that hold at this moment.
    While it is too hot and not told, ``hot_at`` is the last such reading and ``hot_due`` when a
    tick tells it, where the limit is passed before the next reading is due.
    ``odd`` is what is degraded about it by name, ``links_at_first`` the NVLinks that were down at
    first sight, ``instances`` the MIG instance of each process that was seen, by its number.
    """

    uuid: str | None = None
    serial: str | None = None
    index: int | None = None
    raw: tuple[str | int | bool | None, ...] = ()
    status: GpuStatus = GpuStatus.OK
    error: int | None = None
    volatile: int | None = None
    aggregate: int | None = None
    sram: bool | None = None
    pending: bool | None = None
    failure: bool | None = None
    retired_pending: bool | None = None
    recovery_action: int | None = None
    growth_volatile: int = 0
    growth_aggregate: int = 0
    growth_told: int = 0
    grown_at: datetime | None = None
    doubted: tuple[int, ...] = ()
    first_at: datetime | None = None
    first: EvidenceRef | None = None
    seen_at: datetime | None = None
    seen: EvidenceRef | None = None
    wanted_at: datetime | None = None
    hot_since: datetime | None = None
    hot_told: bool = False
    hot_at: datetime | None = None
    hot_due: datetime | None = None
    bad_since: datetime | None = None
    bad_told: bool = False
    standing: tuple[Fact, ...] = ()
    odd: dict[str, Sighting] = {}
    links_at_first: tuple[int, ...] | None = None
    instances: dict[str, Mig] = {}

    @property
    def growth(self) -> int:
        """Uncorrectable errors since first sight: the larger of two counts of the same events."""
        return max(self.growth_volatile, self.growth_aggregate)


class Window(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A context that explains what happens from ``at`` until ``until``, grace included."""

    ref: EvidenceRef
    kind: ContextKind
    at: datetime
    until: datetime
    pci: str | None = None
    by: str | None = None
    reason: str | None = None


class Allocation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who used the host, or one GPU of it."""

    at: datetime
    job: str
    attempt: int = 0
    until: datetime | None = None
    pci: str | None = None
    image: str | None = None
    owner: str | None = None


class AppError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An application Xid on one GPU under one job attempt, kept to see repeats across jobs.

    ``alone``: the job had no other GPU of the node, so that clean neighbours prove nothing.
    """

    pci: str
    at: datetime
    job: str
    attempt: int
    user: str
    ref: EvidenceRef
    unit: str | None = None
    alone: bool = False


class LinkError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An NVLink of one GPU failing (Xid 74) until ``last``, kept to see repeats within a day."""

    pci: str
    link: int
    at: datetime
    last: datetime
    ref: EvidenceRef
    own: bool = False


class HostState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is remembered of one host; ``HostState()`` knows nothing yet.

    ``behind_s`` is how far its clock is behind the broker's, where it told that. ``noted_at`` is
    when it was last noted, by the broker's clock, that the host is heard; ``silent_at`` when to
    look whether it fell silent (None: it did, or never told anything regularly) and
    ``silent_asked`` that this look is the second one.
    """

    host: str | None = None
    offsets: dict[str, int] = {}
    boot_id: str | None = None
    boots: tuple[datetime, ...] = ()
    driver: str | None = None
    rack: str | None = None
    leaf: str | None = None
    pool: str | None = None
    nvlink_domain: str | None = None
    adapters: int = 0
    inventory: EvidenceRef | None = None
    names: dict[str, GpuName] = {}
    health: dict[str, GpuHealth] = {}
    nvml_error: int | None = None
    frames_at: datetime | None = None
    kernel_seen_at: datetime | None = None
    kernel_seen: EvidenceRef | None = None
    overrun_at: datetime | None = None
    behind_s: float = 0.0
    noted_at: datetime | None = None
    silent_at: datetime | None = None
    silent_asked: bool = False
    pending: tuple[Fact, ...] = ()
    incidents: tuple[Incident, ...] = ()
    windows: tuple[Window, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    app_errors: tuple[AppError, ...] = ()
    link_errors: tuple[LinkError, ...] = ()

    @property
    def heard_at(self) -> datetime | None:
        """When the host itself was last heard, by the broker's clock; None when never."""
        heard = [at for at in (self.frames_at, self.kernel_seen_at) if at is not None]
        return max(heard) + timedelta(seconds=self.behind_s) if heard else None
