"""Lines of PyTorch's NCCL watchdog: timeouts, counters, dumps, aborts, errors of the device.

A timeout says "I waited in this group at this number": its printer is a victim.
"""

import re
from contextlib import suppress

from collectors.nccl.library import cuda_fields
from collectors.nccl.prefix import Prefixed
from collectors.nccl.shape import Fields, Shape
from evidence.identity import normalise_pci
from evidence.records import NcclKind

__all__ = ["WATCHDOG_SHAPES", "result_code"]

#: PyTorch prints 2^64 - 1 for "not known", as in point-to-point and coalesced work.
_UNKNOWN = 2**63

# `Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE,
# NumelIn=9801, NumelOut=9801, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.`
_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout: ?(?P<work>.*)", re.DOTALL)
# `Work WorkNCCL(SeqNum=2521, OpType=ALLREDUCE, ...) timed out in blocking wait.`
_BLOCKING = re.compile(r"(?P<work>WorkNCCL\(.{1,400}) timed out in blocking wait", re.DOTALL)
# `Collective WorkNCCL(SeqNum=1, OpType=BROADCAST, ...) raised the following async exception: NCCL
# error: remote process exited or there was a network error, NCCL version 2.21.5`
_ASYNC = re.compile(
    r"(?P<work>WorkNCCL\(.{1,400}\)) raised the following async exception: (?P<error>.{1,400})",
    re.DOTALL,
)
_SEQ = re.compile(r"SeqNum=(\d{1,18})")
_OP = re.compile(r"OpType=(\w{1,99})")
_NUMEL_IN = re.compile(r"NumelIn=(\d{1,20})")
_NUMEL_OUT = re.compile(r"NumelOut ?=(\d{1,20})")
_TIMEOUT_MS = re.compile(r"Timeout\(ms\)=(\d{1,15})")
_RAN_MS = re.compile(r"ran for (\d{1,15}) milliseconds")

# 2.3: `Timeout at NCCL work: 19, last enqueued NCCL work: 19, last completed NCCL work: 18.`
# 2.4: `Exception (either an error or timeout) detected by watchdog at work: 808, last enqueued ..`
# 2.7: `failure detected by watchdog at work sequence id: 808 PG status: last enqueued work: 811,
# last completed work: 807`, 2.13 adds `last started work: 809 (ALLREDUCE), `
_STATUS = re.compile(
    r"(?:Timeout at NCCL work|detected by watchdog at work(?: sequence id)?): (?P<seq>-?\d{1,18})"
    r"(?P<rest>.*)",
    re.DOTALL,
)
_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18})")
_STARTED = re.compile(r"[Ll]ast started (?:NCCL )?work: (-?\d{1,18})")
_COMPLETED = re.compile(r"[Ll]ast completed (?:NCCL )?work: (-?\d{1,18})")

# `Received a dump signal due to a collective timeout from  rank 8 and we will try our best ...`
_DUMP = re.compile(
    r"Received a dump signal due to a collective timeout from\s+"
    r"(?:rank (?P<rank>\d{1,7})|this local rank)",
)
_DUMP_OBSERVED = re.compile(r"Observed flight recorder dump signal from another rank")
# `First PG on this rank to signal dumping.`
_DUMP_FIRST = re.compile(r"First PG on this rank to signal dumping")
# `timed out after waiting for 60000ms flight recorder dumps to finish.`
_DUMP_LATE = re.compile(r"timed out after waiting for (?P<ms>\d{1,12}) ?ms flight recorder dumps")
# `ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1`
_DUMP_BEGUN = re.compile(r"preparing to dump debug info")
# `ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring ...`
_STUCK = re.compile(r"watchdog got stuck for (?P<s>\d{1,9}) ?seconds")
# 2.2: `Heartbeat monitor timed out! Process will be terminated after dumping debug info.`
_HEARTBEAT = re.compile(r"Heartbeat monitor timed out|NCCL monitor thread timeout")
# `Could not acquire GIL within 300 ms on exit, possible GIL induced hang`
_GIL = re.compile(r"Could not acquire GIL within (?P<ms>\d{1,9}) ms")
# `Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog
# hang.`
_TERMINATED = re.compile(
    r"Terminating the process after attempting to dump debug info, due to (?P<why>[^\n]{1,200})",
)
# `NCCL communicator was aborted on rank 3. Original reason for failure was: ...`
_ABORTED = re.compile(
    r"NCCL communicator was aborted on rank (?P<rank>\d{1,7})\.?(?P<why>[^\n]{0,300})",
)
# `To avoid data inconsistency, we are taking the entire process down.`
_DOWN = re.compile(
    r"we are taking the entire process down|Some NCCL operations have failed or timed"
)
# `Aborting communicator: 0x55f2c37d41a0 due to async NCCL error: remote process exited ...` (XLA)
_XLA = re.compile(
    r"Aborting communicator: 0x[0-9a-f]+ due to async NCCL error: (?P<why>[^\n]{1,300})"
)

# `Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure`
# `RuntimeError: CUDA error: uncorrectable ECC error encountered`
_CUDA = re.compile(r"CUDA (?:driver )?error: ?(?P<error>[^\n]{1,300})")
# `CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink or a hardware error`
_CUDA_NAME = re.compile(r"(?P<name>CUDA_ERROR_\w+): (?P<error>[^\n]{1,300})")
# `Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system ...`
_LOST = re.compile(r"(?:GPU (?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F:.]{5,9}): )?(?P<error>GPU is lost)")
# `torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB. GPU 3 has a total ...`
_OOM = re.compile(r"CUDA out of memory\.? ?(?P<rest>[^\n]{0,400})")
_OOM_PID = re.compile(r"Process (\d{1,10}) has [\d.]+ [KMG]iB memory in use")

# `torch.distributed.DistBackendError: NCCL error in: /pytorch/.../NCCLUtils.hpp:268, remote process
# exited or there was a network error, NCCL version 2.21.5`, `... exception: NCCL error: remote ...`
_NCCL_ERROR = re.compile(r"NCCL error(?: in)?: (?P<error>[^\n]{1,400})")
# `ncclRemoteError: A call failed possibly due to a network error or a remote process exiting ...`
_RESULT = re.compile(r"\s*nccl(\w{1,40}):")

#: NCCL's names for its result codes (nccl.h).
RESULTS = {
    "UnhandledCudaError": 1,
    "SystemError": 2,
    "InternalError": 3,
    "InvalidArgument": 4,
    "InvalidUsage": 5,
    "RemoteError": 6,
}


def _work(text: str) -> Fields:
    """The fields inside ``WorkNCCL(...)``; each may be missing (old versions, wrapped lines)."""
    return {
        "seq": _number(_SEQ.search(text)),
        "op": _text(_OP.search(text)),
        "numel_in": _known(_NUMEL_IN.search(text)),
        "numel_out": _known(_NUMEL_OUT.search(text)),
        "timeout_ms": _number(_TIMEOUT_MS.search(text)),
    }


def _timeout(found: re.Match[str], _: Prefixed) -> Fields:
    elapsed = _number(_RAN_MS.search(found["work"]))
    fields: Fields = {"kind": NcclKind.TIMEOUT, "elapsed_ms": elapsed, "_open": elapsed is None}
    return fields | _work(found["work"])


def _blocking(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.TIMEOUT, "phase": "blocking-wait"} | _work(found["work"])


def _async(found: re.Match[str], line: Prefixed) -> Fields:
    error = found["error"]
    cuda = _CUDA.search(error)
    if cuda is not None:
        return cuda_fields(cuda["error"], None, line) | _work(found["work"])
    message = error.partition("\n")[0].removeprefix("NCCL error: ")
    return {"kind": NcclKind.REMOTE_ERROR, "message": message} | _work(found["work"])


def _status(found: re.Match[str], _: Prefixed) -> Fields:
    rest = found["rest"]
    completed = _number(_COMPLETED.search(rest))
    return {
        "kind": NcclKind.TIMEOUT,
        "phase": "status",
        "seq": int(found["seq"]),
        "last_enqueued": _number(_ENQUEUED.search(rest)),
        "last_started": _number(_STARTED.search(rest)),
        "last_completed": completed,
        "_open": completed is None,
    }


def _dump(found: re.Match[str], line: Prefixed) -> Fields:
    rank = found["rank"]
    return {
        "kind": NcclKind.DUMP_SIGNAL,
        "phase": "local" if rank is None else "remote",
        "ranks": () if rank is None else (int(rank),),
        "last_enqueued": _number(_ENQUEUED.search(line.message)),
        "last_completed": _number(_COMPLETED.search(line.message)),
    }


def _dump_observed(_found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.DUMP_SIGNAL, "phase": "observed"}


def _dump_first(_found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.DUMP_SIGNAL, "phase": "first"}


def _dump_late(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.DUMP_SIGNAL, "phase": "late", "timeout_ms": int(found["ms"])}


def _dump_begun(_found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.DUMP_SIGNAL, "phase": "dumping"}


def _stuck(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.WATCHDOG_STUCK, "elapsed_ms": int(found["s"]) * 1000}


def _heartbeat(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.WATCHDOG_STUCK, "phase": "heartbeat", "message": found[0]}


def _gil(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.WATCHDOG_STUCK, "phase": "gil", "elapsed_ms": int(found["ms"])}


def _terminated(found: re.Match[str], _: Prefixed) -> Fields:
    why = found["why"].rstrip(". ")
    return {"kind": NcclKind.ABORTED, "phase": "terminated", "message": why}


def _aborted(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.ABORTED, "phase": "communicator", "message": found[0]}
    return fields | {"comm_rank": int(found["rank"])}


def _down(_found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.ABORTED, "phase": "process-down"}


def _xla(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.ABORTED, "phase": "xla", "message": found["why"]}


def _cuda(found: re.Match[str], line: Prefixed) -> Fields:
    return cuda_fields(found["error"], None, line)


def _cuda_name(found: re.Match[str], line: Prefixed) -> Fields:
    fields = cuda_fields(found["error"], None, line)
    return fields | {"message": f"{found['name']}: {fields['message']}"}


def _lost(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.CUDA_ERROR, "message": found["error"]}
    with suppress(ValueError):
        fields["pci"] = normalise_pci(found["pci"] or "")[0]
    return fields


def _oom(found: re.Match[str], _: Prefixed) -> Fields:
    pid = _OOM_PID.search(found["rest"])
    fields: Fields = {"kind": NcclKind.OUT_OF_MEMORY, "message": found[0][:300]}
    if pid is None or "this process has" in found["rest"].lower():  # the named one is another
        return fields
    return fields | {"pid": int(pid[1])}


def _nccl_error(found: re.Match[str], _: Prefixed) -> Fields:
    error = found["error"]
    remote = "remote process exited" in error
    kind = NcclKind.REMOTE_ERROR if remote else NcclKind.WARN
    # The name of NCCL's result code stands alone in the next line.
    return {"kind": kind, "phase": "exception", "message": error, "_open": True, "_result": True}


def result_code(message: str) -> int | None:
    """NCCL's result code of the line after its exception: `ncclRemoteError: A call failed ...`."""
    found = _RESULT.match(message)
    return None if found is None else RESULTS.get(found[1])


def _number(found: re.Match[str] | None) -> int | None:
    return None if found is None else int(found[1])


def _known(found: re.Match[str] | None) -> int | None:
    value = _number(found)
    return None if value is None or value >= _UNKNOWN else value


def _text(found: re.Match[str] | None) -> str | None:
    return None if found is None else found[1]


#: What the watchdog and its neighbours print, most particular first.
WATCHDOG_SHAPES = (
    Shape("caught collective operation timeout", _TIMEOUT, _timeout),
    Shape("timed out in blocking wait", _BLOCKING, _blocking),
    Shape("raised the following async exception", _ASYNC, _async),
    Shape("Timeout at NCCL work", _STATUS, _status),
    Shape("detected by watchdog at work", _STATUS, _status),
    Shape("Received a dump signal", _DUMP, _dump),
    Shape("Observed flight recorder dump", _DUMP_OBSERVED, _dump_observed),
    Shape("preparing to dump", _DUMP_BEGUN, _dump_begun),
    Shape("to signal dumping", _DUMP_FIRST, _dump_first),
    Shape("flight recorder dumps", _DUMP_LATE, _dump_late),
    Shape("watchdog got stuck", _STUCK, _stuck),
    Shape("eartbeat monitor timed out", _HEARTBEAT, _heartbeat),
    Shape("NCCL monitor thread timeout", _HEARTBEAT, _heartbeat),
    Shape("acquire GIL", _GIL, _gil),
    Shape("Terminating the process after", _TERMINATED, _terminated),
    Shape("communicator was aborted", _ABORTED, _aborted),
    Shape("Aborting communicator", _XLA, _xla),
    Shape("CUDA out of memory", _OOM, _oom),
    Shape("GPU is lost", _LOST, _lost),
    Shape("CUDA_ERROR_", _CUDA_NAME, _cuda_name),
    Shape("CUDA ", _CUDA, _cuda),
    Shape("NCCL error", _NCCL_ERROR, _nccl_error),
    Shape("taking the entire process down", _DOWN, _down),
    Shape("Some NCCL operations", _DOWN, _down),
)
