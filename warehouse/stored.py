"""Records as they are stored: found by their ids, with the raw line, its file and Kafka place."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import msgspec
from msgspec import Struct

from evidence.decisions import Domain, EvidenceRef
from warehouse.kinds import FIELD_OF, KINDS
from warehouse.listing import shifted
from warehouse.query import Period, connect

__all__ = ["Evidence", "dicts", "present", "records", "resolve"]

_Record = TypeVar("_Record", bound=Struct)

#: The view that holds the records of a source; those of a source without a name may be in any.
_VIEWS = {
    "kernel": "kernel",
    "nccl": "nccl",
    "gpu": "gpu",
    "fabric": "fabric",
    "context": "context",
    "inventory": "inventory",
    "suspicions": "suspicions",
    "suspicion": "suspicions",
    "requests": "requests",
}
_VIEW_OF: dict[type[Struct], str] = {kind.record: kind.name for kind in KINDS.values()}
#: Evidence is stored shortly before the decision it leads to: there it is looked for first.
_BEFORE, _AFTER = timedelta(days=2), timedelta(days=1)
#: Of a record with a raw line that is enough; of others the values are shown.
_RAW = frozenset({"kernel", "nccl"})


class Evidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record a verdict rests on: what the verdict says of it, and the record as stored.

    ``raw`` is its line where it has one, ``values`` are its fields where not (of a GPU sample those
    of the GPU that the verdict names). ``file`` and ``line`` are where the collector read it,
    ``stored_in`` is ``topic/partition/offset`` in Kafka. Not ``stored``: the warehouse has it not.
    """

    ref: EvidenceRef
    raw: str | None = None
    stored: bool = False
    values: dict[str, Any] | None = None
    file: str | None = None
    line: int | None = None
    stored_in: str | None = None


def resolve(
    root: Path,
    refs: tuple[EvidenceRef, ...],
    domain: Domain,
    near: datetime | None,
    at: datetime | None,
) -> tuple[Evidence, ...]:
    """Each reference with the record it names, in the same order.

    ``near`` is when the decision was stored: around it the records are looked for first, over all
    the history only those that are not there.
    """
    found: dict[str, Evidence] = {}
    periods = [None] if near is None else [(shifted(near, -_BEFORE), shifted(near, _AFTER)), None]
    for period in periods:
        missing = [ref for ref in refs if ref.id not in found]
        if missing:
            found |= _found(root, missing, domain, period, at)
    return tuple(found.get(ref.id) or Evidence(ref=ref) for ref in refs)


def _found(
    root: Path,
    refs: list[EvidenceRef],
    domain: Domain,
    period: Period | None,
    at: datetime | None,
) -> dict[str, Evidence]:
    wanted: dict[str, list[EvidenceRef]] = {}
    for ref in refs:
        view = _VIEWS.get(ref.source)
        for one in [view] if view else dict.fromkeys(_VIEWS.values()):
            wanted.setdefault(one, []).append(ref)
    asks = " ".join(f"staging.{view}" for view in wanted)
    found: dict[str, Evidence] = {}
    connection = connect(root, at=at, days=period, asks=asks)
    try:
        for view, of_view in wanted.items():
            found |= _of_view(connection, view, of_view, domain)
    finally:
        connection.close()
    return found


def _of_view(
    connection: duckdb.DuckDBPyConnection, view: str, refs: list[EvidenceRef], domain: Domain
) -> dict[str, Evidence]:
    """The records of one view: of a frame the GPU of the domain at the time of the evidence."""
    names: dict[str, Any] = {"ids": [ref.id for ref in refs]}
    narrower = order = ""
    if view == "gpu":
        narrower = (
            "and ($pci is null or pci is null or pci = $pci) "
            "and ($uuid is null or uuid is null or uuid = $uuid)"
        )
        order = ", tick desc"
        names |= {"pci": domain.pci, "uuid": domain.uuid}
    rows = dicts(
        connection.execute(
            f"select * exclude (day) from staging.{view} "  # noqa: S608
            f"where list_contains($ids, id) {narrower} order by id{order}, kafka_offset desc",
            names,
        )
    )
    by_id = {ref.id: ref for ref in refs}
    found: dict[str, Evidence] = {}
    for row in rows:  # the first sending comes last and wins; of ticks the one that is named
        ref = by_id[row["id"]]
        if view == "gpu" and ref.id in found and ref.at not in (None, row.get("at")):
            continue
        found[ref.id] = _evidence(ref, view, row)
    return found


def _evidence(ref: EvidenceRef, view: str, row: dict[str, Any]) -> Evidence:
    place = f"{row['kafka_topic']}/{row['kafka_partition']}/{row['kafka_offset']}"
    return Evidence(
        ref=ref,
        stored=True,
        raw=row.get("raw"),
        values=None if view in _RAW else _values(row),
        file=row.get("file"),
        line=row.get("line"),
        stored_in=place,
    )


def _values(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in row.items()
        if value not in (None, {}, [])
        and not name.startswith("kafka_")
        and name not in ("appended_at", "schema", "gpu")
    }


def records(
    connection: duckdb.DuckDBPyConnection,
    struct: type[_Record],
    where: str,
    values: Iterable[Any],
    order: str,
) -> tuple[_Record, ...]:
    """Rows of the struct's staging view as the records they were, each once.

    ``where`` and ``order`` are SQL of ours; what somebody gave stands in ``values``.
    """
    view = _VIEW_OF[struct]
    rows = dicts(
        connection.execute(
            f"select * from staging.{view} where {where} "  # noqa: S608
            "qualify row_number() over (partition by id order by kafka_offset) = 1 "
            f"order by {order}",
            list(values),
        )
    )
    return tuple(msgspec.convert(present(row), struct) for row in rows)


def dicts(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Rows by the names of the records' fields."""
    names = [one[0] for one in cursor.description or []]
    fields = [FIELD_OF.get(name, name) for name in names]
    return [dict(zip(fields, row, strict=True)) for row in cursor.fetchall()]


def present(value: Any) -> Any:  # noqa: ANN401 (whatever a column holds)
    """The value without nulls, which stand for fields left at their defaults."""
    if isinstance(value, dict):
        return {name: present(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [present(one) for one in value]
    return value
