"""Attempts, revisions, and what is remembered of a job."""

from datetime import timedelta

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence.decisions import Says, Status, Suspicion
from evidence.records import NcclKind, NcclRecord, Tick
from rules.job import JobState, due, step
from rules.stage import Arrived

from .job_lines import (
    GIVE_UP,
    RULES,
    STALL,
    T0,
    gpu,
    init,
    line,
    run,
    take,
    told,
    wait,
    waits,
    world,
)


def test_evidence_never_crosses_attempts() -> None:
    first = world(8) + waits(range(1, 4))
    second = [
        msgspec.structs.replace(record, attempt=1, id=record.id + "b")
        for record in world(8) + waits(range(4, 8))
    ]
    said = run(first + second)
    assert [(s.attempt, s.status) for s in said] == [
        (0, Status.INSUFFICIENT),
        (1, Status.INSUFFICIENT),
    ]


def test_new_processes_under_the_same_attempt_begin_anew() -> None:
    again = [
        init(rank, 8, pid=9000 + rank, at=GIVE_UP + timedelta(seconds=60)) for rank in range(8)
    ]
    state = JobState()
    for record in world(8) + waits([2]) + again:
        state, _ = take(state, record, record.at or GIVE_UP)
    assert not state.attempts[0].clues


def test_an_old_attempt_that_is_forgotten_does_not_come_back() -> None:
    state = JobState()
    for attempt in (3, 4, 2):
        state, _ = take(state, wait(1, attempt=attempt), GIVE_UP)
    assert sorted(state.attempts) == [3, 4]


def test_a_job_that_was_silent_for_a_day_is_forgotten() -> None:
    state, _ = take(JobState(), init(0, 8), T0)
    assert due(state) == T0 + timedelta(days=1)
    state, said = take(state, Tick(id="t", at=T0), T0 + timedelta(days=1))
    assert (state, said) == (JobState(), [])


def test_a_smaller_communicator_does_not_renumber_the_ranks() -> None:
    sub = [
        init(rank, 4, comm="0xbeef", host="train02", pid=5004 + rank, pci="0000:aa:00")
        for rank in range(4)
    ]
    for records in (world(8) + sub, sub + world(8)):
        said = run(records + waits(r for r in range(8) if r != 1))
        assert said[0].domain == gpu(1)


def test_a_later_line_changes_the_answer_and_takes_the_accusation_back() -> None:
    records = [*world(8), *waits(r for r in range(8) if r != 6)]
    late = line(
        NcclKind.OUT_OF_MEMORY, GIVE_UP - timedelta(seconds=700), rank=6, host="train02",
        message="CUDA out of memory. Tried to allocate 2 GiB",
    )  # fmt: skip
    late = msgspec.structs.replace(late, at=STALL)
    state, said = JobState(), []
    for record in [*records, Tick(id="t", at=GIVE_UP + timedelta(seconds=30)), late]:
        at = GIVE_UP + timedelta(seconds=40) if record is late else record.at
        assert at is not None
        state, more = take(state, record, at)
        said += more
    end = due(state)
    assert end is not None
    _, more = take(state, Tick(id="t", at=end), end)
    assert told(said)[0][1] == "accuses"
    assert [(s.kind, s.says, s.domain.id, s.host) for s in more] == [
        ("taken-back", Says.CLEARS, gpu(6).id, "train02"),
        ("out-of-memory", Says.CLEARS, gpu(6).id, "train02"),
    ]


def test_the_same_answer_is_not_said_twice() -> None:
    state = JobState()
    records: list[NcclRecord | Tick] = [*world(8), *waits(r for r in range(8) if r != 6)]
    records.append(Tick(id="t", at=GIVE_UP + timedelta(seconds=30)))
    records.append(line(NcclKind.ABORTED, GIVE_UP + timedelta(seconds=40), rank=1))
    records.append(Tick(id="t", at=GIVE_UP + timedelta(seconds=60)))
    said: list[Suspicion] = []
    for record in records:
        assert record.at is not None
        state, more = take(state, record, record.at)
        said += more
    assert len([s for s in said if s.says is Says.ACCUSES]) == 1


def test_an_incident_of_long_ago_does_not_mix_with_todays() -> None:
    old = line(
        NcclKind.CUDA_ERROR,
        T0,
        rank=3,
        host="train01",
        message="uncorrectable ECC error encountered",
    )
    day = timedelta(hours=20)
    today = [
        msgspec.structs.replace(one, at=(one.at or T0) + day)
        for one in waits(r for r in range(8) if r != 6)
    ]
    said = [s for s in run([*world(8), old, *today]) if s.says is Says.ACCUSES]
    assert [s.domain for s in said] == [gpu(3), gpu(6)]


def test_a_redelivered_record_is_not_counted_twice() -> None:
    state = JobState()
    record = wait(1)
    state, _ = step(state, Arrived("nccl", record, GIVE_UP, offset=17), RULES)
    again = step(state, Arrived("nccl", record, GIVE_UP, offset=17), RULES)
    assert again[0] is state
    assert state.offsets == {"nccl": 17}


def test_a_line_without_time_is_placed_by_its_arrival() -> None:
    bare = msgspec.structs.replace(wait(1, elapsed_ms=None), at=None)
    state, _ = take(JobState(), bare, GIVE_UP)
    assert [clue.at for clue in state.attempts[0].clues.lines.values()] == [GIVE_UP]


def test_what_found_no_room_makes_absence_worthless() -> None:
    records = world(8) + waits(range(1, 8))
    errors = [
        line(NcclKind.CUDA_ERROR, GIVE_UP, rank=1, host="train01", message=f"odd error {'x' * n}")
        for n in range(200)
    ]
    state = JobState()
    for record in [*records, *errors]:
        state, _ = step(state, Arrived("nccl", record, GIVE_UP), RULES)
    clues = state.attempts[0].clues
    assert (len(clues.shelves["cuda-error"]), clues.lost) == (128, 72)
    at = due(state)
    assert at is not None
    _, said = take(state, Tick(id="t", at=at), at)
    assert {one.says for one in said} == {Says.BLIND}


MIXED = [
    *waits(r for r in range(8) if r != 6),
    *waits([2, 3]),
    line(NcclKind.ABORTED, GIVE_UP + timedelta(seconds=1), rank=2, host="train01"),
    line(NcclKind.DUMP_SIGNAL, rank=6, host="train02", last_enqueued=811, last_completed=811),
    line(NcclKind.REMOTE_ERROR, GIVE_UP + timedelta(seconds=2), rank=1, host="train01"),
    line(NcclKind.RAS, GIVE_UP, source="ras", host="train01", phase="dead", hosts=("10.4.0.2",)),
    line(NcclKind.OTHER, STALL, rank=6, host="train02", phase="saved", message="saved"),
    line(NcclKind.WORKER_EXIT, GIVE_UP, pid=5002, host="train01", exit_code=-6, phase="failed"),
    line(
        NcclKind.FLIGHT_RECORDER,
        GIVE_UP,
        rank=2,
        host="train01",
        phase="group",
        group="0",
        members="0-7",
        seq=812,
        op="all_reduce",
        state="started",
        incomplete=1,
        last_enqueued=812,
        last_completed=811,
    ),
]
ADDRESSES = [
    line(NcclKind.SETUP, T0, host=name, address=address, phase="bootstrap")
    for name, address in (("train01", "10.4.0.1"), ("train02", "10.4.0.2"), ("train01", "10.4.0.9"))
]
PATHS = [
    line(NcclKind.IB_COMPLETION, GIVE_UP, host=mine, peer=f"{far}<4791>", status=12)
    for mine, far in (("train01", "10.4.0.2"), ("train02", "10.4.0.1"), ("train02", "10.4.0.9"))
]


SOFTWARE = line(NcclKind.PYTHON_ERROR, STALL, rank=6, host="train02", message="KeyError: 'x'")


@settings(max_examples=60)
@given(st.permutations(MIXED), st.booleans(), st.data())
def test_any_order_of_arrival_within_the_settle_time_gives_the_same_suspicions(
    arriving: list[NcclRecord], software: bool, data: st.DataObject
) -> None:
    extra = [SOFTWARE] if software else []
    arriving = [*arriving]
    for one in extra:
        arriving.insert(data.draw(st.integers(0, len(arriving))), one)

    def said(records: list[NcclRecord]) -> list[Suspicion]:
        state = JobState()
        for record in world_of_mixed:
            state, _ = step(state, Arrived("nccl", record, T0), RULES)
        for number, record in enumerate(records):
            at = GIVE_UP + timedelta(milliseconds=50 * number)
            state, more = step(state, Arrived("nccl", record, at), RULES)
            assert more == []
        end = due(state)
        assert end is not None
        return step(state, Arrived("nccl", Tick(id="t", at=end), end), RULES)[1]

    assert said(arriving) == said([*MIXED, *extra])


world_of_mixed = world(8)


@settings(max_examples=40)
@given(st.permutations([*ADDRESSES, *PATHS]))
def test_addresses_and_errors_in_any_order_ask_the_same_ends(arriving: list[NcclRecord]) -> None:
    def said(records: list[NcclRecord]) -> list[Suspicion]:
        state = JobState()
        for record in [*world_of_mixed, *records]:
            state, more = step(state, Arrived("nccl", record, GIVE_UP), RULES)
            assert more == []
        end = due(state)
        assert end is not None
        return step(state, Arrived("nccl", Tick(id="t", at=end), end), RULES)[1]

    answer = said(arriving)
    assert [one.host for one in answer[1:]] == ["train01", "train02"]
    assert answer == said([*ADDRESSES, *PATHS])
