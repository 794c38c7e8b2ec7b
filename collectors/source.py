"""One collector at work in the agent: when it is read, what became of its records, what it lacks.

It is read as often as asked while it works, slowly while its source is missing or it fails; its
cursor moves on only when everything it returned is safe: in Kafka, or in the spool on the disk.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from msgspec import Struct

from collectors.attempts import Attempts
from collectors.collector import Collector, Unavailable
from evidence.topics import TOPICS, Key

__all__ = ["Source", "key_of"]

_LOG = logging.getLogger(__name__)

#: Between two reads of a collector that does not say when it is to be read next, unless told.
_INTERVAL_S = 0.1
#: The same where its descriptor tells: what it counts or holds back is still to leave some time.
_WATCHED_S = 1.0
#: Between two looks whether a crowded shipper, or the cursor, lets a patient source go on.
_HELD_S = 0.25
#: What Kafka takes to acknowledge when all is well.
_ACK_S = 0.05
#: Between two moves of a cursor: each is a write that waits for the disk, one for every file that
#: is followed; what is read again after a kill has the ids that it had.
_SAVE_S = 2.0
#: A collector whose records are never all safe at once, because new ones keep coming, is not read
#: for the moment it takes, so that its cursor can move; a source that does not wait (the kernel's
#: ring) is left alone for a short while only.
_UNSAVED_S = 2.0
_HOLD_S = 0.3
_GLANCE_S = 0.03


class Sender(Protocol):
    """The shipper, as far as a source is concerned."""

    @property
    def crowded(self) -> bool: ...

    def hasten(self) -> None: ...

    def send(
        self, topic: str, key: str | bytes, record: Struct, done: Callable[[bool], None]
    ) -> None: ...


@runtime_checkable
class Resting(Protocol):
    """A collector that holds records back for a while, and can be asked for them at the end."""

    def rest(self) -> Iterable[Struct]: ...


def key_of(topic: str, record: Struct, host: str) -> str:
    """The Kafka key of a record: its job or subnet where the topic is keyed so, else its host.

    ``host`` is for records that say none of their own.
    """
    if TOPICS[topic].key is Key.JOB:
        return str(getattr(record, "job", "") or host)
    if TOPICS[topic].key is Key.SUBNET:
        return str(getattr(record, "subnet", "") or host)
    return str(getattr(record, "host", None) or host)


class Source:
    """A collector, what it has under way, and when it is due again.

    ``patient`` says that its source keeps what was not read yet (a file does, NVML does not): it
    is then left alone while the shipper is crowded. ``records``, ``errors`` and ``lost`` (records
    dropped or refused on the way) only grow.
    """

    def __init__(
        self,
        collector: Collector,
        host: str,
        *,
        patient: bool,
        longest_rest_s: float = 60.0,
        interval_s: float = _INTERVAL_S,
        name: str | None = None,
    ) -> None:
        """``name`` tells collectors of one topic apart; ``longest_rest_s`` as in `Attempts`.

        ``interval_s`` lies between two reads of a collector that does not say when it is due.
        """
        self.collector = collector
        self.name = name or collector.name
        self.attempts = Attempts(self.name, longest_rest_s=longest_rest_s)
        self.records = 0
        self.errors = 0
        self.lost = 0
        #: Set from any thread: the collector has something, whatever its clock says.
        self.poked = False
        self._host = host
        self._patient = patient
        self._interval_s = interval_s
        self._due = 0.0
        self._next_at = -math.inf
        self._next_due: Callable[[float], float] | None = getattr(collector, "next_due", None)
        self._fileno: Callable[[], int | None] | None = getattr(collector, "fileno", None)
        self._said: dict[str, str] = {}
        self._saved_at = -math.inf
        self._save_at = 0.0
        self._unsaved_since: float | None = None
        self._hold_until = 0.0
        self._lock = threading.Lock()
        self._under_way = 0

    def take(self, now: float) -> list[Struct]:
        """Read the collector if it is due (``now``: monotonic seconds); never raises."""
        if now < self._due:
            return []
        found = self._read(now)
        self.records += len(found)
        if self._next_due is not None:
            self._next_at = self._next_due(now)
        else:
            watched = self.descriptor(now) is not None
            self._next_at = now + (_WATCHED_S if watched else self._interval_s)
        return found

    def _read(self, now: float) -> list[Struct]:
        self.poked = False
        try:
            with self.attempts:
                found = list(self.collector.read())
        except Unavailable as error:
            self._due = now + self.attempts.absent(str(error))
            self._say("read", str(error))
            return []
        except Exception as error:  # noqa: BLE001 (one broken collector must not stop the others)
            self.errors += 1
            self._due = now + self.attempts.failed(f"{type(error).__name__}: {error}")
            self._say("read", f"{type(error).__name__}: {error}", trace=error)
            return []
        self._said.pop("read", None)
        return found

    def due_at(self, now: float) -> float:
        """When to `ship` next, in monotonic seconds: the collector's own word, or a modest pause.

        A collector may offer ``next_due(now)``; one that offers ``fileno()`` is also due when that
        is readable.
        """
        if self.poked:
            return self._due
        # The word it gave after its last read holds; what happened since may make it sooner.
        due = self._next_at if self._next_due is None else min(self._next_at, self._next_due(now))
        due = max(due, self._due)
        return due if self._unsaved_since is None else min(due, self._save_at)

    def descriptor(self, now: float) -> int | None:
        """What to wait for beside the time: readable when there is something to read."""
        if now < self._due or self._fileno is None:
            return None
        try:
            number = self._fileno()
        except (OSError, ValueError):  # closed
            return None
        return number if number is not None and number >= 0 else None

    def rest(self) -> list[Struct]:
        """Return what the collector still holds back; never raises."""
        if not isinstance(self.collector, Resting):
            return []
        try:
            found = list(self.collector.rest())
        except Exception as error:  # noqa: BLE001 (as in `take`)
            self.errors += 1
            self._say("rest", f"{type(error).__name__}: {error}", trace=error)
            return []
        self.records += len(found)
        return found

    def ship(self, sender: Sender, now: float) -> int:
        """Read, send what is new, and let the cursor move on when all of it is safe.

        Returns how many records were sent.
        """
        self._save(now)
        if (self._patient and sender.crowded) or self._held_back(sender, now):
            self._due = max(self._due, now + (_HELD_S if self._patient else _GLANCE_S))
            return 0
        found = self.take(now)
        self.send(sender, found, now)
        return len(found)

    def send(self, sender: Sender, found: list[Struct], now: float) -> None:
        """Send records of this source, counted until they are safe."""
        if found and self._unsaved_since is None:
            self._unsaved_since = now
            self._save_at = max(now + _ACK_S, self._saved_at + _SAVE_S)
        for record in found:
            with self._lock:
                self._under_way += 1
            key = key_of(self.collector.topic, record, self._host)
            sender.send(self.collector.topic, key, record, self._done)

    def finish(self, now: float) -> None:
        """Let the cursor move on if everything is safe, and close the collector."""
        self._save_at = now
        self._save(now)
        try:
            self.collector.close()
        except Exception as error:  # noqa: BLE001 (the others are still to be closed)
            self._say("close", f"not closed cleanly: {type(error).__name__}: {error}", trace=error)

    def _held_back(self, sender: Sender, now: float) -> bool:
        """Whether reading waits for what is under way, which the sender is then asked to hurry."""
        with self._lock:
            under_way = self._under_way
        since = self._unsaved_since
        if not under_way or since is None or now - since <= _UNSAVED_S:
            self._hold_until = 0.0
            return False
        if not self._hold_until:
            self._hold_until = now + _HOLD_S
            sender.hasten()
        elif now >= self._hold_until + _UNSAVED_S:
            self._hold_until = 0.0
        return self._patient or now < self._hold_until

    def _done(self, safe: bool) -> None:
        with self._lock:
            self._under_way -= 1
            self.lost += not safe

    def _save(self, now: float) -> None:
        if self._unsaved_since is None or now < self._save_at:
            return
        with self._lock:
            if self._under_way:
                self._save_at = now + _HELD_S
                return
        self._unsaved_since = None
        self._saved_at = now
        try:
            self.collector.saved()
        except Exception as error:  # noqa: BLE001 (a full disk must not stop the reading)
            self.errors += 1
            self._say("save", f"its position could not be kept: {type(error).__name__}: {error}")
        else:
            self._said.pop("save", None)

    def _say(self, act: str, sentence: str, trace: Exception | None = None) -> None:
        """Log what hinders an act when that changes, not every time it is met."""
        if self._said.get(act) != sentence:
            self._said[act] = sentence
            _LOG.warning("%s: %s", self.name, sentence, exc_info=trace)
