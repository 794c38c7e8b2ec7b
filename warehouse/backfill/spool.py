"""Puts series together to samples: values come series by series, samples go out time by time.

What does not fit into memory lies on disk until it is sorted.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb
import pyarrow as pa

__all__ = ["Spool"]

_MEMORY_MIB = 1024
_ROWS = 50_000
_HELD = 500_000


class Spool:
    """Takes values of numbered series; gives them by time and thing. A context manager.

    ``folder`` is where the database of what was taken lies while it is needed. Raises OSError where
    that is full.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="ringfence-import-", dir=folder)
        path = Path(self._scratch.name) / "spool.duckdb"
        self._engine = duckdb.connect(
            str(path), config={"autoinstall_known_extensions": False, "threads": 2}
        )
        self._engine.execute(f"set memory_limit = '{_MEMORY_MIB}MiB'")
        self._engine.execute(
            "create table told (thing integer, field integer, at_us bigint, value double)"
        )
        self._held: list[pa.Table] = []
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine.close()
        self._scratch.cleanup()

    def add(self, thing: int, field: int, at_us: Sequence[int], values: Sequence[float]) -> None:
        """Take values of one field of one thing; times in microseconds since 1970."""
        count = len(at_us)
        columns = {
            "thing": pa.repeat(pa.scalar(thing, pa.int32()), count),
            "field": pa.repeat(pa.scalar(field, pa.int32()), count),
            "at_us": pa.array(at_us, pa.int64()),
            "value": pa.array(values, pa.float64()),
        }
        self._held.append(pa.table(columns))
        self._rows += count
        if self._rows >= _HELD:
            self._write()

    def samples(self) -> Iterator[tuple[int, int, dict[int, float]]]:
        """Time, thing and its values by field, in order of time and thing.

        Of several values of one field at one time the largest is taken.
        """
        self._write()
        with _as_os_error():
            cursor = self._engine.execute(
                "select at_us, thing, field, max(value) from told "
                "group by all order by at_us, thing, field"
            )
        for (at_us, thing), rows in groupby(_rows(cursor), itemgetter(0, 1)):
            yield at_us, thing, {field: value for _, _, field, value in rows}

    def _write(self) -> None:
        if not self._held:
            return
        self._engine.register("held", pa.concat_tables(self._held))
        with _as_os_error():
            self._engine.execute("insert into told select * from held")
        self._engine.unregister("held")
        self._held, self._rows = [], 0


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Turn a full disk or memory, as the engine tells them, into an OSError."""
    try:
        yield
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        raise OSError(f"cannot sort what was read: {str(error).splitlines()[0]}") from error


def _rows(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[int, int, int, float]]:
    while rows := cursor.fetchmany(_ROWS):
        yield from rows
