"""The JSON form of an NCCL RAS report (2.28.7 and newer), in the words of its text form.

It gives raw values of every rank; what differs is worked out here. Nothing in it is a judgement:
counts are launched, not completed, and ranks of a healthy job are read at different moments.
Shape: nccl/src/ras/client_support.cc (rasDumpCommsToJSON).
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from collectors.nccl.ras_text import RESULT_CODES, comm_id
from collectors.nccl.shape import Fields
from evidence.records import NcclKind

__all__ = ["ReportError", "read_report"]

#: Communicators whose differences become records; the largest first.
_COMMS_MAX = 64
#: Ranks and hosts that one record names, and distinct numbers of operations.
_NAMED_MAX, _LAUNCHED_MAX = 64, 16
#: A set of ranks above this share is no exception but one of two halves.
_FEW = 0.25
_SUCCESS, _IN_PROGRESS = 0, 7
_WORDS = {code: words for words, code in RESULT_CODES.items()}


class ReportError(ValueError):
    """Not a RAS report; the message is one sentence."""


class _Status(Struct):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class _Rank(Struct):
    rank: int
    host: str = "unknown"
    pid: int = -1
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, int] = {}


class _Absence(Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _Missing(Struct):
    rank: int
    host: str = "unknown"
    pid: int = -1
    status: _Absence = msgspec.field(default_factory=_Absence)


class _Comm(Struct):
    hash: str
    size: int = 0
    ranks: list[_Rank] = []
    missing_ranks: list[_Missing] = []


class _Gathering(Struct):
    timeouts_count: int = 0


class _Report(Struct):
    communicators: list[_Comm]
    nccl_version: str = "of unknown version"
    ras: _Gathering = msgspec.field(default_factory=_Gathering)


def read_report(data: bytes) -> list[Fields]:
    """Return the fields of a report's records, the whole job's first.

    Raises ReportError when it is no report.
    """
    try:
        report = msgspec.json.decode(data, type=_Report)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ReportError(f"the RAS report cannot be read: {str(error)[:200]}") from error
    comms = sorted(report.communicators, key=lambda comm: -comm.size)
    fields = [_job(report, comms), *_absent_processes(comms)]
    if report.ras.timeouts_count:
        count = report.ras.timeouts_count
        fields.append(_fields("timeout", f"{count} communication timeouts while gathering data"))
    fields += _summary(comms)
    for comm in comms[:_COMMS_MAX]:
        fields += _differences(comm)
    return fields


def _fields(phase: str, message: str, **more: object) -> Fields:
    return {"kind": NcclKind.RAS, "phase": phase, "message": message[:1000]} | more


def _job(report: _Report, comms: list[_Comm]) -> Fields:
    processes = {(one.host, one.pid) for comm in comms for one in comm.ranks}
    hosts = {host for host, _ in processes}
    left_out = len(comms) - _COMMS_MAX
    return _fields(
        "job",
        f"NCCL {report.nccl_version[:40]}: {len(comms)} communicators, {len(processes)} processes"
        f" on {len(hosts)} nodes" + (f"; {left_out} not compared" if left_out > 0 else ""),
        comm_size=max((comm.size for comm in comms), default=None),
    )


def _absent_processes(comms: list[_Comm]) -> Iterator[Fields]:
    """Processes that do not answer: dead ones, and those that may be late."""
    absent = [one for comm in comms for one in comm.missing_ranks if one.status.unresponsive]
    dead = [one for one in absent if one.status.considered_dead]
    silent = [one for one in absent if not one.status.considered_dead]
    for phase, found in (("dead", dead), ("incomplete", silent)):
        processes = dict.fromkeys((one.host, one.pid) for one in found)
        if processes:
            words = [f"process {pid} on node {host}" for host, pid in processes][:_NAMED_MAX]
            yield _fields(
                phase,
                f"{len(processes)} processes do not answer: {', '.join(words)}",
                hosts=_hosts(found),
                pid=next(iter(processes))[1] if len(processes) == 1 else None,
            )


def _summary(comms: list[_Comm]) -> Iterator[Fields]:
    """Communicators of one size and state together."""
    alike = Counter((comm.size, _state(comm)) for comm in comms)
    for (size, state), count in list(alike.items())[:_COMMS_MAX]:
        message = f"{count} communicators of {size} ranks: {state.upper()}"
        yield _fields("summary", message, comm_size=size, state=state)


def _state(comm: _Comm) -> str:
    """A communicator's state: the one furthest on its way to the end, as in the text form."""
    states = {_state_of(one) for one in comm.ranks}
    return next((s for s in ("abort", "finalize", "running", "init") if s in states), "nocomm")


def _state_of(rank: _Rank) -> str:
    status = rank.status
    if status.abort_flag:
        return "abort"
    if status.finalize_called or status.destroy_flag:
        return "finalize"
    return "running" if status.init_state == _SUCCESS else "init"


def _differences(comm: _Comm) -> Iterator[Fields]:
    name = {"comm": comm_id(comm.hash), "comm_size": comm.size}
    late = [one for one in comm.missing_ranks if one.status.unresponsive]
    gone = [one for one in comm.missing_ranks if not one.status.unresponsive]
    if late:
        message = f"{len(late)} ranks are missing"
        yield _fields("incomplete", message, **name, ranks=_ranks(late), hosts=_hosts(late))
    yield from (fields | name for fields in _errors(comm))
    states = Counter(_state_of(one) for one in comm.ranks)
    if gone:
        states["nocomm"] += len(gone)
    if len(states) > 1:
        few = [one for one in comm.ranks if _is_few(states[_state_of(one)], comm.size)]
        named = [*few, *(gone if _is_few(len(gone), comm.size) else ())]
        words = ", ".join(f"{count} {state.upper()}" for state, count in states.most_common())
        message = f"ranks have different status: {words}"
        yield _fields("mismatch", message, **name, ranks=_ranks(named), hosts=_hosts(named))
    for op in dict.fromkeys(op for one in comm.ranks for op in one.collective_counts):
        counts = Counter(one.collective_counts.get(op, 0) for one in comm.ranks)
        if len(counts) > 1:
            yield _launched(comm, op, counts) | name


def _errors(comm: _Comm) -> Iterator[Fields]:
    for when, attribute in (("initialization", "init_state"), ("asynchronous", "async_error")):
        by_code: dict[int, list[_Rank]] = {}
        for one in comm.ranks:
            code = getattr(one.status, attribute)
            if code not in (_SUCCESS, _IN_PROGRESS):
                by_code.setdefault(code, []).append(one)
        for code, found in by_code.items():
            words = _WORDS.get(code, "unexpected error")
            message = f"{when} error on {len(found)} ranks: {words}"
            yield _fields("error", message, status=code, ranks=_ranks(found), hosts=_hosts(found))


def _launched(comm: _Comm, op: str, counts: Counter[int]) -> Fields:
    few = [
        one
        for one in comm.ranks
        if _is_few(counts[one.collective_counts.get(op, 0)], len(comm.ranks))
    ]
    words = [f"{n} ranks have launched up to operation {c}" for c, n in counts.most_common(3)]
    return _fields(
        "mismatch",
        f"ranks have different {op} operation counts; {'; '.join(words)}",
        op=op,
        ranks=_ranks(few),
        hosts=_hosts(few),
        launched=tuple(counts.most_common(_LAUNCHED_MAX)),
    )


def _is_few(count: int, of: int) -> bool:
    return count == 1 or count <= of * _FEW


def _ranks(found: Iterable[_Rank | _Missing]) -> tuple[int, ...]:
    return tuple(one.rank for one in found)[:_NAMED_MAX]


def _hosts(found: Iterable[_Rank | _Missing]) -> tuple[str, ...]:
    hosts = dict.fromkeys(one.host[:253] for one in found if one.host != "unknown")
    return tuple(hosts)[:_NAMED_MAX]
