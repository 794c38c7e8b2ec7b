"""What collectors observe: one struct per topic, as it stands on the wire.

The ``schema`` tag in every record is ``<topic>/<major>``: unknown fields are tolerated, so a newer
minor version flows through an older reader; a newer major one is refused with its name.
Times are aware UTC datetimes; ``at`` is the event's own time (None where the source has no wall
clock), ``observed_at`` the collector's.
"""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

__all__ = [
    "ContextKind",
    "ContextRecord",
    "FabricPort",
    "FabricRecord",
    "GpuFrame",
    "GpuIdentity",
    "GpuSnapshot",
    "GpuStatus",
    "GpuTick",
    "HcaIdentity",
    "InventoryRecord",
    "KernelKind",
    "KernelRecord",
    "Mig",
    "NcclKind",
    "NcclRecord",
    "Tick",
]


class _Wire(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema"):
    """Shape shared by everything on the wire: immutable, keyword-only, defaults left out."""


class Mig(Struct, frozen=True):
    """A MIG instance: GPU instance ``gi`` and, when the line tells, compute instance ``ci``."""

    gi: int
    ci: int | None = None


class KernelKind(StrEnum):
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
    HUNG_TASK = "hung-task"
    FABRIC_MANAGER = "fabric-manager"
    OVERRUN = "overrun"
    UNREADABLE = "unreadable"
    OTHER = "other"


class KernelRecord(_Wire, frozen=True, kw_only=True, omit_defaults=True, tag="kernel/1"):
    """One kernel-log event (an event may be several lines, or a storm of equal ones: ``count``).

    ``pci`` is the GPU for xid and nvrm, the switch for sxid, the **port** above the device for
    aer, pciehp and dpc, the NIC for mlx5. ``process`` of an Xid 119 is whoever called, not the
    culprit. ``seq`` orders records of one source: the kmsg sequence number or the byte offset.
    ``driver`` is the NVIDIA driver's version, where its load banner stands earlier in the source.
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


class GpuStatus(StrEnum):
    """How a GPU answered NVML this tick."""

    OK = "ok"
    LOST = "lost"
    RESET_REQUIRED = "reset-required"
    ERROR = "error"
    TIMEOUT = "timeout"


class GpuSnapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at one tick; a value that could not be read is None and its reason is in ``unread``.

    ECC counts are NVML totals: ``volatile`` since driver load, ``aggregate`` over the card's life.
    ``temperature_c`` is absolute, ``temperature_margin_c`` is degrees left to T.Limit; never mix
    them. ``recovery_action`` is NVML field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P,
    4 drain and reset, 5 recover IMEX domain. ``error`` is the NVML return code when not ok.
    """

    index: int
    uuid: str | None = None
    serial: str | None = None
    pci: str | None = None
    name: str | None = None
    status: GpuStatus = GpuStatus.OK
    error: int | None = None
    unread: dict[str, str] = field(default_factory=dict)
    ecc_enabled: bool | None = None
    ecc_volatile_corrected: int | None = None
    ecc_volatile_uncorrected: int | None = None
    ecc_aggregate_corrected: int | None = None
    ecc_aggregate_uncorrected: int | None = None
    sram_threshold_exceeded: bool | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    recovery_action: int | None = None
    temperature_c: int | None = None
    temperature_memory_c: int | None = None
    temperature_margin_c: int | None = None
    temperature_slowdown_c: int | None = None
    power_w: float | None = None
    utilization_pct: int | None = None
    memory_used_mib: int | None = None
    clock_sm_mhz: int | None = None
    clocks_event_reasons: int | None = None
    pcie_replays: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    mig_enabled: bool | None = None
    read_us: int | None = None


class GpuTick(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All GPUs of a node at one time; ``error`` when NVML itself could not answer."""

    at: datetime
    gpus: tuple[GpuSnapshot, ...] = ()
    error: int | None = None
    error_text: str | None = None


class GpuFrame(_Wire, frozen=True, kw_only=True, omit_defaults=True, tag="gpu/1"):
    """Several ticks of one node in one message, oldest first."""

    id: str
    host: str
    observed_at: datetime
    seq: int
    ticks: tuple[GpuTick, ...]
    boot_id: str | None = None
    driver: str | None = None
    source: str = "nvml"


class NcclKind(StrEnum):
    """What a line of a training log says."""

    COMM_INIT = "comm-init"
    COMM_ABORT = "comm-abort"
    COMM_DESTROY = "comm-destroy"
    TIMEOUT = "timeout"
    DUMP_SIGNAL = "dump-signal"
    WATCHDOG_STUCK = "watchdog-stuck"
    ABORTED = "aborted"
    MISMATCH = "mismatch"
    DESYNC = "desync"
    BARRIER_MISSING = "barrier-missing"
    IB_COMPLETION = "ib-completion"
    IB_ASYNC = "ib-async"
    IB_CONNECT = "ib-connect"
    PEER_CLOSED = "peer-closed"
    STORE_LOST = "store-lost"
    STORE_CLIENTS = "store-clients"
    REMOTE_ERROR = "remote-error"
    CUDA_ERROR = "cuda-error"
    NVLS = "nvls"
    OUT_OF_MEMORY = "out-of-memory"
    PYTHON_ERROR = "python-error"
    WORKER_EXIT = "worker-exit"
    ROOT_CAUSE = "root-cause"
    EXTERNAL_STOP = "external-stop"
    RANK_MAP = "rank-map"
    RAS = "ras"
    FLIGHT_RECORDER = "flight-recorder"
    WARN = "warn"
    FINISHED = "finished"
    UNREADABLE = "unreadable"
    OTHER = "other"


class NcclRecord(_Wire, frozen=True, kw_only=True, omit_defaults=True, tag="nccl/1"):
    """One line (or message) of a NCCL, PyTorch or torchrun log.

    ``rank`` is the **global** rank; ``comm_rank`` the rank inside ``comm`` or the process group
    (``group``: PG GUID, never the process-local PG ID). ``seq`` counts collectives inside one
    group and must never be compared across groups. ``peers`` are addresses or hosts as printed;
    ``ranks`` are the global ranks the line names (missing, lagging or mismatched).
    ``phase`` tells lines of one kind apart (see each builder in collectors/nccl_*.py).
    ``request`` is the local role in a failed InfiniBand transfer: Send, Recv or Flush.
    A timeout names a victim, never the culprit.
    """

    id: str
    observed_at: datetime
    raw: str
    kind: NcclKind
    job: str
    attempt: int = 0
    host: str | None = None
    at: datetime | None = None
    source: str = "file"
    file: str | None = None
    line: int | None = None
    offset: int = 0
    count: int = 1
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    comm: str | None = None
    comm_rank: int | None = None
    comm_size: int | None = None
    cuda_dev: int | None = None
    nvml_dev: int | None = None
    pci: str | None = None
    phase: str | None = None
    group: str | None = None
    group_desc: str | None = None
    seq: int | None = None
    op: str | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    elapsed_ms: int | None = None
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    peer: str | None = None
    hca: str | None = None
    port: int | None = None
    status: int | None = None
    exit_code: int | None = None
    message: str | None = None
    repeated: bool = False
    vendor_error: int | None = None
    request: str | None = None
    local_gid: str | None = None
    remote_gid: str | None = None


class FabricPort(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One port of a switch or HCA: raw counters, with the names that stick at their maximum."""

    port: int
    state: str | None = None
    physical_state: str | None = None
    rate_gbps: float | None = None
    peer_guid: str | None = None
    peer_port: int | None = None
    peer_name: str | None = None
    counters: dict[str, int] = field(default_factory=dict)
    saturated: tuple[str, ...] = ()
    reset: bool = False


class FabricRecord(_Wire, frozen=True, kw_only=True, omit_defaults=True, tag="fabric/1"):
    """One switch or HCA in one sweep; a port is (node GUID, port number)."""

    id: str
    observed_at: datetime
    subnet: str
    guid: str
    name: str | None = None
    kind: str = "switch"
    host: str | None = None
    device: str | None = None
    at: datetime | None = None
    ports: tuple[FabricPort, ...] = ()


class GpuIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What names one GPU on one node; history follows ``uuid`` and ``serial``, never ``index``."""

    index: int
    pci: str
    uuid: str | None = None
    serial: str | None = None
    name: str | None = None
    hcas: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()


class HcaIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One port of a host channel adapter and the switch port it is cabled to."""

    name: str
    port: int = 1
    guid: str | None = None
    pci: str | None = None
    switch_guid: str | None = None
    switch_port: int | None = None


class InventoryRecord(_Wire, frozen=True, kw_only=True, omit_defaults=True, tag="inventory/1"):
    """Identity of one node, at start and on change."""

    id: str
    host: str
    observed_at: datetime
    boot_id: str | None = None
    driver: str | None = None
    gpus: tuple[GpuIdentity, ...] = ()
    hcas: tuple[HcaIdentity, ...] = ()
    rack: str | None = None
    leaf: str | None = None
    pool: str | None = None
    nvlink_domain: str | None = None


class ContextKind(StrEnum):
    """Why a node or GPU may look broken without being it, and who uses it."""

    ALLOCATION = "allocation"
    DRAIN = "drain"
    MAINTENANCE = "maintenance"
    REBOOT = "reboot"
    DRIVER_UPGRADE = "driver-upgrade"
    GPU_RESET = "gpu-reset"
    MIG_CHANGE = "mig-change"


class ContextRecord(_Wire, frozen=True, kw_only=True, omit_defaults=True, tag="context/1"):
    """Something planned on a host (or on the one GPU ``pci`` of it) from ``at`` until ``until``."""

    id: str
    host: str
    observed_at: datetime
    kind: ContextKind
    at: datetime
    until: datetime | None = None
    ended: bool = False
    pci: str | None = None
    job: str | None = None
    attempt: int = 0
    hosts: tuple[str, ...] = ()
    image: str | None = None
    owner: str | None = None
    by: str | None = None
    reason: str | None = None


class Tick(_Wire, frozen=True, kw_only=True, omit_defaults=True, tag="tick/1"):
    """The time, as a record: sent behind the backlog of each input partition, and stored."""

    id: str
    at: datetime
