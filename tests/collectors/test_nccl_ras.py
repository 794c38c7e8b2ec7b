"""RAS reports of NCCL: in logs, in both forms, and from a server that speaks the protocol."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from collectors.collector import CollectorError, Unavailable
from collectors.nccl import parse_stream
from collectors.nccl.ras import RasCollector, ask
from collectors.nccl.ras_json import ReportError, read_report
from evidence.records import NcclKind, NcclRecord

NOW = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)

HEAD = """\
NCCL version {version} compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  ERROR,MISMATCH
    1         8         1         4         4        32   RUNNING      OK
"""
TEXT = (
    HEAD
    + """
Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 4800 on node 10.3.0.9 managing GPU 5

DEAD
  2 job processes are considered dead (unreachable via the RAS network)
  Process 4801 on node 10.3.0.9 managing GPU 6
  Process 4802 on node 10.3.0.9 managing GPU 7 (NVML 3)

#0-0 (00c07b1e55d2a94f) ERROR
  Asynchronous error on 1 rank
  Rank 7 reported Remote process error -- GPU 7 managed by process 4711 on node 10.3.0.8

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (00c07b1e55d2a94f) MISMATCH
  Communicator ranks have different status
  31 ranks have status RUNNING
  Rank 9 has status ABORT -- GPU 1 managed by process 4713 on node 10.3.0.8
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 4714 on node 10.3.0.8
  Rank 13 -- GPU 5 managed by process 4715 on node 10.3.0.8

  Communicator ranks have different Reduce operation counts
  31 ranks have not launched any operations
  Rank 3 has launched up to operation 2 -- [process information not found]

"""
)


def parse(text: str) -> list[NcclRecord]:
    return list(parse_stream(text.encode().splitlines(True), job="j", host="hgx3", now=NOW))


def test_every_part_of_a_text_report_is_a_record() -> None:
    version, *found = parse(TEXT.format(version="2.29.2"))
    assert (version.kind, version.message) == (NcclKind.SETUP, "2.29.2")
    assert {one.kind for one in found} == {NcclKind.RAS}
    assert [one.phase for one in found] == [
        *("job", "summary", "summary", "incomplete", "dead", "error", "timeout"),
        *("mismatch", "mismatch", "mismatch"),
    ]
    job, world, small, incomplete, dead, error, late, status, gather, reduce = found
    assert (job.comm_size, job.message) == (32, "4 nodes, 32 processes, 32 GPUs")
    assert (world.comm_size, world.state) == (32, "running")
    assert world.message == "1 communicators of 32 ranks on 4 nodes: RUNNING, ERROR,MISMATCH"
    assert small.message == "8 communicators of 4 ranks on 1 nodes: RUNNING, OK"
    assert (incomplete.hosts, incomplete.pid, incomplete.comm) == (("10.3.0.9",), 4800, None)
    assert (dead.hosts, dead.pid) == (("10.3.0.9",), None)
    assert (error.comm, error.ranks, error.status) == ("0xc07b1e55d2a94f", (7,), 6)
    assert "2 communication timeouts" in str(late.message)
    assert (status.op, status.ranks) == (None, (9,))
    assert (gather.op, gather.ranks, gather.launched) == (
        "AllGather",
        (12, 13),
        ((640, 30), (641, 2)),
    )
    assert (reduce.op, reduce.ranks, reduce.launched) == ("Reduce", (3,), ((0, 31), (2, 1)))


def test_a_report_in_the_middle_of_a_log_ends_where_the_log_goes_on() -> None:
    text = (
        "step 4\n#0-0 (c0) MISMATCH\n  Communicator ranks have different Reduce operation counts\n"
        "  Rank 3 -- GPU 3 managed by process 7 on node 10.0.0.1\n\n"
        "  warnings.warn('Rank 5 -- GPU 5 managed by process 7 on node 10.0.0.2')\n"
    )
    (record,) = parse(text)
    assert record.ranks == (3,)


RANKS = 32


def report(**more: Any) -> dict[str, Any]:
    """A job of four nodes with one communicator, all ranks at the same place."""
    return {
        "nccl_version": "2.28.9",
        "cuda_runtime_version": 12090,
        "timestamp": "2026-09-01 12:00:00",
        "communicators_count": 1,
        "communicators": [comm([rank(n) for n in range(RANKS)])],
        "ras": {"collection_time_sec": 0.01, "timeouts_count": 0},
    } | more


def comm(ranks: list[dict[str, Any]], missing: Any = (), size: int = RANKS) -> dict[str, Any]:
    return {
        "hash": "0xc07b1e55d2a94f",
        "secondary_hash": "0x1:0x2",
        "size": size,
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": list(missing),
    }


def rank(number: int, counts: Any = (), **status: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "host": f"10.3.0.{number // 8}",
        "pid": 4000 + number,
        "cuda_dev": number % 8,
        "nvml_dev": number % 8,
        "status": {"init_state": 0, "async_error": 0, "abort_flag": False} | status,
        "collective_counts": {"AllReduce": 640, "Broadcast": 3} | dict(counts),
    }


def missing(number: int, *, dead: bool = False, unresponsive: bool = True) -> dict[str, Any]:
    gone = {"unresponsive": unresponsive, "considered_dead": dead}
    return {"rank": number, "host": "10.3.0.3", "pid": 4000 + number, "status": gone}


def told(content: dict[str, Any]) -> list[dict[str, Any]]:
    return read_report(json.dumps(content).encode())


def test_a_healthy_job_is_two_records() -> None:
    job, summary = told(report())
    assert (job["phase"], job["comm_size"]) == ("job", 32)
    assert job["message"] == "NCCL 2.28.9: 1 communicators, 32 processes on 4 nodes"
    assert (summary["phase"], summary["state"], summary["comm_size"]) == ("summary", "running", 32)


def test_ranks_that_differ_are_told_as_the_text_tells_them() -> None:
    ranks = [rank(n) for n in range(32)]
    ranks[12] = rank(12, {"AllReduce": 641})
    ranks[13] = rank(13, {"AllReduce": 641})
    (mismatch,) = told(report(communicators=[comm(ranks)]))[2:]
    assert (mismatch["phase"], mismatch["op"]) == ("mismatch", "AllReduce")
    assert (mismatch["comm"], mismatch["ranks"]) == ("0xc07b1e55d2a94f", (12, 13))
    assert mismatch["hosts"] == ("10.3.0.1",)
    assert mismatch["launched"] == ((640, 30), (641, 2))


def test_two_halves_that_differ_name_no_rank() -> None:
    ranks = [rank(n, {"AllReduce": 640 + n % 2}) for n in range(32)]
    (mismatch,) = told(report(communicators=[comm(ranks)]))[2:]
    assert (mismatch["ranks"], mismatch["launched"]) == ((), ((640, 16), (641, 16)))


def test_dead_and_silent_processes_and_missing_ranks_are_told_apart() -> None:
    ranks = [rank(n) for n in range(29)]
    gone = [missing(29, dead=True), missing(30), missing(31, unresponsive=False)]
    _, dead, silent, _, late, status = told(report(communicators=[comm(ranks, gone)]))
    assert (dead["phase"], dead["pid"], dead["hosts"]) == ("dead", 4029, ("10.3.0.3",))
    assert (silent["phase"], silent["pid"]) == ("incomplete", 4030)
    assert (late["phase"], late["ranks"]) == ("incomplete", (29, 30))
    assert (status["phase"], status["ranks"]) == ("mismatch", (31,))
    assert status["message"] == "ranks have different status: 29 RUNNING, 1 NOCOMM"


def test_errors_and_states_of_ranks_are_told() -> None:
    ranks = [rank(n) for n in range(32)]
    ranks[7] = rank(7, async_error=6)
    ranks[8] = rank(8, async_error=7, abort_flag=True)
    *_, error, status = told(report(communicators=[comm(ranks)]))
    assert (error["phase"], error["status"], error["ranks"]) == ("error", 6, (7,))
    assert error["message"] == "asynchronous error on 1 ranks: Remote process error"
    assert status["ranks"] == (8,)


def test_a_report_of_a_huge_job_stays_small() -> None:
    many = [rank(n, {f"Op{i}": n for i in range(5)}) for n in range(2000)]
    found = told(report(communicators=[comm(many, size=2000)] + [comm([rank(0)], size=1)] * 500))
    assert len(found) < 20
    assert "437 not compared" in found[0]["message"]
    assert max(len(str(one)) for one in found) < 4000


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"communicators": [{"hash": 7}]}', b"\xff", b"[" * 9999, b"ERROR: x\n"]
)
def test_what_is_no_report_is_one_sentence(data: bytes) -> None:
    with pytest.raises(ReportError, match="RAS report cannot be read"):
        read_report(data)


class Server:
    """A RAS service as NCCL's: one line a command, closed after a report."""

    def __init__(self, *, json_too: bool = True, version: str = "2.28.9") -> None:
        self.commands: list[str] = []
        self.json_too = json_too
        self.version = version
        self.report = json.dumps(report()).encode()
        self.hangs = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        # A blocked accept is woken by this, not by close.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client, client.makefile("rwb") as lines:
                self._talk(lines)

    def _talk(self, lines: Any) -> None:
        as_json = False
        for line in lines:
            command = line.decode().strip().upper()
            self.commands.append(command)
            if self.hangs:
                time.sleep(5)
                return
            if command.endswith("STATUS"):
                text = TEXT.format(version=self.version).encode()
                lines.write(self.report if as_json else text)
                lines.flush()
                return
            lines.write(self._answer(command))
            lines.flush()
            as_json |= command == "SET FORMAT JSON" and self.json_too

    def _answer(self, command: str) -> bytes:
        if command.startswith("CLIENT PROTOCOL "):
            return b"SERVER PROTOCOL 2\n"
        if command.startswith("TIMEOUT ") or (command == "SET FORMAT JSON" and self.json_too):
            return b"OK\n"
        return f"ERROR: Unknown command {command}\n".encode()


@contextmanager
def serving(**options: Any) -> Iterator[Server]:
    server = Server(**options)
    try:
        yield server
    finally:
        server.close()


class Clock:
    now = NOW

    def __call__(self) -> datetime:
        return self.now


def collector(server: Server, **options: Any) -> RasCollector:
    return RasCollector(server.address, "moe", "hgx3", Clock(), **options)


def round_of(asked: RasCollector, later_s: float = 61.0) -> list[NcclRecord]:
    """Let a minute pass, and return the answer to what is asked then."""
    clock = asked.clock
    assert isinstance(clock, Clock)
    clock.now += timedelta(seconds=later_s)
    found, absent = _read(asked)
    end = time.monotonic() + 20
    while asked.busy and time.monotonic() < end:
        time.sleep(0.002)
        more, absent = _read(asked)
        found += more
    if absent is not None:
        raise absent
    return found


def _read(asked: RasCollector) -> tuple[list[NcclRecord], Unavailable | None]:
    try:
        return list(asked.read()), None
    except Unavailable as error:
        return [], error


def test_a_job_is_asked_for_its_json_and_answers_with_records() -> None:
    with serving() as server:
        first, summary = round_of(collector(server))
        assert server.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT JSON", "STATUS"]
    assert (first.kind, first.phase, first.source) == (NcclKind.RAS, "job", "ras")
    assert (first.job, first.host, first.at) == ("moe", "hgx3", NOW + timedelta(seconds=61))
    assert first.id != summary.id


def test_each_answer_is_said_under_ids_of_its_own() -> None:
    with serving() as server:
        asked = collector(server)
        first, second = round_of(asked), round_of(asked)
    assert not {one.id for one in first} & {one.id for one in second}


def test_a_job_is_asked_no_more_often_than_the_interval() -> None:
    with serving() as server:
        asked = collector(server, interval_s=300.0)
        assert len(round_of(asked)) == 2
        assert [round_of(asked) for _ in range(4)] == [[], [], [], []]
        assert len(round_of(asked)) == 2
    with pytest.raises(ValueError, match="every 30 s at most"):
        collector(server, interval_s=5.0)


def test_an_old_nccl_is_not_asked_unless_the_operator_says_so() -> None:
    with serving(json_too=False, version="2.25.1") as server:
        with pytest.raises(Unavailable, match=r"older than 2\.28\.7 and is not asked"):
            round_of(collector(server))
        assert "STATUS" not in " ".join(server.commands)
        found = round_of(collector(server, old_versions=True))
        assert server.commands[-1] == "VERBOSE STATUS"
    assert [one.phase for one in found][:4] == ["version", "job", "summary", "summary"]
    assert {one.source for one in found} == {"ras"}


@pytest.mark.parametrize("version", ["2.26.5", "2.27.3", "2.27.7"])
def test_a_version_that_can_crash_is_asked_once_and_never_again(version: str) -> None:
    with serving(json_too=False, version=version) as server:
        asked = collector(server, old_versions=True)
        assert round_of(asked)
        for _ in range(3):
            with pytest.raises(Unavailable, match=f"NCCL {version} can crash when asked"):
                round_of(asked)
        assert server.commands.count("VERBOSE STATUS") == 1
        # A newer job has taken its place.
        server.json_too = True
        assert [one.phase for one in round_of(asked)] == ["job", "summary"]


def test_the_version_before_is_asked_again() -> None:
    with serving(json_too=False, version="2.26.2") as server:
        asked = collector(server, old_versions=True)
        assert round_of(asked)
        assert round_of(asked)


def test_where_nothing_listens_the_service_is_unavailable_and_found_later() -> None:
    with serving() as server:
        asked = collector(server)
    with pytest.raises(Unavailable, match="no NCCL job answers") as first:
        round_of(asked)
    # It says the same while it looks again, so that nothing seems to come and go.
    clock = asked.clock
    assert isinstance(clock, Clock)
    clock.now += timedelta(seconds=61)
    with pytest.raises(Unavailable) as second:
        asked.read()
    assert str(first.value) == str(second.value)


def test_a_service_that_hangs_holds_up_nobody_and_ends_by_its_deadline() -> None:
    with serving() as server:
        server.hangs = True
        asked = collector(server, deadline_s=1.5)
        before = time.monotonic()
        assert list(asked.read()) == []
        assert time.monotonic() - before < 1.2
        with pytest.raises(CollectorError, match="does not answer"):
            round_of(asked)


def test_what_is_no_ras_service_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(
            target=lambda: listening.accept()[0].sendall(b"SSH-2.0-OpenSSH_9.6\r\n"), daemon=True
        ).start()
        with pytest.raises(CollectorError, match="no RAS service"):
            ask(("127.0.0.1", listening.getsockname()[1]), 5.0)


def test_a_report_that_cannot_be_read_is_a_record_that_says_so() -> None:
    with serving() as server:
        server.report = b'{"communicators": ['
        (record,) = round_of(collector(server))
    assert record.kind is NcclKind.UNREADABLE
    assert "cannot be read" in str(record.message)


@pytest.mark.parametrize("address", ["localhost", "localhost:0", ":28028", "h:port", "h:99999"])
def test_an_address_that_cannot_be_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="no address of a RAS service"):
        RasCollector(address, "j", None, Clock())
