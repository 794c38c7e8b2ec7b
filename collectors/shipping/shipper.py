"""Ships records to Kafka in the background; keeps them in memory, then on disk, while it is away.

`Shipper.send` never blocks and never fails; a record is safe when its ``done`` was told so, and
not before: Kafka has it, or the spool has it on the disk. What fits in neither goes oldest
telemetry first, and is told as a record of its own (`collectors.shipping.spool_loss`).
"""

import contextlib
import logging
import random
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, TopicAuthorizationFailedError
from msgspec import Struct

from collectors.shipping.backlog import Backlog, Parcel, event_time, ignore, is_telemetry
from collectors.shipping.ledger import HOPELESS, Ledger
from collectors.shipping.packing import pack
from collectors.shipping.producer import NotConnectedError, connect, let_go
from collectors.shipping.spool_loss import fact
from evidence.transport import Kafka

__all__ = ["Shipper"]

_LOG = logging.getLogger(__name__)

#: Between two attempts to connect, doubled up to the second: thousands of nodes do it at once.
_RETRY_S = (0.25, 5.0)
#: Each request costs a millisecond of processor time (kafka-python, measured), so telemetry waits
#: for company. Evidence leaves at once, until it comes so often that it has company too: it may
#: ``burst`` times, and once more for every such while.
_COMPANY_S = 0.5
_AT_ONCE_S = 0.02
#: Records handed to the producer in one go.
_HANDFUL = 500
#: Kafka answers as long as nothing waits for it longer than this.
_SILENT_S = 5.0
#: Who asks for haste is served by the disk when Kafka takes longer than this.
_HASTY_S = 1.0
#: kafka-python refuses larger requests (max_request_size), and the default broker does.
_LARGEST = (1 << 20) - 256


class Shipper:
    """One idempotent producer (acks=all, lz4) behind a bounded backlog, on a thread of its own.

    At most ``in_flight_bytes`` are with the producer; all else waits in the backlog of
    ``max_bytes`` and, with a ``spool`` (a file's path), on the disk once it waited longer than
    ``spool_after_s`` or memory is half full, ``spool_bytes`` at most. ``host`` (None: this
    machine's name) is whose losses are told. The thread waits for a broker as long as it takes and
    for topics that are not there yet, each by itself: it creates none, since their partition
    counts are the cluster's business. ``burst`` requests with evidence leave at once, and two a
    second after that.
    """

    def __init__(
        self,
        kafka: Kafka,
        *,
        client_id: str = "ringfence-agent",
        host: str | None = None,
        max_bytes: int = 64 << 20,
        in_flight_bytes: int = 4 << 20,
        spool: Path | None = None,
        spool_bytes: int = 256 << 20,
        spool_after_s: float = 5.0,
        linger_ms: int = 2,
        burst: float = 10.0,
    ) -> None:
        """Make a shipper to one cluster; nothing is connected before there is a record.

        Raises SpoolInUseError, with one sentence, when another process has the spool.
        """
        self._kafka = kafka
        self._client_id = client_id
        self._host = host or socket.gethostname()
        self._linger_ms = linger_ms
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._backlog = Backlog(max_bytes)
        self._ledger = Ledger(
            self._lock,
            self._backlog,
            in_flight_bytes,
            (spool, spool_bytes, spool_after_s),
            self._wake,
        )
        self._spooling = self._ledger.spooling
        self._closing = False
        self._kick = False
        self._urgent = False
        self._idle = True
        self._handed_at = 0.0
        self._burst = self._burst_limit = burst
        self._producer: KafkaProducer | None = None
        self._thread: threading.Thread | None = None
        self._retry_s, self._retry_at = _RETRY_S[0], 0.0
        self._number = self._spooling.last_number
        if self._spooling.waiting:
            with self._lock:
                self._start()

    @property
    def delivered(self) -> Counter[str]:
        """Records that Kafka has, by short topic name."""
        return self._ledger.delivered

    @property
    def refused(self) -> Counter[str]:
        """Records refused for good, by short topic name."""
        return self._ledger.refused

    @property
    def last_delivered_at(self) -> datetime | None:
        """When Kafka last acknowledged a record."""
        return self._ledger.last_delivered_at

    @property
    def pending(self) -> int:
        """Records that are neither in Kafka nor given up, in memory or on the disk."""
        with self._lock:
            return self._ledger.pending

    @property
    def spooled(self) -> tuple[int, int]:
        """Records on the disk, and their bytes."""
        return self._spooling.rows, self._spooling.bytes

    @property
    def crowded(self) -> bool:
        """Whether sources that can wait should: memory or the spool is half full."""
        with self._lock:
            return self._backlog.crowded or self._spooling.crowded

    @property
    def dropped(self) -> dict[str, int]:
        """Records dropped for want of room, by short topic name."""
        with self._lock:
            return dict(self._ledger.dropped + self._spooling.dropped)

    @property
    def connected(self) -> bool:
        """Whether Kafka answers, as far as is known: nothing waits for it for long."""
        with self._lock:
            if self._producer is None:
                return False
            now = time.monotonic()
            waits = bool(self._ledger.in_flight) and now - self._handed_at > _SILENT_S
            return not waits or now - self._ledger.heard_at < _SILENT_S

    @property
    def clock_skew_s(self) -> float | None:
        """How far this node's clock is ahead of Kafka's; None while that is not known.

        Topics must keep the broker's append time (message.timestamp.type=LogAppendTime).
        """
        return self._ledger.skew.seconds

    def send(
        self,
        topic: str,
        key: str | bytes,
        record: Struct,
        done: Callable[[bool], None] = ignore,
    ) -> None:
        """Queue a record for a topic (short name); ``key`` is the host's or the job's name.

        ``done`` is called once, from another thread: True when the record is safe (all in-sync
        replicas have it, or the disk), False when it was dropped for want of memory or refused
        for good. Raises RuntimeError after `close`.
        """
        try:
            value, why = pack(record), f"Kafka takes {_LARGEST} bytes at most"
        except Exception as error:  # noqa: BLE001 (no record may stop the others)
            value, why = b"", f"it cannot be encoded: {type(error).__name__}: {error}"
        key = key.encode("utf-8", "backslashreplace") if isinstance(key, str) else key
        with self._lock:
            if self._closing:
                raise RuntimeError("the shipper is closed")
            self._number += 1
            parcel = Parcel(
                self._number, topic, key, value, is_telemetry(record), done, event_time(record)
            )
            parcel.since = time.monotonic()
            if value and parcel.size <= _LARGEST:
                gone = self._backlog.add(parcel)
                for one in gone:
                    self._ledger.drop(one)
            else:
                gone = [parcel]
                self._ledger.give_up(parcel, why)
            self._start()
            if self._backlog.crowded and self._spooling.usable:
                self._urgent = True
                self._work.notify()
            elif not self._ledger.full and (
                self._idle or (self._burst >= 1.0 and not parcel.telemetry)
            ):
                self._wake()
        for one in gone:
            self._ledger.tell(one, safe=False)

    def hasten(self) -> None:
        """Make what is pending safe soon: telemetry goes now, and to the disk if Kafka is away."""
        with self._lock:
            waits = self._ledger.in_flight and time.monotonic() - self._handed_at > _HASTY_S
            if self._producer is None or waits or self._ledger.full:
                self._spooling.hasten()
            self._urgent = True
            self._work.notify()

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; False when that took longer than ``timeout_s``."""
        with self._lock:
            self._urgent = True
            self._work.notify()
            return self._ledger.nothing_left.wait_for(lambda: not self._ledger.pending, timeout_s)

    def close(self, timeout_s: float = 5.0) -> int:
        """Send what is pending, within ``timeout_s``, spool the rest and end.

        Returns how many records are neither in Kafka nor on the disk. It does not wait long for a
        Kafka that is away when there is a spool.
        """
        spooling = self._spooling.usable and not self.connected
        self.flush(min(timeout_s, 1.0) if spooling else timeout_s)
        with self._lock:
            self._closing = True
            self._wake()
        if self._thread is not None:
            self._thread.join(15.0)
        with self._lock:
            waiting = [*self._ledger.in_flight.values()]
            while (parcel := self._backlog.take()) is not None:
                waiting.append(parcel)
            return sum(not parcel.spooled for parcel in waiting)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shipper", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 (nobody starts this thread again)
                sentence = f"shipping failed and is begun anew: {type(error).__name__}: {error}"
                self._ledger.say(sentence, trace=error)
                self._leave()
                self._retry_at = time.monotonic() + _RETRY_S[1]
        with contextlib.suppress(Exception):  # said above
            self._spooling.finish()
        self._leave()
        self._spooling.close()

    def _turn(self) -> None:
        """Do what is to be done, and wait for more."""
        if self._producer is None and time.monotonic() >= self._retry_at:
            self._producer = self._connect()
            longer = min(2 * self._retry_s, _RETRY_S[1])
            self._retry_s = _RETRY_S[0] if self._producer else longer
            self._retry_at = time.monotonic() + self._retry_s * random.uniform(0.5, 1.0)  # noqa: S311
        with self._lock:
            self._kick = False
            self._ledger.look()
        loads = self._producer is not None and not self._ledger.full
        self._spooling.tend(loads=loads, blocked=self._ledger.blocked)
        if self._producer is None:
            self._rest(self._retry_at, self._retry_at)
        elif self._spent():
            self._leave()
        elif not self._hand_over(self._producer):
            self._rest(self._ledger.pause_until, None)

    def _connect(self) -> KafkaProducer | None:
        try:
            producer = connect(self._kafka, self._client_id, self._linger_ms)
        except NotConnectedError as error:
            self._ledger.say(str(error))
            return None
        self._ledger.failing_since = None
        self._ledger.say(f"connected to Kafka at {self._kafka.bootstrap}", logging.INFO)
        return producer

    def _leave(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            let_go(producer)

    def _spent(self) -> bool:
        until = self._ledger.failing_until
        return until is not None and time.monotonic() >= until

    def _hand_over(self, producer: KafkaProducer) -> bool:
        """Hand a few records to the producer; False when there are none to send for now."""
        parcels = deque(self._next())
        found = bool(parcels)
        try:
            while parcels and self._give(producer, parcels[0]):
                parcels.popleft()
            if parcels:
                parcels.popleft()  # given back already
        finally:
            with self._lock:
                for later in parcels:
                    self._ledger.give_back(later)
        return found

    def _give(self, producer: KafkaProducer, parcel: Parcel) -> bool:
        """Hand one record over; False when those after it must wait for it."""
        name = self._kafka.topic(parcel.topic)
        sent_ms = int(time.time() * 1000)
        try:
            future = producer.send(name, parcel.value, parcel.key, timestamp_ms=sent_ms)
        except KafkaTimeoutError:
            self._ledger.block(parcel, name, "is not there yet or the broker is away")
        except TopicAuthorizationFailedError:
            self._ledger.block(parcel, name, "may not be written by this client")
        except (*HOPELESS, TypeError, ValueError, AssertionError) as error:
            self._ledger.refuse(parcel, error)
            return True
        except KafkaError as error:
            self._ledger.failed(parcel, error)
        else:
            future.add_callback(self._ledger.arrived, parcel, sent_ms)
            future.add_errback(self._ledger.failed, parcel)
            return True
        return False

    def _next(self) -> list[Parcel]:
        """The next parcels in order, counted as in flight."""
        with self._lock:
            now = time.monotonic()
            found: list[Parcel] = []
            if now < self._ledger.pause_until or self._ledger.full:
                return found
            behind = self._spooling.behind()
            while len(found) < _HANDFUL and self._ledger.in_flight_bytes < self._ledger.limit:
                parcel = self._next_fact(behind) or self._backlog.take(self._ledger.blocked, behind)
                if parcel is None:
                    break
                self._ledger.take_off(parcel)
                found.append(parcel)
            if found:
                self._spend(now)
            return found

    def _spend(self, now: float) -> None:
        """Count a request; call it with the lock."""
        earned = (now - self._handed_at) / _COMPANY_S
        self._burst = max(0.0, min(self._burst_limit, self._burst + earned) - 1.0)
        self._handed_at = now

    def _next_fact(self, behind: dict[str, int]) -> Parcel | None:
        """The first loss that was not told yet, if its place is before that of the next parcel."""
        if not self._spooling.has_losses or "kernel" in self._ledger.blocked:
            return None
        first = self._backlog.first(self._ledger.blocked, behind)
        loss = self._spooling.take_loss(first.number if first else None)
        if loss is None:
            return None
        value = pack(fact(loss, self._host))
        _LOG.warning("%d records of topic %s were dropped", loss.count, loss.topic)
        parcel = Parcel(loss.number, "kernel", self._host.encode(), value, telemetry=False)
        parcel.fact, parcel.at, parcel.since = loss, loss.at, time.monotonic()
        return parcel

    def _rest(self, until: float, at_last: float | None) -> None:
        """Wait for something to do, until ``until`` at least and ``at_last`` at most.

        Telemetry alone does not end it while some was sent a moment ago.
        """
        with self._lock:
            company = self._handed_at + _COMPANY_S
            self._idle = company <= time.monotonic()
            ends = [at_last, self._spooling.deadline(), None if self._idle else company]
            ends.append(min(self._ledger.blocked.values(), default=None))
            if until > time.monotonic():
                ends.append(until)
            ends.append(self._ledger.failing_until)
            end = min((at for at in ends if at is not None), default=None)
            timeout = None if end is None else max(0.0, end - time.monotonic())
            self._work.wait_for(lambda: self._kick or self._urgent or self._closing, timeout)
            gap = _AT_ONCE_S if self._burst >= 1.0 else _COMPANY_S
            rest = max(until, self._handed_at + gap) - time.monotonic()
            if rest > 0:
                self._work.wait_for(lambda: self._urgent or self._closing, rest)
            self._idle = self._urgent = False

    def _wake(self) -> None:
        self._kick = True
        self._work.notify()
