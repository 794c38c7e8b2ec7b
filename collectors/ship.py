"""Ships records to Kafka in the background, keeps them while the broker is away.

`Shipper.send` never blocks and never fails; a record is safe when its ``done`` was told so, and
not before. What does not fit in memory goes oldest telemetry first (see `collectors.backlog`).
"""

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from kafka import KafkaProducer
from kafka.errors import (
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)
from msgspec import Struct

from collectors.backlog import Backlog, Parcel, is_telemetry
from evidence.transport import Kafka
from evidence.wire import encode

__all__ = ["Shipper"]

_LOG = logging.getLogger(__name__)

_CONNECT_S = 1.0
_RETRY_S = 0.5
#: Rest after a failure, and how long failures alone make a producer spent: after some errors an
#: idempotent producer refuses everything for the rest of its life.
_PAUSE_S = 0.2
_FAILING_S = 3.0
#: How long a topic that the broker does not know is left alone.
_BLOCK_S = 2.0
#: Kafka's own retries keep a record's place and never double it; ours cannot promise that. So
#: they end only with the process.
_DELIVERY_MS = 24 * 3600 * 1000
#: What no retry changes: the broker refuses this record or this topic for good.
_HOPELESS = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTopicError)


def _ignore(_arrived: bool) -> None:
    """The sender does not ask."""


class Shipper:
    """One idempotent producer (acks=all, lz4) behind a bounded backlog, on a thread of its own.

    At most ``in_flight_bytes`` are with the producer; all else waits in the backlog of
    ``max_bytes``. The thread starts with the first record, waits for a broker as long as it takes
    and for topics that are not there yet, each by itself: it creates none, since their partition
    counts are the cluster's business.
    """

    def __init__(
        self,
        kafka: Kafka,
        *,
        client_id: str = "ringfence-agent",
        max_bytes: int = 64 << 20,
        in_flight_bytes: int = 4 << 20,
        linger_ms: int = 2,
    ) -> None:
        """Make a shipper to one cluster; nothing is connected before the first record."""
        self._kafka = kafka
        self._client_id = client_id
        self._linger_ms = linger_ms
        self._in_flight_limit = in_flight_bytes
        self._backlog = Backlog(max_bytes)
        self._changed = threading.Condition()
        self._number = 0
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._blocked: dict[str, float] = {}
        self._closing = False
        self._failing_since: float | None = None
        self._pause_until = 0.0
        self._said = ""
        self._thread: threading.Thread | None = None
        #: Records that Kafka has, and that it refused for good, by short topic name.
        self.delivered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @property
    def pending(self) -> int:
        """Records that are neither in Kafka nor given up."""
        with self._changed:
            return self._in_flight + len(self._backlog)

    @property
    def crowded(self) -> bool:
        """Whether sources that can wait should: the backlog is half full."""
        with self._changed:
            return self._backlog.crowded

    @property
    def dropped(self) -> dict[str, int]:
        """Records dropped for want of memory, by short topic name."""
        with self._changed:
            return dict(self._backlog.dropped)

    def send(
        self,
        topic: str,
        key: str | bytes,
        record: Struct,
        done: Callable[[bool], None] = _ignore,
    ) -> None:
        """Queue a record for a topic (short name); ``key`` is the host's or the job's name.

        ``done`` is called once, from another thread: True when all in-sync replicas have the
        record, False when it was dropped for want of memory or refused for good.
        Raises RuntimeError after `close`.
        """
        value = encode(record)
        key = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
        with self._changed:
            if self._closing:
                raise RuntimeError("the shipper is closed")
            self._number += 1
            parcel = Parcel(self._number, topic, key, value, is_telemetry(record), done)
            gone = self._backlog.add(parcel)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shipper", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        for parcel in gone:
            parcel.done(False)

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; False when that took longer than ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._in_flight and not len(self._backlog), timeout_s
            )

    def close(self, timeout_s: float = 5.0) -> int:
        """Send what is pending, within ``timeout_s``, and end; return how many were left."""
        self.flush(timeout_s)
        with self._changed:
            self._closing = True
            left = self._in_flight + len(self._backlog)
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(2 * _CONNECT_S)
        return left

    def _run(self) -> None:
        while not self._closing:
            producer = self._connect()
            if producer is None:
                self._wait(_RETRY_S)
                continue
            self._failing_since = None
            try:
                self._pump(producer)
            finally:
                _drop(producer)

    def _pump(self, producer: KafkaProducer) -> None:
        while not self._closing and not self._failing():
            parcel = self._next()
            if parcel is None:
                continue
            try:
                future = producer.send(
                    self._kafka.topic(parcel.topic), value=parcel.value, key=parcel.key
                )
            except KafkaTimeoutError:
                self._block(parcel, "is not there yet or the broker is away")
            except TopicAuthorizationFailedError:
                self._block(parcel, "may not be written by this client")
            except _HOPELESS as error:
                self._refuse(parcel, error)
            except KafkaError as error:
                self._failed(parcel, error)
            else:
                future.add_callback(self._arrived, parcel)
                future.add_errback(self._failed, parcel)

    def _failing(self) -> bool:
        """Whether nothing arrived and something failed for so long that this producer is spent."""
        since = self._failing_since
        return since is not None and time.monotonic() - since > _FAILING_S

    def _next(self) -> Parcel | None:
        """The next parcel, counted as in flight; None when there is none to send for now."""
        with self._changed:
            now = time.monotonic()
            self._blocked = {topic: at for topic, at in self._blocked.items() if at > now}
            full = self._in_flight_bytes >= self._in_flight_limit
            parcel = None if full or now < self._pause_until else self._backlog.take(self._blocked)
            if parcel is None:
                self._changed.wait(max(0.0, self._pause_until - now) or _RETRY_S)
                return None
            self._in_flight += 1
            self._in_flight_bytes += len(parcel.value)
            return parcel

    def _connect(self) -> KafkaProducer | None:
        try:
            _knock(self._kafka)
            producer = KafkaProducer(
                **self._kafka.client(),
                client_id=self._client_id,
                acks="all",
                enable_idempotence=True,
                compression_type="lz4",
                linger_ms=self._linger_ms,
                delivery_timeout_ms=_DELIVERY_MS,
                request_timeout_ms=10_000,
                max_block_ms=1_000,
                bootstrap_timeout_ms=5_000,
                reconnect_backoff_max_ms=1_000,
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
        except (KafkaError, OSError, ValueError) as error:
            self._say(f"Kafka at {self._kafka.bootstrap} does not answer, records wait: {error}")
            return None
        self._say(f"connected to Kafka at {self._kafka.bootstrap}", logging.INFO)
        return producer

    def _arrived(self, parcel: Parcel, _metadata: Any) -> None:  # noqa: ANN401
        parcel.done(True)
        with self._changed:
            self._land(parcel)
            self._failing_since = None
            self.delivered[parcel.topic] += 1
            self._changed.notify_all()

    def _failed(self, parcel: Parcel, error: Exception) -> None:
        if isinstance(error, _HOPELESS):
            self._refuse(parcel, error)
            return
        self._say(f"a record for {parcel.topic} did not arrive and is sent again: {error!r}")
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        self._pause_until = now + _PAUSE_S
        self._return(parcel)

    def _return(self, parcel: Parcel) -> None:
        with self._changed:
            self._land(parcel)
            self._backlog.put_back(parcel)
            self._changed.notify_all()

    def _block(self, parcel: Parcel, why: str) -> None:
        self._say(f"topic {self._kafka.topic(parcel.topic)} {why}, its records wait")
        with self._changed:
            self._blocked[parcel.topic] = time.monotonic() + _BLOCK_S
        self._return(parcel)

    def _refuse(self, parcel: Parcel, error: Exception) -> None:
        _LOG.error(
            "a record of %d bytes for %s is given up: %s", len(parcel.value), parcel.topic, error
        )
        parcel.done(False)
        with self._changed:
            self._land(parcel)
            self.refused[parcel.topic] += 1
            self._changed.notify_all()

    def _land(self, parcel: Parcel) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= len(parcel.value)

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)

    def _say(self, sentence: str, level: int = logging.WARNING) -> None:
        """Log a state when it changes, not every time it is met."""
        if sentence != self._said:
            self._said = sentence
            _LOG.log(level, "%s", sentence)


def _drop(producer: KafkaProducer) -> None:
    """Close a producer now; what it still held comes back by its futures' errors."""
    try:
        producer.close(timeout=0)
    except KafkaError:
        # kafka-python 3.0.12 raises from the flush inside close() and leaves its thread running.
        producer._sender.force_close()  # noqa: SLF001
        producer._sender.wakeup()  # noqa: SLF001


def _knock(kafka: Kafka) -> None:
    """Raise OSError when no bootstrap server takes a connection.

    A producer that fails to be built leaves its sockets to the garbage collector; while a broker
    is away one would be built every half second.
    """
    refused: OSError | None = None
    for server in kafka.bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
                return
        except OSError as error:
            refused = error
    raise refused or OSError("no bootstrap server is named")
