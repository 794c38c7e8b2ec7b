"""What became of the records of a shipper: with the producer, in Kafka, refused, dropped.

Its methods run on the shipper's thread and on kafka-python's; ``lock`` is the shipper's.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kafka.errors import InvalidTopicError, MessageSizeTooLargeError, RecordListTooLargeError

from collectors.shipping.backlog import Backlog, Parcel, ignore
from collectors.shipping.skew import ClockSkew
from collectors.shipping.spool_loss import Loss, Losses
from collectors.shipping.spooling import Spooling

__all__ = ["HOPELESS", "Ledger"]

_LOG = logging.getLogger(__name__)

#: Rest after a failure, and how long failures alone make a producer spent: after some errors an
#: idempotent producer refuses everything for the rest of its life.
_PAUSE_S = 0.2
_FAILING_S = 3.0
#: How long a topic that the broker does not know is left alone.
_BLOCK_S = 2.0
#: What no retry changes: the broker refuses this record or this topic for good.
HOPELESS = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTopicError)


class Ledger:
    """Parcels in flight by number, ``limit`` bytes of them, and the counts of all the others.

    ``wake`` is called, with the lock, when the shipper's thread has something to do;
    ``nothing_left`` is notified when nothing is pending. ``delivered``, ``refused`` and
    ``dropped`` count records by short topic name; ``blocked`` tells until when a topic is left
    alone (monotonic seconds). ``spool`` is what `Spooling` begins with.
    """

    def __init__(
        self,
        lock: threading.RLock,
        backlog: Backlog,
        limit: int,
        spool: tuple[Path | None, int, float],
        wake: Callable[[], None],
    ) -> None:
        self.lock = lock
        self.nothing_left = threading.Condition(lock)
        self.backlog = backlog
        self.limit = limit
        self.in_flight: dict[int, Parcel] = {}
        self.in_flight_bytes = 0
        self.full = False
        self.blocked: dict[str, float] = {}
        self.losses = Losses()
        self.delivered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.skew = ClockSkew()
        self.last_delivered_at: datetime | None = None
        self.heard_at = 0.0
        self.pause_until = 0.0
        self.failing_since: float | None = None
        self._said = ""
        self._wake = wake
        self.spooling = Spooling(*spool, backlog, self.in_flight, self.losses, lock)

    @property
    def failing_until(self) -> float | None:
        """When a producer from which only failures come is spent; None if it is well."""
        return None if self.failing_since is None else self.failing_since + _FAILING_S

    @property
    def pending(self) -> int:
        """Records that are neither in Kafka nor given up; ask with the lock."""
        memory = len(self.in_flight) + len(self.backlog) + len(self.losses)
        return memory + self.spooling.waiting

    def look(self) -> None:
        """Look at what bars the way, before anything is read back or taken."""
        now = time.monotonic()
        self.full = self.in_flight_bytes >= self.limit
        for topic in [topic for topic, until in self.blocked.items() if until <= now]:
            del self.blocked[topic]

    def take_off(self, parcel: Parcel) -> None:
        """Count a parcel as in flight; call it with the lock."""
        self.in_flight[parcel.number] = parcel
        self.in_flight_bytes += parcel.size

    def arrived(self, parcel: Parcel, sent_ms: int, metadata: Any) -> None:  # noqa: ANN401
        """Kafka has a parcel (kafka-python's callback)."""
        self.tell(parcel, safe=True)
        now = time.monotonic()
        clock = time.time()
        with self.lock:
            self.delivered[parcel.topic] += 1
            self.last_delivered_at = datetime.fromtimestamp(clock, UTC)
            self.skew.add(sent_ms, metadata.timestamp, int(clock * 1000), now)
            self.failing_since = None
            self.heard_at = now
            self._settle(parcel)

    def failed(self, parcel: Parcel, error: Exception) -> None:
        """Take back a parcel that did not arrive, or give it up where that is for good."""
        if isinstance(error, HOPELESS):
            self.refuse(parcel, error)
            return
        self.say(f"a record for {parcel.topic} did not arrive and is sent again: {error!r}")
        now = time.monotonic()
        with self.lock:
            self.failing_since = self.failing_since or now
            self.pause_until = now + _PAUSE_S
            self.give_back(parcel)

    def block(self, parcel: Parcel, name: str, why: str) -> None:
        """Leave a topic (``name`` in Kafka) alone for a while, its parcels wait."""
        self.say(f"topic {name} {why}, its records wait")
        with self.lock:
            self.blocked[parcel.topic] = time.monotonic() + _BLOCK_S
            self.give_back(parcel)

    def give_back(self, parcel: Parcel) -> None:
        """Take a parcel back from the producer; call it with the lock."""
        self._land(parcel)
        self.backlog.put_back(parcel)
        self._wake()

    def refuse(self, parcel: Parcel, error: Exception) -> None:
        """Give a parcel up that is in flight."""
        self.tell(parcel, safe=False)
        with self.lock:
            self.give_up(parcel, error)
            self._settle(parcel)

    def give_up(self, parcel: Parcel, why: object) -> None:
        """Count a record that Kafka will never take; call it with the lock."""
        _LOG.error("a record of %d bytes for %s is given up: %s", parcel.size, parcel.topic, why)
        self.refused[parcel.topic] += 1
        if parcel.fact is None:
            self.losses.note(Loss(parcel.number, parcel.topic, 1, parcel.at, parcel.at))

    def drop(self, parcel: Parcel) -> None:
        """Count a record that memory has no room for; call it with the lock."""
        parcel.landed = True
        if parcel.fact is None:
            self.dropped[parcel.topic] += 1
        self.losses.note(parcel.fact or Loss(parcel.number, parcel.topic, 1, parcel.at, parcel.at))
        self.spooling.settle(parcel)

    def tell(self, parcel: Parcel, *, safe: bool) -> None:
        """Tell the sender, before anybody who waits for everything is told."""
        with self.lock:
            parcel.landed = True
            done, parcel.done = parcel.done, ignore
        done(safe)

    def _settle(self, parcel: Parcel) -> None:
        """Kafka is done with a parcel; call it with the lock."""
        self._land(parcel)
        roomy = self.full and self.in_flight_bytes * 2 <= self.limit
        if self.spooling.settle(parcel) or roomy:
            self._wake()
        if not self.in_flight and not self.pending:
            self.nothing_left.notify_all()

    def _land(self, parcel: Parcel) -> None:
        if self.in_flight.pop(parcel.number, None) is not None:
            self.in_flight_bytes -= parcel.size

    def say(
        self, sentence: str, level: int = logging.WARNING, *, trace: Exception | None = None
    ) -> None:
        """Log a state when it changes, not every time it is met."""
        if sentence != self._said:
            self._said = sentence
            _LOG.log(level, "%s", sentence, exc_info=trace)
