import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence.decisions import Cause, Domain, DomainKind, Says, Status, Suspicion, Witness
from evidence.identity import digest
from evidence.records import NcclKind, NcclRecord, Tick
from rules import job
from rules.job import JobState, due, step
from rules.policy import Policy, load
from rules.stage import Arrived

T0 = datetime(2027, 5, 2, 11, 0, tzinfo=UTC)
STALL = T0 + timedelta(seconds=100)
GIVE_UP = STALL + timedelta(seconds=600)


@dataclass(frozen=True)
class Governed:
    policy: Policy


RULES = Governed(load())
_COUNT = itertools.count()


def line(kind: NcclKind, said_at: datetime = GIVE_UP, **fields: object) -> NcclRecord:
    number = next(_COUNT)
    told: dict[str, object] = {
        "id": digest("line", kind, number),
        "observed_at": said_at + timedelta(seconds=1),
        "raw": str(fields.get("message", f"line of kind {kind}")),
        "job": "4711.0",
        "at": said_at,
        "file": f"{fields.get('host')}.log",
        "offset": number,
    }
    return NcclRecord(kind=kind, **{**told, **fields})  # type: ignore[arg-type]


def host(rank: int, per_node: int) -> str:
    return f"train{rank // per_node + 1:02d}"


def pci(rank: int, per_node: int) -> str:
    return f"0000:{0x19 + 0x10 * (rank % per_node):02x}:00"


def init(rank: int, size: int, per_node: int = 4, **fields: object) -> NcclRecord:
    told: dict[str, object] = {
        "host": host(rank, per_node),
        "pid": 5000 + rank,
        "comm": "0x5ae7",
        "comm_rank": rank,
        "comm_size": size,
        "cuda_dev": rank % per_node,
        "nvml_dev": rank % per_node,
        "pci": pci(rank, per_node),
        "phase": "complete",
    }
    return line(NcclKind.COMM_INIT, T0, **{**told, **fields})


def world(size: int, per_node: int = 4) -> list[NcclRecord]:
    return [init(rank, size, per_node) for rank in range(size)]


def wait(rank: int, seq: int | None = 812, per_node: int = 4, **fields: object) -> NcclRecord:
    told: dict[str, object] = {
        "host": host(rank, per_node),
        "rank": rank,
        "comm_rank": rank,
        "group": "0",
        "group_desc": "default_pg",
        "op": "ALLREDUCE",
        "numel_in": 4096,
        "numel_out": 4096,
        "timeout_ms": 600_000,
        "elapsed_ms": 600_000 + 7 * (rank % 5),
        "last_enqueued": 814,
        "last_completed": 811,
    }
    at = GIVE_UP + timedelta(milliseconds=7 * (rank % 5))
    return line(NcclKind.TIMEOUT, at, seq=seq, **{**told, **fields})


def waits(ranks: Iterable[int], seq: int | None = 812, **fields: object) -> list[NcclRecord]:
    return [wait(rank, seq, **fields) for rank in ranks]  # type: ignore[arg-type]


def gpu(rank: int, per_node: int = 4) -> Domain:
    return Domain(
        kind=DomainKind.GPU,
        host=host(rank, per_node),
        pci=pci(rank, per_node),
        index=rank % per_node,
        rank=rank,
    )


def take(state: JobState, record: msgspec.Struct, at: datetime) -> tuple[JobState, list[Suspicion]]:
    before = msgspec.json.encode(state)
    after, said = step(state, Arrived("nccl", record, at), RULES)
    assert msgspec.json.encode(state) == before, "a step must not change its argument"
    assert msgspec.json.decode(msgspec.json.encode(after), type=JobState) == after
    return after, said


def run(records: Sequence[NcclRecord], state: JobState | None = None) -> list[Suspicion]:
    """Everything said about records that arrive as they happen, with time running on at the end."""
    state = JobState() if state is None else state
    said: list[Suspicion] = []
    for record in records:
        state, more = take(state, record, record.at or GIVE_UP)
        said += more
    while any(attempt.judge_at for attempt in state.attempts.values()):
        at = due(state)
        assert at is not None
        state, more = take(state, Tick(id="t", at=at), at)
        said += more
    return said


def told(said: list[Suspicion]) -> list[tuple[str, str, str, str]]:
    return [(s.status, s.says, s.kind, s.domain.id) for s in said if s.kind != "victim"]


# --- A rank that is missing ---------------------------------------------------------------------


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


# --- Lagging and mismatched ---------------------------------------------------------------------


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


# --- What a rank says of itself -----------------------------------------------------------------

ECC = "uncorrectable ECC error encountered"


def test_an_ecc_error_accuses_the_card_of_the_rank_that_prints_it() -> None:
    error = line(NcclKind.CUDA_ERROR, STALL, rank=6, host="train02", message=ECC)
    said = run([*world(8), error])
    assert told(said)[0] == ("suspected", "accuses", "own-error", gpu(6).id)
    assert (said[0].cause, said[0].weight, said[0].at) == (Cause.GPU_MEMORY, 0.9, STALL)


def test_an_ecc_error_found_late_wins_over_the_silence_of_another_rank() -> None:
    error = line(
        NcclKind.CUDA_ERROR, GIVE_UP + timedelta(seconds=2), pid=5006, host="train02", message=ECC
    )
    said = run([*world(8), *waits(range(1, 8)), error])
    assert told(said)[0] == ("suspected", "accuses", "own-error", gpu(6).id)


def test_an_ecc_error_of_a_card_that_nobody_maps_accuses_its_host_at_half_weight() -> None:
    said = run([line(NcclKind.CUDA_ERROR, rank=1, host="train09", message=ECC)])
    assert told(said) == [("suspected", "accuses", "own-error", "node:train09")]
    assert (said[0].domain.rank, said[0].weight) == (1, 0.45)


@pytest.mark.parametrize(
    ("kind", "message", "says"),
    [
        (NcclKind.CUDA_ERROR, "an illegal memory access was encountered", "launch-failure"),
        (NcclKind.CUDA_ERROR, "unspecified launch failure", "launch-failure"),
        (NcclKind.CUDA_ERROR, "device-side assert triggered", "launch-failure"),
        (NcclKind.OUT_OF_MEMORY, "CUDA out of memory. Tried to allocate 2 GiB", "out-of-memory"),
        (NcclKind.CUDA_ERROR, "out of memory", "out-of-memory"),
        (NcclKind.OUT_OF_MEMORY, "Detected 1 oom_kill event in StepId=9.0", "host-out-of-memory"),
        (NcclKind.PYTHON_ERROR, "ValueError: batch of 7 is not divisible", "exception"),
    ],
)
def test_software_faults_of_a_rank_clear_its_card(kind: NcclKind, message: str, says: str) -> None:
    fault = line(kind, STALL, rank=6, host="train02", message=message)
    said = run([*world(8), fault, *waits(r for r in range(8) if r != 6)])
    assert told(said) == [("software", "clears", says, gpu(6).id)]
    assert said[0].host == "train02"


@pytest.mark.parametrize(
    "message",
    [
        "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, remote process exited",
        "RuntimeError: [gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py",
    ],
)
def test_a_communication_error_is_an_echo_and_proves_no_software_fault(message: str) -> None:
    echo = line(NcclKind.PYTHON_ERROR, STALL, rank=6, host="train02", message=message)
    said = run([*world(8), echo])
    assert {s.status for s in said} == {Status.INSUFFICIENT}


def test_an_exception_of_a_rank_that_waited_itself_is_not_the_cause() -> None:
    late = line(
        NcclKind.PYTHON_ERROR, GIVE_UP, rank=1, host="train01", message="KeyError: 'metrics'"
    )
    said = run([*world(8), *waits(r for r in range(8) if r != 6), late])
    assert said[0].domain == gpu(6)


@pytest.mark.parametrize("kind", [NcclKind.FINISHED, NcclKind.COMM_DESTROY])
def test_a_rank_that_left_while_others_still_call_is_software(kind: NcclKind) -> None:
    left = line(kind, STALL, rank=0, host="train01")
    said = run([*world(8), left, *waits(range(1, 8))])
    assert told(said) == [("software", "clears", "left-the-collective", gpu(0).id)]


def test_ranks_that_all_finish_say_nothing() -> None:
    assert run([*world(8), *(line(NcclKind.FINISHED, rank=rank) for rank in range(8))]) == []


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


@pytest.mark.parametrize("code", [-9, -11, -7, 137])
def test_a_worker_that_died_is_named_without_accusing_its_card(code: int) -> None:
    died = line(NcclKind.WORKER_EXIT, STALL, local_rank=2, pid=5006, host="train02", exit_code=code)
    said = run([*world(8), died, *waits(r for r in range(8) if r != 6)])
    assert told(said) == [("insufficient", "blind", "process-death", "job:4711.0")]
    assert (said[0].domain.rank, said[0].domain.host) == (6, "train02")


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


# --- Networks and services ----------------------------------------------------------------------


def test_a_port_that_reports_its_own_failure_is_suspect_with_its_host() -> None:
    events = [
        line(NcclKind.IB_ASYNC, STALL, host="train02", pid=5004 + n, message="port error",
             hca="mlx5_2", port=1)
        for n in range(4)
    ]  # fmt: skip
    echo = line(NcclKind.IB_COMPLETION, host="train01", peer="train02<37948>", status=12)
    said = run([*world(8), *events, echo])
    assert told(said)[0] == ("suspected", "accuses", "ib-link", "link:train02/1")
    assert (said[0].cause, said[0].weight) == (Cause.IB_LINK, 0.6)
    assert "mlx5_2" in said[0].reason


def port_event(name: str, message: str, second: int = 0, pid: int = 1) -> NcclRecord:
    at = STALL + timedelta(seconds=second)
    return line(NcclKind.IB_ASYNC, at, host=name, pid=pid, message=message, hca="mlx5_0", port=1)


def test_a_port_that_came_back_weighs_less() -> None:
    down = [port_event("train02", "port error", pid=pid) for pid in (1, 2)]
    back = run([*world(8), *down, port_event("train02", "port active", 3)])
    assert back[0].weight == 0.3


def test_ports_of_several_hosts_accuse_none_of_them() -> None:
    both = [port_event("train01", "port error"), port_event("train02", "port error")]
    assert told(run(world(8) + both)) == [("insufficient", "blind", "ib-link", "job:4711.0")]


def test_one_event_that_nobody_suffered_from_accuses_nothing() -> None:
    said = run([*world(8), port_event("train02", "port error")])
    assert told(said) == [("insufficient", "blind", "ib-link", "job:4711.0")]
    said = run([*world(8), port_event("train02", "port error"), *waits(range(8))])
    assert [answer[1] for answer in told(said)] == ["blind", "accuses"]
    assert run([*world(8), port_event("train02", "port active")]) == []


def unreachable(reporter: str, peer: str, status: int = 12) -> NcclRecord:
    return line(NcclKind.IB_COMPLETION, host=reporter, peer=f"{peer}<4791>", status=status)


def test_an_end_that_two_others_cannot_reach_is_suspect() -> None:
    said = run([*world(16), unreachable("train01", "train03"), unreachable("train02", "train03")])
    assert told(said)[0] == ("suspected", "accuses", "ib-link", "link:train03/None")


@pytest.mark.parametrize(
    "errors",
    [
        [("train01", "train02", 12)],
        [("train01", "train02", 12), ("train02", "train01", 12)],
        [("train01", "train02", 12), ("train03", "train04", 12)],
        [("train01", "10.9.8.7", 12), ("train02", "10.9.8.7", 12)],
        [("train01", "train02", 4)],
        [("train01", "train02", 9), ("train03", "train02", 9)],
    ],
)
def test_completion_errors_that_name_no_single_end_accuse_nobody(
    errors: list[tuple[str, str, int]],
) -> None:
    said = run([*world(16), *(unreachable(*error) for error in errors)])
    assert told(said) == [("insufficient", "blind", "ib-link", "job:4711.0")]


def test_flushed_work_is_an_echo() -> None:
    said = run(
        [*world(16), unreachable("train01", "train02", 5), unreachable("train03", "train02", 5)]
    )
    assert told(said)[0][2] == "no-culprit"


def test_an_access_violation_names_its_own_host_and_no_part() -> None:
    event = line(
        NcclKind.IB_ASYNC, host="train02", hca="mlx5_0",
        message="local access violation work queue error",
    )  # fmt: skip
    said = run([*world(8), event, unreachable("train01", "train02", 9)])
    assert told(said) == [("insufficient", "blind", "ib-access", "job:4711.0")]
    assert said[0].domain.host == "train02"


def test_a_peer_that_is_lost_and_accuses_nobody_ended_first() -> None:
    def closed(reporter: str, peer: str) -> NcclRecord:
        return line(NcclKind.PEER_CLOSED, host=reporter, pid=1, peer=peer)

    said = run([*world(16), closed("train01", "train03<88>"), closed("train02", "train01<99>")])
    assert told(said) == [("insufficient", "blind", "peer-death", "job:4711.0")]
    assert said[0].domain.host == "train03"
    ring = run([*world(8), closed("train01", "train02<1>"), closed("train02", "train01<2>")])
    assert ring[0].domain.host is None
    own = run([*world(8), closed("train01", "127.0.0.1<1>"), closed("train02", "localRank 2")])
    assert own[0].domain.host is None


def test_a_lost_store_points_at_its_host_unless_rank_0_waited_itself() -> None:
    lost = [
        line(NcclKind.STORE_LOST, rank=rank, host=host(rank, 4), peer="[train01]:40027")
        for rank in range(4, 8)
    ]
    said = run([*world(8), *lost])
    assert (said[0].kind, said[0].domain.host) == ("store-lost", "train01")
    said = run([*world(8), *waits(range(8)), *lost])
    assert said[0].kind == "all-joined"


def test_nvlink_sharp_failures_are_the_fabric_managers_and_no_cards() -> None:
    bind = "CUDA error 401. This is usually caused by an error in the Fabric Manager"
    said = run([*world(8), line(NcclKind.NVLS, host="train02", pid=5005, message=bind)])
    assert told(said)[0] == ("suspected", "accuses", "fabric-manager", "node:train02")
    plain = line(NcclKind.NVLS, host="train02", message="Cuda failure 1 'invalid argument'")
    assert told(run([*world(8), plain])) == [
        ("insufficient", "blind", "fabric-manager", "job:4711.0")
    ]


def test_an_nvlink_fault_seen_by_many_is_the_domain_of_the_first() -> None:
    words = "CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink"
    faults = [
        line(NcclKind.CUDA_ERROR, STALL + timedelta(milliseconds=40 * n), rank=(9 + n) % 16,
             host=host((9 + n) % 16, 4), message=words)
        for n in range(16)
    ]  # fmt: skip
    said = run(world(16) + faults)
    assert told(said)[0] == ("suspected", "accuses", "nvlink-error", "node:train03")
    assert said[0].cause is Cause.NVLINK


@pytest.mark.parametrize(
    "kind",
    [NcclKind.WATCHDOG_STUCK, NcclKind.REMOTE_ERROR, NcclKind.ABORTED, NcclKind.STORE_CLIENTS],
)
def test_a_symptom_that_names_nobody_is_said_once_as_undecided(kind: NcclKind) -> None:
    records = [line(kind, rank=rank, host=host(rank, 4)) for rank in range(8)]
    said = run(world(8) + records)
    assert told(said) == [("insufficient", "blind", "no-culprit", "job:4711.0")]
    assert "settled by" in said[0].reason


@pytest.mark.parametrize("kind", [NcclKind.OTHER, NcclKind.WARN, NcclKind.UNREADABLE])
def test_lines_without_meaning_leave_the_same_state(kind: NcclKind) -> None:
    state = JobState()
    assert step(state, Arrived("nccl", line(kind), T0, offset=4), RULES) == (state, [])
    assert step(state, Arrived("nccl", line(kind), T0), RULES)[0] is state
    assert step(state, Arrived("nccl", Tick(id="t", at=T0), T0), RULES)[0] is state


# --- Attempts, revisions, state -----------------------------------------------------------------


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
    assert state.attempts[0].clues == {}


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
    old = line(NcclKind.CUDA_ERROR, T0, rank=3, host="train01", message=ECC)
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
    assert [clue.at for clue in state.attempts[0].clues.values()] == [GIVE_UP]


def test_the_state_of_a_job_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "CLUES_KEPT", 5)
    state = JobState()
    for record in world(8) + waits(range(8)):
        state, _ = take(state, record, record.at or GIVE_UP)
    assert len(state.attempts[0].clues) == 5
    assert state.attempts[0].lost == 3
    at = due(state)
    assert at is not None
    _, said = take(state, Tick(id="t", at=at), at)
    assert told(said) == [("insufficient", "blind", "incomplete-logs", "job:4711.0")]


MIXED = [
    *waits(r for r in range(8) if r != 6),
    *waits([2, 3]),
    line(NcclKind.ABORTED, GIVE_UP + timedelta(seconds=1), rank=2, host="train01"),
    line(NcclKind.DUMP_SIGNAL, rank=6, host="train02", last_enqueued=811, last_completed=811),
    line(NcclKind.REMOTE_ERROR, GIVE_UP + timedelta(seconds=2), rank=1, host="train01"),
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
