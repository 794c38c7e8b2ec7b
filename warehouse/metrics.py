"""A sink's figures for Prometheus: what it stored, what waits, how far it is behind."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import TopicPartition
from prometheus_client.metrics_core import Metric

from vitals.families import Values, counter, gauge, info
from warehouse.partition import Partition

__all__ = ["SinkCounts", "SinkMetrics"]

#: A turn of the loop may store many files on a slow disk or object store.
_STUCK_S = 120.0


@dataclass(slots=True)
class SinkCounts:
    """Plain numbers of one sink, written by its loop.

    ``turned`` is when the loop last went round (monotonic), ``consumer`` what it reads with while
    it has a connection; the counters are by topic, in rows, files and bytes of messages, or by what
    went wrong.
    """

    turned: float = field(default_factory=time.monotonic)
    consumer: Any = None
    rows: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    message_bytes: Counter[str] = field(default_factory=Counter)
    stored_at: float | None = None
    errors: Counter[str] = field(default_factory=Counter)

    def store(self, topic: str, rows: int, message_bytes: int) -> None:
        """Note one file of a topic (short name)."""
        self.rows[topic] += rows
        self.files[topic] += 1
        self.message_bytes[topic] += message_bytes
        self.stored_at = time.time()


class SinkMetrics:
    """A sink's figures, health and readiness."""

    def __init__(
        self,
        counts: SinkCounts,
        partitions: Mapping[TopicPartition, Partition],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = counts
        self._partitions = partitions
        self._clock = clock

    @property
    def healthy(self) -> bool:
        """Whether the loop goes round, whatever Kafka and the disk are like."""
        return self._clock() - self._counts.turned < _STUCK_S

    @property
    def ready(self) -> bool:
        """Whether it reads."""
        return self.healthy and self._counts.consumer is not None and bool(self._partitions)

    def collect(self) -> Iterable[Metric]:
        """Every figure as it is now."""
        counts = self._counts
        yield info("ringfence_sink", "A sink")
        words = "1 while it has a connection to Kafka"
        connected = counts.consumer is not None
        yield gauge("ringfence_sink_connected", words, (), {(): float(connected)})
        for name, said, by_topic in (
            ("rows", "Rows stored", counts.rows),
            ("files", "Files stored", counts.files),
            ("message_bytes", "Bytes of messages stored", counts.message_bytes),
        ):
            yield counter(f"ringfence_sink_{name}", said, ("topic",), _single(by_topic))
        words = "Turns that Kafka or the storage refused, by which of them"
        yield counter("ringfence_sink_errors", words, ("what",), _single(counts.errors))
        stored: Values = {(): counts.stored_at}
        yield gauge("ringfence_sink_stored_timestamp_seconds", "When it last stored", (), stored)
        yield from self._waiting()

    def _waiting(self) -> Iterable[Metric]:
        consumer, now = self._counts.consumer, self._clock()
        lag: dict[tuple[str, ...], float | None] = {}
        size: Counter[tuple[str, ...]] = Counter()
        age: dict[tuple[str, ...], float] = {}
        for place, one in dict(self._partitions).items():
            topic = one.kind.topic
            lag[topic, str(place.partition)] = _behind(consumer, place, one)
            size[topic,] += one.size
            age[topic,] = max(age.get((topic,), 0.0), one.waited_s(now))
        words = "Messages in Kafka that it has not read"
        yield gauge("ringfence_sink_lag_messages", words, ("topic", "partition"), lag)
        words = "Bytes of messages read and not yet stored"
        yield gauge("ringfence_sink_buffered_bytes", words, ("topic",), size)
        words = "How long the oldest message read has waited to be stored"
        yield gauge("ringfence_sink_buffered_seconds", words, ("topic",), age)


def _behind(consumer: Any, place: TopicPartition, one: Partition) -> float | None:  # noqa: ANN401
    try:
        end = None if consumer is None else consumer.highwater(place)
    except Exception:  # noqa: BLE001 (closed or reassigned at this moment)
        return None
    return None if end is None else max(0, end - one.next)


def _single(counted: Counter[str]) -> Values:
    return {(name,): count for name, count in counted.copy().items()}
