"""A day's small files become few: sorted, checked against what they were made of.

Sorting is DuckDB's, within a set amount of memory and with the rest on disk; writing is pyarrow's,
so that a rewritten file has the same Arrow types as the small ones, row groups of a set size with
statistics, and Bloom filters where a question looks for one value.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from warehouse.errors import SinkError

__all__ = ["GROUP_ROWS", "ORDER", "Proof", "options", "proof", "sorted_into", "unified"]

#: Rows of a row group: an hour of one GPU at 1 Hz lies in one or two of them.
GROUP_ROWS = 65_536
#: What a question looks for by value; the number is the distinct values in a row group.
_BLOOM = {"id": GROUP_ROWS, "uuid": 1024, "host": 1024, "domain_id": 4096, "incident": 4096}
_FALSE_POSITIVES = 0.05
#: The order of a rewritten file, as far as its kind has these columns.
ORDER = ("uuid", "host", "event_at", "kafka_log", "kafka_partition", "kafka_offset", "tick")
_ORDER_OF_LOGS = ("host", "event_at", "kafka_log", "kafka_partition", "kafka_offset")
_SAMPLES = ("gpu",)
#: Columns that go on in small steps once rows are sorted; stored as steps they take a twentieth.
_STEADY = ("event_at", "observed_at", "appended_at", "kafka_offset", "seq")


@dataclass(frozen=True, slots=True)
class Proof:
    """What two sets of files have in common when they hold the same rows, in any order.

    ``total`` is the sum over the rows of a 64-bit hash of all their columns.
    """

    rows: int
    total: int


def sorted_into(
    made: Path, kind: str, paths: list[Path], schema: pa.Schema, *, memory_mib: int, codec: str
) -> None:
    """Write the rows of all files into one, sorted.

    ``schema`` has every column of every file; a file's missing columns are null. Raises OSError
    when the disk is full, and duckdb.Error when a file cannot be read.
    """
    order = ORDER if kind in _SAMPLES else _ORDER_OF_LOGS
    by = ", ".join(f'"{one}"' for one in order if one in schema.names)
    with _engine(made, memory_mib) as connection:
        relation = connection.sql(
            f"select {_columns(schema)} from {_FILES} order by {by}",  # noqa: S608 (our columns)
            params={"files": [str(one) for one in paths]},
        )
        reader = relation.to_arrow_reader(GROUP_ROWS)
        with pq.ParquetWriter(made, schema, **options(schema, order, codec)) as writer:
            for group in _groups(reader):
                writer.write_table(group.cast(schema), row_group_size=GROUP_ROWS)


_FILES = "read_parquet($files, union_by_name = true, hive_partitioning = false)"


def proof(paths: list[Path], schema: pa.Schema, *, scratch: Path, memory_mib: int) -> Proof:
    """Read the files again and say what is in them."""
    with _engine(scratch, memory_mib) as connection:
        sql = f"select count(*), sum(hash({_columns(schema)})::hugeint) from {_FILES}"  # noqa: S608
        found = connection.execute(sql, {"files": [str(one) for one in paths]}).fetchone()
    assert found is not None
    return Proof(int(found[0]), int(found[1] or 0))


def _columns(schema: pa.Schema) -> str:
    return ", ".join('"' + one.replace('"', '""') + '"' for one in schema.names)


def _groups(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Tables of a row group each: the engine's batches are smaller."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in reader:
        held.append(batch)
        rows += batch.num_rows
        if rows >= GROUP_ROWS:
            table = pa.Table.from_batches(held)
            yield table.slice(0, GROUP_ROWS)
            held = table.slice(GROUP_ROWS).to_batches()
            rows -= GROUP_ROWS
    if rows:
        yield pa.Table.from_batches(held, reader.schema)


def options(schema: pa.Schema, order: tuple[str, ...], codec: str) -> dict[str, object]:
    """How a rewritten file is written: what `pyarrow.parquet.ParquetWriter` takes."""
    by = [pq.SortingColumn(schema.get_field_index(one)) for one in order if one in schema.names]
    steady = [one for one in _STEADY if one in schema.names]
    return {
        "compression": codec,
        "use_dictionary": [one for one in schema.names if one not in steady],
        "column_encoding": dict.fromkeys(steady, "DELTA_BINARY_PACKED"),
        "sorting_columns": by,
        "write_page_index": True,
        "bloom_filter_options": {
            name: {"ndv": values, "fpp": _FALSE_POSITIVES}
            for name, values in _BLOOM.items()
            if name in schema.names and schema.field(name).type == pa.string()
        },
    }


@contextmanager
def _engine(beside: Path, memory_mib: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB that spills into a folder beside the file in the making."""
    spill = beside.with_name(beside.name.removesuffix(".tmp") + "-spill.tmp")
    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False})
    try:
        connection.execute("set TimeZone = 'UTC'")
        connection.execute(f"set memory_limit = '{memory_mib}MiB'")
        connection.execute(f"set temp_directory = '{str(spill).replace(chr(39), chr(39) * 2)}'")
        connection.execute("set preserve_insertion_order = false")
        yield connection
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        if "No space left" in str(error) or isinstance(error, duckdb.OutOfMemoryException):
            raise OSError(f"cannot sort: {str(error).splitlines()[0]}") from error
        raise
    finally:
        connection.close()
        shutil.rmtree(spill, ignore_errors=True)


def unified(schemas: list[pa.Schema]) -> pa.Schema:
    """One schema with every column of all, in order of appearance; wider types win.

    Raises SinkError where two files have types of one column that no type holds both of.
    """
    try:
        plain = [one.remove_metadata() for one in schemas]
        return pa.unify_schemas(plain, promote_options="permissive")
    except pa.ArrowException as error:
        raise SinkError(f"files of one day do not fit together: {error}") from error
