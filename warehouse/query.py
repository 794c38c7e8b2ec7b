"""Questions to the warehouse, in SQL: an in-memory DuckDB with our views over the Parquet files.

A connection sees the files that were there when it was opened; it can read those and nothing else.
`query` takes one statement that only reads, `warehouse.answers` the same for millions of rows.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from duckdb import StatementType

from warehouse import listing
from warehouse.errors import WarehouseError
from warehouse.kinds import KINDS
from warehouse.storage import cache_of, is_remote

__all__ = [
    "LAYERS",
    "Period",
    "WarehouseError",
    "connect",
    "only_reads",
    "query",
    "sentence",
    "view_names",
]

#: Folders of warehouse/sql, each a schema, in the order in which they build on each other.
LAYERS = ("staging", "facts", "trends")

_KINDS = {kind.name: kind for kind in KINDS.values()}

#: First and last moment, both read.
Period = tuple[datetime, datetime]

# `explain analyze select 1`, `explain (format json) select 1`
_EXPLAIN = re.compile(r"\s*explain\b(?:\s+analyze\b)?(?:\s*\([^()]*\))?", re.IGNORECASE)
# `/data/[old]/warehouse`: brackets, stars and question marks in a folder's name are no pattern
_GLOB = re.compile(r"([\[*?])")
# `from facts.gpu_samples`: what a view is made of
_FULL_NAME = re.compile(r"\b(?:staging|facts|trends)\.\w+")
# `create macro garwood_low(n, alpha) as`
_MACRO = re.compile(r"create macro (\w+)")
# `getvariable('files_gpu')`
_FILES = re.compile(r"'files_(\w+)'")
#: Words of questions about the views themselves.
_OF_ALL = {"show", "information_schema", "duckdb_views", "duckdb_columns", "duckdb_tables"}
#: The day of the file without rows, a real date as those of the seeds are.
_NO_DAY = "day=1970-01-01"

_DUCKDB_TYPES = {
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float64(): "DOUBLE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP WITH TIME ZONE",
}


def connect(
    root: Path,
    *,
    period: Period | None = None,
    days: Period | None = None,
    at: datetime | None = None,
    asks: str | None = None,
) -> duckdb.DuckDBPyConnection:
    """Open the warehouse under ``root``, every view in place; times are UTC.

    With a ``period`` only the files of its days are read (see `warehouse.listing.around`), and of
    kernel, gpu, nccl and fabric only what happened in it; with ``days`` the files alone are so
    bounded. With ``at`` only what was stored until then is seen. ``asks`` is the text of what will
    be asked: only the views whose names stand in it are there, which saves a tenth of a second.
    Raises WarehouseError when there is no warehouse, or when it cannot be read.
    """
    remote = is_remote(root)
    root = root if remote else root.resolve()
    if not remote and not root.is_dir():
        raise WarehouseError(f"there is no warehouse at {root}: no sink has stored anything there")
    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False})
    try:
        connection.execute("set TimeZone = 'UTC'")
        # DuckDB takes `python -c` for a person, and draws on its standard output after two seconds.
        connection.execute("set enable_progress_bar = false")
        views = _asked(asks)
        _create_views(connection, views, asks)
        _set_bounds(connection, at, period)
        bound = days or period
        of_days = listing.around(bound[0].date(), bound[1].date()) if bound else None
        for kind in _kinds_of(views.values()):
            found = [_literal(one) for one in listing.visible(root, kind, of_days)]
            connection.execute(f"set variable files_{kind} = $1", [[_no_rows(), *found]])
        _close_doors(connection, [root, cache_of(root), Path(_no_rows()).parents[1]])
    except (duckdb.Error, OSError) as error:
        connection.close()
        raise WarehouseError(f"cannot read the warehouse at {root}: {sentence(error)}") from error
    return connection


def _set_bounds(
    connection: duckdb.DuckDBPyConnection, at: datetime | None, period: Period | None
) -> None:
    since, until = period or (None, None)
    for name, value in (("known_at", at), ("since", since), ("until", until)):
        connection.execute(f"set variable {name} = $1::timestamptz", [value])


def _literal(path: str) -> str:
    """A path as DuckDB takes it for one file."""
    return _GLOB.sub(r"[\1]", path)


_EMPTY = "none.parquet"


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ringfence-views-")


@cache
def _no_rows() -> str:
    """A file without rows, which makes a list of files that is never empty."""
    path = Path(_folder().name) / _NO_DAY / _EMPTY
    path.parent.mkdir()
    pq.write_table(pa.table({"schema": pa.array([], pa.string())}), path)
    return str(path)


def _create_views(
    connection: duckdb.DuckDBPyConnection, views: Mapping[str, str], asks: str | None
) -> None:
    """Create views over no rows: DuckDB binds a view anew when it is used.

    The columns are those of this build, whatever the files have: an older file's missing column is
    null. So DuckDB opens only the files that it reads, not all of them to learn their columns.
    """
    _set_bounds(connection, None, None)
    for kind in _kinds_of(views.values()):
        connection.execute(f"set variable schema_{kind} = {_columns(kind)}")
        connection.execute(f"set variable files_{kind} = $1", [[_no_rows()]])
    for layer in LAYERS:
        connection.execute(f"create schema {layer}")
    words = set(re.findall(r"\w+", " ".join((asks or "", *views.values()))))
    for function in _functions():
        if asks is None or words & set(_MACRO.findall(function)):
            connection.execute(function)
    for text in views.values():
        connection.execute(text)


@cache
def _columns(kind: str) -> str:
    """The columns of a kind as `read_parquet(schema = ...)` takes them."""
    columns = (
        f"{_quoted(one.name)}: {{name: {_quoted(one.name)}, type: {_quoted(_type(one.type))}, "
        "default_value: NULL}"
        for one in _KINDS[kind].schema
    )
    return f"MAP {{{', '.join(columns)}}}"


def _type(arrow: pa.DataType) -> str:
    """The DuckDB name of a column's type."""
    if pa.types.is_list(arrow):
        return f"{_type(arrow.value_type)}[]"
    if pa.types.is_map(arrow):
        return f"MAP({_type(arrow.key_type)}, {_type(arrow.item_type)})"
    if pa.types.is_struct(arrow):
        return "STRUCT(" + ", ".join(f'"{one.name}" {_type(one.type)}' for one in arrow) + ")"
    return _DUCKDB_TYPES[arrow]


@cache
def _functions() -> tuple[str, ...]:
    """The texts of the functions that questions may use."""
    return tuple(one.read_text(encoding="utf-8") for one in _sql_files("functions"))


@cache
def _views() -> dict[str, str]:
    """The text of every view by its full name, each after those it is made of."""
    texts = {
        f"{layer}.{view.name.removesuffix('.sql')}": view.read_text(encoding="utf-8")
        for layer in LAYERS
        for view in _sql_files(layer)
    }
    placed: dict[str, str] = {}

    def place(name: str) -> None:
        for other in _made_of(texts[name]):
            if other in texts and other != name and other not in placed:
                place(other)
        placed.setdefault(name, texts[name])

    for name in texts:
        place(name)
    return placed


def _made_of(text: str) -> list[str]:
    return sorted(set(_FULL_NAME.findall(text)))


def _asked(asks: str | None) -> dict[str, str]:
    """The views that a question needs: those that it names, and what they are made of."""
    views = _views()
    words = set() if asks is None else set(re.findall(r"\w+", asks.lower()))
    if asks is None or words & _OF_ALL:
        return views
    needed = {name for name in views if name.partition(".")[2] in words}
    for name in reversed(views):  # what a view is made of stands before it
        if name in needed:
            needed.update(_made_of(views[name]))
    return {name: text for name, text in views.items() if name in needed}


def _kinds_of(views: Iterable[str]) -> list[str]:
    """The kinds whose files views read."""
    return sorted({kind for text in views for kind in _FILES.findall(text)} & _KINDS.keys())


def _close_doors(connection: duckdb.DuckDBPyConnection, readable: list[Path]) -> None:
    spill = Path(tempfile.gettempdir()) / f"ringfence-duckdb-{os.getpid()}"
    connection.execute("set search_path = 'facts,trends,staging,main'")
    connection.execute("set enable_progress_bar = false")  # it would stand among the rows
    connection.execute("set parquet_metadata_cache = true")  # views may read a folder twice
    connection.execute(f"set temp_directory = {_quoted(str(spill))}")
    names = [name for one in readable for name in (str(one), _literal(str(one)))]
    folders = ", ".join(map(_quoted, dict.fromkeys(names)))
    connection.execute(f"set allowed_directories = [{folders}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sql_files(layer: str) -> list[Traversable]:
    folder = files("warehouse") / "sql" / layer
    if not folder.is_dir():
        return []
    return sorted(
        (one for one in folder.iterdir() if one.name.endswith(".sql")), key=lambda one: one.name
    )


def view_names() -> dict[str, list[str]]:
    """The names of all views, by layer."""
    return {layer: [one.name.removesuffix(".sql") for one in _sql_files(layer)] for layer in LAYERS}


def query(
    root: Path, sql: str, *, at: datetime | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Answer one statement that reads: the names of its columns, and its rows.

    With ``at`` the answer is that of then. Raises WarehouseError, with one sentence, for anything
    else, and where the statement fails.
    """
    connection = connect(root, at=at, asks=sql)
    try:
        only_reads(connection, sql)
        cursor = connection.execute(sql)
        columns = [one[0] for one in cursor.description or []]
        return columns, cursor.fetchall()
    except duckdb.Error as error:
        raise WarehouseError(sentence(error)) from error
    finally:
        connection.close()


def only_reads(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise WarehouseError unless ``sql`` is one statement that changes nothing."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise WarehouseError(f"one statement at a time, this is {len(statements)}")
    kind = statements[0].type
    if kind == StatementType.EXPLAIN:
        # EXPLAIN ANALYZE carries its statement out, so that one must only read, too.
        inner = _EXPLAIN.match(sql)
        explained = connection.extract_statements(sql[inner.end() :]) if inner else []
        kind = explained[0].type if len(explained) == 1 else kind
    if kind != StatementType.SELECT:
        raise WarehouseError("the warehouse is only read: ask with SELECT, DESCRIBE or EXPLAIN")


def sentence(error: Exception) -> str:
    """DuckDB's message as one line: what is wrong, and where where it says so."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(line for line in lines if not re.fullmatch(r"\^+", line))
