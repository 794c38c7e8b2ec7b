"""Ranks that lag, or call something else than the others."""

import msgspec
import pytest

from evidence.decisions import Cause, Status
from evidence.records import NcclKind, NcclRecord

from .job_lines import gpu, line, run, told, wait, waits, world


def test_a_rank_stuck_in_what_all_others_completed_is_accused_weakly() -> None:
    ahead = waits((r for r in range(8) if r != 2), 813, last_completed=812)
    said = run([*world(8), *ahead, wait(2, 812, last_completed=811)])
    assert told(said)[0] == ("suspected", "accuses", "lagging-rank", gpu(2).id)
    assert said[0].weight == 0.4


def test_a_broadcast_that_ended_on_its_root_first_is_no_lag() -> None:
    records = [*waits(range(1, 8), 812, op="BROADCAST"), wait(0, 814, op="_ALLGATHER_BASE")]
    assert told(run(world(8) + records)) == [("insufficient", "blind", "all-joined", "job:4711.0")]
    one = [*waits(range(7), 813, last_completed=812), wait(7, 812, op="BROADCAST")]
    assert told(run(world(8) + one)) == [("insufficient", "blind", "all-joined", "job:4711.0")]


def test_sequence_numbers_of_different_groups_are_not_compared() -> None:
    tensor = {"group": "37", "group_desc": "TENSOR_MODEL_PARALLEL_GROUP"}
    records = [*waits(range(7), 96_120), wait(7, 64_088, **tensor)]
    assert told(run(world(8) + records))[0][2] == "all-joined"


def test_one_rank_in_another_operation_is_software_and_named() -> None:
    said = run([*world(8), *waits(range(7), op="BROADCAST"), wait(7)])
    assert told(said) == [("software", "clears", "mismatch", gpu(7).id)]
    assert said[0].cause is Cause.SOFTWARE


def test_one_rank_with_another_size_is_software_and_named() -> None:
    said = run([*world(8), *waits(range(7)), wait(7, numel_in=4097)])
    assert told(said) == [("software", "clears", "mismatch", gpu(7).id)]


def test_two_ranks_that_differ_are_software_but_neither_is_named() -> None:
    said = run([*world(2, 1), wait(0, per_node=1), wait(1, per_node=1, op="BROADCAST")])
    assert told(said) == [("software", "clears", "mismatch", "job:4711.0")]
    assert said[0].domain.rank is None


@pytest.mark.parametrize(
    "fields", [{"op": "ALLTOALL_BASE"}, {"op": "_ALLGATHER_BASE"}, {"op": "RECV", "group": "4"}]
)
def test_operations_whose_sizes_may_differ_by_rank_are_no_mismatch(
    fields: dict[str, object],
) -> None:
    uneven = [wait(rank, numel_in=100 + rank, **fields) for rank in range(8)]
    assert told(run(world(8) + uneven))[0][2] == "all-joined"


def test_old_lines_without_group_or_number_need_a_majority_of_all_ranks() -> None:
    def bare(rank: int, op: str) -> NcclRecord:
        fields = {"rank": None, "group": None, "group_desc": None, "last_enqueued": None}
        return msgspec.structs.replace(wait(rank, None, op=op), **fields)

    odd = [bare(0, "ALLREDUCE"), *(bare(rank, "BROADCAST") for rank in (1, 2, 3, 4, 7))]
    said = run(odd)
    assert told(said) == [("software", "clears", "mismatch", "job:4711.0")]
    assert said[0].domain.rank == 0
    few = [bare(0, "ALLREDUCE"), bare(1, "BROADCAST"), bare(7, "BROADCAST")]
    assert told(run(few))[0][2] == "incomplete-logs"


def test_each_rank_names_the_first_that_differs_and_the_majority_decides() -> None:
    def differs(rank: int, other: int) -> NcclRecord:
        return line(NcclKind.MISMATCH, rank=rank, host="train01", ranks=(rank, other))

    said = run([*world(4), differs(0, 1), differs(2, 1), differs(3, 1), differs(1, 0)])
    assert told(said) == [("software", "clears", "mismatch", gpu(1).id)]
    said = run([*world(2), differs(0, 1), differs(1, 0)])
    assert told(said) == [("software", "clears", "mismatch", "job:4711.0")]


def test_the_flight_recorders_culprit_rank_is_not_believed() -> None:
    words = "error msg: Culprit rank 3; Error type: COLLECTIVE_TYPE_MISMATCH, Expected ..."
    said = run([*world(8), line(NcclKind.FLIGHT_RECORDER, ranks=(3,), raw=words)])
    assert told(said) == [("software", "clears", "mismatch", "job:4711.0")]
    assert said[0].domain.rank is None


@pytest.mark.parametrize(("missing", "named"), [((2,), 2), ((3, 4, 5, 6, 7), None)])
def test_the_flight_recorders_missing_ranks_count_when_few(
    missing: tuple[int, ...], named: int | None
) -> None:
    words = f"Not all ranks joining collective, sequence number: 6\nmissing ranks: {missing}"
    said = run([*world(8), line(NcclKind.FLIGHT_RECORDER, ranks=missing, raw=words, seq=6)])
    assert [(s.status, s.domain.rank) for s in said] == [(Status.INSUFFICIENT, named)]


def desync(phase: str, ranks: tuple[int, ...], seq: int | None = 183) -> NcclRecord:
    return line(NcclKind.DESYNC, rank=0, host="train01", phase=phase, ranks=ranks, seq=seq)


def test_a_desync_report_names_the_few_that_did_not_join() -> None:
    others = tuple(rank for rank in range(8) if rank != 7)
    said = run([*world(8), desync("not-joined", (7,)), desync("not-finished", others)])
    assert told(said) == [("insufficient", "blind", "missing-rank", "job:4711.0")]
    assert (said[0].domain.rank, said[0].domain.host) == (7, "train02")


@pytest.mark.parametrize("outside", [(1, 2, 3, 4, 5, 6, 7), (2, 3, 4, 5)])
def test_a_desync_report_of_a_majority_names_nobody(outside: tuple[int, ...]) -> None:
    joined = tuple(rank for rank in range(8) if rank not in outside)
    said = run([*world(8), desync("not-joined", outside), desync("started", joined)])
    assert told(said)[0][2] == "no-culprit"
