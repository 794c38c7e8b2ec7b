"""Jobs of thousands of ranks: the state stays small, and the answer stays right."""

import random
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence.decisions import Suspicion
from evidence.records import NcclKind, NcclRecord, Tick
from rules import keeping
from rules.job import JobState, due, step
from rules.stage import Arrived

from .job_lines import GIVE_UP, RULES, T0, gpu, host, init, line, told, wait

MIB = 1 << 20
NODE = 8
LATE = GIVE_UP + timedelta(seconds=3)


def storm(rank: int) -> Iterator[NcclRecord]:
    """What a rank prints on its way down after its watchdog gave up."""
    who = {"rank": rank, "host": host(rank, NODE), "pid": 5000 + rank}
    echo = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027"
    yield wait(rank, per_node=NODE, op=None, raw="status")
    yield wait(rank, per_node=NODE)
    yield line(NcclKind.DUMP_SIGNAL, LATE, last_enqueued=814, last_completed=811, **who)
    yield line(NcclKind.REMOTE_ERROR, LATE, message="remote process exited", **who)
    yield line(NcclKind.ABORTED, LATE, **who)
    yield line(NcclKind.PYTHON_ERROR, LATE, message=f"[rank{rank}]: {echo}", **who)
    yield line(NcclKind.PEER_CLOSED, LATE, peer=f"{host(rank // 2, NODE)}<{4000 + rank}>", **who)
    yield line(NcclKind.WORKER_EXIT, LATE, exit_code=-9, phase="failed", **who)
    yield line(NcclKind.ROOT_CAUSE, LATE, exit_code=-6, local_rank=rank % NODE, **who)
    yield line(NcclKind.WORKER_EXIT, LATE, exit_code=-6, local_rank=rank % NODE, **who)
    yield line(
        NcclKind.FLIGHT_RECORDER, LATE, phase="group", group="0", group_desc="default_pg",
        members="0-2047", seq=812, op="all_reduce", state="started", incomplete=3,
        last_enqueued=814, last_completed=811, frames=("step train.py:88",), **who,
    )  # fmt: skip


def drive(size: int, lines: list[NcclRecord]) -> tuple[int, list[Suspicion], JobState]:
    """The largest state, what was said at the end, and the state after that."""
    state = JobState()
    for rank in range(size):
        state, _ = step(state, Arrived("nccl", init(rank, size, NODE), T0), RULES)
    for number, record in enumerate(lines):
        at = GIVE_UP + timedelta(microseconds=100 * number)
        state, said = step(state, Arrived("nccl", record, at), RULES)
        assert said == []
    largest = len(msgspec.json.encode(state))
    at = due(state)
    assert at is not None
    state, said = step(state, Arrived("nccl", Tick(id="t", at=at), at), RULES)
    return largest, said, state


def test_a_storm_of_2048_ranks_names_the_missing_one_and_stays_below_a_mebibyte() -> None:
    lines = [one for rank in range(2048) if rank != 777 for one in storm(rank)]
    random.Random(3).shuffle(lines)
    largest, said, after = drive(2048, lines)
    assert largest < MIB / 2
    assert len(msgspec.json.encode(after)) < MIB / 2
    assert told(said) == [("suspected", "accuses", "missing-rank", gpu(777, NODE).id)]
    assert said[0].weight == 0.7
    assert said[0].reason.startswith("2047 of 2048 ranks waited in ALLREDUCE number 812")


def test_2048_ranks_that_wait_in_groups_of_four_are_told_apart_below_a_mebibyte() -> None:
    small = [
        wait(rank, 90 + rank // 4, per_node=NODE, group=str(rank // 4), group_desc="TENSOR", op=op)
        for rank in range(2048)
        for op in ("ALLREDUCE", None)
        if rank != 777
    ]
    largest, said, _ = drive(2048, small)
    assert largest < MIB
    assert said[0].domain == gpu(777, NODE)
    assert "512 collectives of the groups they share" in said[0].reason


def test_victims_of_a_large_job_are_listed_up_to_a_bound_and_counted_in_words() -> None:
    lines = [wait(rank, per_node=NODE) for rank in range(512) if rank != 200]
    _, said, _ = drive(512, lines)
    assert len(said[0].victims) == 256
    assert said[0].reason.endswith("511 other GPUs of the job suffer; 256 are listed.")
    assert len({ref.id for ref in said[0].evidence}) == len(said[0].evidence) == 32
    assert [one.host for one in said[1:]] == sorted(
        host(rank, NODE) for rank in range(0, 512, NODE) if rank != 200
    )
    _, few, _ = drive(32, [wait(rank, per_node=NODE) for rank in range(32) if rank != 20])
    assert len(few[0].victims) == 31
    assert "listed" not in few[0].reason


def test_a_line_that_names_a_billionth_rank_is_not_believed() -> None:
    mangled = [wait(10**9, per_node=NODE), init(3, 10**9, NODE)]
    lines = [wait(rank, per_node=NODE) for rank in range(64) if rank != 9]
    largest, said, state = drive(64, [*mangled, *lines])
    assert state.attempts[0].roster.world_size == 64
    assert said[0].domain == gpu(9, NODE)
    assert largest < MIB


def test_a_job_of_8192_ranks_is_judged_as_well() -> None:
    lines = [wait(rank, per_node=NODE) for rank in range(8192) if rank != 4096]
    largest, said, _ = drive(8192, lines)
    assert largest < MIB
    assert said[0].domain == gpu(4096, NODE)


def test_a_job_of_more_ranks_than_are_known_one_by_one_names_no_card() -> None:
    size = 9000
    lines = [wait(rank, per_node=NODE) for rank in range(size) if rank != 8999]
    largest, said, _ = drive(size, lines)
    assert largest < MIB
    assert {one.says for one in said} == {"blind"}


def test_more_groups_than_are_kept_make_absence_worthless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "SHAPES_KEPT", 4)
    lines = [
        wait(rank, per_node=NODE, group=str(rank), group_desc="TENSOR")
        for rank in range(64)
        if rank != 9
    ]
    _, said, state = drive(64, lines)
    assert len(state.attempts[0].clues.alike) == 4
    assert state.attempts[0].clues.lost > 0
    assert {one.says for one in said} == {"blind"}


MANY = [wait(rank, 812 if rank % 2 else 813, per_node=NODE) for rank in range(64) if rank != 9]
world_of_64 = [init(rank, 64, NODE) for rank in range(64)]


@settings(max_examples=30)
@given(st.randoms(use_true_random=False))
def test_any_order_of_more_lines_than_are_kept_gives_the_same_answer(
    shuffled: random.Random,
) -> None:
    def said(records: list[NcclRecord]) -> list[Suspicion]:
        state = JobState()
        for record in world_of_64:
            state, _ = step(state, Arrived("nccl", record, T0), RULES)
        for record in records:
            state, _ = step(state, Arrived("nccl", record, GIVE_UP), RULES)
        at = due(state)
        assert at is not None
        return step(state, Arrived("nccl", Tick(id="t", at=at), at), RULES)[1]

    arriving = [*MANY, *MANY[:5]]
    shuffled.shuffle(arriving)
    assert said(arriving) == said(MANY)
