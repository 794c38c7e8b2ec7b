"""One incident of one job attempt: its lines in order, who waits, who is silent, since when.

A timeout says "I waited", never who was missing; the rank that waits for nobody is looked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from evidence.decisions import Cause, DomainKind, Says, Status
from evidence.ranks import from_ranges
from evidence.records import NcclKind, NcclRecord
from rules.clues import opens
from rules.keeping import Alike
from rules.ranks import RANKS_MAX, Processes, Roster, is_default_group
from rules.times import begun_at, elapsed, order, said_at

__all__ = ["Finding", "Incident", "Wait", "last_incident"]

#: Before the first rank began to wait, a cause may lie this long (a rank dies, then others call).
_LEAD = timedelta(seconds=300)
#: Members of all groups together; a job of 8,192 ranks in five groups each has 40,960.
_MEMBERS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """What one judge concludes; who it is about is a rank, a host, or nobody.

    ``part`` JOB names no part: the rank and host in it are for the reader, never for an isolator.
    ``ends`` are hosts of which this says nothing by itself, though it joins what their links say.
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
    ends: Sequence[str] = ()


class Wait(NamedTuple):
    """One rank's own statement that it waited in vain."""

    rank: int
    group: str
    name: str
    default: bool
    seq: int | None
    op: str | None
    numel: tuple[int | None, int | None]
    since: datetime | None
    enqueued: int | None
    completed: int | None
    clue: NcclRecord


def last_incident(records: Iterable[NcclRecord]) -> list[NcclRecord]:
    """The newest lines that belong together, in order: older ones are another story.

    A line belongs when it was said no earlier than `_LEAD` before the earliest wait that a later
    line speaks of. It begins with the newest symptom: what calm lines say after it belongs too.
    """
    ordered = sorted(records, key=order)
    reach: datetime | None = None
    for place in range(len(ordered) - 1, -1, -1):
        record = ordered[place]
        if reach is None and not opens(record):
            continue
        if reach is not None and said_at(record) < reach:
            return ordered[place + 1 :]
        begin = said_at(record) - elapsed(record) - _LEAD
        reach = begin if reach is None else min(reach, begin)
    return ordered


@dataclass(frozen=True)
class Incident:
    """The lines of one incident (in order) over the ranks of its attempt.

    ``alike`` are statements of several ranks, by the id of the line that stands for them.
    """

    job: str
    roster: Roster
    records: Sequence[NcclRecord]
    lost: int = 0
    alike: Mapping[str, Alike] = field(default_factory=dict)
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

    def ranks_of(self, record: NcclRecord) -> tuple[int, ...]:
        """All ranks that said what a line says; none where that cannot be told."""
        if record.id in self.alike:
            return self.alike[record.id].ranks
        rank = self.rank_of(record)
        return () if rank is None else (rank,)

    def rank_by_file(self, record: NcclRecord) -> int | None:
        """The rank of a line, or else the only rank that speaks in its file."""
        rank = self.rank_of(record)
        if rank is not None or record.file is None:
            return rank
        place = (record.host, record.file)
        same = [one for one in self.records if (one.host, one.file) == place]
        ranks = {rank for one in same for rank in self.ranks_of(one)}
        return ranks.pop() if len(ranks) == 1 else None

    @cached_property
    def hosts(self) -> dict[str, list[int]]:
        """Ranks by host, both in order."""
        return self.roster.hosts()

    @cached_property
    def observed_at(self) -> datetime:
        """When the last of its lines was read."""
        read = [record.observed_at for record in self.records]
        return max(read + [one.observed_at for one in self.alike.values()])

    @cached_property
    def waits(self) -> list[Wait]:
        """Each rank's timeouts, the two messages that carry the same numbers made one."""
        merged: dict[tuple[int, int | None], list[Wait]] = {}
        for record in self.of(NcclKind.TIMEOUT):
            for rank in self.ranks_of(record):
                wait = self._wait(rank, record)
                same = merged.setdefault((rank, wait.seq), [])
                for place, earlier in enumerate(same):
                    # One message names the group, the other one the operation.
                    if _one_group(earlier, wait):
                        same[place] = _join(earlier, wait)
                        break
                else:
                    same.append(wait)
        waits = [wait for same in merged.values() for wait in same]
        return sorted(waits, key=lambda wait: (wait.rank, wait.group, wait.seq or 0))

    def _wait(self, rank: int, record: NcclRecord) -> Wait:
        alike = self.alike.get(record.id)
        return Wait(
            rank=rank,
            # A description is shared by all groups of a sort: the group's own name comes first.
            group=record.group or record.group_desc or "",
            name=record.group_desc or record.group or "",
            default=is_default_group(record),
            seq=record.seq,
            op=record.op,
            numel=(record.numel_in, record.numel_out),
            since=begun_at(record) if alike is None else alike.since,
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
        """The ranks of which something is expected.

        Those of the groups that are waited in where a dump tells their members, else of the world
        communicator, else up to the highest one seen.
        """
        if self.waits and all(wait.group in self.members for wait in self.waits):
            groups = {wait.group for wait in self.waits}
            return frozenset().union(*(self.members[group] for group in groups))
        if self.roster.world_size is not None:
            return frozenset(range(self.roster.world_size))
        seen = set(self.roster.places) | self.waiting
        seen |= {rank for record in self.records for rank in self.ranks_of(record)}
        return frozenset(range(min(max(seen) + 1, RANKS_MAX))) if seen else frozenset()

    @cached_property
    def members(self) -> dict[str, frozenset[int]]:
        """The ranks of process groups, where dumps agree on them."""
        told: dict[str, set[str]] = {}
        for one in self.alike.values():
            if one.clue.members and one.clue.group:
                told.setdefault(one.clue.group, set()).add(one.clue.members)
        return {
            group: self.members_by_text[text]
            for group, texts in told.items()
            if len(texts) == 1 and (text := min(texts)) in self.members_by_text
        }

    @cached_property
    def members_by_text(self) -> dict[str, frozenset[int]]:
        """The ranks that dumps write as ranges, as long as all of them are believable."""
        found: dict[str, frozenset[int]] = {}
        room = _MEMBERS_MAX
        for text in sorted({one.clue.members for one in self.alike.values() if one.clue.members}):
            with suppress(ValueError):
                ranks = frozenset(from_ranges(text))
                room -= len(ranks)
                if room < 0:
                    break
                found[text] = ranks
        return found

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


def _one_group(one: Wait, other: Wait) -> bool:
    names = (one.group, other.group)
    return one.group == other.group or "" in names or (one.default and other.default)


def _join(one: Wait, other: Wait) -> Wait:
    """One wait out of two messages about it: whatever either of them tells."""

    def either(a: int | None, b: int | None) -> int | None:
        return a if a is not None else b

    def most(a: int | None, b: int | None) -> int | None:
        return b if a is None else a if b is None else max(a, b)

    return Wait(
        rank=one.rank,
        group=one.group or other.group,
        name=one.name or other.name,
        default=one.default and other.default,
        seq=one.seq,
        op=one.op or other.op,
        numel=(either(one.numel[0], other.numel[0]), either(one.numel[1], other.numel[1])),
        since=min(filter(None, (one.since, other.since)), default=None),
        enqueued=most(one.enqueued, other.enqueued),
        completed=most(one.completed, other.completed),
        clue=one.clue,
    )
