"""What a person sends by hand: announcements (context) and requests to isolate or release."""

import getpass
from collections.abc import Iterable
from datetime import datetime

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError
from msgspec import Struct

from evidence.decisions import Domain, DomainKind, Level, Request, RequestAction
from evidence.identity import digest, normalise_pci
from evidence.records import ContextKind, ContextRecord
from evidence.topics import CLUSTER_KEY
from evidence.transport import Kafka
from evidence.wire import encode
from vitals.clients import made

__all__ = ["CLUSTER", "DeskError", "context_record", "domain", "request", "send", "standing"]

#: What ``resume`` names where it means the whole stage, as the rules do.
CLUSTER = "cluster"
#: A person waits for it.
_SEND_WITHIN_S = 15.0


class DeskError(ValueError):
    """What was asked cannot be sent; the message is one sentence."""


def context_record(
    *,
    kind: str,
    host: str,
    at: datetime,
    until: datetime | None = None,
    pci: str | None = None,
    by: str | None = None,
    reason: str | None = None,
    ended: bool = False,
) -> ContextRecord:
    """Build an announcement. Raises DeskError for an unknown kind or a wrong PCI address."""
    try:
        known = ContextKind(kind)
    except ValueError as error:
        kinds = ", ".join(ContextKind)
        raise DeskError(f"{kind!r} is nothing that can be announced; known: {kinds}") from error
    address = None if pci is None else _pci(pci)
    return ContextRecord(
        id=digest("context", host, address, known, at.isoformat(), ended),
        host=host,
        observed_at=at,
        kind=known,
        at=at,
        until=until,
        ended=ended,
        pci=address,
        by=by or getpass.getuser(),
        reason=reason,
    )


def request(
    *,
    action: str,
    domain: str,
    at: datetime,
    by: str | None = None,
    reason: str = "",
    level: str = "cordon",
) -> Request:
    """Build a request. Raises DeskError when ``domain`` is not a domain id.

    ``resume`` also takes `CLUSTER`: what is out is known, a stage without its state may act again.
    """
    everything = action == RequestAction.RESUME and domain == CLUSTER
    named = Domain(kind=DomainKind.JOB, job=CLUSTER) if everything else _domain(domain)
    return Request(
        id=digest("request", action, named.id, at.isoformat()),
        at=at,
        action=RequestAction(action),
        domain=named,
        by=by or getpass.getuser(),
        reason=reason,
        level=Level(level),
    )


def domain(text: str) -> Domain:
    """Read a domain id as `Domain.id` prints it. Raises DeskError with the shapes it may have."""
    return _domain(text)


def standing(records: Iterable[Struct], now: datetime) -> list[ContextRecord]:
    """What was announced and holds at ``now``, in order of host and time."""
    found: dict[tuple[object, ...], ContextRecord] = {}
    for one in records:
        if not isinstance(one, ContextRecord):
            continue
        if one.ended:  # it closes what was announced of that kind before it
            for thing in [t for t in found if t[:3] == (one.host, one.kind, one.pci)]:
                if one.job in (None, thing[3]):
                    del found[thing]
        else:
            found[one.host, one.kind, one.pci, one.job] = one
    held = (one for one in found.values() if one.until is None or one.until > now)
    return sorted(held, key=lambda one: (one.host, one.at, one.id))


def _domain(text: str) -> Domain:
    kind, _, rest = text.partition(":")
    place, _, part = rest.partition("/")
    if place:
        if kind == "gpu" and part.startswith("GPU-"):
            return Domain(kind=DomainKind.GPU, host=place, uuid=part)
        if kind == "gpu" and part:
            return Domain(kind=DomainKind.GPU, host=place, pci=_pci(part))
        if kind == "node" and not part:
            return Domain(kind=DomainKind.NODE, host=place)
        if kind == "rack" and not part:
            return Domain(kind=DomainKind.RACK, rack=place)
        if kind == "switch" and not part:
            return Domain(kind=DomainKind.SWITCH, switch=place)
        if kind == "link" and part.isdigit():
            return Domain(kind=DomainKind.LINK, switch=place, port=int(part))
    raise DeskError(
        f"{text!r} is no domain: gpu:HOST/0000:3b:00, gpu:HOST/GPU-..., node:HOST, "
        "link:SWITCH-GUID/PORT, switch:GUID or rack:NAME",
    )


def _pci(text: str) -> str:
    try:
        return normalise_pci(text)[0]
    except ValueError as error:
        raise DeskError(str(error)) from error


def send(kafka: Kafka, topic: str, key: str | None, record: Struct) -> None:
    """Send one record and wait until the broker has it. Raises DeskError when it does not."""
    within_s = min(_SEND_WITHIN_S, kafka.start_within_s)
    name = kafka.topic(topic)
    try:
        producer = made(
            KafkaProducer,
            **kafka.client(),
            acks="all",
            bootstrap_timeout_ms=int(within_s * 1000),
            reconnect_backoff_max_ms=1000,
            max_block_ms=int(within_s * 1000),
        )
    except KafkaTimeoutError as error:
        raise DeskError(f"No Kafka answers at {kafka.bootstrap} within {within_s:g} s.") from error
    except (KafkaError, OSError) as error:
        raise DeskError(f"Kafka at {kafka.bootstrap} cannot be used: {error}") from error
    try:
        sent = producer.send(name, key=key.encode() if key else CLUSTER_KEY, value=encode(record))
        sent.get(timeout=_SEND_WITHIN_S)
    except KafkaError as error:
        raise DeskError(f"Kafka at {kafka.bootstrap} did not take it: {error}") from error
    finally:
        producer.close(timeout=1)
