"""Records to bytes and back: JSON by msgspec, CloudEvents 1.0 attributes in the Kafka headers."""

from collections.abc import Callable
from functools import cache
from typing import Any, Union

import msgspec
from msgspec import Struct

from evidence.decisions import Ack, Command, Verdict
from evidence.topics import TOPICS

__all__ = ["DecodeError", "cloudevents_headers", "decode", "decoder", "encode"]

_ENCODER = msgspec.json.Encoder()


class DecodeError(ValueError):
    """A message that is not a record this build reads; the message says why in one sentence."""


def encode(record: Struct) -> bytes:
    """Encode a record as UTF-8 JSON; defaults are left out, ``schema`` never is."""
    return _ENCODER.encode(record)


@cache
def decoder(topic: str) -> Callable[[bytes], Any]:
    """The decoder of one topic (by short name), for loops that count microseconds.

    It raises msgspec.MsgspecError (or UnicodeDecodeError) rather than DecodeError; use `decode`
    where a sentence is wanted.
    """
    types = TOPICS[topic].types
    return msgspec.json.Decoder(Union[types]).decode  # noqa: UP007 (built at run time)


def decode(topic: str, value: bytes) -> Any:  # noqa: ANN401 (one struct per topic)
    """Decode one message of a topic into its struct.

    Raises DecodeError, with one sentence, for anything that is not a record of the topic: bytes
    that are not JSON, a record of another kind, or one of a newer major schema.
    """
    try:
        return decoder(topic)(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(_sentence(topic, value, error)) from error


def _sentence(topic: str, value: bytes, error: Exception) -> str:
    known = ", ".join(str(kind.__struct_config__.tag) for kind in TOPICS[topic].types)
    try:
        found = msgspec.json.decode(value, type=dict[str, Any]).get("schema")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return f"topic {topic}: not a JSON object ({error})"
    if isinstance(found, str) and found not in known.split(", "):
        return f"topic {topic}: record of schema {found!r}, this build reads {known}"
    return f"topic {topic}: {error}"


def cloudevents_headers(record: Verdict | Command | Ack) -> list[tuple[str, bytes]]:
    """CloudEvents 1.0 attributes in Kafka's binary mode, for records that others consume.

    Source: CloudEvents Kafka protocol binding 1.0.2, section 3.2.
    """
    kind = str(record.__struct_config__.tag).partition("/")[0]
    at = {"command": "issued_at", "verdict": "decided_at", "ack": "at"}[kind]
    attributes = {
        "ce_specversion": "1.0",
        "ce_id": record.id,
        "ce_source": "/ringfence",
        "ce_type": f"io.ringfence.{kind}.v1",
        "ce_time": getattr(record, at).isoformat(),
        "content-type": "application/json",
    }
    if not isinstance(record, Verdict):
        attributes["ce_subject"] = record.domain_id
    else:
        attributes["ce_subject"] = record.domain.id
    return [(name, text.encode()) for name, text in attributes.items()]
