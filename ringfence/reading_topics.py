"""Reads the ends of topics for a person: bounded in time and amount, without a consumer group."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError
from msgspec import Struct

from evidence.records import Tick
from evidence.topics import TOPICS
from evidence.transport import Kafka, TransportError
from evidence.wire import DecodeError, decode
from vitals.clients import made

__all__ = ["ReadError", "read_topics"]

#: So much of the end of each topic is read: weeks of a cluster's decisions.
_LAST = 50_000
_POLL_MS = 300


class ReadError(Exception):
    """A topic cannot be read; the message is one sentence."""


def read_topics(kafka: Kafka, names: Iterable[str], *, within_s: float = 15.0) -> Iterator[Struct]:
    """The records of several topics (short names), one topic after the other; ticks are left out.

    Of a topic that is not compacted the last `_LAST` messages are read. A compacted one's keys that
    are gone are not told. Raises ReadError where it cannot be read in time.
    """
    start_s = min(within_s, kafka.start_within_s)
    try:
        consumer = made(
            KafkaConsumer,
            **kafka.client(),
            group_id=None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            bootstrap_timeout_ms=int(start_s * 1000),
        )
    except KafkaTimeoutError as error:
        raise ReadError(f"No Kafka answers at {kafka.bootstrap} within {start_s:g} s.") from error
    except (KafkaError, OSError, TransportError) as error:
        raise ReadError(f"Kafka at {kafka.bootstrap} cannot be used: {error}") from error
    until = time.monotonic() + within_s
    try:
        for name in names:
            for message in _messages(kafka, consumer, name, until, within_s):
                try:
                    record = decode(name, message.value)
                except DecodeError:
                    continue  # the worker has put it among the dead letters
                if type(record) is not Tick:
                    yield record
    except KafkaError as error:
        raise ReadError(f"Kafka at {kafka.bootstrap} cannot be read: {error}") from error
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def _messages(
    kafka: Kafka,
    consumer: Any,  # noqa: ANN401 (kafka-python is untyped)
    name: str,
    until: float,
    within_s: float,
) -> Iterator[Any]:
    topic = kafka.topic(name)
    parts = [TopicPartition(topic, n) for n in sorted(consumer.partitions_for_topic(topic) or ())]
    if not parts:
        return
    consumer.assign(parts)
    ends, begins = consumer.end_offsets(parts), consumer.beginning_offsets(parts)
    for part in parts:
        first = begins[part] if TOPICS[name].compacted else ends[part] - _LAST
        consumer.seek(part, max(begins[part], first))
    latest: dict[bytes | None, Any] = {}
    polled = consumer.poll(timeout_ms=_POLL_MS)
    # On to an empty poll: the embedded broker tells the end of a large last batch too early.
    while polled or any(consumer.position(part) < ends[part] for part in parts):
        if time.monotonic() > until:
            raise ReadError(f"{topic} could not be read to its end in {within_s:g} s.")
        for messages in polled.values():
            if TOPICS[name].compacted:
                latest |= {message.key: message for message in messages}
            else:
                yield from (message for message in messages if message.value is not None)
        if all(consumer.position(part) >= ends[part] for part in parts):
            break
        polled = consumer.poll(timeout_ms=_POLL_MS)
    yield from (message for message in latest.values() if message.value is not None)
