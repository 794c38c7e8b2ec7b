"""What the logs of a training job say."""

from datetime import datetime

from msgspec import Struct

from evidence.records.wire import OpenEnum, Wire

__all__ = ["FlightEntry", "NcclKind", "NcclRecord"]


class NcclKind(OpenEnum):
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
    SETUP = "setup"
    WARN = "warn"
    FINISHED = "finished"
    UNREADABLE = "unreadable"
    OTHER = "other"


class FlightEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation in a PyTorch flight recorder dump.

    ``seq`` counts point-to-point operations apart (``p2p``). ``state`` is scheduled, started or
    completed; ``retired`` and not completed is one that timed out. ``sizes_in`` and ``sizes_out``
    are printed shapes, ``[[4, 1024]]``, cut at 120 characters. The times of start and end are when
    the watchdog looked, not when it happened.
    """

    seq: int
    op: str | None = None
    state: str | None = None
    p2p: bool = False
    retired: bool = False
    sizes_in: str | None = None
    sizes_out: str | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    dtype: str | None = None
    timeout_ms: int | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None


class NcclRecord(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="nccl/1"):
    """One line (or message) of a NCCL, PyTorch or torchrun log.

    ``rank`` is the **global** rank; ``comm_rank`` the rank inside ``comm`` or the process group
    (``group``: PG GUID, never the process-local PG ID). ``seq`` counts collectives inside one
    group and must never be compared across groups. ``peers`` are addresses or hosts as printed;
    ``ranks`` are the global ranks the line names (missing, lagging or mismatched).
    ``phase`` tells lines of one kind apart (see each builder in collectors/nccl_*.py).
    ``request`` is the local role in a failed InfiniBand transfer: Send, Recv or Flush.
    A timeout names a victim, never the culprit.

    Of a flight recorder dump (phase ``dump`` and, for each process group, ``group``): ``members``
    are the group's global ranks as ranges (evidence.ranks), ``seq``, ``op`` and ``state`` those of
    the oldest operation that is not completed, ``frames`` where Python called it, ``incomplete``
    how many are not, and ``entries`` some of them with the last completed ones before. Phase
    ``stack`` has the ``frames`` that the watchdog prints, without a dump.
    Of a RAS report: ``launched`` are pairs of an operation number and how many ranks launched it.
    Of a process at its start (kind ``setup``): ``address`` is its own, ``hcas`` its adapters in the
    order in which NCCL numbers them.
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
    members: str | None = None
    state: str | None = None
    incomplete: int | None = None
    frames: tuple[str, ...] = ()
    entries: tuple[FlightEntry, ...] = ()
    launched: tuple[tuple[int, int], ...] = ()
    address: str | None = None
    hcas: tuple[str, ...] = ()
