"""A job that begins anew under one attempt number: what was told of one run, and the next."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence.decisions import Says, Suspicion
from evidence.records import NcclKind, NcclRecord, Tick
from rules.job import JobState, due, step
from rules.stage import Arrived

from .job_lines import RULES, T0, gpu, init, line, run, take, told, wait, waits, world

STOP = T0 + timedelta(seconds=200)
DEATH = ("insufficient", "blind", "process-death")
STOPPED = ("software", "clears", "external-stop", "job:4711.0")


def after(seconds: float, since: datetime = STOP) -> datetime:
    return since + timedelta(seconds=seconds)


def stopped(
    at: datetime = STOP, host: str = "train01", pids: Sequence[int] = (710, 711)
) -> list[NcclRecord]:
    """What torchrun prints at SIGTERM, as a requeue sends it."""
    by_agent = [
        line(
            NcclKind.WORKER_EXIT, at, host=host, pid=pid, exit_code=-15,
            phase="stopped-by-agent", message="SIGTERM",
        )
        for pid in pids
    ]  # fmt: skip
    return [
        line(NcclKind.EXTERNAL_STOP, at, host=host, message="15"),
        *by_agent,
        line(NcclKind.EXTERNAL_STOP, after(1, at), host=host, pid=700, message="15"),
    ]


def killed(at: datetime, host: str = "train02", pid: int = 820, code: int = -9) -> list[NcclRecord]:
    """What a rank and torchrun print when another rank is killed."""
    return [
        line(NcclKind.PEER_CLOSED, at, host=host, phase="gloo", peer="127.0.0.1"),
        line(
            NcclKind.WORKER_EXIT, at, host=host, pid=pid + 1, exit_code=-15,
            phase="stopped-by-agent", message="SIGTERM",
        ),
        line(
            NcclKind.WORKER_EXIT, after(0.3, at), host=host, pid=pid, local_rank=0,
            exit_code=code, phase="failed",
        ),
    ]  # fmt: skip


def lived(records: Iterable[NcclRecord], until: datetime | None = None) -> list[Suspicion]:
    """Everything said about records that arrive as they happen, a tick being there when due."""
    state, said = JobState(), list[Suspicion]()

    def ticks(now: datetime | None) -> None:
        nonlocal state
        while any(a.judge_at for a in state.attempts.values()):
            at = due(state)
            assert at is not None
            if now is not None and at > now:
                return
            state, more = take(state, Tick(id="t", at=at), at)
            said.extend(more)

    for record in records:
        assert record.at is not None
        ticks(record.at)
        state, more = take(state, record, record.at)
        said.extend(more)
    ticks(until)
    return said


def runs(said: list[Suspicion]) -> list[tuple[int, str]]:
    return [(one.run, one.kind) for one in said if one.kind != "victim"]


# --- A fault of the next run is told. ------------------------------------------------------------


def test_a_rank_killed_soon_after_a_requeue_is_told_though_the_requeue_was() -> None:
    said = lived([*stopped(), *killed(after(25))])
    assert told(said) == [STOPPED, (*DEATH, "node:train02")]
    assert runs(said) == [(0, "external-stop"), (1, "process-death")]
    assert [one.attempt for one in said] == [0, 0]
    assert said[1].host == "train02"


def test_a_rank_killed_on_the_very_node_that_was_stopped_is_told() -> None:
    said = lived([*stopped(host="train02"), *killed(after(25))])
    assert runs(said) == [(0, "external-stop"), (1, "process-death")]


def test_a_second_rank_killed_on_one_node_is_told_again() -> None:
    said = lived([*killed(STOP), *killed(after(40), pid=900)])
    assert told(said) == [(*DEATH, "node:train02")] * 2
    assert runs(said) == [(0, "process-death"), (1, "process-death")]
    assert len({one.id for one in said}) == 2


def test_the_stop_between_two_killed_ranks_hides_neither() -> None:
    records = [*killed(STOP), *stopped(after(100)), *killed(after(130), host="train03", pid=900)]
    assert [one.domain.host for one in lived(records)] == ["train02", "train03"]


def test_an_exception_without_a_process_is_told_once_the_run_before_must_be_dead() -> None:
    def raised(at: datetime) -> NcclRecord:
        words = "KeyError: 'loss'"
        return line(NcclKind.PYTHON_ERROR, at, rank=3, host="train01", message=words)

    assert runs(lived([*stopped(), raised(after(90))])) == [(0, "external-stop"), (1, "exception")]
    # The same words of the same rank, within one hour.
    twice = lived([raised(STOP), raised(after(120))])
    assert runs(twice) == [(0, "exception"), (1, "exception")]
    assert runs(lived([*stopped(), raised(after(40))])) == [(0, "external-stop")]


def test_a_wait_that_began_after_the_requeue_is_told() -> None:
    hung = [
        msgspec.structs.replace(one, at=after(740)) for one in waits(r for r in range(8) if r != 6)
    ]
    said = lived([*stopped(), *hung])
    assert [one.run for one in said][:2] == [0, 1]
    assert told(said)[1][:2] == ("insufficient", "blind")


def test_a_hang_that_comes_again_in_the_same_processes_is_told_again() -> None:
    hung = waits(r for r in range(8) if r != 6)
    hours = timedelta(hours=3)
    again = [
        msgspec.structs.replace(one, at=(one.at or T0) + hours, id=one.id + "b", seq=99_812)
        for one in hung
    ]
    said = [one for one in lived([*world(8), *hung, *again]) if one.says is Says.ACCUSES]
    assert [(one.domain, one.run) for one in said] == [(gpu(6), 0), (gpu(6), 1)]


def test_errors_of_the_network_hours_later_are_told_again() -> None:
    def failed(at: datetime) -> NcclRecord:
        return line(
            NcclKind.IB_COMPLETION, at, host="train01", pid=77, peer="train02<41>", status=12
        )

    first = lived([failed(STOP)])
    assert first
    said = lived([failed(STOP), failed(after(3600 * 5))])
    assert [one.run for one in said] == [0] * len(first) + [1] * len(first)


def restart(kind: str, at: datetime) -> list[NcclRecord]:
    """The lines that show new ranks, as far as a job prints any."""
    if kind == "processes":
        return [init(rank, 8, pid=9000 + rank, comm="0x77", at=at) for rank in range(8)]
    if kind == "communicator":  # a container's processes have the same numbers again
        return [init(rank, 8, comm="0x77", at=at) for rank in range(8)]
    if kind == "fewer nodes":
        return [init(rank, 4, pid=9000 + rank, comm="0x77", at=at) for rank in range(4)]
    if kind == "more nodes":
        return [init(rank, 12, pid=9000 + rank, comm="0x77", at=at) for rank in range(12)]
    return [
        line(NcclKind.RANK_MAP, at, host="train01", ranks=(0, 1, 2, 3), comm_size=8, pid=31),
        line(NcclKind.RANK_MAP, at, host="train02", ranks=(4, 5, 6, 7), comm_size=8, pid=31),
    ]


@pytest.mark.parametrize(
    "kind", ["processes", "communicator", "fewer nodes", "more nodes", "workers"]
)
def test_whatever_shows_new_ranks_begins_a_new_run(kind: str) -> None:
    def broken(at: datetime) -> NcclRecord:
        words = "uncorrectable ECC error encountered"
        return line(NcclKind.CUDA_ERROR, at, rank=3, host="train01", message=words)

    again = [*restart(kind, after(60)), broken(after(90))]
    said = [one for one in lived([*world(8), broken(STOP), *again]) if one.says is Says.ACCUSES]
    assert [one.run for one in said] == [0, 1]
    if kind == "workers":  # they tell no cards
        assert [one.domain.kind for one in said] == ["gpu", "node"]
    else:
        assert [one.domain for one in said] == [gpu(3), gpu(3)]


def test_cards_of_the_run_before_are_not_accused_of_what_the_next_one_says() -> None:
    """Rank 6 ran on train02, and runs elsewhere now; its own line alone says where."""
    maps = line(NcclKind.RANK_MAP, T0, host="train02", ranks=(4, 5, 6, 7), comm_size=8)
    words = "uncorrectable ECC error encountered"
    broken = line(NcclKind.CUDA_ERROR, after(90), rank=6, host="train09", message=words)
    said = lived([maps, *stopped(), broken])
    assert said[-1].domain.host == "train09"
    assert "train02" not in {one.host for one in said if one.run}


# --- What belongs to the first failure is silent. -------------------------------------------------


def test_the_tail_of_a_stop_is_silent() -> None:
    tail = [
        line(NcclKind.PEER_CLOSED, after(8), host="train02", pid=820, peer="train01<9>"),
        line(NcclKind.PYTHON_ERROR, after(9), rank=4, host="train02", message="KeyError: 'x'"),
        line(NcclKind.IB_COMPLETION, after(35), host="train02", pid=821, status=12, peer="t1<9>"),
        line(NcclKind.WORKER_EXIT, after(31), host="train01", pid=710, phase="stuck"),
        line(NcclKind.WORKER_EXIT, after(32), host="train01", pid=710, exit_code=-9),
        line(
            NcclKind.WORKER_EXIT, after(31), host="train02", exit_code=-9, phase="srun",
            message="tasks 8-12: Killed",
        ),
        line(NcclKind.STORE_LOST, after(140), host="train03", phase="rendezvous"),
        *stopped(after(120)),
    ]  # fmt: skip
    tail.sort(key=lambda one: one.at or T0)
    assert told(lived([*stopped(), *tail])) == [STOPPED]


def test_a_death_that_its_agent_tells_late_explains_what_was_told() -> None:
    echo, *rest = killed(STOP)
    late = [msgspec.structs.replace(one, at=after(30)) for one in rest]
    said = lived([echo, *late])
    assert {one.run for one in said} == {0}
    assert said[-1].kind == "process-death"


def test_what_torchrun_lists_at_its_end_is_no_new_death() -> None:
    """It waits for other agents first, and calls the host by its long name."""
    listed = [
        line(
            kind, after(250), host="train02.example", rank=4 + local, local_rank=local,
            pid=820 + 7 * local, exit_code=-9, phase="failure",
        )
        for local, kind in enumerate((NcclKind.ROOT_CAUSE, NcclKind.WORKER_EXIT))
    ]  # fmt: skip
    assert runs(lived([*killed(STOP), *listed])) == [(0, "process-death")]


def test_aborts_that_are_repeated_for_hours_are_told_once() -> None:
    hung = waits(r for r in range(8) if r != 6)
    aborts = [
        line(kind, after(700 * n + 600), rank=n % 8, host="train01")
        for n in range(2, 14)
        for kind in (NcclKind.ABORTED, NcclKind.WATCHDOG_STUCK, NcclKind.REMOTE_ERROR)
    ]
    accused = [one for one in lived([*world(8), *hung, *aborts]) if one.says is Says.ACCUSES]
    assert [(one.domain, one.run) for one in accused] == [(gpu(6), 0)]
    everything = lived([*world(8), *hung, *aborts])
    assert runs(everything) == [(0, "missing-rank"), (0, "no-culprit")]


def test_a_restart_without_a_fault_says_nothing() -> None:
    first = lived([*world(8), *stopped()])
    assert runs(first) == [(0, "external-stop")]
    for kind in ("processes", "communicator", "fewer nodes", "workers"):
        said = lived([*world(8), *stopped(), *restart(kind, after(20))])
        assert runs(said) == [(0, "external-stop")]


def test_late_lines_of_the_first_failure_do_not_count_for_the_next_run() -> None:
    """A host that was cut off ships what it had when the others train again."""
    late = stopped(after(1), host="train02", pids=(720, 721))
    records = [*world(8), *stopped(), *restart("processes", after(20))]
    state, said = JobState(), list[Suspicion]()
    for record in records:
        assert record.at is not None
        state, more = take(state, record, record.at)
        said += more
    for record in late:
        state, more = take(state, record, after(25))
        said += more
    assert not any(attempt.judge_at for attempt in state.attempts.values())
    assert runs(said) == [(0, "external-stop")]


def test_processes_that_are_known_die_once() -> None:
    """NCCL's lines name the processes: without new ones nothing began anew."""
    records = [*world(8), *killed(STOP, pid=5004), *killed(after(40), pid=5006)]
    assert runs(lived(records)) == [(0, "process-death")]


# --- A job that fails again and again. ------------------------------------------------------------


def test_a_loop_of_restarts_is_told_at_first_and_then_at_doublings() -> None:
    loop = [one for n in range(40) for one in killed(after(45 * n), pid=1000 + 10 * n)]
    said = lived(loop)
    assert [one.run + 1 for one in said] == [1, 2, 3, 4, 8, 16, 32]


def test_a_loop_with_communicators_is_told_as_rarely() -> None:
    loop = [
        one
        for n in range(20)
        for one in (
            *(
                init(r, 8, pid=6000 + 100 * n + r, comm=f"0x{n}", at=after(90 * n))
                for r in range(8)
            ),
            *killed(after(90 * n + 30), pid=6000 + 100 * n + 4),
        )
    ]
    assert [one.run + 1 for one in lived(loop)] == [1, 2, 3, 4, 8, 16]


def test_a_fault_of_another_kind_is_told_in_the_midst_of_a_loop() -> None:
    loop = [one for n in range(6) for one in killed(after(45 * n), pid=1000 + 10 * n)]
    words = "uncorrectable ECC error encountered"
    broken = line(NcclKind.CUDA_ERROR, after(400), rank=6, host="train02", message=words)
    said = lived([*loop, broken])
    assert said[-1].kind == "own-error"
    assert said[-1].says is Says.ACCUSES


def test_a_job_that_trained_for_hours_between_its_failures_is_in_no_loop() -> None:
    rare = [one for n in range(7) for one in killed(after(7200 * n), pid=1000 + 10 * n)]
    assert len(lived(rare)) == 7


def test_the_state_of_a_loop_stays_small() -> None:
    loop = [one for n in range(300) for one in killed(after(45 * n), pid=1000 + 10 * n)]
    state = JobState()
    for record in loop:
        assert record.at is not None
        state, _ = step(state, Arrived("nccl", record, record.at), RULES)
    assert len(msgspec.json.encode(state)) < 8000


# --- The order of arrival, and a replay. ----------------------------------------------------------

SECOND = [*killed(after(25)), line(NcclKind.STORE_LOST, after(25), host="train03", phase="flag")]
FIRST_TAIL = [line(NcclKind.PEER_CLOSED, after(2), host="train03", peer="train01<9>")]


@settings(max_examples=60, deadline=None)
@given(st.permutations([*SECOND, *FIRST_TAIL]))
def test_any_order_of_arrival_within_the_settle_time_tells_the_same(
    arriving: list[NcclRecord],
) -> None:
    def said(records: list[NcclRecord]) -> list[Suspicion]:
        state = JobState()
        for record in stopped():
            state, _ = step(state, Arrived("nccl", record, STOP), RULES)
        for number, record in enumerate(records):
            at = after(26 + 0.05 * number)
            state, more = step(state, Arrived("nccl", record, at), RULES)
            assert [one.kind for one in more] == ([] if number else ["external-stop"])
        end = due(state)
        assert end is not None
        return step(state, Arrived("nccl", Tick(id="t", at=end), end), RULES)[1]

    answer = said(arriving)
    assert runs(answer) == [(1, "process-death")]
    assert answer == said([*SECOND, *FIRST_TAIL])


def test_the_same_lines_give_the_same_ids_again() -> None:
    records = [*stopped(), *killed(after(25)), *killed(after(80), pid=990)]
    assert lived(records) == lived(records)
    assert run(records[:3]) == run(records[:3])


def test_a_line_without_time_is_placed_by_its_arrival_in_the_run() -> None:
    """torchrun of torch 1.13 prints none."""
    state, said = JobState(), list[Suspicion]()
    for record in [*stopped(), *killed(after(25))]:
        assert record.at is not None
        bare = msgspec.structs.replace(record, at=None)
        state, more = take(state, bare, record.at)
        said += more
    end = due(state)
    assert end is not None
    _, more = take(state, Tick(id="t", at=end), end)
    assert runs(said + more) == [(0, "external-stop"), (1, "process-death")]


def test_a_wait_of_one_rank_alone_begins_no_run_while_it_reaches_back() -> None:
    said = lived([*waits(r for r in range(1, 8)), wait(0, elapsed_ms=640_000, at=after(560))])
    assert {one.run for one in said} == {0}
