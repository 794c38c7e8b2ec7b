"""Reads back what is isolated, from the compacted state topic, for a stage that has no state.

Without it a worker whose table is gone would not know what is out already, and isolate it again.
"""

import logging
import time
from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from evidence.decisions import Action, Command, DesiredState
from evidence.transport import Kafka
from evidence.wire import DecodeError, decode
from streams.config import StreamsError

__all__ = ["desired_states", "out_by_commands"]

_LOG = logging.getLogger(__name__)
_TOPIC = "isolation.state"
_COMMANDS = "isolation.commands"
_POLL_MS = 200


def desired_states(kafka: Kafka, *, within_s: float = 30.0) -> list[DesiredState]:
    """The last state of every domain, in order of the topic; empty on a first install.

    Raises StreamsError when the topic cannot be read to its end in time.
    """
    latest: dict[bytes, DesiredState] = {}
    for message in _messages(kafka, _TOPIC, within_s):
        _take(latest, message.key or b"", message.value)
    return list(latest.values())


def out_by_commands(kafka: Kafka, *, within_s: float = 30.0) -> list[str]:
    """Domains whose last real command took them out, by the topic of commands, sorted.

    Where the topic of states knows of none of them, it was lost: what is out is not known then.
    Raises StreamsError when the topic cannot be read to its end in time.
    """
    last: dict[str, Command] = {}
    for message in _messages(kafka, _COMMANDS, within_s):
        if message.value is None:
            continue
        try:
            command = decode(_COMMANDS, message.value)
        except DecodeError as error:
            _LOG.warning("a command is left out: %s", error)
            continue
        if isinstance(command, Command) and not command.dry_run and command.held is None:
            last[command.domain_id] = command
    return sorted(name for name, one in last.items() if one.action is Action.ISOLATE)


def _messages(kafka: Kafka, name: str, within_s: float) -> Iterator[Any]:
    """All messages of a topic, to its end."""
    consumer = KafkaConsumer(
        **kafka.client(), group_id=None, auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        topic = kafka.topic(name)
        numbers = consumer.partitions_for_topic(topic) or ()
        parts = [TopicPartition(topic, number) for number in numbers]
        if not parts:
            return
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        until = time.monotonic() + within_s
        polled = consumer.poll(timeout_ms=_POLL_MS)
        # On to an empty poll: the embedded broker tells the end of a large last batch too early.
        while polled or any(consumer.position(part) < ends[part] for part in parts):
            if time.monotonic() > until:
                raise StreamsError(f"{topic} could not be read to its end in {within_s:.0f} s.")
            for messages in polled.values():
                yield from messages
            polled = consumer.poll(timeout_ms=_POLL_MS)
    finally:
        consumer.close()


def _take(latest: dict[bytes, DesiredState], key: bytes, value: bytes | None) -> None:
    latest.pop(key, None)
    if value is None:
        return
    try:
        record = decode(_TOPIC, value)
    except DecodeError as error:
        _LOG.warning("a desired state is left out: %s", error)
    else:
        latest[key] = record
