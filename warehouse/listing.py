"""The files that a question reads: of each day either the small ones or the rewritten one."""

from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import pyarrow.compute as pc
import pyarrow.parquet as pq

from warehouse import quarantine
from warehouse.folder import temporary
from warehouse.storage import Storage, at
from warehouse.watermark import Part, load, seen

__all__ = ["Days", "around", "clip", "parts", "shifted", "visible"]

_Time = TypeVar("_Time", date, datetime)

#: First and last day of ingestion, both read.
Days = tuple[date, date]


def around(first: date, last: date, slack_days: int = 2) -> Days:
    """The days of ingestion in which events of [first, last] are stored.

    A file's day is that of its first message, so an event may lie in the day before; one that a
    node could not send at once lies in a later day, up to ``slack_days``.
    """
    return shifted(first, timedelta(days=-1)), shifted(last, timedelta(days=slack_days))


def shifted(when: _Time, by: timedelta) -> _Time:
    """``when + by``, or the first or last there is: records may say year 1 or 9999."""
    try:
        return when + by
    except OverflowError:
        end = type(when).min if by < timedelta() else type(when).max
        return end.replace(tzinfo=UTC) if isinstance(end, datetime) else end


def visible(root: Path, kind: str, days: Days | None = None) -> list[str]:
    """The paths of a kind's files on those days of ingestion, in order; all days without any.

    Every row is in them once. A file that has no end is left out, which is told on stderr. Those of
    an object store are copies on this machine, under `warehouse.storage.cache_of`.
    """
    return [str(path) for _, path in parts(root, kind, days)]


def parts(
    root: Path, kind: str, days: Days | None = None, *, damaged: bool = False
) -> list[tuple[Part, Path]]:
    """The same files, with what is known of each; ``damaged``: those without an end, too."""
    storage = at(root)
    watermark = load(storage, kind)  # before the listing: see `warehouse.watermark.seen`
    found = seen(watermark, storage.entries(kind, _bounds(days)))
    mine = [one for one in found if days is None or _within(one.day, days)]
    good = {storage.local(one.entry): one for one in mine}
    kept = good if damaged else quarantine.intact(good)
    return [(good[path], clip(storage, good[path])) for path in kept]


def _bounds(days: Days | None) -> tuple[str, str] | None:
    return None if days is None else (days[0].isoformat(), days[1].isoformat())


def clip(storage: Storage, part: Part) -> Path:
    """The file on this machine, without the rows of it that an earlier file has."""
    path = storage.local(part.entry)
    if part.spans is None:
        return path
    kept = repr((part.spans, int(part.entry.modified_s))).encode()
    name = f"{path.stem}.{sha256(kept).hexdigest()[:16]}"
    clipped = path.with_name(f"{name}.clipped")
    if not clipped.exists():
        table = pq.ParquetFile(path).read()
        offset = pc.field("kafka_offset")
        keep = pc.scalar(False)
        for start, end in part.spans:
            keep |= (offset >= start) & (offset < end)
        made = temporary(path.parent, name)
        pq.write_table(table.filter(keep), made, compression="zstd")
        made.replace(clipped)
    return clipped


def _within(day: str, days: Days) -> bool:
    return days[0].isoformat() <= day <= days[1].isoformat()
