from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evidence.decisions import Says, Status, Suspicion
from evidence.records import NcclKind, NcclRecord, Tick
from rules.job import JobState, due, step
from rules.policy import Policy, load
from rules.stage import Arrived

T0 = datetime(2027, 5, 2, 11, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Governed:
    policy: Policy


RULES = Governed(load())


def maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


WORDS = st.sampled_from(
    [
        "uncorrectable ECC error encountered",
        "an illegal memory access was encountered",
        "CUDA out of memory",
        "KeyError: 'x'",
        "Connection reset by peer",
        "port error",
        "port active",
        "missing ranks: {1}",
        "Rank 3 failed to pass monitoredBarrier",
        "over nvlink",
        "\x00\ud7ff",
        "",
    ]
)
RANKS = st.integers(0, 6)
LINES = st.builds(
    NcclRecord,
    id=st.uuids().map(str),
    observed_at=st.just(T0),
    raw=WORDS,
    kind=st.sampled_from(NcclKind),
    job=st.just("9"),
    attempt=st.integers(0, 2),
    host=maybe(st.sampled_from(["a1", "a2", "b1"])),
    at=maybe(st.integers(0, 4000).map(lambda second: T0 + timedelta(seconds=second))),
    rank=maybe(RANKS),
    local_rank=maybe(RANKS),
    pid=maybe(st.integers(1, 4)),
    comm_rank=maybe(RANKS),
    comm_size=maybe(st.integers(1, 6)),
    nvml_dev=maybe(st.integers(0, 3)),
    pci=maybe(st.sampled_from(["0000:1b:00", "0000:4f:00"])),
    group=maybe(st.sampled_from(["0", "", "37"])),
    group_desc=maybe(st.sampled_from(["default_pg", "TENSOR_MODEL_PARALLEL_GROUP"])),
    seq=maybe(st.integers(-1, 3)),
    op=maybe(st.sampled_from(["ALLREDUCE", "BROADCAST", "SEND"])),
    numel_in=maybe(st.integers(0, 2)),
    elapsed_ms=maybe(st.integers(-5, 2**62)),
    last_enqueued=maybe(st.integers(-1, 4)),
    last_completed=maybe(st.integers(-1, 4)),
    ranks=st.lists(RANKS, max_size=3).map(tuple),
    peer=maybe(st.sampled_from(["a1<5>", "[b1.site]:3", "10.0.0.9", "localRank 2", "<", ""])),
    hca=maybe(st.just("mlx5_0")),
    status=maybe(st.sampled_from([4, 5, 9, 12, 13])),
    exit_code=maybe(st.sampled_from([-15, -11, -9, 0, 1])),
    message=maybe(WORDS),
    repeated=st.booleans(),
    phase=maybe(
        st.sampled_from(["group", "dump", "stack", "dead", "incomplete", "saving", "saved"])
        | st.sampled_from(["bootstrap", "network", "not-joined", "started", "node-fail", "stuck"])
    ),
    members=maybe(st.sampled_from(["0-6", "0-2", "1,3", "0-99999999", "x", "3-1", ""])),
    state=maybe(st.sampled_from(["scheduled", "started", "completed"])),
    incomplete=maybe(st.integers(0, 3)),
    last_started=maybe(st.integers(-1, 4)),
    address=maybe(st.sampled_from(["10.0.0.9", "127.0.0.1", ""])),
    hosts=st.lists(st.sampled_from(["a1", "b1", "10.0.0.9", ""]), max_size=2).map(tuple),
    local_gid=maybe(st.sampled_from(["fe80::1", "fe80::2"])),
    remote_gid=maybe(st.sampled_from(["fe80::1", "fe80::2"])),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LINES, max_size=25))
def test_any_lines_in_any_order_are_judged_without_an_error(lines: list[NcclRecord]) -> None:
    state = JobState()
    said: list[Suspicion] = []
    at = T0
    for number, record in enumerate(lines):
        at = T0 + timedelta(seconds=number)
        state, more = step(state, Arrived("nccl", record, at, offset=number), RULES)
        said += more
    while any(attempt.judge_at for attempt in state.attempts.values()):
        wanted = due(state)
        assert wanted is not None
        at = max(at, wanted)
        state, more = step(state, Arrived("nccl", Tick(id="t", at=at), at), RULES)
        said += more
    assert msgspec.json.decode(msgspec.json.encode(state), type=JobState) == state
    for one in said:
        assert one.job == "9"
        assert one.reason
        assert 0 <= one.weight <= 1
        if one.says is Says.ACCUSES:
            assert one.host is not None
            assert one.status is Status.SUSPECTED, "one witness alone never localizes"
            assert one.domain.id not in {victim.id for victim in one.victims}
