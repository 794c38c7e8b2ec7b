"""Damaged files: found, named, set aside with the reason and the ranges they held.

A file is moved to ``_quarantine/<kind>/day=.../``, with a reason file beside it. What the reason
file says is missing, the sink reads from Kafka again as long as Kafka has it (`warehouse.refill`).
"""

import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from warehouse.errors import DamagedError
from warehouse.folder import Entry
from warehouse.footers import is_damage, last_offset
from warehouse.storage import Storage
from warehouse.watermark import (
    Day,
    Part,
    Span,
    Spans,
    Watermark,
    load,
    save,
    seen,
    small_of,
    without,
)

__all__ = [
    "FOLDER",
    "UNKNOWN",
    "Damage",
    "damages",
    "entry_of",
    "inspect",
    "intact",
    "missing_without",
    "now_missing",
    "put",
    "set_aside",
    "trouble",
]

_LOG = logging.getLogger(__name__)

FOLDER = "_quarantine"
#: The end of a range where no later file tells it: the sink itself goes on at its start.
UNKNOWN = 0
_MAGIC = b"PAR1"
_BATCH_ROWS = 65_536
_told: set[str] = set()


class Damage(msgspec.Struct, frozen=True):
    """What was set aside: which file, why, when (seconds since 1970), and what it held.

    ``missing``: the ranges of offsets that no file has. ``refilled`` and ``lost``: what became of
    them, once the sink has asked Kafka.
    """

    kind: str
    day: str
    name: str
    reason: str
    at: float
    missing: Spans = {}
    refilled: Spans = {}
    lost: Spans = {}

    @property
    def key(self) -> str:
        """Where the reason file lies."""
        return f"{FOLDER}/{self.kind}/day={self.day}/{self.name}.json"


def entry_of(key: str) -> Entry:
    """An entry for a file whose size does not matter."""
    return Entry(key, -1, 0.0)


def trouble(path: Path, *, deep: bool = False) -> str | None:
    """Why a Parquet file cannot be read, or None; ``deep`` reads every page of it.

    Raises OSError where it is gone, or the system does not let us read it.
    """
    if not deep:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_MAGIC)))
            return None if file.read() == _MAGIC else "it has no end: it was cut or overwritten"
    try:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches(_BATCH_ROWS):
                pass
    except (pa.ArrowException, OSError) as error:
        if not is_damage(error):
            raise
        return str(error)
    return None


def intact(paths: Iterable[Path]) -> list[Path]:
    """The files that have an end; each that has none is told on stderr, once a process.

    A file that is cut short has none. Damage inside a file shows when it is read. A file that is
    gone is left out as well: a question goes on without it.
    """
    good = []
    for path in paths:
        try:
            reason = trouble(path)
        except OSError as error:
            reason = error.strerror or str(error)
        if reason is None:
            good.append(path)
        elif str(path) not in _told:
            _told.add(str(path))
            sentence = f"{path} is left out, its rows are missing from the answer: {reason}"
            print(f"ringfence: {sentence}", file=sys.stderr)  # noqa: T201 (beside any answer)
    return good


def set_aside(storage: Storage, key: str, reason: str) -> Damage | None:
    """Move a damaged file away and write down what is missing now; None if it is gone already.

    A rewritten file also leaves its watermark, so that the small files it replaced, as far as they
    are still there, are seen again.
    """
    kind, folder, name = key.split("/")
    day = folder.removeprefix("day=")
    watermark = load(storage, kind)
    missing, after = _missing(storage, watermark, kind, day, name)
    damage = Damage(kind, day, name, reason, time.time(), missing)
    put(storage, damage)
    if after != watermark:
        save(storage, kind, after)
    try:
        storage.move(key, f"{FOLDER}/{kind}/day={day}/{name}")
    except FileNotFoundError:
        return None  # somebody else was faster
    _LOG.error("%s is damaged and was set aside under %s: %s", key, FOLDER, reason)
    return damage


def put(storage: Storage, damage: Damage) -> None:
    """Write the reason file."""
    storage.write(damage.key, msgspec.json.format(msgspec.json.encode(damage)))


def inspect(storage: Storage, kind: str, *, deep: bool = False) -> list[Damage]:
    """Set aside the damaged ones among the files of a kind that are seen.

    ``deep`` reads every page; without it only the end of each file is looked at, and on an object
    store nothing, since each file would have to be fetched. Call it with the kind held.
    """
    if not deep and not storage.exclusive:
        return []
    found = []
    for part in seen(load(storage, kind), storage.entries(kind)):
        try:
            reason = trouble(storage.local(part.entry), deep=deep)
        except FileNotFoundError:
            continue
        damage = None if reason is None else set_aside(storage, part.entry.key, reason)
        if damage is not None:
            found.append(damage)
    return found


def _missing(
    storage: Storage, watermark: Watermark, kind: str, day: str, name: str
) -> tuple[Spans, Watermark]:
    """The ranges that nothing has without this file, and the watermark without it."""
    after, held = _dropped(watermark, day, name)
    small = small_of(name)
    if small is not None:
        held = {small.place: [(small.start, small.end or UNKNOWN)]}
    parts = [one for one in seen(after, storage.entries(kind)) if one.name != name]
    return _all_left(storage, parts, after, held), after


def _all_left(storage: Storage, parts: list[Part], watermark: Watermark, held: Spans) -> Spans:
    covered = watermark.covered()
    left = {
        place: _left(storage, parts, covered.get(place, []), place, spans)
        for place, spans in held.items()
    }
    return {place: spans for place, spans in left.items() if spans}


def _left(
    storage: Storage, parts: list[Part], covered: list[Span], place: str, spans: list[Span]
) -> list[Span]:
    """What of the spans neither a rewritten file nor a small one has.

    A small file that cannot be read counts as there: it is found, and set aside, by itself.
    """
    mine = [one for one in parts if one.small is not None and one.small.place == place]
    left = []
    for start, end in spans:
        behind = [one.small.start for one in mine if one.small and one.small.start > start]
        behind += [first for first, _ in covered if first > start]
        if end == UNKNOWN and not behind:
            return [(start, UNKNOWN)]
        wanted = (start, min(behind) if end == UNKNOWN else end)
        within = [one for one in mine if one.small and wanted[0] <= one.small.start < wanted[1]]
        left += without(wanted, [*covered, *(_range(storage, one) for one in within)])
    return left


def _range(storage: Storage, part: Part) -> Span:
    assert part.small is not None
    start, end = part.small.start, part.small.end
    try:
        return start, end or last_offset(storage.local(part.entry)) + 1
    except (DamagedError, OSError):
        return start, start + 1


def missing_without(storage: Storage, kind: str, held: Spans) -> Spans:
    """What of these ranges nothing else that is seen has."""
    watermark = load(storage, kind)
    return _all_left(storage, seen(watermark, storage.entries(kind)), watermark, held)


def now_missing(storage: Storage, damage: Damage) -> Spans:
    """What of a damage's missing ranges is missing still; an end that was unknown may be known."""
    return missing_without(storage, damage.kind, damage.missing)


def _dropped(watermark: Watermark, day: str, name: str) -> tuple[Watermark, Spans]:
    facts = watermark.days.get(day, Day(0.0))
    held = next((one.covers for one in facts.wholes if one.name == name), None)
    if held is None:
        return watermark, {}
    left = tuple(one for one in facts.wholes if one.name != name)
    days = watermark.days | {day: Day(time.time(), left)}
    return msgspec.structs.replace(watermark, days=days), held


def damages(storage: Storage, kind: str) -> list[Damage]:
    """What was set aside of a kind, in order of the paths."""
    return [
        msgspec.json.decode(content, type=Damage)
        for key in storage.notes(f"{FOLDER}/{kind}")
        if (content := storage.read(key)) is not None
    ]
