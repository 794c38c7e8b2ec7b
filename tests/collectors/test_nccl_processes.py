"""Whose line it is: launchers' labels, processes of several cards, containers of one name."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from collectors.nccl import parse_stream
from collectors.nccl.memory import Processes
from collectors.nccl.stream import NcclStream, Position
from evidence.records import NcclKind, NcclRecord

NOW = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)


def parse(text: str, **options: Any) -> list[NcclRecord]:
    options = {"job": "j", "host": None, "now": NOW} | options
    return list(parse_stream(text.encode().splitlines(keepends=True), **options))


def init(host: str, pid: int, rank: int, size: int, device: int, comm: str = "0xab7") -> str:
    return (
        f"{host}:{pid}:{pid + 90} [{device}] NCCL INFO ncclCommInitRank comm 0x{rank + 1}f0 rank"
        f" {rank} nranks {size} cudaDev {device} nvmlDev {device + 4} busId {0x3B + device:x}000"
        f" commId {comm} - Init COMPLETE\n"
    )


ECC = "NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\n"
PORT = "NCCL WARN NET/IB : mlx5_1:1 Got async event : port error\n"


def faults(text: str, **options: Any) -> list[tuple[int | None, str | None]]:
    return [
        (one.rank, one.pci)
        for one in parse(text, **options)
        if one.kind in (NcclKind.CUDA_ERROR, NcclKind.IB_ASYNC)
    ]


def test_a_process_of_several_cards_is_told_by_the_device_of_the_line() -> None:
    start = init("n1", 50, 0, 4, 0) + init("n1", 50, 1, 4, 1)
    start += init("n2", 50, 2, 4, 0) + init("n2", 50, 3, 4, 1)
    lines = f"n1:50:7 [0] x.cc:1 {ECC}n1:50:8 [1] x.cc:1 {ECC}n2:50:9 [1] x.cc:1 {ECC}"
    assert faults(start + lines) == [(0, "0000:3b:00"), (1, "0000:3c:00"), (3, "0000:3c:00")]


def test_the_thread_of_infiniband_events_says_nothing_of_a_card() -> None:
    start = init("n1", 50, 0, 2, 0) + init("n1", 50, 1, 2, 1)
    assert faults(f"{start}n1:50:7 [0] x.cc:1 {PORT}") == [(None, None)]
    alone = init("n1", 50, 0, 2, 0) + init("n1", 51, 1, 2, 1)
    assert faults(f"{alone}n1:51:7 [0] x.cc:1 {PORT}") == [(1, "0000:3c:00")]


def test_containers_of_one_name_and_pid_name_no_rank() -> None:
    start = init("worker", 7, 0, 2, 0) + init("worker", 7, 1, 2, 0)
    assert faults(f"{start}worker:7:9 [0] x.cc:1 {ECC}") == [(None, None)]


def test_a_new_communicator_of_the_same_process_forgets_the_clash() -> None:
    start = init("worker", 7, 0, 2, 0) + init("worker", 7, 1, 2, 0)
    start += init("worker", 7, 1, 2, 0, comm="0xab8")
    assert faults(f"{start}worker:7:9 [0] x.cc:1 {ECC}") == [(1, "0000:3b:00")]


def test_small_communicators_change_no_rank() -> None:
    start = init("n1", 50, 5, 8, 0) + init("n1", 50, 1, 2, 0, comm="0xc1")
    assert faults(f"{start}n1:50:7 [0] x.cc:1 {ECC}") == [(5, "0000:3b:00")]


def test_a_failed_adapter_that_is_only_numbered_gets_its_name() -> None:
    text = (
        "n1:50:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB ib0:10.0.0.7"
        "<0>\nn1:50:7 [0] NCCL INFO NET/IB : Made virtual device [2] name=mlx5_0+mlx5_3 n=2\n"
        "n1:50:9 [0] NCCL WARN NET/IB: Device 1 marked as failed. Initiating recovery? Yes (send)\n"
        "n1:50:9 [0] NCCL WARN NET/IB: Device 2 marked as failed. Initiating recovery? No (send)\n"
        "n2:50:9 [0] NCCL WARN NET/IB: Device 0 marked as failed. Initiating recovery? No (recv)\n"
    )
    failed = [one for one in parse(text) if one.kind is NcclKind.IB_ASYNC]
    assert [(one.hca, one.port) for one in failed] == [
        ("mlx5_3", 1),
        ("mlx5_0+mlx5_3", None),
        (None, None),
    ]


def test_what_was_learned_of_processes_survives_being_written_down() -> None:
    stream = NcclStream("j")
    text = init("n1", 50, 0, 4, 0) + init("n1", 50, 1, 4, 1)
    text += "n1:50:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.7<0>\n"
    for number, line in enumerate(text.splitlines()):
        stream.feed(line.encode(), Position(number, number), NOW)
    memory = msgspec.json.decode(msgspec.json.encode(stream.processes), type=Processes)
    again = NcclStream("j", processes=memory)
    (record,) = again.feed(f"n1:50:8 [1] x.cc:1 {ECC}".encode(), Position(0, 1), NOW)
    assert (record.rank, record.pci) == (1, "0000:3c:00")
    assert memory.known["n1:50"].adapters == {0: "mlx5_0:1"}


CRASH = ["Traceback (most recent call last):", '  File "/a.py", line 1, in f', "    g()"]


def interleaved(labels: list[str], ends: list[str]) -> str:
    bodies = [[*CRASH, end] for end in ends]
    return "".join(
        f"{label}: {body[at]}\n"
        for at in range(4)
        for label, body in zip(labels, bodies, strict=True)
    )


def exceptions(text: str, **options: Any) -> list[tuple[str | None, str | None]]:
    found = parse(text, **options)
    return [(one.host, one.message) for one in found if one.kind is NcclKind.PYTHON_ERROR]


def test_tracebacks_of_several_nodes_that_a_launcher_mixes_are_told_apart() -> None:
    text = interleaved(["gpu7", "gpu8"], ["ValueError: bad shard", "KeyError: 'x'"])
    assert exceptions(text, host="login") == [
        ("gpu7", "ValueError: bad shard"),
        ("gpu8", "KeyError: 'x'"),
    ]


def test_tracebacks_of_several_tasks_are_told_apart_once_a_label_repeats() -> None:
    ends = ["ValueError: bad shard", "KeyError: 'x'"]
    text = "3: starting, no error\n3: still no error\n" + interleaved(["3", "11"], ends)
    assert [message for _, message in exceptions(text)] == ends


def test_numbers_of_lines_are_no_tasks() -> None:
    lines = [*CRASH, "ValueError: bad shard"]
    text = "".join(f"{4711 + at}: {line}\n" for at, line in enumerate(lines))
    assert exceptions(text) == [(None, "ValueError: bad shard")]


@pytest.mark.parametrize(
    "line",
    [
        "stage2: RuntimeError: CUDA error: unspecified launch failure",
        "mlx5: gpu9: got completion with error:",
        "rank3: RuntimeError: CUDA error: unspecified launch failure",
        "2026: RuntimeError: CUDA error: unspecified launch failure",
    ],
)
def test_not_every_word_before_a_colon_is_a_host(line: str) -> None:
    (record,) = parse(line, host="hgx1")
    assert record.host == ("gpu9" if line.startswith("mlx5") else "hgx1")


def test_root_causes_of_two_agents_that_a_launcher_mixes_are_two_records() -> None:
    block = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : {rank} (local_rank: 3)",
        "  exitcode  : {code} (pid: {pid})",
        "====================",
    ]
    values = {
        "gpu7": {"rank": 3, "code": -9, "pid": 411},
        "gpu8": {"rank": 11, "code": 1, "pid": 412},
    }
    text = "".join(
        f"{label}: {line.format(**told)}\n" for line in block for label, told in values.items()
    )
    found = [one for one in parse(text, host="login") if one.kind is NcclKind.ROOT_CAUSE]
    assert [(one.host, one.rank, one.exit_code, one.pid) for one in found] == [
        ("gpu7", 3, -9, 411),
        ("gpu8", 11, 1, 412),
    ]


def test_nccls_result_code_is_taken_from_the_line_after_the_exception() -> None:
    text = (
        "[rank4]: torch.distributed.DistBackendError: NCCL error in: /t/NCCLUtils.hpp:268, remote"
        " process exited or there was a network error, NCCL version 2.21.5\n"
        "[rank4]: ncclRemoteError: A call failed possibly due to a network error\n"
        "[rank4]: Last error:\n"
        "[rank4]: socketProgress: Connection closed by remote peer gpu9.cluster<41512>\n"
    )
    error, closed = parse(text)
    assert (error.kind, error.status, error.rank) == (NcclKind.REMOTE_ERROR, 6, 4)
    assert "ncclRemoteError" in error.raw
    assert (closed.kind, closed.peer) == (NcclKind.PEER_CLOSED, "gpu9.cluster")


def test_an_exception_without_that_line_is_read_as_before() -> None:
    text = (
        "RuntimeError: NCCL error in: /t/NCCLUtils.hpp:268, unhandled cuda error, NCCL version 2.21"
        "\nstep 4 | loss 1.2\n"
    )
    (error,) = parse(text)
    assert (error.kind, error.phase, error.status) == (NcclKind.WARN, "exception", None)


def test_a_desync_report_tells_who_lags_and_where_all_ranks_were() -> None:
    text = (
        "\t - [0] Timeout at collective: ALLREDUCE, #183\n"
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that"
        " caused the desync are:\n"
        "\t   - [7] finished collective #182, but didn't join collective #183 (count from 1)\n"
        "\t - Snapshot of ranks' latest states:\n"
        "\t   #183 started ranks:\n"
        "\t     [0, 1, 2, 3, 4, 5, 6] started ALLREDUCE\n"
        "\t   #182 finished ranks:\n"
        "\t     [7] finished ALLREDUCE\n"
        "step 12\n"
    )
    found = parse(text)
    assert {one.kind for one in found} == {NcclKind.DESYNC}
    assert [(one.phase, one.seq, one.ranks) for one in found] == [
        ("timeout", 183, (0,)),
        ("not-joined", 183, (7,)),
        ("started", 183, (0, 1, 2, 3, 4, 5, 6)),
        ("finished", 182, (7,)),
    ]
    assert len({one.id for one in found}) == 4


def test_where_python_called_the_collective_that_timed_out_is_kept() -> None:
    text = (
        "[rank5]:[E513 13:25:57.7 ProcessGroupNCCL.cpp:685] [PG ID 1 PG GUID 37(TP) Rank 1] Stack"
        " trace of the failed collective: \n"
        "#0 all_reduce from /opt/torch/distributed_c10d.py:2501\n"
        "#1 forward from /srv/model.py:77\n"
        "\n"
        "[rank5]:[E513 13:25:57.8 ProcessGroupNCCL.cpp:733] [PG ID 1 PG GUID 37(TP) Rank 1] Stack"
        " trace of the failed collective not found, potentially as FlightRecorder is disabled\n"
    )
    (record,) = parse(text)
    assert (record.kind, record.phase) == (NcclKind.FLIGHT_RECORDER, "stack")
    assert (record.rank, record.group, record.group_desc) == (5, "37", "TP")
    assert record.frames == (
        "/opt/torch/distributed_c10d.py:2501 all_reduce",
        "/srv/model.py:77 forward",
    )


def test_of_a_storm_of_return_codes_the_first_of_each_process_is_kept() -> None:
    text = "".join(
        f"n1:50:7 [0] NCCL INFO transport/net.cc:{n} -> {6 - n % 4}\n" for n in range(90)
    )
    text += "n1:51:7 [0] NCCL INFO init.cc:9 -> 3\n"
    found = parse(text)
    assert (found[0].pid, found[0].status, found[0].count) == (50, 6, 1)
    # The rest of it is only counted, at its doublings.
    assert [(one.pid, one.count) for one in found[1:]] == [(50, 8), (50, 16), (50, 32), (51, 1)]
