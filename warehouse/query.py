"""Questions to the warehouse, in SQL: an in-memory DuckDB with our views over the Parquet files.

The connection can read the warehouse and nothing else; `query` takes one statement that only reads.
"""

import os
import re
import shutil
import tempfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import duckdb
from duckdb import StatementType

from warehouse.errors import WarehouseError
from warehouse.files import seed_path, sow
from warehouse.kinds import KINDS

__all__ = ["LAYERS", "WarehouseError", "connect", "query", "view_names"]

#: Folders of warehouse/sql, each a schema, in the order in which they build on each other.
LAYERS = ("staging", "facts")

# `explain analyze select 1`
_EXPLAIN = re.compile(r"\s*explain(?:\s+analyze)?\s+(?!\()", re.IGNORECASE)
# `/data/[old]/warehouse`: brackets, stars and question marks in a folder's name are no pattern
_GLOB = re.compile(r"([\[*?])")


def connect(root: Path) -> duckdb.DuckDBPyConnection:
    """Open the warehouse under ``root``, every view in place; times are UTC.

    Raises WarehouseError when there is none, or when it cannot be read.
    """
    root = root.resolve()
    if not root.is_dir():
        raise WarehouseError(f"there is no warehouse at {root}: no sink has stored anything there")
    try:
        sow(root)
    except OSError as error:
        reason = error.strerror or error
        raise WarehouseError(f"cannot read the warehouse at {root}: {reason}") from error
    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False})
    try:
        _create_views(connection, root)
        pattern = _GLOB.sub(r"[\1]", str(root))
        connection.execute("set variable root = $1", [pattern])
        _close_doors(connection, [str(root), pattern])
    except (duckdb.Error, OSError) as error:
        connection.close()
        raise WarehouseError(f"cannot read the warehouse at {root}: {_sentence(error)}") from error
    return connection


def _create_views(connection: duckdb.DuckDBPyConnection, root: Path) -> None:
    """Create the views over the seeds alone.

    Creating a view opens every file it covers: with a thousand files that would take seconds for
    views that the question does not name. DuckDB binds a view anew when it is used.
    """
    with tempfile.TemporaryDirectory(prefix="ringfence-views-") as folder:
        for kind in KINDS.values():
            seed = seed_path(root, kind)
            copy = seed_path(Path(folder), kind)
            copy.parent.mkdir(parents=True)
            shutil.copyfile(seed, copy)
        connection.execute("set variable root = $1", [folder])
        for layer in LAYERS:
            connection.execute(f"create schema {layer}")
            for view in _sql_files(layer):
                connection.execute(view.read_text(encoding="utf-8"))


def _close_doors(connection: duckdb.DuckDBPyConnection, readable: list[str]) -> None:
    spill = Path(tempfile.gettempdir()) / f"ringfence-duckdb-{os.getpid()}"
    connection.execute("set search_path = 'facts,staging,main'")
    connection.execute("set TimeZone = 'UTC'")
    connection.execute("set parquet_metadata_cache = true")  # views may read a folder twice
    connection.execute(f"set temp_directory = {_quoted(str(spill))}")
    folders = ", ".join(map(_quoted, readable))
    connection.execute(f"set allowed_directories = [{folders}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sql_files(layer: str) -> list[Traversable]:
    folder = files("warehouse") / "sql" / layer
    return sorted(
        (one for one in folder.iterdir() if one.name.endswith(".sql")), key=lambda one: one.name
    )


def view_names() -> dict[str, list[str]]:
    """The names of all views, by layer."""
    return {layer: [one.name.removesuffix(".sql") for one in _sql_files(layer)] for layer in LAYERS}


def query(root: Path, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Answer one statement that reads: the names of its columns, and its rows.

    Raises WarehouseError, with one sentence, for anything else, and where the statement fails.
    """
    connection = connect(root)
    try:
        _only_reads(connection, sql)
        cursor = connection.execute(sql)
        columns = [one[0] for one in cursor.description or []]
        return columns, cursor.fetchall()
    except duckdb.Error as error:
        raise WarehouseError(_sentence(error)) from error
    finally:
        connection.close()


def _only_reads(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
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


def _sentence(error: Exception) -> str:
    """DuckDB's message as one line: what is wrong, and where where it says so."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(line for line in lines if not re.fullmatch(r"\^+", line))
