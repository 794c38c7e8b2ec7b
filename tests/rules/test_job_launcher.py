"""Who started the ranks: stops from outside, workers that died, barriers."""

from datetime import timedelta

import msgspec
import pytest

from evidence.decisions import Cause
from evidence.records import NcclKind, NcclRecord

from .job_lines import GIVE_UP, STALL, gpu, line, run, told, waits, world


def test_a_stop_from_outside_blames_nobody() -> None:
    stop = line(NcclKind.EXTERNAL_STOP, STALL, host="train01", message="Received 15 death signal")
    soon = STALL + timedelta(seconds=2)
    exits = [
        line(NcclKind.WORKER_EXIT, soon, rank=rank, host="train01", exit_code=-15)
        for rank in range(4)
    ]
    assert told(run([*world(8), stop, *exits])) == [
        ("software", "clears", "external-stop", "job:4711.0")
    ]


def test_a_stop_after_the_hang_is_not_its_cause() -> None:
    stop = line(NcclKind.EXTERNAL_STOP, GIVE_UP + timedelta(seconds=5), host="train01")
    said = run([*world(8), *waits(r for r in range(8) if r != 6), stop])
    assert said[0].domain == gpu(6)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        # Whether memory ran out is told by the host, so the host is asked.
        (-9, ("insufficient", "blind", "process-death", "node:train02")),
        (137, ("insufficient", "blind", "process-death", "node:train02")),
        (-7, ("insufficient", "blind", "process-death", "job:4711.0")),
        (-11, ("software", "clears", "process-death", "job:4711.0")),
    ],
)
def test_a_worker_that_died_is_named_without_accusing_its_card(
    code: int, says: tuple[str, ...]
) -> None:
    died = line(NcclKind.WORKER_EXIT, STALL, local_rank=2, pid=5006, host="train02", exit_code=code)
    said = run([*world(8), died, *waits(r for r in range(8) if r != 6)])
    assert told(said) == [says]
    assert (said[0].domain.rank, said[0].domain.host) == (6, "train02")
    assert said[0].host == "train02"
    assert "(5006)" in said[0].reason


def test_a_worker_that_its_agent_killed_is_not_the_one_that_died() -> None:
    def exits(pid: int, second: int, phase: str, code: int) -> NcclRecord:
        at = STALL + timedelta(seconds=second)
        return line(NcclKind.WORKER_EXIT, at, pid=pid, host="train02", phase=phase, exit_code=code)

    stopped = [exits(5005, 1, "stopped-by-agent", -15), exits(5005, 31, "failed", -9)]
    said = run([*world(8), *stopped, exits(5006, 40, "failed", -9)])
    assert said[0].domain.rank == 6
    assert told(run([*world(8), *stopped]))[0][2] == "no-culprit"


def test_a_node_that_the_scheduler_lost_is_suspect_as_a_whole() -> None:
    lost = line(
        NcclKind.WORKER_EXIT, STALL, host="train02", phase="node-fail",
        message="*** JOB 4711 ON train02 CANCELLED AT 2027-05-02T11:01:40 DUE TO NODE FAILURE",
    )  # fmt: skip
    said = run([*world(8), lost, *waits(range(4))])
    assert told(said) == [("suspected", "accuses", "node-failure", "node:train02")]
    assert said[0].cause is Cause.NODE


@pytest.mark.parametrize("phase", ["scheduler", "interrupt", None])
def test_whoever_stops_a_job_makes_its_ranks_complain_and_none_is_to_blame(
    phase: str | None,
) -> None:
    stop = line(NcclKind.EXTERNAL_STOP, STALL, host="train01", phase=phase, message="CANCELLED AT")
    late = STALL + timedelta(seconds=4)
    noise = [
        line(NcclKind.REMOTE_ERROR, late, rank=3, host="train01"),
        line(NcclKind.PEER_CLOSED, late, host="train02", pid=5004, peer="train01<4100>"),
        line(NcclKind.WORKER_EXIT, late, pid=5004, host="train02", exit_code=-9),
    ]
    assert told(run([*world(8), stop, *noise])) == [
        ("software", "clears", "external-stop", "job:4711.0")
    ]


@pytest.mark.parametrize("code", [-15, -6, 0, 1])
def test_a_worker_that_was_stopped_or_gave_up_is_no_cause(code: int) -> None:
    ended = line(NcclKind.WORKER_EXIT, GIVE_UP, rank=1, host="train01", exit_code=code)
    said = run([*world(8), *waits(r for r in range(8) if r != 6), ended])
    assert said[0].domain == gpu(6)


def test_a_barrier_names_who_failed_to_pass_and_its_victims_name_nobody() -> None:
    named = line(
        NcclKind.BARRIER_MISSING, rank=0, host="train01", ranks=(3,),
        raw="[Rank 0]: Rank 3 failed to pass monitoredBarrier in 5000 ms",
    )  # fmt: skip
    victim = line(
        NcclKind.BARRIER_MISSING, rank=1, host="train01", ranks=(0,),
        raw="Rank 1 successfully reached monitoredBarrier, but received errors while waiting for"
        " send/recv from rank 0. Please check rank 0 logs for faulty rank.",
    )  # fmt: skip
    assert told(run([*world(8), named, victim]))[0] == (
        "suspected",
        "accuses",
        "missing-rank",
        gpu(3).id,
    )
    assert told(run([named, victim])) == [("insufficient", "blind", "missing-rank", "job:4711.0")]
    assert told(run([*world(8), victim]))[0][2] == "no-culprit"


def test_a_barrier_that_a_whole_node_missed_accuses_the_node() -> None:
    named = line(
        NcclKind.BARRIER_MISSING, rank=0, host="train01", ranks=(4, 5, 6, 7),
        raw="[Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms",
    )  # fmt: skip
    assert told(run([*world(8), named]))[0] == (
        "suspected",
        "accuses",
        "missing-rank",
        "node:train02",
    )


def test_complaints_of_ranks_that_leave_after_the_work_are_software() -> None:
    done = [line(NcclKind.FINISHED, STALL, rank=rank, host="train01") for rank in range(4)]
    late = STALL + timedelta(seconds=2)
    noise = [
        line(NcclKind.STORE_LOST, late, rank=5, host="train02", peer="[train01]:29500"),
        line(NcclKind.PEER_CLOSED, late, host="train02", pid=5004, peer="train01<4100>"),
    ]
    assert told(run([*world(8), *done, *noise])) == [
        ("software", "clears", "teardown", "job:4711.0")
    ]
    assert told(run([*world(8), *noise]))[0][0] == "insufficient"
    before = [msgspec.structs.replace(one, at=STALL - timedelta(seconds=9)) for one in noise]
    assert told(run([*world(8), *done, *before]))[0][0] == "insufficient"
