"""A rank that is missing: who did not come to the collective that all others wait in."""

from datetime import timedelta

import msgspec
import pytest

from evidence.decisions import Domain, DomainKind, Says, Status, Witness
from evidence.records import NcclKind, Tick
from rules.job import JobState, due

from .job_lines import GIVE_UP, STALL, T0, gpu, line, run, take, told, wait, waits, world


def test_the_one_rank_that_all_others_wait_for_is_accused_and_the_others_are_victims() -> None:
    said = run(world(16) + waits(rank for rank in range(16) if rank != 6))
    accused, *victims = said
    assert (accused.witness, accused.says, accused.status, accused.kind) == (
        Witness.COLLECTIVE,
        Says.ACCUSES,
        Status.SUSPECTED,
        "missing-rank",
    )
    assert accused.domain == gpu(6)
    assert (accused.host, accused.job, accused.attempt) == ("train02", "4711.0", 0)
    assert accused.at == STALL
    assert accused.weight == 0.7
    assert accused.victims == tuple(gpu(rank) for rank in range(16) if rank != 6)
    assert accused.reason == (
        "15 of 16 ranks waited in ALLREDUCE number 812 of group default_pg; only rank 6 on train02"
        " never did and left no word of its own why."
    )
    assert [ref.source for ref in accused.evidence] == ["nccl"] * 15
    assert [(s.host, s.status, s.says, s.domain.id) for s in victims] == [
        (name, Status.VICTIM, Says.CLEARS, f"node:{name}")
        for name in ("train01", "train03", "train04")
    ]
    assert victims[0].victims == tuple(gpu(rank) for rank in range(4))


def test_rank_0_alone_missing_at_a_barrier_mostly_writes_a_checkpoint() -> None:
    others = [wait(rank, numel_in=1, numel_out=1) for rank in range(1, 8)]
    accused = run(world(8) + others)[0]
    assert (accused.kind, accused.domain, accused.weight) == ("missing-rank", gpu(0), 0.25)
    assert "checkpoint" in accused.reason
    elsewhere = [wait(rank, numel_in=1, numel_out=1) for rank in range(8) if rank != 3]
    assert run(world(8) + elsewhere)[0].weight == 0.7


def test_nothing_is_said_before_the_ranks_had_time_to_speak() -> None:
    state = JobState()
    records = world(8) + waits(range(1, 8))
    for record in records:
        state, said = take(state, record, record.at or GIVE_UP)
        assert said == []
    at = due(state)
    assert at is not None
    assert GIVE_UP + timedelta(seconds=10) <= at <= GIVE_UP + timedelta(seconds=11)
    state, said = take(state, Tick(id="t", at=at - timedelta(seconds=1)), at - timedelta(seconds=1))
    assert said == []
    assert told(take(state, Tick(id="t", at=at), at)[1])[0][:3] == (
        "suspected",
        "accuses",
        "missing-rank",
    )


def test_ranks_that_keep_reporting_put_the_answer_off_but_not_for_ever() -> None:
    state = JobState()
    for record in world(64, 8):
        state, _ = take(state, record, T0)
    for number, record in enumerate(waits(range(64), per_node=8)):
        arrival = GIVE_UP + timedelta(seconds=9 * number)
        state, said = take(state, record, arrival)
        if said:
            break
    assert arrival - GIVE_UP <= timedelta(seconds=70)
    assert state.attempts[0].judge_at is None or said


def test_all_ranks_of_one_node_missing_accuse_the_node_and_not_its_cards() -> None:
    said = run(world(16) + waits(rank for rank in range(16) if rank not in range(8, 12)))
    assert told(said) == [("suspected", "accuses", "missing-rank", "node:train03")]
    assert said[0].weight < 0.7, "nobody shows that this node's logs were still read"
    assert len(said[0].victims) == 12


def test_two_missing_ranks_share_the_doubt_and_many_are_not_named() -> None:
    two = run(world(16) + waits(rank for rank in range(16) if rank not in (3, 9)))
    accused = [s for s in two if s.says is Says.ACCUSES]
    assert [(s.domain.rank, s.weight) for s in accused] == [(3, 0.35), (9, 0.35)]
    many = run(world(16) + waits(rank for rank in range(16) if rank not in (3, 9, 14)))
    assert told(many) == [("insufficient", "blind", "majority-silent", "job:4711.0")]


@pytest.mark.parametrize("present", [[0], [2, 5], list(range(8))])
def test_a_silent_majority_is_never_accused(present: list[int]) -> None:
    said = run(world(16) + waits(present))
    assert [s.status for s in said] == [Status.INSUFFICIENT]
    assert said[0].domain == Domain(kind=DomainKind.JOB, job="4711.0")


def test_without_a_rank_map_a_gap_is_mentioned_but_no_part_is_accused() -> None:
    said = run(waits([1, 2, 3]))
    assert told(said) == [("insufficient", "blind", "missing-rank", "job:4711.0")]
    assert said[0].domain.rank == 0
    assert "nothing shows that its log was read" in said[0].reason


def test_an_excerpt_with_several_gaps_names_nobody() -> None:
    said = run(waits([1, 2, 3, 6, 7]))
    assert told(said) == [("insufficient", "blind", "incomplete-logs", "job:4711.0")]
    assert said[0].domain.rank is None


def test_lines_that_a_launcher_dropped_make_absence_worthless() -> None:
    records = world(8) + waits(range(1, 8))
    records[-1] = msgspec.structs.replace(records[-1], repeated=True)
    assert {s.says for s in run(records)} == {Says.BLIND}


def test_all_joined_and_none_completed_is_undecided() -> None:
    said = run(world(8) + waits(range(8)))
    assert told(said) == [("insufficient", "blind", "all-joined", "job:4711.0")]
    assert "Xids" in said[0].reason


def test_a_silent_rank_whose_counters_show_that_it_joined_is_not_missing() -> None:
    dump = line(NcclKind.DUMP_SIGNAL, rank=6, host="train02", last_enqueued=812, last_completed=811)
    said = run([*world(8), *waits(r for r in range(8) if r != 6), dump])
    assert told(said) == [("insufficient", "blind", "all-joined", "job:4711.0")]
    behind = msgspec.structs.replace(dump, last_enqueued=811)
    said = run([*world(8), *waits(r for r in range(8) if r != 6), behind])
    assert told(said)[0][1:3] == ("accuses", "missing-rank")


def test_counters_of_the_default_group_say_nothing_about_another_group() -> None:
    tensor = {"group": "37", "group_desc": "TENSOR_MODEL_PARALLEL_GROUP"}
    dump = line(
        NcclKind.DUMP_SIGNAL, rank=6, host="train02", last_enqueued=9000, last_completed=9000
    )
    said = run([*world(8), *waits((r for r in range(8) if r != 6), **tensor), dump])
    assert said[0].domain == gpu(6)


def test_ranks_that_wait_in_different_groups_point_to_the_one_that_waits_for_none() -> None:
    tensor = {"group": "11", "group_desc": "TENSOR_MODEL_PARALLEL_GROUP"}
    pipeline = {"group": "20", "group_desc": "PIPELINE_MODEL_PARALLEL_GROUP"}
    records = world(8) + waits([4, 6, 7], 90, **tensor) + waits([0, 1, 2, 3], 64_088, **pipeline)
    said = run(records)
    assert said[0].domain == gpu(5)
    assert "2 collectives of the groups they share" in said[0].reason


def test_pairs_that_wait_for_each_other_weigh_half() -> None:
    pairs = {"op": "COALESCED", "numel_in": None, "numel_out": None}
    assert run(world(8) + waits(range(1, 8), **pairs))[0].weight == pytest.approx(0.35)
    assert told(run(waits([1, 2], **pairs)))[0][2] == "incomplete-logs"
