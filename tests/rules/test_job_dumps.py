"""Flight recorder dumps: who did not come to what the others of the same group wait in."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence.decisions import Cause, Suspicion
from evidence.records import NcclKind, NcclRecord, Tick
from rules.job import JobState, due, step
from rules.stage import Arrived

from .job_lines import GIVE_UP, RULES, STALL, T0, gpu, host, line, run, told, waits, world

DUMPED = GIVE_UP + timedelta(seconds=2)
TENSOR = {"group": "37", "group_desc": "TENSOR_MODEL_PARALLEL_GROUP"}


def dump(
    rank: int,
    seq: int | None = 812,
    at: datetime = DUMPED,
    **fields: Any,
) -> NcclRecord:
    """What one rank's dump says of a group; ``seq`` None: nothing of it is unfinished."""
    plain: dict[str, Any] = {
        "phase": "group",
        "group": "0",
        "group_desc": "default_pg",
        "members": "0-7",
        "last_enqueued": 812 if seq is None else seq,
        "last_completed": 811 if seq is None else seq - 1,
        "incomplete": 0 if seq is None else 1,
    }
    if seq is not None:
        plain |= {"seq": seq, "op": "all_reduce", "state": "started", "numel_in": 4096}
    return line(NcclKind.FLIGHT_RECORDER, at, rank=rank, host=host(rank, 4), **(plain | fields))


def dumps(ranks: Iterable[int], seq: int | None = 812, **fields: Any) -> list[NcclRecord]:
    return [dump(rank, seq, **fields) for rank in ranks]


def others(*ranks: int, of: int = 8) -> list[int]:
    return [rank for rank in range(of) if rank not in ranks]


#: A symptom that tells no more than that the job is in trouble.
SYMPTOM = line(NcclKind.WATCHDOG_STUCK, GIVE_UP, rank=0, host="train01")


def behind(rank: int, **fields: Any) -> NcclRecord:
    """A rank that came as far as the collective before, and has nothing open."""
    return dump(rank, None, **({"last_enqueued": 811, "last_completed": 811} | fields))


@pytest.mark.parametrize("phase", ["dump", "group", "stack"])
def test_a_dump_that_somebody_made_of_a_healthy_job_is_no_symptom(phase: str) -> None:
    assert run([*world(8), *dumps(others(6), phase=phase), behind(6, phase=phase)]) == []


def test_the_rank_that_did_not_call_what_all_others_wait_in_is_accused_weakly() -> None:
    said = run([*world(8), SYMPTOM, *dumps(others(6)), behind(6)])
    assert told(said)[0] == ("suspected", "accuses", "lagging-rank", gpu(6).id)
    assert (said[0].weight, said[0].cause) == (0.4, Cause.UNKNOWN)
    assert "number 811" in said[0].reason
    assert len(said[0].victims) == 7


def test_without_a_rank_map_the_lagging_rank_is_named_and_no_card() -> None:
    said = run([SYMPTOM, *dumps(others(6)), behind(6)])
    assert told(said) == [("insufficient", "blind", "lagging-rank", "job:4711.0")]
    assert said[0].domain.rank == 6


def test_numbers_of_two_groups_are_not_compared() -> None:
    small = dumps([0, 1, 2, 3], 90, members="0-3", **TENSOR)
    done = dumps([0, 1, 2, 3], None)
    said = run([*world(8), SYMPTOM, *small, *done, *dumps([4, 5, 6, 7], None)])
    assert told(said) == [("insufficient", "blind", "no-culprit", "job:4711.0")]


def test_a_rank_of_another_group_is_never_accused() -> None:
    """Ranks 0 to 2 wait in a group of four; ranks 4 to 7 are not in it, whatever they do."""
    small = dumps([0, 1, 2], 90, members="0-3", **TENSOR)
    late = behind(3, last_enqueued=89, members="0-3", **TENSOR)
    strangers = dumps([4, 5, 6, 7], None, last_enqueued=3, last_completed=3, **TENSOR)
    said = run([*world(8), SYMPTOM, *small, late, *strangers])
    assert told(said)[0] == ("suspected", "accuses", "lagging-rank", gpu(3).id)


def test_the_way_leads_over_groups_to_the_rank_that_waits_for_nobody() -> None:
    """2 and 3 wait for 1 in one group, 1 waits for 5 in another, and 5 waits for nobody."""
    first = {"group": "11", "members": "1-3", "group_desc": "TENSOR"}
    second = {"group": "20", "members": "1,5", "group_desc": "PIPELINE"}
    lines = [
        *dumps([2, 3], 90, **first),
        behind(1, **first | {"last_enqueued": 89}),
        dump(1, 400, **second),
        behind(5, **second | {"last_enqueued": 399}),
    ]
    said = run([*world(8), SYMPTOM, *lines])
    assert told(said)[0] == ("suspected", "accuses", "lagging-rank", gpu(5).id)


def test_ranks_that_wait_for_each_other_name_nobody() -> None:
    first = {"group": "11", "members": "1-3", "group_desc": "TENSOR"}
    second = {"group": "20", "members": "1-3", "group_desc": "PIPELINE"}
    lines = [
        *dumps([2, 3], 90, **first),
        behind(1, **first | {"last_enqueued": 89}),
        dump(1, 400, **second),
        *[behind(rank, **second | {"last_enqueued": 399}) for rank in (2, 3)],
    ]
    said = run([*world(8), SYMPTOM, *lines])
    assert told(said) == [("insufficient", "blind", "no-culprit", "job:4711.0")]


def test_a_missing_dump_counts_as_silence_only() -> None:
    said = run([*world(8), SYMPTOM, *dumps(others(6))])
    assert told(said) == [("insufficient", "blind", "missing-rank", "job:4711.0")]
    assert said[0].domain.rank == 6
    said = run([*world(8), SYMPTOM, *dumps(others(5, 6)), behind(5)])
    assert told(said) == [("insufficient", "blind", "lagging-rank", "job:4711.0")]


def test_a_group_whose_members_no_dump_tells_proves_nothing() -> None:
    lines = [*dumps(others(6), members=None), behind(6, members=None)]
    said = run([*world(8), SYMPTOM, *lines])
    assert told(said) == [("insufficient", "blind", "lagging-rank", "job:4711.0")]


def test_a_dump_without_counters_shows_nobody_behind() -> None:
    bare = behind(6, last_enqueued=None, last_completed=None)
    said = run([*world(8), SYMPTOM, *dumps(others(6)), bare])
    assert told(said) == [("insufficient", "blind", "no-culprit", "job:4711.0")]
    said = run([*world(8), SYMPTOM, *dumps(others(5, 6)), behind(5), bare])
    assert told(said) == [("insufficient", "blind", "lagging-rank", "job:4711.0")]


@pytest.mark.parametrize("late", [range(1, 8), range(4, 8), range(2, 6)])
def test_a_majority_that_is_behind_is_not_accused(late: range) -> None:
    lines = dumps(others(*late)) + [behind(rank) for rank in late]
    said = run([*world(8), SYMPTOM, *lines])
    assert {one.says for one in said} == {"blind"}


def test_all_equal_means_that_nobody_is_named() -> None:
    said = run([*world(8), SYMPTOM, *dumps(range(8))])
    assert told(said) == [("insufficient", "blind", "no-culprit", "job:4711.0")]


def test_what_is_enqueued_and_did_not_start_on_one_rank_points_to_it() -> None:
    held = dump(2, state="scheduled")
    said = run([*world(8), SYMPTOM, *dumps(others(2)), held])
    assert told(said)[0] == ("suspected", "accuses", "lagging-rank", gpu(2).id)
    assert "blocks its stream" in said[0].reason
    nowhere = [dump(rank, state="scheduled") for rank in range(8)]
    assert told(run([*world(8), SYMPTOM, *nowhere]))[0][2] == "no-culprit"


@pytest.mark.parametrize(
    ("op", "kind"), [("all_reduce", "lagging-rank"), ("broadcast", "no-culprit")]
)
def test_one_rank_left_in_what_the_others_completed_lags_unless_it_ends_by_turns(
    op: str, kind: str
) -> None:
    said = run([*world(8), SYMPTOM, *dumps(others(3), None, last_completed=812), dump(3, op=op)])
    assert told(said)[0][2] == kind


def test_one_rank_in_another_operation_is_software_by_our_own_count() -> None:
    """The analysis of PyTorch takes rank 0 as right and would blame the seven others."""
    said = run([*world(8), SYMPTOM, dump(0, op="broadcast"), *dumps(others(0))])
    assert told(said) == [("software", "clears", "mismatch", gpu(0).id)]
    said = run([*world(8), SYMPTOM, dump(5, numel_in=5000), *dumps(others(5))])
    assert told(said) == [("software", "clears", "mismatch", gpu(5).id)]


def test_two_ranks_that_differ_are_software_and_neither_is_named() -> None:
    two = [dump(0, members="0-1", op="broadcast"), dump(1, members="0-1")]
    said = run([*world(2, 1), SYMPTOM, *two])
    assert told(said) == [("software", "clears", "mismatch", "job:4711.0")]
    assert said[0].domain.rank is None


def test_a_dump_of_the_job_while_it_ran_says_nothing_of_its_hang() -> None:
    early = STALL - timedelta(seconds=100)
    old = [*dumps(others(6), at=early), behind(6, at=early)]
    said = run([*world(8), *old, *waits(range(8))])
    assert told(said)[0][2] == "all-joined"


def test_of_two_dumps_of_one_rank_the_newer_counts() -> None:
    first = [behind(6, at=GIVE_UP), *dumps(range(8))]
    assert told(run([*world(8), SYMPTOM, *first]))[0][2] == "no-culprit"


def test_members_of_a_group_make_its_own_silence_count() -> None:
    """Four of sixteen ranks share a group; that the other twelve never waited there is right."""
    small = {"members": "4-7", **TENSOR}
    told_members = [behind(0, at=T0, members="0-3", group="36"), dump(4, None, at=STALL, **small)]
    said = run([*world(16), *told_members, *waits([4, 5, 7], 90, **TENSOR)])
    assert told(said)[0] == ("suspected", "accuses", "missing-rank", gpu(6).id)
    assert said[0].reason.startswith("3 of 4 ranks waited in ALLREDUCE number 90")


ALL = [*dumps(others(6)), behind(6), behind(6, at=GIVE_UP), *dumps([2], at=GIVE_UP), SYMPTOM]


@settings(max_examples=40)
@given(st.permutations(ALL))
def test_any_order_of_dumps_gives_the_same_answer(arriving: list[NcclRecord]) -> None:
    def said(records: list[NcclRecord]) -> list[Suspicion]:
        state = JobState()
        for record in world_of_eight:
            state, _ = step(state, Arrived("nccl", record, T0), RULES)
        for number, record in enumerate(records):
            at = DUMPED + timedelta(milliseconds=50 * number)
            state, more = step(state, Arrived("nccl", record, at), RULES)
            assert more == []
        end = due(state)
        assert end is not None
        end += timedelta(seconds=100)
        return step(state, Arrived("nccl", Tick(id="t", at=end), end), RULES)[1]

    assert told(said(arriving))[0][2] == "lagging-rank"
    assert said(arriving) == said(ALL)


world_of_eight = world(8)
