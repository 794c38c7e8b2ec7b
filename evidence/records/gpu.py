"""What NVML says about the GPUs of a node, tick by tick."""

from datetime import datetime

from msgspec import Struct, field

from evidence.records.wire import OpenEnum, Wire

__all__ = [
    "GpuEvent",
    "GpuEventKind",
    "GpuFrame",
    "GpuProcess",
    "GpuSnapshot",
    "GpuStatus",
    "GpuTick",
    "MigInstance",
]


class GpuStatus(OpenEnum):
    """How a GPU answered NVML this tick."""

    OK = "ok"
    LOST = "lost"
    RESET_REQUIRED = "reset-required"
    ERROR = "error"
    TIMEOUT = "timeout"


class MigInstance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One MIG instance of a GPU: GPU instance ``gi``, compute instance ``ci``, its own UUID."""

    gi: int
    ci: int | None = None
    uuid: str | None = None
    profile: str | None = None


class GpuProcess(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process on a GPU and, where its environment or cgroup tells, the scheduler's job."""

    pid: int
    name: str | None = None
    job: str | None = None
    memory_used_mib: int | None = None
    gi: int | None = None
    ci: int | None = None


class GpuSnapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at one tick; a value that could not be read is None and its reason is in ``unread``.

    What changes slowly is not read at every tick: it is then None without a reason.
    ECC counts are NVML totals: ``volatile`` since driver load, ``aggregate`` over the card's life;
    ``ecc_locations`` has them by place (``volatile_corrected_dram``), ``sram_*`` the unique SRAM
    errors by protection, ``sram_sources`` the aggregate ones by unit (l2, sm, mcu, pcie, other).
    ``remap_banks`` is the row remapper's histogram (max, high, partial, low, none: banks by spare
    rows left). ``temperature_c`` is absolute, ``temperature_margin_c`` is degrees left to T.Limit;
    never mix them: limits in degrees end in ``_c``, limits as margins are ``temperature_margin_*``.
    ``recovery_action`` is NVML field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P,
    4 drain and reset, 5 recover IMEX domain. ``throttled_ns`` are cumulative times by reason
    (power_cap, sync_boost, sw_thermal, hw_thermal, power_brake). ``nvlink_errors`` are counters by
    link and kind (``3.replay``), those that are not zero. ``fabric_*`` is
    nvmlDeviceGetGpuFabricInfo. ``error`` is the NVML return code when not ok. ``call_us`` is what
    single calls cost, ``read_us`` what all of them did.
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
    ecc_enabled_pending: bool | None = None
    ecc_volatile_corrected: int | None = None
    ecc_volatile_uncorrected: int | None = None
    ecc_aggregate_corrected: int | None = None
    ecc_aggregate_uncorrected: int | None = None
    ecc_locations: dict[str, int] | None = None
    sram_threshold_exceeded: bool | None = None
    sram_volatile_parity: int | None = None
    sram_volatile_secded: int | None = None
    sram_volatile_corrected: int | None = None
    sram_aggregate_parity: int | None = None
    sram_aggregate_secded: int | None = None
    sram_aggregate_corrected: int | None = None
    sram_sources: dict[str, int] | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    remapped_correctable_inactive: int | None = None
    remapped_uncorrectable_inactive: int | None = None
    remap_banks: dict[str, int] | None = None
    channel_repair_pending: bool | None = None
    tpc_repair_pending: bool | None = None
    unrepairable_memory: bool | None = None
    retired_pages: int | None = None
    retired_pages_sbe: int | None = None
    retired_pages_dbe: int | None = None
    retired_pending: bool | None = None
    recovery_action: int | None = None
    temperature_c: int | None = None
    temperature_memory_c: int | None = None
    temperature_margin_c: int | None = None
    temperature_slowdown_c: int | None = None
    temperature_shutdown_c: int | None = None
    temperature_max_c: int | None = None
    temperature_memory_max_c: int | None = None
    temperature_margin_slowdown: int | None = None
    temperature_margin_shutdown: int | None = None
    temperature_margin_max: int | None = None
    temperature_margin_memory_max: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_mj: int | None = None
    utilization_pct: int | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    clock_sm_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_mhz: int | None = None
    clocks_event_reasons: int | None = None
    throttled_ns: dict[str, int] | None = None
    pcie_replays: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    nvlinks_active: int | None = None
    nvlinks_down: tuple[int, ...] = ()
    nvlink_errors: dict[str, int] | None = None
    fabric_state: str | None = None
    fabric_status: int | None = None
    fabric_clique: int | None = None
    fabric_cluster_uuid: str | None = None
    fabric_health: int | None = None
    persistence_mode: bool | None = None
    performance_state: int | None = None
    mig_enabled: bool | None = None
    mig: tuple[MigInstance, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None
    call_us: dict[str, int] | None = None
    read_us: int | None = None


class GpuEventKind(OpenEnum):
    """What NVML tells by itself, between two ticks (nvml.h, nvmlEventType*)."""

    XID = "xid"
    ECC_DOUBLE_BIT = "ecc-double-bit"
    ECC_SINGLE_BIT_STORM = "ecc-single-bit-storm"
    DRAM_RETIREMENT = "dram-retirement"
    DRAM_RETIREMENT_FAILURE = "dram-retirement-failure"
    POISON = "poison"
    FATAL_POISON = "fatal-poison"
    UNAVAILABLE = "unavailable"
    RECOVERY_ACTION = "recovery-action"
    MIG_CHANGE = "mig-change"


class GpuEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One NVML event; ``data`` is the Xid for ``xid`` (999: unknown), else NVML's own number."""

    at: datetime
    kind: GpuEventKind
    index: int | None = None
    uuid: str | None = None
    pci: str | None = None
    data: int | None = None
    gi: int | None = None
    ci: int | None = None


class GpuTick(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All GPUs of a node at one time; ``error`` when NVML itself could not answer.

    ``events`` came since the tick before; a tick may carry events alone.
    """

    at: datetime
    gpus: tuple[GpuSnapshot, ...] = ()
    events: tuple[GpuEvent, ...] = ()
    error: int | None = None
    error_text: str | None = None


class GpuFrame(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="gpu/1"):
    """Several ticks of one node in one message, oldest first; ``file`` where it was read in one."""

    id: str
    host: str
    observed_at: datetime
    seq: int
    ticks: tuple[GpuTick, ...]
    boot_id: str | None = None
    driver: str | None = None
    source: str = "nvml"
    file: str | None = None
