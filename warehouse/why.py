"""Why a command was given: its verdict and every earlier thought of it, the raw evidence, the acks.

It answers from the stored records alone, so it works months later and without Kafka.
"""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import msgspec
from msgspec import Struct

from evidence.decisions import Ack, Command, EvidenceRef, Suspicion, Verdict
from warehouse.errors import WarehouseError
from warehouse.kinds import FIELD_OF
from warehouse.query import connect

__all__ = ["Evidence", "Other", "Why", "why"]

#: How many records around the incident are shown beside the evidence.
_OTHERS = 50
_AROUND = timedelta(minutes=15)

_Record = TypeVar("_Record", bound=Struct)


class Evidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record the verdict rests on: what the verdict says of it, and the record as stored.

    ``raw`` is None where the record is not (yet) in the warehouse, or is a GPU sample, whose
    ``values`` are then the fields of the GPU that the verdict names.
    """

    ref: EvidenceRef
    raw: str | None = None
    stored: bool = False
    values: dict[str, Any] | None = None


class Other(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something on the timeline of the same host that the verdict does not rest on."""

    at: datetime
    source: str
    what: str
    pci: str | None = None
    text: str = ""
    id: str = ""


class Why(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command's story: ``verdicts`` oldest revision first, ``evidence`` in the order taken."""

    command: Command
    verdicts: tuple[Verdict, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    acks: tuple[Ack, ...] = ()
    others: tuple[Other, ...] = ()
    sent: int = 1


def why(root: Path, command_id: str) -> Why | None:
    """Tell why a command was given; the id may be shortened to a prefix. None: no such command.

    Raises WarehouseError when the warehouse cannot be read or the prefix fits several commands.
    """
    connection = connect(root)
    try:
        return _why(connection, command_id)
    except (duckdb.Error, msgspec.ValidationError) as error:
        raise WarehouseError(f"cannot tell why: {' '.join(str(error).split())}") from error
    finally:
        connection.close()


def _why(connection: duckdb.DuckDBPyConnection, command_id: str) -> Why | None:
    found = _command(connection, command_id)
    if found is None:
        return None
    command, sent, stored_at = found
    verdicts = _read(
        connection,
        Verdict,
        "select * from staging.verdicts where incident = $1 or id = $2 "
        "qualify row_number() over (partition by id order by kafka_offset) = 1 "
        "order by decided_at, revision",
        [command.incident, command.verdict],
    )
    decisive = next((one for one in verdicts if one.id == command.verdict), None)
    decisive = decisive or (verdicts[-1] if verdicts else None)
    refs = decisive.evidence if decisive else ()
    if not refs:
        refs = tuple(EvidenceRef(id=one, source="unknown") for one in command.evidence)
    ids = [ref.id for ref in refs]
    return Why(
        command=command,
        sent=sent,
        verdicts=tuple(verdicts),
        evidence=_evidence(connection, command, refs, stored_at),
        suspicions=tuple(
            _read(
                connection,
                Suspicion,
                "select * from staging.suspicions "
                "where list_contains($1, id) "
                "or list_has_any(list_transform(evidence, lambda one: one.id), $1) "
                "qualify row_number() over (partition by id order by kafka_offset) = 1 "
                "order by event_at",
                [ids],
            )
        ),
        acks=tuple(
            _read(
                connection,
                Ack,
                "select * from staging.acks where command = $1 "
                "qualify row_number() over (partition by id order by kafka_offset) = 1 "
                "order by event_at",
                [command.id],
            )
        ),
        others=_others(connection, command, refs),
    )


def _command(
    connection: duckdb.DuckDBPyConnection, command_id: str
) -> tuple[Command, int, datetime | None] | None:
    """The command as sent last, how often it was sent, and when it was first stored."""
    cursor = connection.execute(
        "select id, count(*), min(appended_at) from staging.commands "
        "where starts_with(id, $1) group by id order by id",
        [command_id],
    )
    found = cursor.fetchall()
    exact = [one for one in found if one[0] == command_id]
    if not command_id or len(exact or found) > 1:
        some = ", ".join(one[0] for one in found[:3])
        raise WarehouseError(f"{command_id!r} fits {len(found)} commands, among them {some}")
    if not found:
        return None
    name, sent, stored_at = (exact or found)[0]
    commands = _read(
        connection,
        Command,
        "select * from staging.commands where id = $1 "
        "order by appended_at desc, kafka_offset desc limit 1",
        [name],
    )
    return commands[0], sent, stored_at


def _evidence(
    connection: duckdb.DuckDBPyConnection,
    command: Command,
    refs: tuple[EvidenceRef, ...],
    stored_at: datetime | None,
) -> tuple[Evidence, ...]:
    # Evidence is stored shortly before the command it leads to: look there first, and over all
    # the history only for what is not there.
    rows: dict[str, dict[str, Any]] = {}
    if stored_at is not None:
        around = [stored_at - timedelta(days=2), stored_at + timedelta(days=1)]
        rows = _records(connection, command, refs, "day between $from and $to", around)
    missing = tuple(ref for ref in refs if ref.id not in rows)
    if missing:
        rows |= _records(connection, command, missing, "true", [])
    return tuple(
        Evidence(
            ref=ref,
            stored=ref.id in rows,
            raw=rows.get(ref.id, {}).get("raw"),
            values=rows.get(ref.id, {}).get("values"),
        )
        for ref in refs
    )


def _records(
    connection: duckdb.DuckDBPyConnection,
    command: Command,
    refs: tuple[EvidenceRef, ...],
    days: str,
    around: list[datetime],
) -> dict[str, dict[str, Any]]:
    """What is stored of those records, by id: their raw line, or the values of the GPU."""
    bounds = dict(zip(("from", "to"), (one.date() for one in around), strict=False))
    found: dict[str, dict[str, Any]] = {}
    for source in ("kernel", "nccl"):
        ids = [ref.id for ref in refs if ref.source in (source, "unknown")]
        if ids:
            cursor = connection.execute(
                f"select id, raw from staging.{source} where list_contains($ids, id) and {days}",  # noqa: S608
                {"ids": ids, **bounds},
            )
            found |= {one: {"raw": raw} for one, raw in cursor.fetchall()}
    ids = [ref.id for ref in refs if ref.source in ("gpu", "unknown")]
    if ids:
        domain = command.domain
        rows = _dicts(
            connection.execute(
                "select * exclude (day) from staging.gpu "  # noqa: S608
                f"where list_contains($ids, id) and {days} "
                "and ($pci is null or pci is null or pci = $pci) "
                "and ($uuid is null or uuid is null or uuid = $uuid) "
                "order by id, tick desc",
                {"ids": ids, "pci": domain.pci, "uuid": domain.uuid, **bounds},
            )
        )
        for row in rows:  # the oldest tick comes last; the one the verdict names wins
            ref = next(one for one in refs if one.id == row["id"])
            if row["id"] not in found or ref.at is None or row.get("at") == ref.at:
                found[row["id"]] = {"values": _values(row)}
    return found


def _values(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in row.items()
        if value not in (None, {}, [])
        and not name.startswith("kafka_")
        and name not in ("appended_at", "schema", "gpu")
    }


def _others(
    connection: duckdb.DuckDBPyConnection, command: Command, refs: tuple[EvidenceRef, ...]
) -> tuple[Other, ...]:
    """What else the host's timeline shows around the incident, nearest to its first evidence."""
    if command.domain.host is None:
        return ()
    begin = min((ref.at for ref in refs if ref.at is not None), default=command.issued_at)
    cursor = connection.execute(
        "select event_at, source, what, pci, text, id from facts.timeline "
        "where host = $host and event_at between $from and $to and not list_contains($ids, id) "
        "and source not in ('verdict', 'command', 'ack', 'suspicion') "
        "order by abs(epoch(event_at) - epoch($begin::timestamptz)) limit $limit",
        {
            "host": command.domain.host,
            "from": begin - _AROUND,
            "to": max(begin, command.issued_at) + _AROUND,
            "ids": [ref.id for ref in refs],
            "begin": begin,
            "limit": _OTHERS,
        },
    )
    others = [msgspec.convert(_present(row), Other) for row in _dicts(cursor)]
    return tuple(sorted(others, key=lambda one: one.at))


def _read(
    connection: duckdb.DuckDBPyConnection, struct: type[_Record], sql: str, values: list[Any]
) -> list[_Record]:
    """Rows of a staging view as the records they were."""
    rows = _dicts(connection.execute(sql, values))
    return [msgspec.convert(_present(row), struct) for row in rows]


def _dicts(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    names = [one[0] for one in cursor.description or []]
    fields = [FIELD_OF.get(name, name) for name in names]
    return [dict(zip(fields, row, strict=True)) for row in cursor.fetchall()]


def _present(value: Any) -> Any:  # noqa: ANN401 (whatever a column holds)
    """The value without nulls, which stand for fields left at their defaults."""
    if isinstance(value, dict):
        return {name: _present(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_present(one) for one in value]
    return value
