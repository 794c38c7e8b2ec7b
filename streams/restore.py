"""Reads back what is isolated, from the compacted state topic, for a stage that has no state.

Without it a worker whose table is gone would not know what is out already, and isolate it again.
"""

import logging
import time
from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from evidence.decisions import Action, Command, DesiredState
from evidence.transport import Kafka
from evidence.wire import DecodeError, decode
from streams.config import StreamsError
from vitals.clients import made

__all__ = ["desired_states", "out_by_commands"]

_LOG = logging.getLogger(__name__)
_TOPIC = "isolation.state"
_COMMANDS = "isolation.commands"
_POLL_MS = 200
_RETRY_S = 0.5
#: A consumer that gets no further for so long is replaced by another.
_ANSWER_S = 5.0


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
    """All messages of a topic that is there, to its end; goes on behind a broker that dies."""
    topic = kafka.topic(name)
    until = time.monotonic() + within_s
    read_to: dict[TopicPartition, int] = {}
    while True:
        try:
            yield from _read(kafka, topic, read_to, until)
        except KafkaError as error:
            if time.monotonic() > until:
                raise StreamsError(
                    f"{topic} could not be read to its end in {within_s:.0f} s: {error}"
                ) from error
            _LOG.warning("%s is read on: %s", topic, error)
            time.sleep(_RETRY_S)
        else:
            return


def _read(
    kafka: Kafka, topic: str, read_to: dict[TopicPartition, int], until: float
) -> Iterator[Any]:
    """With one consumer, from ``read_to`` on, which is kept; raises KafkaError."""
    answer_ms = int(_ANSWER_S * 1000)
    consumer = made(
        KafkaConsumer,
        **kafka.client(),
        group_id=None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        bootstrap_timeout_ms=max(1, int((until - time.monotonic()) * 1000)),
        reconnect_backoff_max_ms=1000,
    )
    try:
        numbers = consumer.partitions_for_topic(topic)
        if not numbers:  # it is there: a broker that just came back may not know yet
            raise KafkaTimeoutError(f"no broker knows {topic}")
        parts = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(parts)
        begins = consumer.beginning_offsets(parts, timeout_ms=answer_ms)
        ends = consumer.end_offsets(parts, timeout_ms=answer_ms)
        for part in parts:
            consumer.seek(part, max(begins[part], read_to.get(part, 0)))
        moved = time.monotonic()
        polled = consumer.poll(timeout_ms=_POLL_MS)
        # On to an empty poll: the embedded broker tells the end of a large last batch too early.
        while polled or any(
            consumer.position(part, timeout_ms=answer_ms) < ends[part] for part in parts
        ):
            for part, messages in polled.items():
                yield from messages
                read_to[part] = messages[-1].offset + 1
                moved = time.monotonic()
            if time.monotonic() > min(until, moved + _ANSWER_S):
                raise KafkaTimeoutError("no broker sends more of it")
            polled = consumer.poll(timeout_ms=_POLL_MS)
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


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
