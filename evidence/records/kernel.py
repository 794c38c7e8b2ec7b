"""What the kernel log says."""

from datetime import datetime

from msgspec import Struct

from evidence.records.wire import OpenEnum, Wire

__all__ = ["KernelKind", "KernelRecord", "Mig"]


class Mig(Struct, frozen=True):
    """A MIG instance: GPU instance ``gi`` and, when the line tells, compute instance ``ci``."""

    gi: int
    ci: int | None = None


class KernelKind(OpenEnum):
    """What a kernel-log line is about."""

    XID = "xid"
    SXID = "sxid"
    NVRM = "nvrm"
    AER = "aer"
    PCIEHP = "pciehp"
    DPC = "dpc"
    MLX5 = "mlx5"
    EFA = "efa"
    PEERMEM = "peermem"
    MCE = "mce"
    OOM = "oom"
    SEGFAULT = "segfault"
    HUNG_TASK = "hung-task"
    FABRIC_MANAGER = "fabric-manager"
    OVERRUN = "overrun"
    UNREADABLE = "unreadable"
    OTHER = "other"


class KernelRecord(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="kernel/1"):
    """One kernel-log event (an event may be several lines, or a storm of equal ones: ``count``).

    ``pci`` is the GPU for xid and nvrm, the switch for sxid, the **port** above the device for
    aer, pciehp and dpc, the NIC for mlx5. ``process`` of an Xid 119 is whoever called, not the
    culprit. ``seq`` orders records of one source: the kmsg sequence number or the byte offset.
    ``driver`` is the NVIDIA driver's version, where its load banner stands earlier in the source.
    ``facility`` is syslog's: 0 is the kernel itself, anything else a process that wrote into its
    log. A record of kind ``overrun`` says that ``count`` records of ``device`` (the kernel's ring,
    or a topic of the agent's own spool, source ``spool``) were lost between ``at`` and ``last_at``.
    """

    id: str
    observed_at: datetime
    raw: str
    kind: KernelKind
    host: str | None = None
    at: datetime | None = None
    uptime_s: float | None = None
    last_at: datetime | None = None
    count: int = 1
    source: str = "file"
    file: str | None = None
    line: int | None = None
    seq: int = 0
    boot_id: str | None = None
    priority: int | None = None
    facility: int | None = None
    clock_clamped: bool = False
    code: int | None = None
    pci: str | None = None
    function: int | None = None
    pid: int | None = None
    process: str | None = None
    message: str | None = None
    mig: Mig | None = None
    caused_by: int | None = None
    link: int | None = None
    peer_pci: str | None = None
    severity: str | None = None
    reset: bool | None = None
    drain_reset: bool | None = None
    recovery_action: str | None = None
    recovery_action_from: str | None = None
    uuid: str | None = None
    serial: str | None = None
    unit: str | None = None
    address: str | None = None
    registers: tuple[int, ...] = ()
    device: str | None = None
    port: int | None = None
    rate_limited: bool = False
    driver: str | None = None
