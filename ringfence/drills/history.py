"""The drills of the past, from the warehouse, against the objective."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from warehouse.query import query

__all__ = ["History", "read"]

_SQL = "select * from drills order by event_at, id"


@dataclass(frozen=True, slots=True)
class History:
    """Drills by time, and what is wrong with the last one of each name, in sentences."""

    drills: Sequence[Mapping[str, Any]]
    wrong: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Plain data; times are ISO 8601."""
        return {
            "schema": "drills/1",
            "wrong": list(self.wrong),
            "drills": [
                {
                    name: value.isoformat() if isinstance(value, datetime) else value
                    for name, value in row.items()
                }
                for row in self.drills
            ],
        }


def read(root: Path, *, now: datetime, stale_days: float) -> History:
    """Read every drill. Raises WarehouseError where there is no warehouse."""
    columns, rows = query(root, _SQL)
    drills = [dict(zip(columns, row, strict=True)) for row in rows]
    last = {row["drill"]: row for row in drills}
    wrong = [words for row in last.values() if (words := _wrong(row, now, stale_days))]
    return History(drills, wrong or ([] if drills else ["no drill was ever run"]))


def _wrong(row: Mapping[str, Any], now: datetime, stale_days: float) -> str | None:
    name = f"{row['drill']} on {row['host']}"
    if row["outcome"] != "passed":
        why = "; ".join(row["differed"] or ())
        return f"{name}: {row['outcome']}{f' ({why})' if why else ''}"
    old = now - row["event_at"]
    if old > timedelta(days=stale_days):
        return f"{row['drill']}: not run for {old.days} days, {stale_days:g} are allowed"
    return None
