"""Lines of one job to write job-stage cases with: records in, suspicions out."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from evidence.decisions import Domain, DomainKind, Suspicion
from evidence.identity import digest
from evidence.records import NcclKind, NcclRecord, Tick
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
