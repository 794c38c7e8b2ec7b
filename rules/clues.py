"""What a line of a training log can say about its own rank, and what is only an echo.

CUDA errors are about the process's own card, though never about the call they surface in; a
collective's timeout, a closed connection or a communication error is about somebody else.
"""

import re
from enum import Enum, auto

from evidence.records import NcclKind, NcclRecord

__all__ = ["SAVING", "Fault", "echoes", "fault_of", "is_dump", "keeps", "opens", "text_of"]


class Fault(Enum):
    """What kind of fault a line proves on the rank that prints it."""

    ECC = auto()
    NVLINK = auto()
    DRIVER = auto()
    APPLICATION = auto()
    OUT_OF_MEMORY = auto()
    HOST_MEMORY = auto()
    SERVICE = auto()
    ADDRESS_IN_USE = auto()
    PYTHON = auto()


# CUDA error: uncorrectable ECC error encountered
_ECC = re.compile(r"ECC error|ECC_UNCORRECTABLE", re.IGNORECASE)
# CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink or a hardware error
_NVLINK = re.compile(
    r"CUDA_ERROR_CONTAINED|over nvlink|NVLINK_UNCORRECTABLE|NVLink error", re.IGNORECASE
)
# CUDA error: unspecified launch failure
_APPLICATION = re.compile(
    r"unspecified launch failure|illegal memory access|device-side assert|misaligned address"
    r"|illegal instruction|invalid configuration argument|invalid device function"
    r"|ILLEGAL_ADDRESS|LAUNCH_FAILED",
    re.IGNORECASE,
)
# Cuda failure 999 'unknown error'
_DRIVER = re.compile(r"failure 999|CUDA driver error|unknown error|GPU is lost", re.IGNORECASE)
# torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB.
_CUDA_MEMORY = re.compile(r"out of memory|OutOfMemoryError", re.IGNORECASE)
# slurmstepd: error: Detected 1 oom_kill event in StepId=811.0
_HOST_MEMORY = re.compile(r"oom[-_ ]?kill|\btasks? [\d,-]+: Out Of Memory", re.IGNORECASE)
# CUDA error: system not yet initialized (802: the fabric manager is not ready)
_SERVICE = re.compile(r"system not yet initialized|\b802\b|Fabric Manager|failure 401|error 401")
# torch.distributed.DistBackendError: NCCL error in: ..., remote process exited
_ECHO = re.compile(
    r"Dist(?:Backend|Store|Network)Error|NCCL|[Cc]onnection (?:was |closed|reset|refused)"
    r"|Broken pipe|monitoredBarrier|timed? ?out|ChildFailedError|SignalException"
    r"|KeyboardInterrupt|Rendezvous|[Cc]ommunicator was aborted|collectives? (?:on ranks|differ)"
    r"|gloo/transport|Socket|BrokenBarrierError|resource_tracker",
)
# RuntimeError: DataLoader timed out after 120 seconds
_OWN_WAIT = re.compile(r"DataLoader (?:timed out|worker)")
# DistNetworkError: The server socket has failed to listen ... port: 29500, ... EADDRINUSE
_ADDRESS = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
# NET/IB : mlx5_0:1 Got async event : port active
_CALM = re.compile(
    r"port active|speed change|GID table|client reregister|LID change", re.IGNORECASE
)

#: Lines that the job stage keeps until it judges.
_KEPT = frozenset(
    {
        NcclKind.COMM_DESTROY,
        NcclKind.TIMEOUT,
        NcclKind.DUMP_SIGNAL,
        NcclKind.WATCHDOG_STUCK,
        NcclKind.ABORTED,
        NcclKind.MISMATCH,
        NcclKind.DESYNC,
        NcclKind.BARRIER_MISSING,
        NcclKind.IB_COMPLETION,
        NcclKind.IB_ASYNC,
        NcclKind.IB_CONNECT,
        NcclKind.PEER_CLOSED,
        NcclKind.STORE_LOST,
        NcclKind.STORE_CLIENTS,
        NcclKind.REMOTE_ERROR,
        NcclKind.CUDA_ERROR,
        NcclKind.NVLS,
        NcclKind.OUT_OF_MEMORY,
        NcclKind.PYTHON_ERROR,
        NcclKind.WORKER_EXIT,
        NcclKind.ROOT_CAUSE,
        NcclKind.EXTERNAL_STOP,
        NcclKind.RAS,
        NcclKind.FLIGHT_RECORDER,
        NcclKind.FINISHED,
    }
)

#: Lines that say nothing is wrong by themselves: they are kept, but start no judgement.
_CALM_KINDS = frozenset({NcclKind.COMM_DESTROY, NcclKind.FINISHED, NcclKind.RAS, NcclKind.OTHER})

#: What RAS reports that is more than a count taken while all of them run.
_RAS = ("dead", "peer-dead", "incomplete", "error")
#: The beginning and the end of writing a checkpoint.
SAVING = ("saving", "saved")
#: Where ranks stand in their operations: anybody may ask for that at any time.
_STANDING = ("dump", "group", "stack")

_STOPPED = (0, -15, 143)


def keeps(record: NcclRecord) -> bool:
    """Whether a line may help to judge: counts of healthy ranks and headings do not."""
    if record.kind is NcclKind.RAS:
        return record.phase in _RAS
    if record.kind is NcclKind.OTHER:
        return record.phase in SAVING
    if record.kind is NcclKind.FLIGHT_RECORDER and record.phase in _STANDING:
        return is_dump(record)
    return record.kind in _KEPT


def is_dump(record: NcclRecord) -> bool:
    """Whether a line is what a flight recorder dump says of one process group."""
    return record.kind is NcclKind.FLIGHT_RECORDER and record.phase == "group"


def text_of(record: NcclRecord) -> str:
    """The words of a line: its message where the parser found one, else the line itself."""
    return f"{record.message} {record.raw}" if record.message else record.raw


def opens(record: NcclRecord) -> bool:
    """Whether a line is a symptom that starts a judgement."""
    if record.kind in _CALM_KINDS or is_dump(record) or not keeps(record):
        return False
    if record.kind is NcclKind.IB_ASYNC:
        return not _CALM.search(text_of(record))
    if record.kind in (NcclKind.WORKER_EXIT, NcclKind.ROOT_CAUSE):
        return record.exit_code not in _STOPPED
    return True


def echoes(record: NcclRecord) -> bool:
    """Whether the words of a line are those of a victim of somebody else's end."""
    text = text_of(record)
    return _ECHO.search(text) is not None and _OWN_WAIT.search(text) is None


_CUDA_TEXTS = (
    (_ECC, Fault.ECC),
    (_NVLINK, Fault.NVLINK),
    (_APPLICATION, Fault.APPLICATION),
    (_CUDA_MEMORY, Fault.OUT_OF_MEMORY),
    (_SERVICE, Fault.SERVICE),
    (_DRIVER, Fault.DRIVER),
)


def _cuda_fault(text: str) -> Fault | None:
    return next((fault for pattern, fault in _CUDA_TEXTS if pattern.search(text)), None)


def fault_of(record: NcclRecord) -> Fault | None:
    """What a line proves about its own rank; None for an echo of somebody else's fault."""
    text = text_of(record)
    match record.kind:
        case NcclKind.CUDA_ERROR:
            fault = _cuda_fault(text)
        case NcclKind.OUT_OF_MEMORY:
            fault = Fault.HOST_MEMORY if _HOST_MEMORY.search(text) else Fault.OUT_OF_MEMORY
        case NcclKind.NVLS:
            fault = Fault.SERVICE if _SERVICE.search(text) else None
        case NcclKind.PYTHON_ERROR if "CUDA error" in text or _CUDA_MEMORY.search(text):
            fault = _cuda_fault(text)
        case NcclKind.PYTHON_ERROR if _ADDRESS.search(text):
            fault = Fault.ADDRESS_IN_USE
        case NcclKind.PYTHON_ERROR:
            fault = None if echoes(record) else Fault.PYTHON
        case _:
            fault = None
    return fault
