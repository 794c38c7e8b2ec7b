"""What of a job's lines is worth its place in the state, so that thousands of ranks stay small.

Lines of one sort stand on one shelf of bounded length. What every rank says of itself in the same
words (that it waits, where its counters stand) is kept once, with the ranks that said it.
"""

import re
from bisect import bisect_left, insort
from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from evidence.identity import digest
from evidence.records import NcclKind, NcclRecord
from rules.clues import Fault, echoes, fault_of, is_dump, opens, text_of
from rules.ranks import RANKS_MAX
from rules.times import begun_at, order, said_at

__all__ = ["Alike", "Clues"]

#: Different statements that are kept with the ranks that made them, some 600 bytes each. 2,048
#: ranks in groups of four make 1,024, since each wait is told in two lines.
SHAPES_KEPT = 1024
_SAME_S = 3600
_TEXT_KEPT = 400

#: Lines that a shelf holds: of those that only echo, and of those that may tell the cause.
ECHOES_KEPT, CAUSES_KEPT = 32, 128

#: Kinds whose words say more than their fields.
_WORDY = frozenset(
    {
        NcclKind.MISMATCH,
        NcclKind.BARRIER_MISSING,
        NcclKind.IB_ASYNC,
        NcclKind.CUDA_ERROR,
        NcclKind.NVLS,
        NcclKind.OUT_OF_MEMORY,
        NcclKind.PYTHON_ERROR,
    }
)
_NUMBERS = re.compile(r"[0-9a-f]{2,}|\d")  # [rank3]:[E513 13:25:57.714786872

#: Kinds that tell the cause, or vote about it, when they are no echo.
_TELLING = frozenset(
    {
        NcclKind.MISMATCH,
        NcclKind.BARRIER_MISSING,
        NcclKind.IB_COMPLETION,
        NcclKind.IB_ASYNC,
        NcclKind.IB_CONNECT,
        NcclKind.PEER_CLOSED,
        NcclKind.CUDA_ERROR,
        NcclKind.NVLS,
        NcclKind.OUT_OF_MEMORY,
        NcclKind.PYTHON_ERROR,
        NcclKind.WORKER_EXIT,
        NcclKind.ROOT_CAUSE,
    }
)
#: Where a rank tells its own fault, however late: what is dropped of these may be the cause. Of the
#: others those that came first tell as much.
_OWN_WORDS = frozenset({NcclKind.CUDA_ERROR, NcclKind.OUT_OF_MEMORY, NcclKind.PYTHON_ERROR})
#: Of these the newest count: they come in healthy hours too.
_NEWEST = frozenset({NcclKind.COMM_DESTROY, NcclKind.FINISHED, NcclKind.RAS, NcclKind.OTHER})

_FLUSHED = 5  # the queue pair was in error already


class Alike(Struct, frozen=True, omit_defaults=True):
    """One statement that several ranks made: the earliest line, and who said the same.

    ``since`` is when the first of them began to wait, ``until`` when the last one spoke.
    """

    clue: NcclRecord
    ranks: tuple[int, ...]
    until: datetime
    observed_at: datetime
    since: datetime | None = None


class Clues(Struct, frozen=True, omit_defaults=True):
    """The telling lines of one attempt, bounded.

    ``lost`` counts lines that might have told the cause and found no room: absence then proves
    nothing. ``shelves`` are the keys of ``lines`` by sort, each in the order of their times.
    """

    lines: dict[str, NcclRecord] = {}
    shelves: dict[str, tuple[str, ...]] = {}
    alike: dict[str, Alike] = {}
    lost: int = 0

    def __bool__(self) -> bool:
        return bool(self.lines or self.alike)

    def keep(self, record: NcclRecord, after: datetime | None = None) -> tuple["Clues", bool]:
        """Take one line, and whether it is new; the same object back when it says nothing more.

        What is said later than ``after`` is no repetition of what was said before it.
        """
        if is_dump(record):
            return self.fold(record)
        key = _key(record)
        if after is not None and said_at(record) > after:
            key = digest(key, after)
        known = self.lines.get(key)
        clue = record if known is None or known.id == record.id else _merge(known, record)
        if clue == known:
            return self, False
        if len(clue.raw) > _TEXT_KEPT:
            clue = replace(clue, raw=clue.raw[:_TEXT_KEPT])
        name, room = _shelf(record)
        lines = {**self.lines, key: clue}
        shelf = [one for one in self.shelves.get(name, ()) if one != key]
        insort(shelf, key, key=lambda one: order(lines[one]))
        if len(shelf) <= room:
            shelves = {**self.shelves, name: tuple(shelf)}
            return replace(self, lines=lines, shelves=shelves), known is None
        dropped = shelf.pop(0 if record.kind in _NEWEST else -1)
        evicted = lines.pop(dropped)
        kept = self
        if dropped != key:
            kept = replace(self, lines=lines, shelves={**self.shelves, name: tuple(shelf)})
        if _folds(evicted):
            return kept.fold(evicted)[0], known is None
        if record.kind in _OWN_WORDS and room == CAUSES_KEPT:
            kept = replace(kept, lost=kept.lost + 1)
        return kept, known is None

    def fold(self, record: NcclRecord) -> tuple["Clues", bool]:
        """Count a line among those that say the same of other ranks; the same object if known."""
        rank = record.rank
        if rank is None or not 0 <= rank < RANKS_MAX:
            return self, False
        slim = _slim(record)
        key = _shape(slim)
        known = self.alike.get(key)
        alike = self.alike
        if known is None and len(alike) >= SHAPES_KEPT:
            # Those with the smallest keys stay, in whatever order they came.
            last = max(alike)
            if key > last:
                return replace(self, lost=self.lost + 1), False
            alike = {name: one for name, one in alike.items() if name != last}
        mine = Alike(
            clue=slim,
            ranks=(rank,),
            until=said_at(record),
            observed_at=record.observed_at,
            since=begun_at(record),
        )
        both = mine if known is None else _together(known, mine)
        if both == known:
            return self, False
        new = known is None or rank not in known.ranks
        lost = self.lost + (alike is not self.alike)
        return replace(self, alike={**alike, key: both}, lost=lost), new

    def only(self, kept: Mapping[str, NcclRecord]) -> "Clues":
        """These clues without those that belong to older incidents; ``kept`` is by record id."""
        lines = {key: line for key, line in self.lines.items() if line.id in kept}
        alike = {key: one for key, one in self.alike.items() if one.clue.id in kept}
        if len(lines) == len(self.lines) and len(alike) == len(self.alike):
            return self
        shelves = {
            name: left
            for name, shelf in self.shelves.items()
            if (left := tuple(key for key in shelf if key in lines))
        }
        return replace(self, lines=lines, shelves=shelves, alike=alike)


def _shelf(record: NcclRecord) -> tuple[str, int]:
    """The sort of a line, and how many of it are kept."""
    kind = record.kind
    if kind not in _TELLING:
        return str(kind), ECHOES_KEPT
    if kind is NcclKind.IB_COMPLETION:
        echo = record.status == _FLUSHED
    elif kind is NcclKind.BARRIER_MISSING:
        echo = "failed to pass" not in record.raw
    elif kind in (NcclKind.WORKER_EXIT, NcclKind.ROOT_CAUSE):
        echo = not opens(record) or record.exit_code in (-6, 1)
    elif kind is NcclKind.PYTHON_ERROR:
        echo = fault_of(record) in (None, Fault.PYTHON) and echoes(record)
    else:
        echo = False
    return (f"{kind}/echo", ECHOES_KEPT) if echo else (str(kind), CAUSES_KEPT)


def _folds(record: NcclRecord) -> bool:
    """Whether a line can stand for others: it says of its own rank, by name, where it stands."""
    return record.rank is not None and record.kind in (NcclKind.TIMEOUT, NcclKind.DUMP_SIGNAL)


def _slim(record: NcclRecord) -> NcclRecord:
    """A line without what differs from rank to rank, or what nobody compares."""
    pairwise = record.kind is NcclKind.FLIGHT_RECORDER and "point-to-point" in text_of(record)
    return replace(
        record,
        raw="",
        message=None,
        timeout_ms=None,
        entries=(),
        frames=record.frames[:1],
        # Operations of pairs are counted apart from the group's.
        seq=None if pairwise else record.seq,
        numel_out=None,
    )


def _hour(record: NcclRecord) -> int:
    return int(said_at(record).timestamp()) // _SAME_S


def _shape(record: NcclRecord) -> str:
    return digest(
        record.kind,
        record.phase,
        record.group,
        record.group_desc,
        record.members,
        record.seq,
        record.op,
        record.state,
        record.incomplete,
        record.numel_in,
        record.last_enqueued,
        record.last_started,
        record.last_completed,
        record.repeated,
        _hour(record),
    )


def _together(one: Alike, other: Alike) -> Alike:
    ranks = list(one.ranks)
    for rank in other.ranks:
        place = bisect_left(ranks, rank)
        if place == len(ranks) or ranks[place] != rank:
            ranks.insert(place, rank)
    return Alike(
        clue=min(one.clue, other.clue, key=order),
        ranks=tuple(ranks),
        until=max(one.until, other.until),
        observed_at=max(one.observed_at, other.observed_at),
        since=min(filter(None, (one.since, other.since)), default=None),
    )


def _key(record: NcclRecord) -> str:
    """Lines that say the same thing of the same rank within the hour are one clue."""
    who = record.rank if record.rank is not None else record.comm_rank
    return digest(
        record.kind,
        record.host,
        who,
        record.pid,
        record.local_rank,
        record.group,
        record.group_desc,
        record.seq,
        record.op,
        record.peer,
        record.hca,
        record.status,
        record.exit_code,
        record.phase if record.kind is NcclKind.OTHER else None,
        record.ranks,
        record.hosts,
        _hour(record),
        _NUMBERS.sub("", text_of(record))[:_TEXT_KEPT] if record.kind in _WORDY else None,
    )


def _merge(one: NcclRecord, other: NcclRecord) -> NcclRecord:
    """The earlier of two equal lines, with the largest numbers either of them told."""
    first, second = sorted((one, other), key=order)
    numbers = {}
    for name in ("elapsed_ms", "last_enqueued", "last_started", "last_completed"):
        told = [n for n in (getattr(first, name), getattr(second, name)) if n is not None]
        numbers[name] = max(told, default=None)
    return replace(first, **numbers)
