"""One incident of one job attempt: its lines in order, who waits, who is silent, since when.

A timeout says "I waited", never who was missing; the rank that waits for nobody is looked for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from evidence.decisions import Cause, DomainKind, Says, Status
from evidence.records import NcclKind, NcclRecord
from rules.ranks import Processes, Roster, is_default_group
from rules.stage import reckonable

__all__ = ["Finding", "Incident", "Wait", "order", "said_at"]

#: Before the first rank began to wait, a cause may lie this long (a rank dies, then others call).
_LEAD = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one judge concludes; who it is about is a rank, a host, or nobody.

    ``part`` JOB names no part: the rank and host in it are for the reader, never for an isolator.
    """

    kind: str
    status: Status
    reason: str
    clues: Sequence[NcclRecord]
    part: DomainKind = DomainKind.JOB
    says: Says = Says.BLIND
    cause: Cause = Cause.UNKNOWN
    weight: float = 0.0
    rank: int | None = None
    host: str | None = None
    port: int | None = None
    at: datetime | None = None


class Wait(NamedTuple):
    """One rank's own statement that it waited in vain."""

    rank: int
    group: str
    default: bool
    seq: int | None
    op: str | None
    numel: tuple[int | None, int | None]
    since: datetime | None
    enqueued: int | None
    completed: int | None
    clue: NcclRecord


def said_at(record: NcclRecord) -> datetime:
    """When a line was said: its own time, or when it was read."""
    return reckonable(record.at or record.observed_at)


def order(record: NcclRecord) -> tuple[datetime, str, str, int, str]:
    """The order in which lines are taken, whatever order they arrived in."""
    return (
        said_at(record),
        record.host or "",
        record.file or record.source,
        record.offset or record.line or 0,
        record.id,
    )


def _elapsed(record: NcclRecord) -> timedelta:
    return timedelta(milliseconds=min(record.elapsed_ms or 0, 7 * 86_400_000))


def last_incident(records: Iterable[NcclRecord]) -> list[NcclRecord]:
    """The newest lines that belong together, in order: older ones are another story.

    A line belongs when it was said no earlier than `_LEAD` before the earliest wait that a later
    line speaks of.
    """
    ordered = sorted(records, key=order)
    reach: datetime | None = None
    for place in range(len(ordered) - 1, -1, -1):
        record = ordered[place]
        if reach is not None and said_at(record) < reach:
            return ordered[place + 1 :]
        begin = said_at(record) - _elapsed(record) - _LEAD
        reach = begin if reach is None else min(reach, begin)
    return ordered


@dataclass(frozen=True)
class Incident:
    """The lines of one incident (in order) over the ranks of its attempt."""

    job: str
    roster: Roster
    records: Sequence[NcclRecord]
    lost: int = 0
    _ranks: dict[str, int | None] = field(default_factory=dict)

    def rank_of(self, record: NcclRecord) -> int | None:
        """The global rank that said a line."""
        if record.id not in self._ranks:
            self._ranks[record.id] = self.roster.rank_of(
                record, self._processes, prefixless=self._prefixless
            )
        return self._ranks[record.id]

    @cached_property
    def _processes(self) -> Processes:
        return self.roster.processes()

    @cached_property
    def _prefixless(self) -> bool:
        return all(record.rank is None for record in self.records)

    def of(self, *kinds: NcclKind) -> list[NcclRecord]:
        """The lines of some kinds, in order."""
        return [record for record in self.records if record.kind in kinds]

    @cached_property
    def waits(self) -> list[Wait]:
        """Each rank's timeouts, the two messages that carry the same numbers made one."""
        merged: dict[tuple[int, int | None], list[Wait]] = {}
        for record in self.of(NcclKind.TIMEOUT):
            rank = self.rank_of(record)
            if rank is None:
                continue
            wait = self._wait(rank, record)
            same = merged.setdefault((rank, wait.seq), [])
            for place, earlier in enumerate(same):
                # One message names the group, the other one the operation.
                if earlier.group == wait.group or "" in (earlier.group, wait.group):
                    same[place] = _join(earlier, wait)
                    break
            else:
                same.append(wait)
        waits = [wait for same in merged.values() for wait in same]
        return sorted(waits, key=lambda wait: (wait.rank, wait.group, wait.seq or 0))

    @staticmethod
    def _wait(rank: int, record: NcclRecord) -> Wait:
        known = record.elapsed_ms is not None
        return Wait(
            rank=rank,
            group=record.group_desc or record.group or "",
            default=is_default_group(record),
            seq=record.seq,
            op=record.op,
            numel=(record.numel_in, record.numel_out),
            since=said_at(record) - _elapsed(record) if known else None,
            enqueued=record.last_enqueued,
            completed=record.last_completed,
            clue=record,
        )

    @cached_property
    def waiting(self) -> frozenset[int]:
        """Ranks that said of themselves that they waited."""
        return frozenset(wait.rank for wait in self.waits)

    @cached_property
    def expected(self) -> frozenset[int]:
        """The ranks of the job: of its world communicator, else up to the highest one seen."""
        if self.roster.world_size is not None:
            return frozenset(range(self.roster.world_size))
        seen = set(self.roster.places) | self.waiting
        seen |= {rank for record in self.records if (rank := self.rank_of(record)) is not None}
        return frozenset(range(max(seen) + 1)) if seen else frozenset()

    @property
    def complete(self) -> bool:
        """Whether absence can count: the size is known, and no line was dropped on the way."""
        whole = self.roster.world_size is not None
        return whole and not self.lost and not any(record.repeated for record in self.records)

    @cached_property
    def silent(self) -> frozenset[int]:
        """Ranks of the job that never said that they waited."""
        return self.expected - self.waiting

    @cached_property
    def stalled_at(self) -> datetime | None:
        """When the first rank began to wait."""
        return min((wait.since for wait in self.waits if wait.since), default=None)

    @cached_property
    def timed_out_at(self) -> datetime | None:
        """When the first rank gave up waiting."""
        return min((said_at(wait.clue) for wait in self.waits), default=None)

    def causal(self, record: NcclRecord) -> bool:
        """Whether a line about its own rank can be the cause: that rank did not wait itself."""
        rank = self.rank_of(record)
        if rank is not None:
            return rank not in self.waiting
        return self.timed_out_at is None or said_at(record) <= self.timed_out_at


def _join(one: Wait, other: Wait) -> Wait:
    """One wait out of two messages about it: whatever either of them tells."""

    def either(a: int | None, b: int | None) -> int | None:
        return a if a is not None else b

    def most(a: int | None, b: int | None) -> int | None:
        return b if a is None else a if b is None else max(a, b)

    return Wait(
        rank=one.rank,
        group=one.group or other.group,
        default=one.default and other.default,
        seq=one.seq,
        op=one.op or other.op,
        numel=(either(one.numel[0], other.numel[0]), either(one.numel[1], other.numel[1])),
        since=min(filter(None, (one.since, other.since)), default=None),
        enqueued=most(one.enqueued, other.enqueued),
        completed=most(one.completed, other.completed),
        clue=one.clue,
    )
