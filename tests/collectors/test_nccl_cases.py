"""Public excerpts and whole runs with their right answers, where that folder is at hand.

Every value that an answer gives and a line shows is compared; what is left out is listed below.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from collectors.nccl import parse_stream
from evidence.records import NcclKind, NcclRecord

_ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("RINGFENCE_SHARED", _ROOT.parent / "shared")) / "cases"
FOLDERS = sorted((SHARED / "nccl").glob("*/meta.json")) if SHARED.is_dir() else []

if not FOLDERS:
    pytest.skip(f"no cases in {SHARED}", allow_module_level=True)

Event = dict[str, Any]
NOW = datetime(2027, 1, 1, tzinfo=UTC)


def rank_of(record: NcclRecord) -> int | None:
    """The rank as the answers count it: global, or of the only group where no line tells more."""
    return record.comm_rank if record.rank is None else record.rank


#: How an answer's kind of event shows in a record.
KINDS: dict[str, Callable[[NcclRecord], bool]] = {
    "ib_async_event": lambda r: r.kind is NcclKind.IB_ASYNC,
    "ib_completion_error": lambda r: r.kind is NcclKind.IB_COMPLETION,
    "mlx5_cqe_dump": lambda r: r.kind is NcclKind.IB_COMPLETION and r.status is None,
    "python_exception": lambda r: r.kind is NcclKind.CUDA_ERROR,
    "watchdog_cuda_error": lambda r: r.kind is NcclKind.CUDA_ERROR,
    "cuda_error": lambda r: r.kind is NcclKind.CUDA_ERROR,
    "cuda_oom": lambda r: r.kind is NcclKind.OUT_OF_MEMORY,
    "nccl_comm_init": lambda r: r.kind is NcclKind.COMM_INIT,
    "nccl_comm_abort": lambda r: r.kind is NcclKind.COMM_ABORT,
    "service_thread_closed": lambda r: r.phase == "service-thread",
    "collective_timeout": lambda r: r.kind is NcclKind.TIMEOUT and r.op is not None,
    "blocking_wait_timeout": lambda r: r.kind is NcclKind.TIMEOUT and r.count > 1,
    "pg_status": lambda r: r.kind is NcclKind.TIMEOUT and r.last_completed is not None,
    "dump_signal": lambda r: r.phase in ("local", "remote"),
    "dump_start": lambda r: r.phase == "dumping",
    "ray_worker_died": lambda r: r.phase == "ray",
    "nccl_async_error": lambda r: r.kind is NcclKind.REMOTE_ERROR and r.seq is not None,
    "nccl_remote_error": lambda r: r.kind in (NcclKind.REMOTE_ERROR, NcclKind.PEER_CLOSED),
    "nccl_exception": lambda r: r.phase == "exception",
    "socket_error": lambda r: r.kind is NcclKind.PEER_CLOSED,
    "socket_closed": lambda r: r.kind is NcclKind.PEER_CLOSED,
    "proxy_error": lambda r: r.phase == "proxy",
    "nccl_cuda_failure": lambda r: r.kind in (NcclKind.CUDA_ERROR, NcclKind.NVLS),
    "nvls_bind_failed": lambda r: r.kind is NcclKind.NVLS or r.phase == "exception",
    "fatal_python": lambda r: r.phase == "fatal-python",
    "collective_mismatch": lambda r: r.kind is NcclKind.MISMATCH,
    "nccl_mismatched_collective": lambda r: r.kind is NcclKind.MISMATCH,
    "fr_mismatch": lambda r: r.kind is NcclKind.FLIGHT_RECORDER and r.phase == "mismatch",
    "fr_missing": lambda r: r.kind is NcclKind.FLIGHT_RECORDER and r.phase == "missing",
    "ras_mismatch": lambda r: r.kind is NcclKind.RAS,
    "watchdog_stuck": lambda r: r.kind is NcclKind.WATCHDOG_STUCK,
    "process_terminated": lambda r: r.phase == "terminated",
    "store_lost": lambda r: r.kind is NcclKind.STORE_LOST,
    "store_clients_timeout": lambda r: r.kind is NcclKind.STORE_CLIENTS,
    "monitored_barrier": lambda r: r.kind is NcclKind.BARRIER_MISSING,
    "gloo_timeout": lambda r: r.kind is NcclKind.TIMEOUT and r.phase == "gloo",
    "elastic_failed": lambda r: r.kind is NcclKind.WORKER_EXIT and r.phase == "failed",
    "elastic_failure_item": lambda r: r.kind is NcclKind.WORKER_EXIT and r.phase == "failure",
    "elastic_root_cause": lambda r: r.kind is NcclKind.ROOT_CAUSE,
    "elastic_event": lambda r: r.phase in ("event", "agent-event"),
    "elastic_close": lambda r: r.phase == "stopped-by-agent",
    "elastic_death_signal": lambda r: r.kind is NcclKind.EXTERNAL_STOP,
    "elastic_keepalive_failed": lambda r: r.phase == "keep-alive",
    "xla_nccl_abort": lambda r: r.phase == "xla",
    "nccl_warn": lambda r: r.kind is NcclKind.WARN,
}


def in_words(record: NcclRecord, value: object) -> bool:
    return str(value) in f"{record.message} {record.raw}"


#: How an answer's value shows in a record.
VALUES: dict[str, Callable[[NcclRecord, Any], bool]] = {
    "host": lambda r, v: r.host == v,
    "pid": lambda r, v: r.pid == v,
    "agent_pid": lambda r, v: r.pid == v,
    "rank": lambda r, v: rank_of(r) == v,
    "global_rank": lambda r, v: r.rank == v,
    "group_rank": lambda r, v: r.comm_rank == v,
    "local_rank": lambda r, v: r.local_rank == v,
    "cudaDev": lambda r, v: r.cuda_dev == v,
    "busId": lambda r, v: f"{r.pci}.0" == v,
    "commId": lambda r, v: r.comm == v,
    "comm": lambda r, v: r.comm == f"0x{v}" or in_words(r, v),
    "nranks": lambda r, v: r.comm_size == v,
    "seq": lambda r, v: r.seq == v,
    "op": lambda r, v: v in (r.op, r.phase),
    "numel_in": lambda r, v: r.numel_in == v,
    "numel_out": lambda r, v: r.numel_out == v,
    "timeout_ms": lambda r, v: r.timeout_ms == v,
    "elapsed_ms": lambda r, v: r.elapsed_ms == v,
    "pg": lambda r, v: r.group == v,
    "pg_guid": lambda r, v: r.group == v,
    "pg_desc": lambda r, v: r.group_desc == v,
    "enqueued": lambda r, v: r.last_enqueued == v,
    "completed": lambda r, v: r.last_completed == v,
    "status": lambda r, v: r.status == v,
    "vendor_err": lambda r, v: r.vendor_error == v,
    "req": lambda r, v: r.request == v,
    "localGid": lambda r, v: _gid(r.local_gid, v),
    "remoteGid": lambda r, v: _gid(r.remote_gid, v),
    "hca": lambda r, v: r.hca == v,
    "port": lambda r, v: r.port == v,
    "event": lambda r, v: r.message == v,
    "severity": lambda r, v: str(r.phase).startswith(v),
    "scope": lambda r, v: str(r.phase).endswith(v.lower()),
    "peer_host": lambda r, v: r.peer == v,
    "peer_port": in_words,
    "opcode": lambda r, v: in_words(r, f"opcode {v}"),
    "length": lambda r, v: in_words(r, f"len {v}"),
    "error": in_words,
    "err": in_words,
    "name": in_words,
    "msg": in_words,
    "nccl": in_words,
    "last_error": in_words,
    "func": in_words,
    "file": in_words,
    "size": in_words,
    "free": in_words,
    "run_id": in_words,
    "code": lambda r, v: r.status == v or in_words(r, v),
    "time": lambda r, v: r.at is not None and in_words(r, v.partition(" ")[2] or v),
    "by_localRank": lambda r, v: r.peer == f"localRank {v}",
    "service_rank": lambda r, v: in_words(r, f"[Proxy Service {v}]"),
    "from_rank": lambda r, v: r.phase == "local" if v == "this" else v in (*r.ranks, r.comm_rank),
    "retcode": lambda r, v: r.status == v,
    "rank_a": lambda r, v: r.ranks[0] == v,
    "rank_b": lambda r, v: r.ranks[1] == v,
    "seq_a": lambda r, v: r.seq == v,
    "op_a": lambda r, v: r.op == v,
    "op_b": in_words,
    "shape_a": in_words,
    "shape_b": in_words,
    "near_rank": lambda r, v: r.ranks == (v,),
    "missing": lambda r, v: r.ranks == tuple(v),
    "blamed": lambda r, v: r.ranks == tuple(map(int, v)),
    "listed": lambda r, v: r.ranks == tuple(map(int, v)),
    "counts": lambda r, v: all(in_words(r, f"{n} ranks have launched") for n in v.values()),
    "seconds": lambda r, v: v * 1000 in (r.elapsed_ms, r.timeout_ms),
    "ms": lambda r, v: r.timeout_ms == v,
    "joined": lambda r, v: r.status == v,
    "expected": lambda r, v: v == r.comm_size or in_words(r, v),
    "exitcode": lambda r, v: r.exit_code == v,
    "signal": in_words,
    "remote": lambda r, v: v == f"{str(r.peer).partition('.')[0]}:{r.port}",
    "reporter": lambda r, v: rank_of(r) == v,
    "ip": lambda r, v: v in r.hosts,
    "exit_type": lambda r, v: r.message == v,
    "source": lambda r, v: (r.phase == "event") == (v == "WORKER"),
    "state": in_words,
    "restarts": lambda r, v: in_words(r, f"agent_restarts={v}"),
    "node": lambda r, v: r.host == v,
}

#: What no line shows: judgements, counts over several lines, and cut or retouched values.
JUDGED = {
    *("type", "secondary", "info_only", "first", "all_ranks", "pids", "count", "idx", "agents"),
    *("ranks", "map", "seq_b", "pg_id", "delay_s"),
}
#: Kinds that are one record however often they are said.
_SAID_ONCE = {"elastic_keepalive_failed"}
#: Values that stand in no line of their excerpt, or only in another spelling.
RETOUCHED = {
    ("017", "ib_completion_error", "rank"): "told by a line that comes later",
    ("035", "nccl_async_error", "env_rank"): "a rank of another world is left out",
    ("035", "nccl_async_error", "code"): "the name of the code is not in the excerpt",
    ("043", "socket_error", "peer"): "the answer's address is not the log's",
    ("069", "process_terminated", "reason"): "the excerpt ends inside the reason",
}
#: Ranks whose line with the group is not in the excerpt.
CUT_OFF = {
    ("027", 3): "pg",
    ("029", 2): "pg_desc",
}


def _gid(found: str | None, wanted: str) -> bool:
    start, _, end = wanted.partition("...")
    return found is not None and found.startswith(start.rstrip(":")) and found.endswith(end)


def _peer(record: NcclRecord, wanted: str) -> bool:
    return str(record.peer).startswith(wanted.partition(" ")[0])


VALUES["peer"] = _peer


def _parse(log: Path) -> list[NcclRecord]:
    with log.open("rb") as lines:
        return list(parse_stream(lines, job="j", host=None, now=NOW, file=log.name))


def _missing(name: str, event: Event, records: list[NcclRecord]) -> list[str]:
    """The names of values that no one record of the kind shows together with the others."""
    fitting = [record for record in records if KINDS[event["type"]](record)]
    if not fitting:
        return ["type"]
    told = {
        key: value
        for key, value in event.items()
        if key not in JUDGED and (name[:3], event["type"], key) not in RETOUCHED
    }
    misses = [
        [key for key, value in told.items() if not VALUES[key](record, value)] for record in fitting
    ]
    if not min(misses, key=len):
        return []
    # An answer may sum up lines that stand apart (an exception and its last error).
    return [key for key in told if all(key in miss for miss in misses)]


@pytest.mark.parametrize("meta", FOLDERS, ids=lambda meta: meta.parent.name)
def test_every_value_of_the_answer_is_read(meta: Path) -> None:
    name = meta.parent.name
    events = json.loads(meta.read_text())["expected"]["events"]
    records = _parse(meta.with_name("log.txt"))
    for event in events:
        fitting = [record for record in records if KINDS[event["type"]](record)]
        for rank in event.get("ranks", []):
            alike = [record for record in fitting if rank_of(record) == rank]
            wanted = {key: v for key, v in event.items() if CUT_OFF.get((name[:3], rank)) != key}
            assert _missing(name, wanted, alike) == [], (rank, event)
        for rank, values in event.get("map", {}).items():
            alike = [record for record in fitting if rank_of(record) == int(rank)]
            assert _missing(name, {"type": event["type"]} | values, alike) == []
        if "pids" in event:
            pids = {record.pid for record in fitting}
            wanted_pids = event["pids"]
            told = len(pids) if isinstance(wanted_pids, int) else sorted(pids)
            assert told == (wanted_pids if isinstance(wanted_pids, int) else sorted(wanted_pids))
        if "count" in event and event["type"] not in _SAID_ONCE:
            assert len(fitting) >= event["count"]
        assert _missing(name, event, records) == [], event


def run(name: str) -> list[NcclRecord]:
    return _parse(SHARED / "torch-runs" / f"{name}.log")


def of(records: list[NcclRecord], kind: NcclKind) -> list[NcclRecord]:
    return [record for record in records if record.kind is kind]


def test_a_raised_error_is_read_from_its_rank() -> None:
    (error,) = of(run("exc_record"), NcclKind.CUDA_ERROR)
    assert (error.rank, error.status) == (2, 214)


def test_a_clean_run_says_its_ranks_and_its_end_and_nothing_else() -> None:
    mapped, finished = run("info_ok")
    assert (mapped.kind, mapped.ranks, mapped.attempt) == (NcclKind.RANK_MAP, (0, 1), 0)
    assert finished.kind is NcclKind.FINISHED


def test_a_killed_worker_is_told_from_those_its_agent_stopped() -> None:
    exits = of(run("kill_single"), NcclKind.WORKER_EXIT)
    assert [(e.local_rank, e.pid, e.exit_code) for e in exits if e.phase == "failed"] == [
        (3, 26061, -9)
    ]
    assert {e.exit_code for e in exits if e.phase != "failed"} == {-15}


def test_the_late_rank_of_a_barrier_is_named_by_rank_0_alone() -> None:
    found = of(run("mb_first"), NcclKind.BARRIER_MISSING)
    assert [(one.rank, one.ranks) for one in found if one.phase != "reached"] == [(0, (3,))]
    assert sorted(one.rank or 0 for one in found if one.phase == "reached") == [1, 2]


def test_each_rank_names_the_first_that_differs_from_it() -> None:
    found = of(run("mismatch_detail"), NcclKind.MISMATCH)
    assert sorted(one.ranks for one in found) == [(0, 1), (1, 0), (2, 1), (3, 1)]


def test_clients_are_counted() -> None:
    (record,) = run("tcpstore_clients")
    assert (record.kind, record.status, record.comm_size) == (NcclKind.STORE_CLIENTS, 1, 8)


def test_an_agent_calls_its_own_victim_the_root_cause() -> None:
    (root,) = of(run("twonode_kill_agentA"), NcclKind.ROOT_CAUSE)
    assert (root.rank, root.exit_code) == (0, 1)


def test_the_flight_recorder_is_read_with_what_it_blames() -> None:
    assert run("frtrace_all_stuck_same") == []
    (missing,) = run("frtrace_missing_rank")
    assert (missing.phase, missing.seq, missing.ranks) == ("missing", 6, (2,))
    (mismatch,) = run("frtrace_type_mismatch")
    assert (mismatch.phase, mismatch.seq, mismatch.ranks) == ("mismatch", 6, (1,))
