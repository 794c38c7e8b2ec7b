"""What could not be decoded or made a step fail, kept byte for byte with one sentence why.

A dead letter is larger than its message (base64): `cut` makes one that fits where it does not.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from evidence.decisions import DeadLetter
from evidence.identity import digest
from evidence.wire import encode
from streams.routing import ROUTES, Outgoing, outgoing

__all__ = ["cut", "letter", "undeliverable"]

#: What a dead letter that is cut keeps of its message; fits every broker's default of 1 MiB.
KEPT_BYTES = 256 * 1024
_SENTENCE = 500


def letter(
    stage: str,
    error: str,
    *,
    topic: str,
    at: datetime,
    key: bytes | None = None,
    value: bytes | None = None,
    partition: int | None = None,
    offset: int | None = None,
    headers: Mapping[str, bytes] | Iterable[tuple[str, bytes]] = (),
) -> Outgoing:
    """The dead letter of one message of ``topic`` (short name); the same message, the same id."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    position = (at.isoformat(), key) if offset is None else offset
    record = DeadLetter(
        id=digest("deadletter", stage, topic, partition, position),
        at=at,
        topic=topic,
        error=error[:_SENTENCE],
        value=value or b"",
        key=key,
        partition=partition,
        offset=offset,
        stage=stage,
        headers={name: (text or b"").decode("utf-8", "replace") for name, text in pairs},
    )
    return _send(record)


def undeliverable(stage: str, refused: Outgoing, error: str, at: datetime) -> Outgoing:
    """The dead letter of a message of our own that the broker will never take (too large)."""
    record = DeadLetter(
        id=digest("undeliverable", stage, refused.topic, refused.key, refused.value),
        at=at,
        topic=refused.topic,
        error=f"{error[:_SENTENCE]} (first {KEPT_BYTES} of {len(refused.value)} bytes kept)",
        value=refused.value[:KEPT_BYTES],
        key=refused.key,
        stage=stage,
    )
    return _send(record)


def cut(refused: Outgoing) -> Outgoing:
    """The same dead letter with only the first part of its message."""
    record = msgspec.json.decode(refused.value, type=DeadLetter)
    error = f"{record.error} (first {KEPT_BYTES} of {len(record.value)} bytes kept)"
    return _send(
        msgspec.structs.replace(record, value=record.value[:KEPT_BYTES], headers={}, error=error)
    )


def _send(record: DeadLetter) -> Outgoing:
    route = outgoing(record, ROUTES)
    return route or Outgoing("deadletters", b"", encode(record))
