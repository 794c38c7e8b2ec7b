"""What only several lines together tell: joins, blocks, repetitions, and any bytes at all."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.nccl import parse_stream
from collectors.nccl.stream import NcclStream
from collectors.nccl.waits import Position
from evidence.records import NcclKind, NcclRecord

NOW = datetime(2026, 6, 15, 12, 0, tzinfo=UTC)


def parse(text: str | bytes, **options: Any) -> list[NcclRecord]:
    data = text.encode() if isinstance(text, str) else text
    options = {"job": "j", "host": None, "now": NOW} | options
    return list(parse_stream(data.splitlines(keepends=True), **options))


def c10d(rank: int, message: str, second: float = 1.0) -> str:
    return f"[rank{rank}]:[E402 09:13:{second:09.6f} ProcessGroupNCCL.cpp:632] {message}\n"


def timed_out(rank: int, inner: int, seq: int, op: str = "ALLREDUCE", second: float = 1.0) -> str:
    return c10d(
        rank,
        f"[Rank {inner}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
        f"OpType={op}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600013 milliseconds "
        "before timing out.",
        second,
    )


def counters(
    rank: int, group: str, inner: int, seq: int, last: tuple[int, int], second: float = 2.0
) -> str:
    return c10d(
        rank,
        f"[PG ID 2 PG GUID {group} Rank {inner}]  failure detected by watchdog at work sequence "
        f"id: {seq} PG status: last enqueued work: {last[0]}, last completed work: {last[1]}",
        second,
    )


def init(
    pid: int, rank: int, size: int, bus: str, *, host: str = "gpu7", comm: str = "0xa1"
) -> str:
    return (
        f"{host}:{pid}:{pid + 9} [{rank % 8}] NCCL INFO ncclCommInitRank comm 0x55{pid} rank {rank}"
        f" nranks {size} cudaDev {rank % 8} nvmlDev {rank % 8} busId {bus} commId {comm} - Init"
        " COMPLETE\n"
    )


# The two messages of a timeout


def test_operation_and_counters_of_one_wait_are_one_record() -> None:
    (record,) = parse(timed_out(9, 1, 77) + counters(9, "37(TP)", 1, 77, (80, 76)))
    assert (record.rank, record.comm_rank, record.group, record.group_desc) == (9, 1, "37", "TP")
    assert (record.seq, record.op, record.numel_in) == (77, "ALLREDUCE", 8)
    assert (record.last_enqueued, record.last_completed, record.elapsed_ms) == (80, 76, 600013)
    assert record.at == datetime(2026, 4, 2, 9, 13, 1, tzinfo=UTC)
    assert record.line == 1


def test_counters_that_come_first_are_joined_as_well() -> None:
    (record,) = parse(counters(9, "37", 1, 77, (80, 76)) + timed_out(9, 1, 77))
    assert (record.group, record.op, record.phase) == ("37", "ALLREDUCE", None)


def test_what_the_exception_repeats_is_said_once() -> None:
    again = timed_out(9, 1, 77).partition("] ")[2]
    (record,) = parse(
        timed_out(9, 1, 77)
        + counters(9, "37", 1, 77, (80, 76))
        + c10d(
            9,
            "[PG ID 2 PG GUID 37 Rank 1] Process group watchdog thread terminated with "
            "exception: " + again.rstrip(),
        )
        + "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        + "  what():  [PG ID 2 PG GUID 37 Rank 1] Process group watchdog thread terminated with "
        + "exception: "
        + again
        + counters(9, "37", 1, 77, (80, 76), second=3.0)
    )
    assert (record.rank, record.seq) == (9, 77)


def test_later_counters_of_the_same_rank_are_told_again() -> None:
    text = timed_out(9, 1, 77) + counters(9, "37", 1, 77, (80, 76))
    found = parse(text + counters(9, "37", 1, 77, (81, 76), second=30.0))
    assert [one.last_enqueued for one in found] == [80, 81]
    assert [one.op for one in found] == ["ALLREDUCE", "ALLREDUCE"]
    assert found[0].id != found[1].id


def test_two_groups_of_one_process_stay_apart() -> None:
    found = parse(
        timed_out(9, 1, 77, "ALLREDUCE")
        + counters(9, "37(TP)", 1, 77, (80, 76))
        + timed_out(9, 1, 77, "ALLTOALL")
        + counters(9, "100(EP)", 1, 77, (90, 76))
    )
    assert [(one.group_desc, one.op, one.last_enqueued) for one in found] == [
        ("TP", "ALLREDUCE", 80),
        ("EP", "ALLTOALL", 90),
    ]


def test_ranks_whose_lines_are_interleaved_stay_apart() -> None:
    ranks = range(64)
    text = "".join(timed_out(rank, rank, 5) for rank in ranks)
    text += "".join(counters(rank, "0(default_pg)", rank, 5, (6, 4)) for rank in ranks)
    found = parse(text)
    assert sorted((one.rank, one.op, one.last_enqueued) for one in found) == [
        (rank, "ALLREDUCE", 6) for rank in ranks
    ]


def test_a_timeout_without_its_second_message_leaves_after_some_lines() -> None:
    stream = NcclStream(job="j")
    line = timed_out(9, 1, 77).encode().rstrip()
    assert stream.feed(line, Position(0, 1), NOW) == []
    later = [stream.feed(b"noise", Position(9, 2), NOW) for _ in range(70)]
    assert [one.seq for found in later for one in found] == [77]
    assert not stream.pending


# Hard-wrapped lines


def test_a_line_wrapped_inside_a_number_is_joined() -> None:
    line = timed_out(9, 1, 417006, "BROADCAST").replace("NumelOut=8", "NumelOut=7340032")
    cut = line.index("340032")
    (record,) = parse(line[:cut] + "\n" + line[cut:])
    assert (record.numel_out, record.elapsed_ms) == (7340032, 600013)


def test_a_line_wrapped_inside_its_prefix_is_joined() -> None:
    text = (
        c10d(6, "[PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL'").rstrip()
        + "\ns watchdog got stuck for 480 seconds without making progress in monitoring\n"
        "enqueued collectives.\n"
        + c10d(6, "[PG ID 0 PG GUID 0(default_pg) Rank 6] [PG ID 0 PG GUID").rstrip()
        + "\n0(default_pg) Rank 6] Terminating the process after attempting to dump debug info, "
        "due to ProcessGroupNCCL watchdog hang.\n"
    )
    stuck, ended = parse(text)
    assert (stuck.kind, stuck.elapsed_ms) == (NcclKind.WATCHDOG_STUCK, 480000)
    assert (ended.phase, ended.message) == ("terminated", "ProcessGroupNCCL watchdog hang")


def test_the_next_message_is_not_taken_for_a_wrapped_rest() -> None:
    cut = timed_out(9, 1, 77).partition(" ran for")[0]
    found = parse(cut + "\nRuntimeError: CUDA error: unspecified launch failure\n")
    assert [(one.kind, one.elapsed_ms) for one in found] == [
        (NcclKind.CUDA_ERROR, None),
        (NcclKind.TIMEOUT, None),
    ]


# Who and where


def test_a_process_is_remembered_by_its_communicator_line() -> None:
    text = init(811, 11, 16, "5d000") + (
        "gpu7:811:902 [3] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"
        "[rank11]:[E402 09:13:51.1 ProcessGroupNCCL.cpp:1] [Rank 11] Work WorkNCCL(SeqNum=4, "
        "OpType=ALLREDUCE) timed out in blocking wait.\n"
    )
    _, event, timeout = parse(text)
    for record in (event, timeout):
        assert (record.rank, record.host, record.pid) == (11, "gpu7", 811)
        assert (record.pci, record.cuda_dev, record.nvml_dev) == ("0000:5d:00", 3, 3)


def test_a_rank_inside_a_smaller_communicator_is_not_global() -> None:
    text = (
        init(811, 1, 2, "5d000", comm="0xb2")
        + init(900, 0, 16, "3b000")
        + "gpu7:811:902 [3] x.cc:1 NCCL WARN Cuda failure 999 'unknown error'\n"
        + init(811, 11, 16, "5d000")
        + "gpu7:811:902 [3] x.cc:1 NCCL WARN Cuda failure 700 'an illegal memory access'\n"
    )
    found = [one for one in parse(text) if one.kind is NcclKind.CUDA_ERROR]
    assert [(one.rank, one.pci) for one in found] == [(None, "0000:5d:00"), (11, "0000:5d:00")]


def test_the_id_that_ranks_share_is_known_when_a_communicator_ends() -> None:
    text = init(811, 11, 16, "5d000") + (
        "gpu7:811:902 [3] NCCL INFO comm 0x55811 rank 11 nranks 16 cudaDev 3 busId 5d000 - "
        "Destroy COMPLETE\n"
    )
    _, gone = parse(text)
    assert (gone.kind, gone.comm, gone.rank) == (NcclKind.COMM_DESTROY, "0xa1", 11)


def test_the_rank_of_another_world_is_not_believed() -> None:
    (record,) = parse(timed_out(1, 12, 5))
    assert (record.rank, record.comm_rank) == (None, 12)


def test_names_from_the_file_stand_in_where_a_line_has_none() -> None:
    text = (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        "gpu7:811:902 [0] x.cc:1 NCCL WARN Cuda failure 999 'unknown error'\n"
    )
    bare, prefixed = parse(text, host="gpu1.cluster", rank=3, file="/logs/gpu1-3.log")
    assert (bare.host, bare.rank, bare.file) == ("gpu1.cluster", 3, "/logs/gpu1-3.log")
    assert (prefixed.host, prefixed.rank) == ("gpu7", 3)


def test_nccl_cuts_a_host_name_at_its_first_dot() -> None:
    text = "gpu7:811:902 [0] x.cc:1 NCCL WARN Cuda failure 999 'unknown error'\n"
    (record,) = parse(text, host="gpu7.cluster.local")
    assert record.host == "gpu7.cluster.local"


def test_inside_a_container_the_given_host_is_the_right_one() -> None:
    stream = NcclStream(job="j", host="gpu7", trust_host=True)
    lines = [
        init(811, 11, 16, "5d000", host="pod-x7f").encode(),
        b"pod-x7f:811:902 [0] x.cc:1 NCCL WARN Cuda failure 999 'unknown error'",
    ]
    found = [one for line in lines for one in stream.feed(line, Position(0, 1), NOW)]
    assert [(one.host, one.rank) for one in found] == [("gpu7", 11), ("gpu7", 11)]


def test_a_launcher_speaks_of_others_than_the_rank_of_its_file() -> None:
    text = (
        "E0402 09:13:51.118000 4711 torch/distributed/elastic/multiprocessing/api.py:826] failed "
        "(exitcode: -9) local_rank: 3 (pid: 31518) of binary: /usr/bin/python3\n"
    )
    (record,) = parse(text, rank=0)
    assert record.rank is None


def test_a_job_without_a_name_is_called_by_its_world_communicator() -> None:
    text = init(811, 11, 16, "5d000", comm="0xfeed") + (
        "gpu7:811:902 [0] x.cc:1 NCCL WARN Cuda failure 999 'unknown error'\n"
    )
    assert {one.job for one in parse(text, job="", file="/logs/run3/0.log")} == {"0xfeed"}
    late = text.partition("\n")[2]
    assert {one.job for one in parse(late, job="", file="/logs/run3/0.log")} == {"/logs/run3"}


# torchrun

_ELASTIC = "I0402 09:13:51.118000 4711 torch/distributed/elastic/agent/server/api.py:553] "


def rank_map(restart: int, ranks: str) -> str:
    values = [
        f"restart_count={restart}",
        "master_addr=gpu1",
        "master_port=29500",
        "group_rank=1",
        "group_world_size=2",
        "local_ranks=[0, 1]",
        "role_ranks=[8, 9]",
        f"global_ranks=[{ranks}]",
        "role_world_sizes=[16, 16]",
        "global_world_sizes=[16, 16]",
    ]
    head = _ELASTIC + "[default] Rendezvous complete for workers. Result:\n"
    return head + "".join(f"{_ELASTIC}  {value}\n" for value in values) + _ELASTIC + "\n"


def failed(local_rank: int) -> str:
    return (
        "E0402 09:14:51.118000 4711 torch/distributed/elastic/multiprocessing/api.py:826] failed "
        f"(exitcode: -9) local_rank: {local_rank} (pid: 31518) of binary: /usr/bin/python3\n"
    )


def test_the_rank_map_is_one_record_and_names_later_exits() -> None:
    mapped, exited = parse(rank_map(0, "8, 9") + failed(1), host="gpu7")
    assert (mapped.kind, mapped.ranks, mapped.comm_size) == (NcclKind.RANK_MAP, (8, 9), 16)
    assert (mapped.peer, mapped.port, mapped.pid, mapped.host) == ("gpu1", 29500, 4711, "gpu7")
    assert (exited.rank, exited.local_rank, exited.exit_code) == (9, 1, -9)


def test_a_restart_is_another_attempt_with_other_ranks() -> None:
    text = (
        rank_map(0, "8, 9")
        + timed_out(9, 9, 5)
        + failed(1)
        + _ELASTIC
        + "[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
        + rank_map(1, "0, 1")
        + timed_out(9, 9, 5)
        + failed(1)
    )
    found = parse(text, attempt=10)
    assert [(one.kind, one.attempt, one.rank) for one in found] == [
        (NcclKind.RANK_MAP, 10, None),
        (NcclKind.WORKER_EXIT, 10, 9),
        (NcclKind.RANK_MAP, 10, None),
        (NcclKind.TIMEOUT, 10, 9),
        (NcclKind.RANK_MAP, 11, None),
        (NcclKind.WORKER_EXIT, 11, 1),
        (NcclKind.TIMEOUT, 11, 9),
    ]


_BLOCK = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-04-02_09:13:56
  host      : gpu7.cluster
  rank      : 8 (local_rank: 0)
  exitcode  : -15 (pid: 31507)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 31507
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-04-02_09:13:55
  host      : gpu7.cluster
  rank      : 11 (local_rank: 3)
  exitcode  : 1 (pid: 31518)
  error_file: /tmp/error.json
  traceback : Traceback (most recent call last):
    File "train.py", line 25, in main
      raise ValueError('no data')
  ValueError: no data
============================================================
"""


def test_the_failure_summary_names_each_worker_and_the_root_cause() -> None:
    exited, root = parse("torch.distributed.elastic.ChildFailedError: \n" + _BLOCK)
    assert (exited.kind, exited.rank, exited.local_rank) == (NcclKind.WORKER_EXIT, 8, 0)
    assert (exited.exit_code, exited.pid, exited.host) == (-15, 31507, "gpu7.cluster")
    assert (root.kind, root.rank, root.local_rank) == (NcclKind.ROOT_CAUSE, 11, 3)
    assert (root.exit_code, root.pid) == (1, 31518)
    assert root.message == "ValueError: no data"
    assert root.at == datetime(2026, 4, 2, 9, 13, 55, tzinfo=UTC)
    assert "Root Cause" in root.raw
    assert exited.id != root.id


def test_lines_of_other_ranks_pass_through_the_failure_summary() -> None:
    head, tail = _BLOCK.split("  error_file: <N/A>\n")
    found = parse(head + timed_out(3, 3, 5) + counters(3, "0", 3, 5, (6, 4)) + tail)
    assert [(one.kind, one.rank) for one in found] == [
        (NcclKind.TIMEOUT, 3),
        (NcclKind.WORKER_EXIT, 8),
        (NcclKind.ROOT_CAUSE, 11),
    ]


def test_a_failure_summary_that_is_cut_off_still_tells_what_it_has() -> None:
    found = parse(_BLOCK.partition("  error_file: /tmp")[0])
    assert [(one.kind, one.exit_code) for one in found] == [
        (NcclKind.WORKER_EXIT, -15),
        (NcclKind.ROOT_CAUSE, 1),
    ]


# Analyzers


def test_a_ras_paragraph_is_one_record() -> None:
    text = (
        "Warnings\n========\n\n#0-0 (c07b1e55) MISMATCH\n"
        "  Communicator ranks have different AllGather operation counts\n"
        "  30 ranks have launched up to operation 640\n"
        "  Rank 12 -- GPU 4 managed by process 4711 on node gpu7\n"
        "  Rank 13 -- GPU 5 (NVML 5) managed by process 4712 on node gpu7\n\n"
        "INCOMPLETE\n  Missing communicator data from 1 job process\n"
        "  Process 4800 on node gpu9 managing GPU 5\n"
    )
    mismatch, incomplete = parse(text)
    assert (mismatch.comm, mismatch.phase, mismatch.op) == ("0xc07b1e55", "mismatch", "AllGather")
    assert (mismatch.ranks, mismatch.hosts) == ((12, 13), ("gpu7",))
    assert (incomplete.phase, incomplete.hosts) == ("incomplete", ("gpu9",))


def test_a_flight_recorder_finding_is_one_record() -> None:
    text = (
        "Not all ranks joining collective, sequence number: 6\ninternal record id: 5\n"
        "group info: 3:dp\ncollective: nccl:all_reduce\nmissing ranks: {2, 7}\n"
        "input sizes: [[1024]]\noutput sizes: [[1024]]\nworld size: 8\n"
        "expected ranks: {0, 1, 2, 3, 4, 5, 6, 7}\ncollective state: started\n"
        "collective stack trace:\n step at train.py:42\n"
        "Collective sequence number: 9 has errors\ngroup info: 3:dp\n"
        "collective: nccl:all_reduce\nerror msg: Culprit rank 1; Error type: "
        "COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'all_reduce' does not match\n"
    )
    missing, mismatch = parse(text)
    assert (missing.phase, missing.seq, missing.ranks) == ("missing", 6, (2, 7))
    assert (missing.group, missing.group_desc, missing.op) == ("3", "dp", "all_reduce")
    assert (mismatch.phase, mismatch.seq, mismatch.ranks) == ("mismatch", 9, (1,))


# Python


def test_an_exception_counts_where_a_traceback_ends_in_it() -> None:
    text = (
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "train.py", line 25, in main\n'
        "[rank2]:     raise ValueError('no data')\n"
        "[rank3]: KeyError: 'of a rank that had no traceback'\n"
        "[rank2]: ValueError: no data\n"
    )
    (record,) = parse(text)
    assert (record.kind, record.rank, record.message) == (
        NcclKind.PYTHON_ERROR,
        2,
        "ValueError: no data",
    )


def test_an_exception_that_is_about_communication_is_no_python_error() -> None:
    text = (
        "[rank2]: Traceback (most recent call last):\n"
        "[rank2]: torch.distributed.DistBackendError: NCCL error in: /src/NCCLUtils.hpp:268, "
        "remote process exited or there was a network error, NCCL version 2.21.5\n"
        "[rank2]: ncclRemoteError: A call failed possibly due to a network error\n"
        "[rank2]: Last error:\n"
        "[rank2]: socketProgressOpt: Call to recv from 10.3.0.9<36120> failed : Broken pipe\n"
    )
    assert [(one.kind, one.rank, one.peer) for one in parse(text)] == [
        (NcclKind.REMOTE_ERROR, 2, None),
        (NcclKind.PEER_CLOSED, 2, "10.3.0.9"),
    ]


# Repetition


def test_one_fault_said_three_times_is_one_record() -> None:
    text = init(811, 5, 8, "5d000") + (
        "gpu7:811:902 [5] x.cc:1 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\n"
        "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        + c10d(
            5,
            "[PG ID 0 PG GUID 0 Rank 5] Process group watchdog thread terminated with "
            "exception: CUDA error: uncorrectable ECC error encountered",
        )
    )
    _, record = parse(text)
    assert (record.kind, record.rank, record.pci) == (NcclKind.CUDA_ERROR, 5, "0000:5d:00")


def test_equal_events_of_one_process_are_counted_when_they_storm() -> None:
    line = "gpu7:811:902 [0] x.cc:93 NCCL WARN NET/IB : mlx5_1:1 Got async event : port error\n"
    found = parse(line * 64)
    assert [one.count for one in found] == [1] * 8 + [8, 16, 32]
    assert sum(one.count for one in found) == 64


def test_the_same_error_of_two_processes_is_two_records() -> None:
    text = "".join(
        f"gpu7:{pid}:{pid} [0] x.cc:1 NCCL WARN Cuda failure 999 'unknown error'\n"
        for pid in (811, 812)
    )
    assert [one.pid for one in parse(text)] == [811, 812]


def test_reading_a_file_again_gives_the_same_ids() -> None:
    text = init(811, 5, 8, "5d000") + timed_out(5, 5, 7) + _BLOCK + counters(5, "0", 5, 7, (8, 6))
    first, again = (parse(text, file="/logs/a.log", host="gpu7") for _ in range(2))
    assert first == again
    assert len({one.id for one in first}) == len(first)


# Anything at all


def test_ten_megabytes_without_a_newline_are_one_short_record() -> None:
    (record,) = parse(b"x" * 10_000_000)
    assert (record.kind, len(record.raw)) == (NcclKind.UNREADABLE, 2000)


@pytest.mark.parametrize(
    "unit", [b"a.", b"NCCL WARN ", b"[PG ", b"CUDA error: ", b"[1, ", b"Rank 1, 2 ", b"0-1:"]
)
def test_a_long_line_of_anything_is_read_in_reasonable_time(unit: bytes) -> None:
    begun = time.process_time()
    parse((b"NCCL WARN error " + unit * (65000 // len(unit)) + b"\n") * 3)
    # Generous: an expression that backtracks without bound needs minutes.
    assert time.process_time() - begun < 20


def test_invalid_utf8_is_kept_readable() -> None:
    (record,) = parse(b"gpu7:811:902 [3] x.cc:1 NCCL WARN caf\xe9 \xff failed\n")
    assert record.message == "caf\\xe9 \\xff failed"


_FRAGMENTS = [
    *("[rank1]:", "[rank99999999]:", "[E402 09:13:51.1 ProcessGroupNCCL.cpp:632] ", "[Rank 3] "),
    *("[PG ID 1 PG GUID 2(x) Rank 3] ", "gpu7:811:902 [3] ", "NCCL WARN ", "NCCL INFO ", "error"),
    *("Watchdog caught collective operation timeout: ", "WorkNCCL(SeqNum=1, ", "OpType=A", "\n"),
    *("ran for 5 milliseconds", "cudaDev 1", "comm 0x1 rank 1 nranks 2 ", " - Init COMPLETE"),
    *("Root Cause (first observed failure):\n", "Failures:\n", "[0]:\n", "  rank      : 1 (", "\r"),
    *("Rendezvous complete for workers. Result:\n", "  global_ranks=[0, 1]\n", "#0-0 (ab) DEAD\n"),
    *("Traceback (most recent call last):\n", "ValueError: ", '{"name": "torchelastic.worker.'),
    *('status.FAILED", "metadata": ', "[]}", "9" * 30, "-", "busId zz ", "1999-99-99 99:99:99"),
    *("Not all ranks joining collective, sequence number: 6\n", "restart_count=", "NULL\0", "é"),
]


@given(st.lists(st.one_of(st.sampled_from(_FRAGMENTS), st.text(max_size=9)), max_size=40))
def test_any_mixture_of_what_logs_hold_is_read_without_an_error(pieces: list[str]) -> None:
    text = "".join(pieces).encode("utf-8", "surrogatepass")
    for record in parse(text, keep_other=True):
        assert record.at is None or record.at <= NOW
        assert record.line is not None


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    for record in parse(data, keep_other=True, now=NOW + timedelta(days=1)):
        assert record.kind in set(NcclKind)


def test_an_exception_is_told_by_its_place_and_not_by_its_name() -> None:
    lines = (
        b"[rank1]: Traceback (most recent call last):\n"
        b'[rank1]:   File "/srv/fit.py", line 31, in step\n'
        b"[rank2]: loss 2.17\n"
        b"[rank1]:     batch = queue.get_nowait()\n"
        b"[rank1]:             ^^^^^^^^^^^^^^^^^^\n"
        b"[rank1]: queue.Empty\n"
        b"[rank2]: StopIteration\n"
    )
    records = list(
        parse_stream(lines.splitlines(keepends=True), job="j", host="h", now=datetime.now(UTC))
    )
    assert [(record.kind, record.rank, record.message) for record in records] == [
        (NcclKind.PYTHON_ERROR, 1, "queue.Empty")
    ]


def test_what_new_processes_say_in_the_same_words_is_told_again() -> None:
    """A job that is requeued writes on into its file, and says nothing of it."""
    stream = NcclStream(job="j", host="yard-a", file="/log/31.log")
    offset = 0

    def told(text: str, seconds: float) -> list[NcclKind]:
        nonlocal offset
        found = []
        now = NOW + timedelta(seconds=seconds)
        for one in text.encode().splitlines():
            found += stream.feed(one, Position(offset, offset), now)
            offset += len(one) + 1
        return [record.kind for record in found + stream.flush(now)]

    raised = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/srv/train.py", line 9, in <module>\n'
        "[rank1]: KeyError: 'loss'\n"
    )
    exits = (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 1"
        " (pid: 6412) of binary: /usr/bin/python3\n"
    )
    assert told(raised, 0) == [NcclKind.PYTHON_ERROR]
    assert told(raised, 30) == []  # the same process, as far as anybody tells
    assert told(exits + raised, 31) == [NcclKind.WORKER_EXIT]
    assert told(raised, 36) == []
    assert told(raised, 50) == [NcclKind.PYTHON_ERROR]
    assert told(raised, 90) == []
