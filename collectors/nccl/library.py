"""Lines of the NCCL library itself: communicators, InfiniBand, sockets, CUDA, NVLS.

The rank of a communicator line is the rank inside that communicator, and most errors here name
what the reporter saw, not who is at fault.
"""

import re
from contextlib import suppress

from collectors.nccl.prefix import Prefixed
from collectors.nccl.shape import Fields, Shape
from evidence.identity import bus_id_to_pci
from evidence.records import NcclKind

__all__ = ["NCCL_SHAPES", "cuda_fields"]

#: CUDA's numbers for its error texts (cuda.h, driver_types.h 13.0), since most lines print only
#: the text.
CUDA_CODES = {
    "invalid argument": 1,
    "out of memory": 2,
    "no CUDA-capable device is detected": 100,
    "uncorrectable ECC error encountered": 214,
    "uncorrectable NVLink error detected during the execution": 220,
    "the operation cannot be performed in the present state": 401,
    "device not ready": 600,
    "an illegal memory access was encountered": 700,
    "the launch timed out and was terminated": 702,
    "device-side assert triggered": 710,
    "hardware stack error": 714,
    "an illegal instruction was encountered": 715,
    "misaligned address": 716,
    "unspecified launch failure": 719,
    "Invalid access of peer GPU memory over nvlink or a hardware error": 721,
    "system not yet initialized": 802,
    "unknown error": 999,
}

# `ncclCommInitRank comm 0x55c0 rank 4 nranks 16 cudaDev 4 nvmlDev 4 busId 9b000 commId 0x7d1 -
# Init COMPLETE`; a split prints `... busId 9b000 parent 0x55b0 color 1 key 4- Init START`; the
# oldest `comm 0x55c0 rank 4 nranks 16 cudaDev 4 nvmlDev 4 - Init COMPLETE`
_COMM = re.compile(
    r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d{1,7}) n[rR]anks (?P<size>\d{1,7})"
    r" cudaDev (?P<cuda>\d{1,4})(?: nvmlDev (?P<nvml>\d{1,4}))?(?: busId (?P<bus>[0-9a-f]{1,12}))?"
    r"(?P<rest>[^-]*(?:-\d[^-]*)*)- (?P<what>Init|Destroy|Abort|Revoke) (?P<phase>START|COMPLETE)",
)
# `commId 0x7d1e5a90c44b1f02`
_COMM_ID = re.compile(r"commId (0x[0-9a-f]+)")

# <= 2.9: `NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129`
# 2.20: `NET/IB : Got completion from peer 10.3.0.9<41512> with status=12 opcode=0 len=0 vendor
# err 129 (Recv) localGid ::ffff:10.4.0.1 remoteGids::ffff:10.4.0.9 hca mlx5_2`
# 2.29: `... status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=129
# req_type=Send ... hca mlx5_3`
_COMPLETION = re.compile(
    r"Got completion (?:from peer (?P<peer>[^\s<]+)<(?P<peer_port>\d+)> )?with "
    r"(?:error |status=(?:\w+\()?)(?P<status>\d{1,4})(?P<rest>.*)",
    re.DOTALL,
)
_VENDOR = re.compile(r"vendor[ _]err[ =](\d{1,6})")
_REQUEST = re.compile(r"\((Send|Recv|Flush)\)|req_type=(\w+)")
_LOCAL_GID = re.compile(r"localGid ([0-9a-fA-F:.]+)")
_REMOTE_GID = re.compile(r"remoteGids? ?([0-9a-fA-F:.]+)")
_HCA = re.compile(r"\bhca (\w[\w\-]*)(?::(\d+))?")

# `mlx5: gpu7: got completion with error:` (libmlx5's own, four rows of hex follow)
_MLX5 = re.compile(r"mlx5: (?P<host>\S{1,253}): got completion with error")

# `NET/IB : Got async event : port error`, `NET/IB : mlx5_1:1 Got async event : port error`
# `NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)`
_ASYNC = re.compile(
    r"(?:(?P<hca>[\w.\-]{1,64}):(?P<port>\d{1,3}) )?Got (?:non-fatal )?async (?:error )?event ?: "
    r"(?P<event>[^\n(]{1,200}?)(?:\((?P<code>\d{1,4})\))?(?: qpn=.*)?\s*$",
)
# `NET/IB : mlx5_1:1 async fatal event on QP (0x7f10): invalid request local work queue error`
# `NET/IB : mlx5_1:1 Got fatal async event: local catastrophic error(8) qpn=18 handle=0x7f10 ...`
_FATAL = re.compile(
    r"(?:(?P<hca>[\w.\-]{1,64}):(?P<port>\d{1,3}) )?(?:Got )?(?:async fatal|fatal async) event"
    r"(?: on (?P<scope>QP|CQ|SRQ|device)[^:]{0,99})?: (?P<event>[^\n]{1,200}?)"
    r"(?:\((?P<code>\d{1,4})\))?(?: qpn=.*)?\s*$",
)
# `ncclIbResiliencyHandleDeviceFailure: Device 0 marked as failed. Initiating recovery? Yes (send`
_RECOVERY = re.compile(
    r"Device (?P<device>\d{1,3}) marked as failed\. Initiating recovery\? (?P<recovery>Yes|No)",
)
# `NET/IB : mlx5_1:1 speed change detected: 400000 -> 100000 Mbps`
_SPEED = re.compile(
    r"(?:(?P<hca>[\w.\-]{1,64}):(?P<port>\d{1,3}) )?(?P<event>speed change detected: .{1,99})",
)
# `NET/IB : mlx5_1:1 GID table changed`
_GID_TABLE = re.compile(
    r"(?:(?P<hca>[\w.\-]{1,64}):(?P<port>\d{1,3}) )?(?P<event>GID table changed)",
)
# `Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_4:1, curr state INIT,
# next state RTR, local GID index 3, local GID ::ffff:10.4.0.1, remote GID ::ffff:10.4.0.9`
_MODIFY_QP = re.compile(
    r"ibv_modify_qp failed with (?:error )?(?P<errno>\d{1,4})? ?(?P<error>[^,\n]{1,99})"
    r"(?:, on dev (?P<hca>[\w\-]+):(?P<port>\d{1,3}))?",
)
_MODIFY_LOCAL = re.compile(r"local GID ([0-9a-fA-F:.]+)")
_MODIFY_REMOTE = re.compile(r"remote GID ([0-9a-fA-F:.]+)")

# `socketProgress: Connection closed by remote peer gpu9.cluster<41512>`
_CLOSED = re.compile(
    r"Connection closed by remote peer (?P<peer>[^\s<]{1,253})(?:<(?P<port>\d+)>)?"
)
# `Call to recv from 10.3.0.9<41512> failed : Connection reset by peer`, `Call to write failed : ..`
_CALL = re.compile(
    r"Call to (?P<call>recv|send|write|read)(?: (?:from|to) (?P<peer>[^\s<]{1,253})<\d+>)?"
    r" failed ?: (?P<error>[^\n]{1,200}?)\.?\s*$",
)
# `socketStartConnect: connect to 10.3.0.9<41512> returned Connection refused, exceeded error
# retry count after 35 attempts`; `Call to connect returned Connection refused, retrying`
_CONNECT = re.compile(
    r"[Cc]onnect(?: to (?P<peer>[^\s<]{1,253})<\d+>)? (?:returned|failed ?:) ?"
    r"(?P<error>[^\n]{1,200})",
)
# `[Service thread] Connection closed by localRank 2`
_SERVICE = re.compile(r"\[Service thread\] Connection closed by localRank (?P<local>\d{1,4})")

# `Cuda failure 'uncorrectable ECC error encountered'`, `Cuda failure 999 'unknown error'`
_CUDA_FAILURE = re.compile(r"Cuda failure (?:(?P<code>\d{1,4}) )?'(?P<error>[^']{1,300})'")
# `Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the ...'`
_NVLS_BIND = re.compile(
    r"NVLS\) Multicast memory of size \d+ ?: CUDA error (?P<code>\d{1,4}) '(?P<error>[^']{1,300})'",
)
# `MNNVL (cliqueSize 8) is available but not working ... IMEX`
_MNNVL = re.compile(r"(?P<error>MNNVL [^\n]{0,99}not working[^\n]{0,200})")
# `Mismatched collective detected, please check your collective calls at and around rank 39.`
_NEAR_RANK = re.compile(r"Mismatched collective detected.{0,99}around rank (?P<rank>\d{1,7})")
# `[Proxy Service 9] Failed to execute operation Connect from rank 9, retcode 6`
_PROXY = re.compile(
    r"\[Proxy Service (?P<service>\d{1,7})\] Failed to execute operation (?P<op>\w+)"
    r" from rank (?P<rank>\d{1,7}), retcode (?P<code>\d{1,4})",
)
_ANY = re.compile(r"(?P<message>\S[^\n]{0,400})", re.DOTALL)


def cuda_fields(error: str, code: int | None, line: Prefixed) -> Fields:
    """Fields of a CUDA error on the reporter's own device; out of memory is a kind of its own."""
    error = error.strip().rstrip(".")
    number = code
    if code is None:
        number = next((n for words, n in CUDA_CODES.items() if error.startswith(words)), None)
    kind = NcclKind.OUT_OF_MEMORY if number == CUDA_CODES["out of memory"] else NcclKind.CUDA_ERROR
    return {"kind": kind, "status": number, "message": error, "cuda_dev": line.dev}


def _comm(found: re.Match[str], line: Prefixed) -> Fields:
    ident = _COMM_ID.search(found["rest"])
    fields: Fields = {
        "kind": {
            "Init": NcclKind.COMM_INIT,
            "Destroy": NcclKind.COMM_DESTROY,
            "Abort": NcclKind.COMM_ABORT,
            "Revoke": NcclKind.COMM_ABORT,
        }[found["what"]],
        "phase": found["phase"].lower(),
        "comm": None if ident is None else ident[1],
        "comm_rank": int(found["rank"]),
        "comm_size": int(found["size"]),
        "cuda_dev": int(found["cuda"]),
        "nvml_dev": _integer(found["nvml"]),
        "_pointer": found["comm"],
        "_split": "parent " in found["rest"] or "ncclCommSplit" in line.message,
    }
    if found["bus"]:
        with suppress(ValueError):
            fields["pci"] = bus_id_to_pci(found["bus"])
    return fields


def _completion(found: re.Match[str], line: Prefixed) -> Fields:
    rest = found["rest"]
    vendor, request = _VENDOR.search(rest), _REQUEST.search(rest)
    hca = _HCA.search(rest)
    return {
        "kind": NcclKind.IB_COMPLETION,
        "status": int(found["status"]),
        "peer": found["peer"],
        "vendor_error": None if vendor is None else int(vendor[1]),
        "request": None if request is None else (request[1] or request[2]),
        "local_gid": _group(_LOCAL_GID.search(rest)),
        "remote_gid": _group(_REMOTE_GID.search(rest)),
        "hca": _group(hca),
        "port": None if hca is None else _integer(hca[2]),
        "cuda_dev": line.dev,
        "message": found[0][:300],
        "_open": vendor is None,
    }


def _mlx5(found: re.Match[str], _: Prefixed) -> Fields:
    host = found["host"]
    return {
        "kind": NcclKind.IB_COMPLETION,
        "host": None if host == "host_unknown" else host,
        "message": "mlx5: got completion with error",
    }


def _async(found: re.Match[str], _: Prefixed) -> Fields:
    return _event(found) | {"status": _integer(found["code"])}


def _fatal(found: re.Match[str], _: Prefixed) -> Fields:
    scope = found["scope"]
    phase = "fatal" if scope is None else f"fatal-{scope.lower()}"
    return _event(found) | {"phase": phase, "status": _integer(found["code"])}


def _event(found: re.Match[str]) -> Fields:
    return {
        "kind": NcclKind.IB_ASYNC,
        "hca": found["hca"],
        "port": _integer(found["port"]),
        "message": found["event"],
    }


def _recovery(found: re.Match[str], _: Prefixed) -> Fields:
    phase = "recovering" if found["recovery"] == "Yes" else "failed"
    fields: Fields = {"kind": NcclKind.IB_ASYNC, "phase": phase, "message": found[0]}
    return fields | {"_adapter": int(found["device"])}


def _speed(found: re.Match[str], _: Prefixed) -> Fields:
    return _event(found) | {"phase": "speed"}


def _gid_table(found: re.Match[str], _: Prefixed) -> Fields:
    return _event(found) | {"phase": "gid-table"}


def _modify_qp(found: re.Match[str], line: Prefixed) -> Fields:
    return {
        "kind": NcclKind.IB_CONNECT,
        "status": _integer(found["errno"]),
        "message": found["error"].strip(),
        "hca": found["hca"],
        "port": _integer(found["port"]),
        "local_gid": _group(_MODIFY_LOCAL.search(line.message)),
        "remote_gid": _group(_MODIFY_REMOTE.search(line.message)),
    }


def _closed(found: re.Match[str], line: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.PEER_CLOSED, "peer": found["peer"], "cuda_dev": line.dev}
    return fields | {"message": "Connection closed"}


def _call(found: re.Match[str], line: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.PEER_CLOSED, "peer": found["peer"], "phase": found["call"]}
    return fields | {"message": found["error"], "cuda_dev": line.dev}


def _connect(found: re.Match[str], line: Prefixed) -> Fields | None:
    if "retrying" in line.message:  # INFO, once a second while a peer is merely late
        return None
    if line.level is None and found["peer"] is None:
        return None
    error = found["error"].partition(", exceeded")[0]
    fields: Fields = {"kind": NcclKind.PEER_CLOSED, "phase": "connect", "peer": found["peer"]}
    return fields | {"message": error}


def _service(found: re.Match[str], _: Prefixed) -> Fields:
    # The reporter has a local rank of its own, so the one that closed is named as a peer.
    peer = f"localRank {found['local']}"
    fields: Fields = {"kind": NcclKind.PEER_CLOSED, "phase": "service-thread", "peer": peer}
    return fields | {"message": "Connection closed"}


def _cuda_failure(found: re.Match[str], line: Prefixed) -> Fields:
    fields = cuda_fields(found["error"], _integer(found["code"]), line)
    if "nvls" in (line.source or "") or "NVLS" in line.message:
        fields["kind"] = NcclKind.NVLS
    return fields


def _nvls(found: re.Match[str], line: Prefixed) -> Fields:
    fields = cuda_fields(found["error"], int(found["code"]), line)
    return fields | {"kind": NcclKind.NVLS}


def _mnnvl(found: re.Match[str], line: Prefixed) -> Fields:
    return {"kind": NcclKind.NVLS, "message": found["error"], "cuda_dev": line.dev}


def _near_rank(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.MISMATCH, "phase": "near"}
    return fields | {"ranks": (int(found["rank"]),), "message": found[0]}


def _proxy(found: re.Match[str], _: Prefixed) -> Fields:
    return {
        "kind": NcclKind.WARN,
        "phase": "proxy",
        "comm_rank": int(found["rank"]),
        "status": int(found["code"]),
        "op": found["op"],
        "message": found[0],
    }


def _other_warning(found: re.Match[str], line: Prefixed) -> Fields | None:
    if line.level != "WARN":
        return None
    return {"kind": NcclKind.WARN, "message": found["message"], "cuda_dev": line.dev}


def _integer(text: str | None) -> int | None:
    return None if text is None else int(text)


def _group(found: re.Match[str] | None) -> str | None:
    return None if found is None else found[1]


#: What NCCL prints, most particular first; any other WARN ends as kind ``warn``.
NCCL_SHAPES = (
    Shape("cudaDev", _COMM, _comm),
    Shape("Got completion", _COMPLETION, _completion),
    Shape("got completion with error", _MLX5, _mlx5),
    Shape("async fatal event", _FATAL, _fatal),
    Shape(" fatal async event", _FATAL, _fatal),
    Shape("async event", _ASYNC, _async),
    Shape("async error event", _ASYNC, _async),
    Shape("marked as failed", _RECOVERY, _recovery),
    Shape("speed change detected", _SPEED, _speed),
    Shape("GID table", _GID_TABLE, _gid_table),
    Shape("ibv_modify_qp failed", _MODIFY_QP, _modify_qp),
    Shape("closed by remote peer", _CLOSED, _closed),
    Shape("[Service thread]", _SERVICE, _service),
    Shape("Call to ", _CALL, _call),
    Shape("onnect", _CONNECT, _connect),
    Shape("NVLS) Multicast", _NVLS_BIND, _nvls),
    Shape("Cuda failure", _CUDA_FAILURE, _cuda_failure),
    Shape("MNNVL", _MNNVL, _mnnvl),
    Shape("Mismatched collective", _NEAR_RANK, _near_rank),
    Shape("[Proxy Service", _PROXY, _proxy),
    Shape("", _ANY, _other_warning),
)
