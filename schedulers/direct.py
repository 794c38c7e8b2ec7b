"""A release without Kafka: the adapter is called at once, its consumer told through the journal.

What the consumer knew of the part is made out of date, so that a command that is sent again does
not take it out anew; when Kafka is back the consumer asks the isolation stage to release it too.
"""

import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaError

from evidence.decisions import (
    AckStatus,
    Action,
    Cause,
    Command,
    Domain,
    DomainKind,
    Level,
    Request,
    RequestAction,
)
from evidence.identity import digest
from evidence.topics import CLUSTER_KEY
from evidence.transport import Kafka
from evidence.wire import encode
from schedulers.adapter import Adapter, Outcome, SchedulerError
from schedulers.journal import Journal

__all__ = ["Released", "release_directly", "tell_direct"]

_LOG = logging.getLogger(__name__)
_DIRECT = "direct"
_SENT_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Released:
    """What became of it; ``noted`` says whether the consumer's journal has it."""

    outcome: Outcome
    command: str
    noted: bool
    why_not: str = ""


def release_directly(
    adapter: Adapter, folder: Path, name: str, domain: Domain, *, by: str, reason: str, at: datetime
) -> Released:
    """Have an adapter release a part now, and leave word for the consumer ``name`` in ``folder``.

    The journal is written first: should we end in between, nothing isolates the part again. That it
    cannot be written does not keep the part out; it is told.
    """
    host = domain.host if domain.kind is DomainKind.NODE else None
    ident = digest("release", _DIRECT, domain.id, by, at.isoformat())
    try:
        journal = _opened(folder, name)
    except SchedulerError as error:
        command = _command(ident, domain, by, reason, at, 0)
        return Released(_applied(adapter, command), ident, noted=False, why_not=str(error))
    with journal:
        with journal.together():
            command = _command(ident, domain, by, reason, at, journal.outdate(domain.id, host))
            journal.begin(command, 1, at, nodes=0)
            request = Request(
                id=digest("request", _DIRECT, ident),
                at=at,
                action=RequestAction.RELEASE,
                domain=domain,
                by=by,
                reason=reason or f"released by {by} without Kafka",
            )
            journal.tell(_DIRECT, domain.id, msgspec.json.encode(request))
        outcome = _applied(adapter, command)
        journal.finish(ident, outcome, at, 0)
    return Released(outcome, ident, noted=True)


def _opened(folder: Path, name: str) -> Journal:
    """The journal, beside a consumer that may have it open."""
    try:
        return Journal(folder, name)
    except SchedulerError:
        return Journal(folder, name, shared=True)


def _command(
    ident: str, domain: Domain, by: str, reason: str, at: datetime, generation: int
) -> Command:
    return Command(
        id=ident,
        action=Action.RELEASE,
        domain=domain,
        domain_id=domain.id,
        level=Level.CORDON,
        cause=Cause.UNKNOWN,
        reason=reason or f"released by {by} without Kafka",
        incident=ident,
        generation=generation,
        issued_at=at,
        by=by,
    )


def _applied(adapter: Adapter, command: Command) -> Outcome:
    try:
        return adapter.apply(command)
    except Exception as error:  # noqa: BLE001 (a faulty adapter must answer too)
        return Outcome(AckStatus.FAILED, f"adapter error: {type(error).__name__}: {error}")


def tell_direct(journal: Journal, producer: KafkaProducer, kafka: Kafka) -> int:
    """Ask the isolation stage for what was released without it; how many requests were sent.

    What cannot be sent now is sent at the next call.
    """
    topic = kafka.topic("requests")
    try:
        waiting = journal.told(_DIRECT)
        if not waiting:
            return 0
        _sent(producer, topic, list(waiting.values()))
    except (KafkaError, sqlite3.OperationalError) as error:
        _LOG.warning("releases made without Kafka cannot be told yet: %s", error)
        return 0
    with journal.together():
        for domain_id in waiting:
            journal.tell(_DIRECT, domain_id, None)
    _LOG.info("asked to release %s, as was done without Kafka", ", ".join(sorted(waiting)))
    return len(waiting)


def _sent(producer: KafkaProducer, topic: str, records: Sequence[bytes]) -> None:
    futures = []
    for record in records:
        request = msgspec.json.decode(record, type=Request)
        futures.append(producer.send(topic, encode(request), key=CLUSTER_KEY))
    producer.flush(_SENT_WITHIN_S)
    for one in futures:
        one.get(_SENT_WITHIN_S)
