"""Reads topics for a drill: once up to their ends, and from there on."""

import time
from collections.abc import Iterator
from typing import Any, Self

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from evidence.records import DrillRecord, Tick
from evidence.topics import CLUSTER_KEY, TOPICS
from evidence.transport import Kafka
from evidence.wire import DecodeError, decode, encode
from ringfence.drills.plan import DrillError
from vitals.clients import made

__all__ = ["Reader"]

#: Messages of a partition that are read at most of what is there already, the newest.
_MOST = 200_000
_READ_WITHIN_S = 60.0
_SEND_WITHIN_S = 15.0


class Reader:
    """Topics by their short names; a context manager.

    ``past`` reads to the ends as they are when it is called, ``news`` what came after. Both leave
    out ticks and what cannot be decoded. Raises DrillError where Kafka does not answer.
    """

    def __init__(self, kafka: Kafka, *topics: str) -> None:
        self._kafka = kafka
        self._topics = topics
        within_ms = int(min(_SEND_WITHIN_S, kafka.start_within_s) * 1000)
        try:
            self._consumer = made(KafkaConsumer,
                **kafka.client(), group_id=None, enable_auto_commit=False,
                reconnect_backoff_max_ms=500, bootstrap_timeout_ms=within_ms,
            )  # fmt: skip
            self._producer = made(KafkaProducer,
                **kafka.client(), acks="all", max_block_ms=within_ms,
                reconnect_backoff_max_ms=500, bootstrap_timeout_ms=within_ms,
            )  # fmt: skip
        except KafkaTimeoutError as error:
            raise DrillError(f"No Kafka answers at {kafka.bootstrap}.") from error
        except (KafkaError, OSError) as error:
            raise DrillError(f"Kafka at {kafka.bootstrap} cannot be used: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close(timeout_ms=1000)
        self._producer.close(timeout=1)

    def past(self) -> Iterator[tuple[str, Any]]:
        """What is there, by topic's short name, in the order of each partition."""
        places = [
            TopicPartition(self._kafka.topic(topic), number)
            for topic in self._topics
            for number in range(TOPICS[topic].partitions(self._kafka.partitions))
        ]
        try:
            self._consumer.assign(places)
            ends = self._consumer.end_offsets(places)
            begins = self._consumer.beginning_offsets(places)
            for place in places:
                self._consumer.seek(place, max(begins[place], ends[place] - _MOST))
            deadline = time.monotonic() + _READ_WITHIN_S
            while any(self._consumer.position(place) < end for place, end in ends.items()):
                if time.monotonic() > deadline:
                    raise DrillError(f"Kafka was not read within {_READ_WITHIN_S:g} s.")
                yield from self._poll(200)
        except KafkaError as error:
            raise DrillError(f"Kafka cannot be read: {error}") from error

    def news(self, wait_ms: int) -> Iterator[tuple[str, Any]]:
        """What came since; nothing while Kafka is away."""
        try:
            yield from self._poll(wait_ms)
        except KafkaError:
            time.sleep(wait_ms / 1000)

    def tell(self, record: DrillRecord) -> None:
        """Put a drill's record into Kafka, and wait until it is there."""
        self.send("drills", record)

    def send(self, topic: str, record: Any) -> None:  # noqa: ANN401 (a struct of evidence)
        """Send one record of a cluster-keyed topic. Raises DrillError where it is not taken."""
        try:
            name = self._kafka.topic(topic)
            self._producer.send(name, key=CLUSTER_KEY, value=encode(record)).get(_SEND_WITHIN_S)
        except KafkaError as error:
            raise DrillError(f"Kafka did not take the record of {topic}: {error}") from error

    def _poll(self, wait_ms: int) -> Iterator[tuple[str, Any]]:
        for place, messages in self._consumer.poll(timeout_ms=wait_ms).items():
            topic = place.topic.removeprefix(self._kafka.prefix)
            for message in messages:
                try:
                    record = decode(topic, message.value or b"")
                except DecodeError:
                    continue
                if not isinstance(record, Tick):
                    yield topic, record
