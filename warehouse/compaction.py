"""Closed days are rewritten: sorted, few files, seen from one moment on instead of the small ones.

The order of steps is what makes it safe: the new files lie in the day, unseen; what they hold is
compared with what they were made of; the watermark is put in place by one rename; the small files
go when no reader can have them in its list any more. A crash between two steps leaves files that
are not seen, and the next run deletes them.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from warehouse import footers, quarantine, rewrite
from warehouse.errors import DamagedError, SinkError
from warehouse.folder import temporary
from warehouse.kinds import KINDS
from warehouse.listing import clip
from warehouse.storage import Storage, at, day_entries
from warehouse.watermark import (
    Day,
    Part,
    Spans,
    Watermark,
    Whole,
    exists,
    is_whole,
    load,
    merged,
    save,
    seen,
)

__all__ = ["Compaction", "Rewritten", "compact", "sweep"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compaction:
    """How days are rewritten.

    A day is closed ``close_after_s`` after its end, if no file came into it for as long. What a
    watermark replaced is deleted ``keep_small_s`` after it. A rewritten file holds whole
    partitions, and about ``file_rows`` rows, or one partition's if that has more. Sorting takes
    ``memory_mib`` of memory, and on disk, for a while, what the rows of one file take uncompressed.
    """

    close_after_s: float = 3600.0
    keep_small_s: float = 900.0
    file_rows: int = 16_000_000
    memory_mib: int = 1024
    compression: str = "zstd"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A day that was rewritten: from how many small files, into how many, with how many rows."""

    kind: str
    day: str
    small_files: int
    files: int
    rows: int
    bytes_before: int
    bytes_after: int


def compact(
    root: Path,
    how: Compaction,
    *,
    kinds: tuple[str, ...] = (),
    now_s: float | None = None,
    deep: bool = False,
    at_point: Callable[[str], None] = lambda _point: None,
) -> Iterator[Rewritten]:
    """Rewrite the closed days of these kinds (all without any), and delete what was replaced.

    ``now_s`` is the time of day (seconds since 1970); ``at_point`` is told each step. Damaged
    files are set aside first; ``deep`` reads every page of every file to find them. A kind that
    another process is rewriting is left to it. Raises SinkError, after the other kinds, where one
    cannot be rewritten, OSError when the disk or the store refuses: then all is seen as before.
    """
    storage = at(root)
    now = time.time() if now_s is None else now_s
    failed: list[SinkError] = []
    for kind in kinds or tuple(one.name for one in KINDS.values()):
        with storage.only(kind) as mine:
            if not mine:
                _LOG.info("%s is being rewritten by another process", kind)
                continue
            try:
                _recover(storage, kind, now)
                sweep(storage, kind, how, now, at_point)
                quarantine.inspect(storage, kind, deep=deep)
                for day, parts in _closed(storage, kind, how, now).items():
                    yield from _rewritten(storage, kind, day, parts, how, now, at_point)
            except SinkError as error:
                failed.append(error)  # the other kinds go on
    if failed:
        raise failed[0]


def _recover(storage: Storage, kind: str, now: float) -> None:
    """Make a watermark that was lost anew, from what the rewritten files say of themselves.

    One whose ranges all stand in small files is what a killed run left: it is not taken up.
    """
    if exists(storage, kind):
        return
    watermark = Watermark()
    for day, name, entry in day_entries(storage.entries(kind)):
        if not is_whole(name):
            continue
        rows, spans = footers.covers(storage.local(entry))
        if quarantine.missing_without(storage, kind, spans):
            before = watermark.days.get(day, Day(now)).wholes
            days = watermark.days | {day: Day(now, (*before, Whole(name, rows, spans)))}
            watermark = Watermark(days=days)
    if watermark.days:
        _LOG.warning("the watermark of %s was lost and is made anew", kind)
        save(storage, kind, watermark)


def sweep(
    storage: Storage,
    kind: str,
    how: Compaction,
    now: float,
    at_point: Callable[[str], None] = lambda _point: None,
) -> int:
    """Delete the files of a kind that have not been seen for ``keep_small_s``; how many.

    Those are small files that a rewritten one replaced, rewritten files that no watermark names
    (a crash left them, or retention took their day), and what slept through both. Call it with the
    kind held.
    """
    watermark = load(storage, kind)
    entries = storage.entries(kind)
    visible = {one.entry.key for one in seen(watermark, entries)}
    count = 0
    for entry in entries:
        if entry.key in visible:
            continue
        _, folder, name = entry.key.split("/")
        since = watermark.since(folder.removeprefix("day="))
        if is_whole(name) and not since:
            continue  # a lost watermark must not cost the only files there are
        if now - max(entry.modified_s, since) > how.keep_small_s:
            storage.remove(entry.key)
            count += 1
            at_point("file-deleted")
    return count


def _closed(storage: Storage, kind: str, how: Compaction, now: float) -> dict[str, list[Part]]:
    """The small files of each closed day that no rewritten file covers yet."""
    days: dict[str, list[Part]] = {}
    for part in seen(load(storage, kind), storage.entries(kind)):
        if part.small is not None:
            days.setdefault(part.day, []).append(part)
    found = {}
    for day, parts in days.items():
        end = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)
        ended_s = (end + timedelta(days=1)).timestamp()
        came_s = max(one.entry.modified_s for one in parts)
        if now - max(ended_s, came_s) > how.close_after_s:
            found[day] = parts
    return found


def _rewritten(
    storage: Storage,
    kind: str,
    day: str,
    parts: list[Part],
    how: Compaction,
    now: float,
    at_point: Callable[[str], None],
) -> Iterator[Rewritten]:
    """Rewrite a day; again, without them, where files turn out to be damaged on the way."""
    while parts:
        try:
            done = _rewrite(storage, kind, day, parts, how, now, at_point)
        except _SetAside as error:
            parts = [one for one in parts if one.entry.key not in error.keys]
            continue
        if done is not None:
            yield done
        return


class _SetAside(Exception):  # noqa: N818 (a state: these files are no longer there)
    """Damaged files that were found and set aside while a day was rewritten."""

    def __init__(self, keys: set[str]) -> None:
        super().__init__(f"{len(keys)} files")
        self.keys = keys


@dataclass(frozen=True, slots=True)
class _Source:
    """A small file that can be read: its rows, its columns and its range."""

    part: Part
    path: Path
    rows: int
    schema: pa.Schema
    covers: Spans


def _rewrite(
    storage: Storage,
    kind: str,
    day: str,
    parts: list[Part],
    how: Compaction,
    now: float,
    at_point: Callable[[str], None],
) -> Rewritten | None:
    sources = list(_sources(storage, parts))
    if not sources:
        return None
    wholes, size = [], 0
    for group in _groups(sources, how.file_rows):
        whole, its_size = _whole(storage, kind, day, group, how, at_point)
        wholes.append(whole)
        size += its_size
    at_point("files-rewritten")
    watermark = load(storage, kind)
    before = watermark.days.get(day, Day(0.0)).wholes
    names = {one.name for one in wholes}
    kept = tuple(one for one in before if one.name not in names)
    days = dict(watermark.days) | {day: Day(now, (*kept, *wholes))}
    save(storage, kind, msgspec.structs.replace(watermark, days=dict(sorted(days.items()))))
    at_point("watermark-moved")
    done = Rewritten(
        kind,
        day,
        len(sources),
        len(wholes),
        sum(one.rows for one in wholes),
        sum(one.part.entry.size for one in sources),
        size,
    )
    _LOG.info("rewrote %s of %s: %d files to %d", kind, day, done.small_files, done.files)
    return done


def _sources(storage: Storage, parts: list[Part]) -> Iterator[_Source]:
    """The files as they can be read; a damaged one is set aside and the day goes on without it."""
    known: dict[pa.Schema, pa.Schema] = {}  # thousands of files share one
    for part in parts:
        assert part.small is not None
        try:
            path = clip(storage, part)
            end = part.small.end or footers.last_offset(path) + 1
            with pq.ParquetFile(path) as file:
                rows, schema = file.metadata.num_rows, file.schema_arrow.remove_metadata()
        except (DamagedError, pa.ArrowException) as error:
            quarantine.set_aside(storage, part.entry.key, str(error))
            continue
        spans = list(part.spans or ((part.small.start, end),))
        schema = known.setdefault(schema, schema)
        yield _Source(part, path, rows, schema, {part.small.place: spans})


def _groups(sources: list[_Source], file_rows: int) -> Iterator[list[_Source]]:
    """Whole partitions together, until they have ``file_rows`` rows."""
    places: dict[str, list[_Source]] = {}
    for one in sources:
        (place,) = one.covers
        places.setdefault(place, []).append(one)
    group: list[_Source] = []
    rows = 0
    for _, mine in sorted(places.items()):
        its = sum(one.rows for one in mine)
        if group and rows + its > file_rows:
            yield group
            group, rows = [], 0
        group += mine
        rows += its
    yield group


def _whole(
    storage: Storage,
    kind: str,
    day: str,
    group: list[_Source],
    how: Compaction,
    at_point: Callable[[str], None],
) -> tuple[Whole, int]:
    """One rewritten file in its day, not seen yet; and its size in bytes."""
    covers = merged(one.covers for one in group)
    name = f"{kind}-whole-{sha256(repr((day, covers)).encode()).hexdigest()[:16]}.parquet"
    made = temporary(storage.scratch(), name)
    paths = [one.path for one in group]
    try:
        schema = rewrite.unified(list(dict.fromkeys(one.schema for one in group)))
        schema = schema.with_metadata(footers.whole_metadata(covers))
        at_point("rewrite-begun")
        _sort(storage, kind, group, made, schema, how)
        at_point("file-rewritten")
        before, after = (
            rewrite.proof(one, schema, scratch=made, memory_mib=how.memory_mib)
            for one in (paths, [made])
        )
        if before != after or after.rows != sum(one.rows for one in group):
            raise SinkError(
                f"rewriting {kind} of {day} would have changed it ({before} became {after}); "
                "the small files stay"
            )
        size = made.stat().st_size
        key = f"{kind}/day={day}/{name}"
        storage.remove(key)  # of a run that was killed: the same ranges, not seen by anybody
        storage.publish(made, key)
        at_point("rewrite-published")
        return Whole(name, after.rows, covers), size
    except duckdb.Error as error:
        raise SinkError(f"cannot rewrite {kind} of {day}: {_first_line(error)}") from error
    finally:
        made.unlink(missing_ok=True)


def _sort(
    storage: Storage,
    kind: str,
    group: list[_Source],
    made: Path,
    schema: pa.Schema,
    how: Compaction,
) -> None:
    paths = [one.path for one in group]
    try:
        rewrite.sorted_into(
            made, kind, paths, schema, memory_mib=how.memory_mib, codec=how.compression
        )
    except (duckdb.Error, pa.ArrowException) as error:
        bad = [(one, why) for one in group if (why := quarantine.trouble(one.path, deep=True))]
        for one, why in bad:
            quarantine.set_aside(storage, one.part.entry.key, why)
        if not bad:
            raise SinkError(f"cannot rewrite {kind}: {_first_line(error)}") from error
        raise _SetAside({one.part.entry.key for one, _ in bad}) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["?"])[0]
