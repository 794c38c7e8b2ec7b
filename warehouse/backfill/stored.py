"""Asks the warehouse which of some records it has from an earlier import."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb
import pyarrow as pa

from warehouse.backfill.place import TOPIC
from warehouse.kinds import UTC_TIME
from warehouse.listing import visible

__all__ = ["Name", "StoredNames"]


@dataclass(frozen=True, slots=True)
class Name:
    """What tells a record from others: its id, and of a GPU's sample what it is the sample of.

    ``gpu`` is what a card's history follows (see the view `staging.gpu`); of a sample the rest of
    the id is its content.
    """

    id: str
    at: datetime
    host: str
    source: str = ""
    gpu: str = ""


_FRESH = pa.schema(
    [
        ("number", pa.int64()),
        ("id", pa.string()),
        ("event_at", UTC_TIME),
        ("host", pa.string()),
        ("source", pa.string()),
        ("gpu", pa.string()),
    ]
)
_STORED = """
    from read_parquet($files, hive_partitioning = false)
    where kafka_topic = $topic and event_at between $first and $last
"""
_BY_ID = f"""
select number, true from fresh where id in (select id {_STORED})
"""  # noqa: S608 (our own text)
_BY_SAMPLE = f"""
select number, bool_or(stored.id = fresh.id)
from fresh
inner join (
    select
        id, event_at, host, source,
        coalesce(uuid, serial, host || '/' || coalesce(pci, index::varchar), '') as gpu
    {_STORED}
) as stored using (event_at, host, source, gpu)
group by number
"""  # noqa: S608 (our own text)


class StoredNames:
    """What earlier imports stored; a context manager."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._engine = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False})
        self._engine.execute("set TimeZone = 'UTC'")
        self._engine.execute("set memory_limit = '1GiB'")
        self._engine.execute("set parquet_metadata_cache = true")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine.close()

    def among(self, kind: str, day: date, names: Sequence[Name]) -> dict[int, bool]:
        """By position: those that are stored, and whether with the same content.

        All of them are of one day. Raises duckdb.Error where the stored files cannot be read.
        """
        try:
            return self._among(kind, day, names)
        except duckdb.IOException:  # rewritten and deleted meanwhile
            return self._among(kind, day, names)

    def _among(self, kind: str, day: date, names: Sequence[Name]) -> dict[int, bool]:
        files = [glob.escape(one) for one in visible(self._root, kind, (day, day))]
        if not files or not names:
            return {}
        rows = [
            (number, one.id, one.at, one.host, one.source, one.gpu)
            for number, one in enumerate(names)
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]
        self._engine.register("fresh", pa.table(columns, schema=_FRESH))
        times = [one.at for one in names]
        found = self._engine.execute(
            _BY_SAMPLE if kind == "gpu" else _BY_ID,
            {"files": files, "topic": TOPIC, "first": min(times), "last": max(times)},
        ).fetchall()
        return {int(number): bool(same) for number, same in found}
