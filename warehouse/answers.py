"""Answers of any length: read batch by batch and written as CSV, JSON lines or Parquet.

Memory is that of one batch and of what DuckDB needs for the question (a sort spills to disk).
"""

import csv
import io
import itertools
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from warehouse.errors import WarehouseError
from warehouse.query import Period, connect, only_reads, sentence

__all__ = ["WRITERS", "Answer", "answer", "write"]

#: Dates and times without end, as DuckDB writes them.
_INFINITE = ((1 << 31) - 1, (1 << 63) - 1)
#: Rows that are held at once.
_BATCH = 50_000


class Answer:
    """What a question gave: the names of its columns, and its rows in batches."""

    def __init__(self, reader: pa.RecordBatchReader, patiently: "_Patiently") -> None:
        self._reader = reader
        self._patiently = patiently
        self.columns: list[str] = _distinct(reader.schema.names)
        self.schema: pa.Schema = reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Raises WarehouseError where the question fails on its way."""
        try:
            while (batch := self._patiently(lambda: next(self._reader, None))) is not None:
                yield batch
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise WarehouseError(sentence(error)) from error

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows as Python values."""
        for batch in self.batches():
            yield from zip(*(_values(column) for column in batch.columns), strict=True)


@contextmanager
def answer(
    root: Path, sql: str, *, at: datetime | None = None, period: Period | None = None
) -> Iterator[Answer]:
    """Ask one statement that reads; ``at`` and ``period`` as `warehouse.query.connect` has them.

    Raises WarehouseError, with one sentence, for anything else, and where the statement fails.
    """
    connection = connect(root, at=at, period=period, asks=sql)
    try:
        only_reads(connection, sql)
        with _interruptible(connection) as patiently:
            reader = patiently(lambda: connection.sql(sql).to_arrow_reader(_BATCH))
            yield Answer(reader, patiently)
    except duckdb.Error as error:
        raise WarehouseError(sentence(error)) from error
    finally:
        connection.close()


_Patiently = Callable[[Callable[[], Any]], Any]


@contextmanager
def _interruptible(connection: duckdb.DuckDBPyConnection) -> Iterator[_Patiently]:
    """What runs DuckDB in another thread: in this one Ctrl-C would wait for the end of a batch."""
    with ThreadPoolExecutor(1) as pool:

        def patiently(work: Callable[[], Any]) -> Any:  # noqa: ANN401 (whatever the work gives)
            doing = pool.submit(work)
            try:
                return doing.result()
            except KeyboardInterrupt:
                while not doing.done():  # one that comes as a pipeline begins is lost
                    connection.interrupt()
                    wait([doing], timeout=0.1)
                raise

        yield patiently


def _distinct(names: list[str]) -> list[str]:
    """Column names of which no two are equal, as DuckDB itself makes them: ``id``, ``id_1``."""
    found: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in itertools.count(1))
        unique = name if name not in found else next(o for o in others if o not in {*found, *names})
        found.append(unique)
    return found


def _values(column: pa.Array) -> list[Any]:
    """A column as Python values; a time that Python cannot hold is text."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return [_value(one) for one in column]


def _value(one: pa.Scalar) -> Any:  # noqa: ANN401 (whatever a column holds)
    try:
        return one.as_py()
    except (OverflowError, ValueError):
        number = getattr(one, "value", None)
        if number is not None and abs(number) in _INFINITE:
            return "infinity" if number > 0 else "-infinity"
        return f"<no {one.type} of any calendar: {number}>"


def write(found: Answer, form: str, output: Path | None, stdout: IO[bytes]) -> int:
    """Write an answer in one of `WRITERS` to a file, whole or not at all, or to ``stdout``.

    Returns the count of rows. Raises OSError where the file cannot be written, WarehouseError
    where a column does not fit the form.
    """
    if output is None:
        return WRITERS[form](found, stdout)
    if not output.parent.is_dir():
        raise WarehouseError(f"{output} cannot be written: there is no folder {output.parent}")
    temporary = output.with_name(f".{output.name}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            rows = WRITERS[form](found, file)
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def _write_csv(found: Answer, file: IO[bytes]) -> int:
    """RFC 4180, UTF-8, with a header; null is empty, lists and structs are JSON."""
    names = io.StringIO()
    csv.writer(names, lineterminator="\n").writerow(found.columns)
    file.write(names.getvalue().encode())
    options = pa_csv.WriteOptions(include_header=False)
    rows = 0
    for batch in found.batches():
        rows += batch.num_rows
        columns = [_plain(column) for column in batch.columns]
        # Names need not be unique for this.
        table = pa.Table.from_arrays(columns, names=[str(n) for n in range(len(columns))])
        pa_csv.write_csv(table, file, options)
    return rows


def _plain(column: pa.Array) -> pa.Array:
    """A column as CSV can hold it."""
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _dated(column)
    if pa.types.is_dictionary(kind):
        return column.cast(pa.string())
    if (
        pa.types.is_primitive(kind)
        or pa.types.is_string(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    ) and not pa.types.is_interval(kind):
        return column
    values = _values(column)
    return pa.array([None if one is None else _text(one) for one in values], pa.string())


def _dated(column: pa.Array) -> pa.Array:
    """Dates and times; a column with some that Python cannot hold is text."""
    try:
        pc.min_max(column).as_py()
    except (OverflowError, ValueError):
        texts = (_value(one) for one in column)
        return pa.array([None if one is None else str(one) for one in texts], pa.string())
    return column


def _text(value: object) -> str:
    return value if isinstance(value, str) else _JSON.encode(value).decode().strip('"')


def _write_json(found: Answer, file: IO[bytes]) -> int:
    """One object a line; times as ISO 8601, bytes as base64."""
    rows = 0
    for row in found.rows():
        file.write(_JSON.encode(dict(zip(found.columns, map(_number, row), strict=True))) + b"\n")
        rows += 1
    return rows


def _number(value: object) -> object:
    """Sums of integers come as decimals without places."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


_JSON = msgspec.json.Encoder(enc_hook=str)


def _write_parquet(found: Answer, file: IO[bytes]) -> int:
    """One row group a batch, zstd."""
    rows = 0
    try:
        columns = [found.schema.field(n).with_name(name) for n, name in enumerate(found.columns)]
        schema = pa.schema(columns)
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in found.batches():
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
                rows += batch.num_rows
    except pa.ArrowException as error:
        raise WarehouseError(f"this cannot be Parquet: {sentence(error)}") from error
    return rows


#: How an answer is written, by the name of the form.
WRITERS: dict[str, Callable[[Answer, IO[bytes]], int]] = {
    "csv": _write_csv,
    "json": _write_json,
    "parquet": _write_parquet,
}
