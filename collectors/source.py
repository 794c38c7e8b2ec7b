"""One collector at work in the agent: when it is read, what became of its records, what it lacks.

It is read as often as asked while it works, slowly while its source is missing or it fails; its
cursor moves on only when everything it returned is in Kafka.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from msgspec import Struct

from collectors.collector import Collector, Unavailable
from evidence.topics import TOPICS, Key

__all__ = ["Source", "key_of"]

_LOG = logging.getLogger(__name__)

#: Between two looks for a source that is not there.
_ABSENT_S = 1.0
#: Between two attempts of a collector that fails; its error is logged when it changes.
_FAILED_S = 1.0
#: Between two moves of a cursor: each is a write that waits for the disk.
_SAVE_S = 0.5
#: A collector whose records never all arrive at once, because new ones keep coming, is not read
#: for the moment it takes them to arrive, so that its cursor can move.
_UNSAVED_S = 2.0


class Sender(Protocol):
    """The shipper, as far as a source is concerned."""

    @property
    def crowded(self) -> bool: ...

    def send(
        self, topic: str, key: str | bytes, record: Struct, done: Callable[[bool], None]
    ) -> None: ...


@runtime_checkable
class Resting(Protocol):
    """A collector that holds records back for a while, and can be asked for them at the end."""

    def rest(self) -> Iterable[Struct]: ...


def key_of(topic: str, record: Struct, host: str) -> str:
    """The Kafka key of a record: its job for a job-keyed topic, else its host, else this one."""
    if TOPICS[topic].key is Key.JOB:
        return str(getattr(record, "job", "") or host)
    return str(getattr(record, "host", None) or host)


class Source:
    """A collector, what it has under way, and when it is due again.

    ``patient`` says that its source keeps what was not read yet (a file does, NVML does not): it
    is then left alone while the shipper is crowded. ``records``, ``errors`` and ``lost`` (records
    dropped or refused on the way) only grow.
    """

    def __init__(self, collector: Collector, host: str, *, patient: bool) -> None:
        self.collector = collector
        self.records = 0
        self.errors = 0
        self.lost = 0
        self._host = host
        self._patient = patient
        self._due = 0.0
        self._said: dict[str, str] = {}
        self._saved_at = 0.0
        self._unsaved_since: float | None = None
        self._lock = threading.Lock()
        self._under_way = 0

    def take(self, now: float) -> list[Struct]:
        """Read the collector if it is due (``now``: monotonic seconds); never raises."""
        if now < self._due:
            return []
        try:
            found = list(self.collector.read())
        except Unavailable as error:
            self._due = now + _ABSENT_S
            self._say("read", str(error))
            return []
        except Exception as error:  # noqa: BLE001 (one broken collector must not stop the others)
            self.errors += 1
            self._due = now + _FAILED_S
            self._say("read", f"{type(error).__name__}: {error}", trace=error)
            return []
        self._said.pop("read", None)
        self.records += len(found)
        return found

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
        """Read, send what is new, and let the cursor move on when all has arrived.

        Returns how many records were sent.
        """
        self._save(now)
        if self._patient and (sender.crowded or self._held_back(now)):
            return 0
        found = self.take(now)
        self.send(sender, found, now)
        return len(found)

    def send(self, sender: Sender, found: list[Struct], now: float) -> None:
        """Send records of this source, counted until they arrive."""
        if found and self._unsaved_since is None:
            self._unsaved_since = now
        for record in found:
            with self._lock:
                self._under_way += 1
            key = key_of(self.collector.topic, record, self._host)
            sender.send(self.collector.topic, key, record, self._done)

    def finish(self, now: float) -> None:
        """Let the cursor move on if everything arrived, and close the collector."""
        self._saved_at = now - _SAVE_S
        self._save(now)
        try:
            self.collector.close()
        except Exception as error:  # noqa: BLE001 (the others are still to be closed)
            self._say("close", f"not closed cleanly: {type(error).__name__}: {error}", trace=error)

    def _held_back(self, now: float) -> bool:
        with self._lock:
            under_way = self._under_way
        since = self._unsaved_since
        return under_way > 0 and since is not None and now - since > _UNSAVED_S

    def _done(self, arrived: bool) -> None:
        with self._lock:
            self._under_way -= 1
            self.lost += not arrived

    def _save(self, now: float) -> None:
        if self._unsaved_since is None or now - self._saved_at < _SAVE_S:
            return
        with self._lock:
            if self._under_way:
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
            _LOG.warning("%s: %s", self.collector.name, sentence, exc_info=trace)
