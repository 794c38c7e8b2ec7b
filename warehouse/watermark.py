"""Which files are seen: a kind's watermark names the rewritten days and what they replace.

A small file holds a range of offsets of one place (partition and log); a rewritten file says which
ranges it covers. A small file that starts in a covered range is not seen, a rewritten file that no
watermark names is not seen either. So one rename of the watermark changes both at once.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from warehouse.errors import SinkError
from warehouse.folder import Entry
from warehouse.storage import Storage, day_entries

__all__ = [
    "Day",
    "Part",
    "Small",
    "Span",
    "Spans",
    "Watermark",
    "Whole",
    "exists",
    "is_whole",
    "load",
    "merged",
    "save",
    "seen",
    "small_of",
    "without",
]

#: Offsets from the first, up to and without the second.
Span = tuple[int, int]
#: By place: ``0003-5f3a9c1e`` is partition 3 of that log.
Spans = dict[str, list[Span]]

# `kernel-0003-5f3a9c1e-00000000000000001234.parquet`, `gpu-0000-5f3a9c1er1-00...0.parquet`; on an
# object store with the end of the range: `gpu-0000-5f3a9c1e-00...0-00...512.parquet`
_SMALL = re.compile(
    r"(?P<kind>[a-z]+)-(?P<place>\d{4,}-[0-9a-f]{8}(?:r\d+)?)-(?P<start>\d{20})"
    r"(?:-(?P<end>\d{20}))?\.parquet"
)
# `gpu-whole-5f3a9c1e5f3a9c1e.parquet`
_WHOLE = re.compile(r"[a-z]+-whole-[0-9a-f]{16}\.parquet")


class Whole(msgspec.Struct, frozen=True):
    """A rewritten file: its name in its day, its rows, and the ranges it has the rows of."""

    name: str
    rows: int
    covers: Spans


class Day(msgspec.Struct, frozen=True):
    """A rewritten day; ``since``: when it last changed, seconds since 1970."""

    since: float
    wholes: tuple[Whole, ...] = ()


class Watermark(msgspec.Struct, frozen=True):
    """A kind's rewritten days, and what retention has taken: its ranges, and when it took a day."""

    days: dict[str, Day] = {}
    gone: Spans = {}
    gone_days: dict[str, float] = {}

    def covered(self) -> Spans:
        """All ranges that small files are no longer read for."""
        parts = [one.covers for day in self.days.values() for one in day.wholes]
        return merged([self.gone, *parts])

    def since(self, day: str) -> float:
        """When what is seen of a day last changed; 0 where it never did."""
        found = self.days.get(day)
        return max(found.since if found else 0.0, self.gone_days.get(day, 0.0))


@dataclass(frozen=True, slots=True)
class Small:
    """A file as the sink publishes them; ``end`` is None where only its footer tells."""

    place: str
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Part:
    """A file that is seen; of its rows only those in ``spans`` of offsets (None: all)."""

    day: str
    name: str
    entry: Entry
    small: Small | None
    spans: tuple[Span, ...] | None = None


def small_of(name: str) -> Small | None:
    """The range that a small file's name says; None for every other name."""
    found = _SMALL.fullmatch(name)
    if found is None:
        return None
    end = found["end"]
    return Small(found["place"], int(found["start"]), None if end is None else int(end))


def is_whole(name: str) -> bool:
    """Whether this is a rewritten file's name."""
    return _WHOLE.fullmatch(name) is not None


def exists(storage: Storage, kind: str) -> bool:
    """Whether the kind has a watermark."""
    return storage.read(_key(kind)) is not None


def load(storage: Storage, kind: str) -> Watermark:
    """The kind's watermark; an empty one where no day was rewritten yet.

    Raises SinkError where it is damaged: without it rows would be seen twice or not at all.
    """
    content = storage.read(_key(kind))
    if content is None:
        return Watermark()
    try:
        return _decoded(content)
    except msgspec.DecodeError as error:
        raise SinkError(
            f"{_key(kind)} is damaged: restore it, or delete it and run ringfence compact ({error})"
        ) from error


@lru_cache(maxsize=32)  # a sink looks at it for every file
def _decoded(content: bytes) -> Watermark:
    return msgspec.json.decode(content, type=Watermark)


def save(storage: Storage, kind: str, watermark: Watermark) -> None:
    """Put the watermark in place at once."""
    storage.write(_key(kind), msgspec.json.encode(watermark))


def _key(kind: str) -> str:
    return f"{kind}/_watermark.json"


def seen(watermark: Watermark, entries: list[Entry]) -> list[Part]:
    """The files that are read, in order of their paths.

    The watermark must have been read **before** the files were listed: what a newer one replaces
    stays a while, so each row is in the answer once.
    """
    covered = watermark.covered()
    named = {(day, one.name) for day, facts in watermark.days.items() for one in facts.wholes}
    parts: list[Part] = []
    overlapping: list[Part] = []
    for day, name, entry in day_entries(entries):
        small = small_of(name)
        if small is None:
            if not is_whole(name) or (day, name) in named:
                parts.append(Part(day, name, entry, None))
        elif small.end is not None:
            overlapping.append(Part(day, name, entry, small))
        elif not _within(small.start, covered.get(small.place, [])):
            parts.append(Part(day, name, entry, small))
    parts += _once(overlapping, covered)
    return sorted(parts, key=lambda one: one.entry.key)


def _once(parts: list[Part], covered: Spans) -> list[Part]:
    """Of files whose ranges may overlap, the spans that no earlier one has: each offset once."""
    taken = {place: list(spans) for place, spans in covered.items()}
    found = []
    for one in sorted(parts, key=_by_range):
        assert one.small is not None
        assert one.small.end is not None
        whole = (one.small.start, one.small.end)
        before = taken.get(one.small.place, [])
        left = without(whole, before)
        if left:
            spans = None if left == [whole] else tuple(left)
            found.append(Part(one.day, one.name, one.entry, one.small, spans))
            taken[one.small.place] = _joined([*before, whole])
    return found


def _by_range(part: Part) -> tuple[str, int, int, str]:
    assert part.small is not None
    return part.small.place, part.small.start, -(part.small.end or 0), part.entry.key


def merged(parts: Iterable[Spans]) -> Spans:
    """All of them, neighbours joined."""
    found: Spans = {}
    for part in parts:
        for place, spans in part.items():
            found.setdefault(place, []).extend(spans)
    return {place: _joined(spans) for place, spans in sorted(found.items())}


def _joined(spans: list[Span]) -> list[Span]:
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def without(span: Span, taken: list[Span]) -> list[Span]:
    """What is left of a span when others are taken out."""
    left = []
    start, end = span
    for first, behind in sorted(taken):
        if first >= end:
            break
        if first > start:
            left.append((start, first))
        start = max(start, behind)
    if start < end:
        left.append((start, end))
    return left


def _within(offset: int, spans: list[Span]) -> bool:
    return any(start <= offset < end for start, end in spans)
