"""Old days go, kind by kind: unseen from one moment on, deleted when no reader has them any more.

Only rewritten days go. The ranges they covered stay in the watermark: the files say where a sink
goes on, and so that must outlive them.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec

from warehouse.compaction import Compaction, sweep
from warehouse.errors import SinkError
from warehouse.kinds import KINDS
from warehouse.storage import Storage, at
from warehouse.watermark import load, merged, save, seen

__all__ = ["KEEP_DAYS", "Taken", "check", "retain"]

_LOG = logging.getLogger(__name__)

#: What is kept without a setting: samples for 400 days, logs for three years, decisions for ever.
KEEP_DAYS: Mapping[str, int] = {"gpu": 400, "fabric": 400, "kernel": 1100, "nccl": 1100}
#: Earlier days are those of messages without a time, or with an absurd one.
_FIRST_DAY = "2000-01-01"


@dataclass(frozen=True, slots=True)
class Taken:
    """A day that retention took out of sight: its files and their rows."""

    kind: str
    day: str
    files: int
    rows: int


def check(keep_days: Mapping[str, int]) -> None:
    """Raise SinkError for a kind that does not exist, or less than one day."""
    kinds = {one.name for one in KINDS.values()}
    for kind, days in keep_days.items():
        if kind not in kinds:
            raise SinkError(f"retain_days: no kind {kind!r}; there are {', '.join(sorted(kinds))}")
        if days < 1:
            raise SinkError(f"retain_days: {kind} must be kept for a day at least, not {days}")


def retain(
    root: Path,
    keep_days: Mapping[str, int],
    how: Compaction,
    *,
    now_s: float | None = None,
    dry_run: bool = False,
    at_point: Callable[[str], None] = lambda _point: None,
) -> list[Taken]:
    """Take the days out of sight that ended more than ``keep_days`` of their kind ago.

    Kinds that are not named stay for ever. A day with a small file that is not rewritten yet stays
    until `warehouse.compaction` was there. The files of a day are deleted by the first run
    ``how.keep_small_s`` later. Raises SinkError for a bad setting, OSError when the disk refuses.
    """
    check(keep_days)
    storage = at(root)
    now = time.time() if now_s is None else now_s
    taken = []
    for kind, days in sorted(keep_days.items()):
        with storage.only(kind) as mine:
            if not mine:
                _LOG.info("%s is being rewritten by another process", kind)
                continue
            last = (datetime.fromtimestamp(now, UTC) - timedelta(days=days + 1)).date()
            taken += _take(storage, kind, last, now, dry_run=dry_run, at_point=at_point)
            if not dry_run:
                sweep(storage, kind, how, now, at_point)
    return taken


def _take(
    storage: Storage,
    kind: str,
    last: date,
    now: float,
    *,
    dry_run: bool,
    at_point: Callable[[str], None],
) -> list[Taken]:
    watermark = load(storage, kind)
    not_rewritten = {
        one.day for one in seen(watermark, storage.entries(kind)) if one.small is not None
    }
    going = {
        day: facts
        for day, facts in watermark.days.items()
        if _FIRST_DAY <= day <= last.isoformat() and day not in not_rewritten
    }
    found = [
        Taken(kind, day, len(facts.wholes), sum(one.rows for one in facts.wholes))
        for day, facts in sorted(going.items())
    ]
    if dry_run or not going:
        return found
    covers = [one.covers for facts in going.values() for one in facts.wholes]
    after = msgspec.structs.replace(
        watermark,
        days={day: facts for day, facts in watermark.days.items() if day not in going},
        gone=merged([watermark.gone, *covers]),
        gone_days=dict(watermark.gone_days) | dict.fromkeys(going, now),
    )
    save(storage, kind, after)
    at_point("days-taken")
    _LOG.info("%s: %d days are past their time", kind, len(going))
    return found
