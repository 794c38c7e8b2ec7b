"""What a name means: a GPU, a host, a rack or a job, and which hosts and GPUs are its."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
from msgspec import Struct

from warehouse.errors import WarehouseError
from warehouse.listing import shifted
from warehouse.query import Period, connect

__all__ = ["Target", "find"]

_KINDS = {"gpu": "gpu", "node": "host", "host": "host", "rack": "rack", "job": "job"}
#: How far back an inventory is looked for before all of them are.
_RECENT = timedelta(days=30)


class Target(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is looked at: ``kind`` is gpu, host, rack or job. ``pci`` is a GPU's own address."""

    kind: str
    name: str
    hosts: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    pci: str | None = None
    job: str | None = None


def find(connection: duckdb.DuckDBPyConnection, root: Path, name: str, period: Period) -> Target:
    """What a name means at that time.

    ``connection`` is bounded to the period; the inventory is asked by itself, over all the history
    where the last days do not tell. Raises WarehouseError for a name that nothing is known by.
    """
    prefix, _, rest = name.partition(":")
    kind = _KINDS.get(prefix) if rest else None
    told = rest if kind else name
    tries = {
        "gpu": lambda: _gpu(connection, root, told, period),
        "host": lambda: _host(connection, root, told, period),
        "job": lambda: _job(connection, told),
        "rack": lambda: _rack(root, told, period),
    }
    for one in [kind] if kind else tries:
        found = tries[one]()
        if found is not None:
            return found
    raise WarehouseError(
        f"nothing is stored of a GPU, host, job or rack {name!r} around that time"
        if kind is None
        else f"nothing is stored of the {kind} {told!r} around that time"
    )


def _gpu(
    connection: duckdb.DuckDBPyConnection, root: Path, name: str, period: Period
) -> Target | None:
    """A GPU by its UUID, its serial number, or its place: host/PCI address or host/index."""
    host, _, place = name.partition("/")
    if place:
        where, values = "host = $host and (pci = $place or index::varchar = $place)", {
            "host": host, "place": place,
        }  # fmt: skip
    elif name.startswith("GPU-"):
        where, values = "uuid = $name", {"name": name}
    else:
        where, values = "serial = $name", {"name": name}
    sql = f"select host, pci, uuid from staging.gpu where {where} and index is not null limit 1"  # noqa: S608
    row = connection.execute(sql, values).fetchone() or _in_inventory(root, where, values, period)
    if row is None:
        return None
    return Target(
        kind="gpu", name=name, hosts=(row[0],), pci=row[1], uuids=(row[2],) if row[2] else ()
    )


def _host(
    connection: duckdb.DuckDBPyConnection, root: Path, name: str, period: Period
) -> Target | None:
    rows = _inventory(root, "host = $name", {"name": name}, period)
    if rows:
        return Target(kind="host", name=name, hosts=(name,), uuids=_uuids(rows))
    for view in ("kernel", "gpu", "nccl", "context"):
        sql = f"select 1 from staging.{view} where host = $1 limit 1"  # noqa: S608
        if connection.execute(sql, [name]).fetchone():
            return Target(kind="host", name=name, hosts=(name,))
    return None


def _job(connection: duckdb.DuckDBPyConnection, name: str) -> Target | None:
    hosts: set[str] = set()
    seen = False
    for sql in (
        "select distinct host, null from staging.nccl where job = $1",
        "select distinct host, hosts from staging.context where job = $1",
    ):
        for host, others in connection.execute(sql, [name]).fetchall():
            seen = True
            hosts.update(one for one in (host, *(others or ())) if one)
    return Target(kind="job", name=name, hosts=tuple(sorted(hosts)), job=name) if seen else None


def _rack(root: Path, name: str, period: Period) -> Target | None:
    rows = _inventory(root, "rack = $name", {"name": name}, period)
    hosts = tuple(sorted({row[0] for row in rows}))
    return Target(kind="rack", name=name, hosts=hosts, uuids=_uuids(rows)) if rows else None


def _uuids(rows: list[tuple[Any, ...]]) -> tuple[str, ...]:
    uuids = {row[2] for row in rows}
    return () if None in uuids else tuple(sorted(uuids))


def _in_inventory(
    root: Path, where: str, values: dict[str, str], period: Period
) -> tuple[Any, ...] | None:
    rows = _inventory(root, where, values, period)
    return rows[-1] if rows else None


def _inventory(
    root: Path, where: str, values: dict[str, str], period: Period
) -> list[tuple[Any, ...]]:
    """Host, PCI address and UUID of the GPUs that stood there in the period, the last one last."""
    sql = (
        f"select host, pci, uuid from facts.inventory_at where {where} "  # noqa: S608
        "and valid_from <= $until and coalesce(valid_to, 'infinity') >= $since "
        "order by valid_from, host, pci"
    )
    bounds = {"since": period[0], "until": period[1]}
    recent = (shifted(period[0], -_RECENT), period[1])
    for days in (recent, None):
        connection = connect(root, days=days, asks="inventory_at")
        try:
            rows = connection.execute(sql, values | bounds).fetchall()
        finally:
            connection.close()
        if rows:
            return rows
    return []
