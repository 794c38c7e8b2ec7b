"""Where each kind of record that a step returns goes: topic, key and headers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from evidence.decisions import Command, DeadLetter, DesiredState, Suspicion, Verdict
from evidence.topics import CLUSTER_KEY
from evidence.wire import cloudevents_headers, encode
from streams.config import SigningError

__all__ = ["ROUTES", "SIGNED_TOPICS", "Outgoing", "Route", "Signs", "outgoing", "signer"]

_Headers = list[tuple[str, bytes]]

#: What schedulers act upon, and so what is signed where the worker has a key.
SIGNED_TOPICS = frozenset({"isolation.commands", "isolation.state"})


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of record's way out; a ``key`` of None means that nobody can be told."""

    topic: str
    key: Callable[[Any], bytes | None]
    headers: Callable[[Any], _Headers] | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message on its way: ``topic`` is the short name."""

    topic: str
    key: bytes
    value: bytes
    headers: _Headers | None = None


def _cluster(_record: Struct) -> bytes:
    return CLUSTER_KEY


def _domain(record: Command | DesiredState) -> bytes:
    return record.domain_id.encode()


def _host(suspicion: Suspicion) -> bytes | None:
    """The host it concerns; failing that, the host that reported it, which has the context.

    Where no line names a host, the job stands for it: that nobody can be named is said, too.
    """
    reporters = (one.host for one in suspicion.evidence)
    named = (suspicion.host, suspicion.domain.host, *reporters, suspicion.job)
    host = next((host for host in named if host), None)
    return None if host is None else host.encode()


def _source(letter: DeadLetter) -> bytes:
    return letter.topic.encode()


ROUTES: Mapping[type[Struct], Route] = {
    Verdict: Route("verdicts", _cluster, cloudevents_headers),
    Suspicion: Route("suspicions", _host),
    Command: Route("isolation.commands", _domain, cloudevents_headers),
    DesiredState: Route("isolation.state", _domain),
    DeadLetter: Route("deadletters", _source),
}


def outgoing(record: Struct, routes: Mapping[type[Struct], Route] = ROUTES) -> Outgoing | None:
    """The message for one record, or None when its route finds nobody to tell.

    Raises KeyError for a kind of record that has no route: a step must not return one.
    """
    route = routes[type(record)]
    key = route.key(record)
    if key is None:
        return None
    headers = None if route.headers is None else route.headers(record)
    return Outgoing(route.topic, key, encode(record), headers)


class Signs(Protocol):
    """Signs messages: `evidence.signing.Signer`."""

    def headers(self, topic: str, value: bytes) -> _Headers:
        """Kafka headers for one message; ``topic`` is the full name."""


def signer(key: Path | None) -> Signs | None:
    """What signs with the key of a file, or None without one. Raises SigningError."""
    if key is None:
        return None
    try:
        from evidence.signing import KeyFileError, Signer  # noqa: PLC0415 (only who signs needs it)
    except ImportError as error:
        raise SigningError(f"signing_key needs the package {error.name}") from error
    try:
        return Signer.read(key)
    except KeyFileError as error:
        raise SigningError(f"signing_key: {error}") from error
