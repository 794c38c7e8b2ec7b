"""Why a command was given: its verdict and every earlier thought of it, the raw evidence, the acks.

It answers from the stored records alone, so it works months later and without Kafka.
"""

from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import msgspec
from msgspec import Struct

from evidence.decisions import (
    Ack,
    Action,
    Command,
    DesiredState,
    EvidenceRef,
    Request,
    Suspicion,
    Verdict,
)
from warehouse.errors import WarehouseError
from warehouse.listing import shifted
from warehouse.query import connect, sentence
from warehouse.stored import Evidence, dicts, present, records, resolve

__all__ = ["Evidence", "Other", "Why", "why"]

#: How many records around the incident are shown beside the evidence.
_OTHERS = 50
_AROUND = timedelta(minutes=15)
#: Evidence of a suspicion is no older than what a stage remembers.
_SUSPECTED = timedelta(days=2)
#: The clocks of a stage and of a scheduler may differ by so much.
_SLACK = timedelta(seconds=1)


class Other(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something on the timeline of the same host that the verdict does not rest on."""

    at: datetime
    source: str
    what: str
    pci: str | None = None
    text: str = ""
    id: str = ""


class Why(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command's story: ``verdicts`` oldest revision first, ``evidence`` in the order taken.

    ``states`` are what the domain was to be from the command on, with its holds; ``releases`` the
    commands that gave it back, ``requests`` what people asked about it.
    """

    command: Command
    verdicts: tuple[Verdict, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    acks: tuple[Ack, ...] = ()
    states: tuple[DesiredState, ...] = ()
    releases: tuple[Command, ...] = ()
    requests: tuple[Request, ...] = ()
    others: tuple[Other, ...] = ()
    sent: int = 1


def why(root: Path, command_id: str, *, at: datetime | None = None) -> Why | None:
    """Tell why a command was given; the id may be shortened to a prefix. None: no such command.

    With ``at`` as it was known then. Raises WarehouseError when the warehouse cannot be read or
    the prefix fits several commands.
    """
    try:
        connection = connect(root, at=at, asks=_ASKS)
        try:
            found = _command(connection, command_id)
            return None if found is None else _why(connection, root, *found, at)
        finally:
            connection.close()
    except (duckdb.Error, msgspec.ValidationError) as error:
        raise WarehouseError(f"cannot tell why: {sentence(error)}") from error


#: The decisions: few, so all of them are looked through.
_ASKS = "staging.commands staging.verdicts staging.acks staging.states staging.requests"


def _why(
    connection: duckdb.DuckDBPyConnection,
    root: Path,
    command: Command,
    sent: int,
    stored_at: datetime | None,
    at: datetime | None,
) -> Why:
    verdicts = records(
        connection,
        Verdict,
        "incident = $1 or id = $2",
        [command.incident, command.verdict],
        "decided_at, revision",
    )
    decisive = next((one for one in verdicts if one.id == command.verdict), None)
    decisive = decisive or (verdicts[-1] if verdicts else None)
    refs = decisive.evidence if decisive else ()
    if not refs:
        refs = tuple(EvidenceRef(id=one, source="unknown") for one in command.evidence)
    evidence = resolve(root, refs, command.domain, stored_at, at)
    return Why(
        command=command,
        sent=sent,
        verdicts=verdicts,
        evidence=evidence,
        suspicions=_suspicions(root, command, refs, at),
        acks=records(connection, Ack, "command = $1", [command.id], "event_at"),
        states=records(
            connection,
            DesiredState,
            "domain_id = $1 and event_at >= $2",
            [command.domain_id, shifted(command.issued_at, -_SLACK)],
            "event_at, generation",
        ),
        releases=_releases(connection, command),
        requests=_requests(connection, command),
        others=_others(root, command, refs, at),
    )


def _releases(connection: duckdb.DuckDBPyConnection, command: Command) -> tuple[Command, ...]:
    """The commands that gave the domain back afterwards."""
    return records(
        connection,
        Command,
        "domain_id = $1 and issued_at >= $2 and action = $3 and id <> $4",
        [command.domain_id, shifted(command.issued_at, -_SLACK), str(Action.RELEASE), command.id],
        "issued_at",
    )


def _requests(connection: duckdb.DuckDBPyConnection, command: Command) -> tuple[Request, ...]:
    """What people asked about the domain afterwards."""
    begin = shifted(command.issued_at, -_SLACK)
    asked = records(connection, Request, "event_at >= $1", [begin], "event_at")
    return tuple(one for one in asked if one.domain.id == command.domain_id)


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
    rows = dicts(
        connection.execute(
            "select * from staging.commands where id = $1 "
            "order by appended_at desc, kafka_offset desc limit 1",
            [name],
        )
    )
    return msgspec.convert(present(rows[0]), Command), sent, stored_at


def _begin(command: Command, refs: tuple[EvidenceRef, ...]) -> datetime:
    return min((ref.at for ref in refs if ref.at is not None), default=command.issued_at)


def _suspicions(
    root: Path, command: Command, refs: tuple[EvidenceRef, ...], at: datetime | None
) -> tuple[Suspicion, ...]:
    """The suspicions that are evidence themselves, or rest on the same records."""
    ids = [ref.id for ref in refs]
    days = (shifted(_begin(command, refs), -_SUSPECTED), command.issued_at)
    connection = connect(root, at=at, days=days, asks="staging.suspicions")
    try:
        return records(
            connection,
            Suspicion,
            "list_contains($1, id) "
            "or list_has_any(list_transform(evidence, lambda one: one.id), $1)",
            [ids],
            "event_at",
        )
    finally:
        connection.close()


def _others(
    root: Path, command: Command, refs: tuple[EvidenceRef, ...], at: datetime | None
) -> tuple[Other, ...]:
    """What else the host's timeline shows around the incident, nearest to its first evidence."""
    if command.domain.host is None:
        return ()
    begin = _begin(command, refs)
    period = (shifted(begin, -_AROUND), shifted(max(begin, command.issued_at), _AROUND))
    connection = connect(root, at=at, period=period, asks="facts.timeline")
    try:
        cursor = connection.execute(
            "select event_at, source, what, pci, text, id from facts.timeline "
            "where host = $host and event_at between $from and $to "
            "and not list_contains($ids, split_part(id, '/', 1)) "
            "and source in ('kernel', 'gpu', 'nvml', 'nccl', 'fabric', 'context') "
            "order by abs(epoch(event_at) - epoch($begin::timestamptz)), id limit $limit",
            {
                "host": command.domain.host,
                "from": period[0],
                "to": period[1],
                "ids": [ref.id for ref in refs],
                "begin": begin,
                "limit": _OTHERS,
            },
        )
        others = [msgspec.convert(present(row), Other) for row in dicts(cursor)]
    finally:
        connection.close()
    return tuple(sorted(others, key=lambda one: (one.at, one.source, one.id)))
