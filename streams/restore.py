"""Reads back what is isolated, from the compacted state topic, for a stage that has no state.

Without it a worker whose table is gone would not know what is out already, and isolate it again.
"""

import logging
import time

from kafka import KafkaConsumer, TopicPartition

from evidence.decisions import DesiredState
from evidence.transport import Kafka
from evidence.wire import DecodeError, decode
from streams.config import StreamsError

__all__ = ["desired_states"]

_LOG = logging.getLogger(__name__)
_TOPIC = "isolation.state"
_POLL_MS = 200


def desired_states(kafka: Kafka, *, within_s: float = 30.0) -> list[DesiredState]:
    """The last state of every domain, in order of the topic; empty on a first install.

    Raises StreamsError when the topic cannot be read to its end in time.
    """
    consumer = KafkaConsumer(
        **kafka.client(), group_id=None, auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        topic = kafka.topic(_TOPIC)
        numbers = consumer.partitions_for_topic(topic) or ()
        parts = [TopicPartition(topic, number) for number in numbers]
        if not parts:
            return []
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        latest: dict[bytes, DesiredState] = {}
        until = time.monotonic() + within_s
        polled = consumer.poll(timeout_ms=_POLL_MS)
        # On to an empty poll: the embedded broker tells the end of a large last batch too early.
        while polled or any(consumer.position(part) < ends[part] for part in parts):
            if time.monotonic() > until:
                raise StreamsError(f"{topic} could not be read to its end in {within_s:.0f} s.")
            for messages in polled.values():
                for message in messages:
                    _take(latest, message.key or b"", message.value)
            polled = consumer.poll(timeout_ms=_POLL_MS)
    finally:
        consumer.close()
    return list(latest.values())


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
