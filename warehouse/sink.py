"""Kafka to Parquet, every record once: read, buffer, publish a file, and only then move on.

No consumer group and no committed offset: the files themselves say where each partition goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError

from evidence.topics import TOPICS
from evidence.transport import Kafka, TransportError
from vitals.address import listen_address
from vitals.clients import Standstill, made
from vitals.http import Server
from warehouse import upkeep
from warehouse.compaction import Compaction
from warehouse.files import prepare
from warehouse.kinds import KINDS
from warehouse.logs import Found, Resume, discover, end_by_reading, resume
from warehouse.metrics import SinkCounts, SinkMetrics
from warehouse.partition import Partition, Policy
from warehouse.refill import Place, refill
from warehouse.retention import KEEP_DAYS, check

__all__ = ["SinkConfig", "run"]

_LOG = logging.getLogger(__name__)

_POLL_MS = 200
_RETRY_S = 1.0
#: One poll's worth of messages: large enough that the loop around it costs nothing.
_MAX_POLL_RECORDS = 2000
_PARTITION_FETCH_BYTES = 4 << 20
_TIMEOUT_MS = 10_000
#: How often a sink looks whether a damaged file was set aside.
_REFILL_S = 60.0


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """What a sink stores, where, and how soon.

    A partition's buffer becomes a file when it holds ``flush_records`` messages or ``flush_bytes``
    of them, or when its oldest record has waited ``flush_s``. To keep the number of files small,
    GPU and fabric samples wait ``bulk_flush_s``, a busy log (any but verdicts, requests, commands,
    states and acks) has that long from file to file, and ticks that came alone wait
    ``tick_flush_s``. All buffers together hold at most ``buffer_bytes`` of messages; a file in the
    making takes about three times its messages. Several sinks share the partitions by ``index`` of
    ``count``; two sinks of the same index are safe, but do the same work.

    With ``compact`` a process beside the sink rewrites closed days and takes out those older than
    ``retain_days`` of their kind (see `warehouse.compaction.Compaction`, `warehouse.retention`);
    otherwise that is left to whoever runs ``ringfence compact`` and ``ringfence retain``.
    """

    kafka: Kafka
    root: Path
    flush_records: int = 100_000
    flush_s: float = 2.0
    bulk_flush_s: float = 60.0
    tick_flush_s: float = 900.0
    flush_bytes: int = 32 << 20
    buffer_bytes: int = 128 << 20
    topics: tuple[str, ...] = tuple(TOPICS)
    index: int = 0
    count: int = 1
    discover_s: float = 5.0
    compression: str = "zstd"
    metrics_listen: str = "127.0.0.1:9457"
    compact: bool = False
    close_after_s: float = 3600.0
    keep_small_s: float = 900.0
    compact_file_rows: int = 16_000_000
    compact_memory_mib: int = 1024
    retain_days: Mapping[str, int] = field(default_factory=lambda: dict(KEEP_DAYS))

    def __post_init__(self) -> None:
        if self.metrics_listen:
            listen_address(self.metrics_listen)

    @property
    def compaction(self) -> Compaction:
        """How closed days are rewritten."""
        return Compaction(
            close_after_s=self.close_after_s,
            keep_small_s=self.keep_small_s,
            file_rows=self.compact_file_rows,
            memory_mib=self.compact_memory_mib,
            compression=self.compression,
        )


def run(
    config: SinkConfig,
    stop: threading.Event,
    at_point: Callable[[str], None] = lambda _point: None,
) -> None:
    """Store what the topics carry until ``stop`` is set; then store what is buffered and return.

    Brokers that do not answer are waited for. ``at_point`` is told each step of publishing a file
    (see `warehouse.files.publish`). Raises SinkError where nothing can be stored at all.
    """
    check(config.retain_days)
    prepare(config.root)
    with ExitStack() as held:
        if config.compact:
            held.enter_context(upkeep.beside(config.root, config.compaction, config.retain_days))
        _run(config, stop, at_point)


def _run(config: SinkConfig, stop: threading.Event, at_point: Callable[[str], None]) -> None:
    sink = _Sink(config, stop, at_point)
    server = Server.start(config.metrics_listen, SinkMetrics(sink.counts, sink.partitions))
    try:
        _store(config, sink, stop)
    finally:
        if server is not None:
            server.close()


def _store(config: SinkConfig, sink: "_Sink", stop: threading.Event) -> None:
    _LOG.info(
        "storing %d topics of %s under %s", len(config.topics), config.kafka.bootstrap, config.root
    )
    complaint = ""
    while not stop.is_set():
        try:
            sink.session()
            complaint = ""
        except (KafkaError, TransportError) as error:
            if str(error) != complaint:
                _LOG.warning("no answer from Kafka, trying again: %s", error)
            complaint = str(error)
            sink.counts.errors["kafka"] += 1
            sink.flush_due(time.monotonic())
            stop.wait(_RETRY_S)
    sink.flush_all()
    _LOG.info("stopped after %d rows", sink.stored_rows())


class _Sink:
    """The partitions this sink stores; their buffers outlive a lost connection."""

    def __init__(
        self, config: SinkConfig, stop: threading.Event, at_point: Callable[[str], None]
    ) -> None:
        self._config = config
        self._stop = stop
        self._policy = Policy(
            root=config.root,
            flush_records=config.flush_records,
            flush_s=config.flush_s,
            bulk_flush_s=config.bulk_flush_s,
            tick_flush_s=config.tick_flush_s,
            flush_bytes=config.flush_bytes,
            compression=config.compression,
            at_point=at_point,
        )
        self._refill_at = 0.0
        self.counts = SinkCounts()
        self.partitions: dict[TopicPartition, Partition] = {}
        self._found: dict[TopicPartition, Found] = {}
        self._rows_of_gone = 0

    def session(self) -> None:
        """Read over one connection until the sink stops; raises KafkaError when it fails."""
        admin = _admin(self._config.kafka)
        try:
            consumer = _consumer(self._config.kafka)
            try:
                self.counts.consumer = consumer
                self._read(admin, consumer)
                # Let the fetch under way end: kafka-python 3.0.12 logs a traceback when the
                # connection is closed while its thread reads from it.
                consumer.unsubscribe()
                time.sleep(2 * _POLL_MS / 1000)
            finally:
                self.counts.consumer = None
                consumer.close(autocommit=False, timeout_ms=1000)
        finally:
            admin.close()

    def _read(self, admin: KafkaAdminClient, consumer: KafkaConsumer) -> None:
        discover_at = 0.0
        standstill = Standstill()
        while not self._stop.is_set():
            now = self.counts.turned = time.monotonic()
            standstill.look(consumer)
            if now >= discover_at:
                self._discover(admin, consumer)
                discover_at = now + self._config.discover_s
            if now >= self._refill_at:
                self._refill()
                self._refill_at = now + _REFILL_S
            try:
                batches = consumer.poll(timeout_ms=self._poll_ms(now))
            except (OffsetOutOfRangeError, LogTruncationError) as error:
                _LOG.warning("a position is no longer there: %s", error)
                self._discover(admin, consumer)  # the topic may be another one by now
                self._place(consumer, list(self.partitions))
                continue
            now = time.monotonic()
            for place, fetched in batches.items():
                self.partitions[place].add(fetched, now)
            self.flush_due(now)

    def _discover(self, admin: KafkaAdminClient, consumer: KafkaConsumer) -> None:
        """Take up partitions that are new, or whose topic was made anew; never drop one."""
        found = discover(admin, self._config.kafka, self._config.topics)
        changed = [one for one in found if self._is_mine(one) and one != self._found.get(one.place)]
        files: dict[str, dict[tuple[int, str], Resume]] = {}
        for one in changed:
            kind = KINDS[one.topic]
            if one.topic not in files:
                files[one.topic] = resume(self._config.root, kind)
            if one.place in self.partitions:
                _LOG.warning(
                    "topic %s is another one than before: its offsets begin anew", one.place.topic
                )
            place = (one.place.partition, one.base)
            self._replace(one, files[one.topic].get(place, Resume(0, 0)))
        fresh = set(self.partitions) - consumer.assignment()
        if fresh:
            consumer.assign(list(self.partitions))
        if fresh or changed:
            self._place(consumer, list(fresh | {one.place for one in changed}))

    def _refill(self) -> None:
        """Read what damaged files held from Kafka again."""
        places = [
            Place(place, self.partitions[place].log_id, found.topic)
            for place, found in self._found.items()
        ]
        try:
            refill(
                self._config.root,
                places,
                lambda: _consumer(self._config.kafka),
                compression=self._config.compression,
                flush_records=self._config.flush_records,
            )
        except OSError as error:
            _LOG.warning("cannot store again what a damaged file held: %s", error)

    def _is_mine(self, one: Found) -> bool:
        number = list(TOPICS).index(one.topic) + one.place.partition
        return bool(number % self._config.count == self._config.index)

    def _replace(self, one: Found, at: Resume) -> None:
        before = self.partitions.get(one.place)
        if before is not None:
            self._flush(before)
            self._rows_of_gone += before.stored_rows
        self._found[one.place] = one
        self.partitions[one.place] = Partition(
            kind=KINDS[one.topic],
            topic=one.place.topic,
            base=one.base,
            rounds=at.rounds,
            number=one.place.partition,
            start=at.start,
            policy=self._policy,
        )

    def _place(self, consumer: KafkaConsumer, places: list[TopicPartition]) -> None:
        """Set the consumer to where each partition goes on, as far as Kafka still has that."""
        begins = consumer.beginning_offsets(places)
        ends = consumer.end_offsets(places)
        for place in places:
            partition = self.partitions[place]
            if partition.next > ends[place]:
                ends[place] = self._end(place, begins[place], ends[place])
            if partition.next > ends[place]:
                _LOG.error(
                    "%s ends at offset %d, but was stored up to %d: its log was cut back; "
                    "what it has now is stored as another round",
                    partition,
                    ends[place],
                    partition.next,
                )
                self._replace(self._found[place], Resume(partition.rounds + 1, 0))
                partition = self.partitions[place]
            if 0 < partition.next < begins[place]:
                _LOG.error(
                    "%s: offsets %d to %d were removed by retention before they were stored",
                    partition,
                    partition.next,
                    begins[place] - 1,
                )
            consumer.seek(place, max(partition.next, begins[place]))

    def _end(self, place: TopicPartition, begin: int, end: int) -> int:
        reader = _consumer(self._config.kafka)
        try:
            return end_by_reading(reader, place, begin, end)
        finally:
            reader.close(autocommit=False, timeout_ms=1000)

    def _poll_ms(self, now: float) -> int:
        dues = [one.due_in_s(now) for one in self.partitions.values()]
        soonest = min((due for due in dues if due is not None), default=_POLL_MS / 1000)
        return max(1, min(_POLL_MS, int(soonest * 1000)))

    def flush_due(self, now: float) -> None:
        """Store the buffers whose time or size has come, the largest first when memory is short."""
        for partition in self.partitions.values():
            due = partition.due_in_s(now)
            if due is not None and due <= 0:
                self._flush(partition)
        by_size = sorted(self.partitions.values(), key=lambda one: one.size)
        while by_size and sum(one.size for one in by_size) > self._config.buffer_bytes:
            self._flush(by_size.pop())
            if self._stop.is_set():
                return

    def flush_all(self) -> None:
        """Store every buffer; what the disk refuses now is still in Kafka for the next start."""
        for partition in self.partitions.values():
            self._flush(partition)

    def stored_rows(self) -> int:
        """Rows stored since the start."""
        return self._rows_of_gone + sum(one.stored_rows for one in self.partitions.values())

    def _flush(self, partition: Partition) -> None:
        while True:
            now = self.counts.turned = time.monotonic()
            rows, size = partition.stored_rows, partition.size
            try:
                if partition.flush(now) is not None:
                    rows = partition.stored_rows - rows
                    self.counts.store(partition.kind.topic, rows, size)
            except OSError as error:
                self.counts.errors["storage"] += 1
                _LOG.warning(
                    "cannot store %s (%s), reading nothing until that works", partition, error
                )
                if self._stop.wait(_RETRY_S):
                    return
            else:
                return


def _consumer(kafka: Kafka) -> KafkaConsumer:
    return made(
        KafkaConsumer,
        **kafka.client(),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        allow_auto_create_topics=False,
        max_poll_records=_MAX_POLL_RECORDS,
        max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
        fetch_max_wait_ms=_POLL_MS,
        request_timeout_ms=_TIMEOUT_MS,
        bootstrap_timeout_ms=_TIMEOUT_MS,
        reconnect_backoff_max_ms=1000,
        metrics_enabled=False,
    )


def _admin(kafka: Kafka) -> KafkaAdminClient:
    return made(
        KafkaAdminClient,
        **kafka.client(),
        request_timeout_ms=_TIMEOUT_MS,
        bootstrap_timeout_ms=_TIMEOUT_MS,
    )
