"""Moves parcels between the memory of a shipper and its disk, in order."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from collectors.shipping.backlog import Backlog, Parcel, ignore
from collectors.shipping.spool_keeper import SpoolKeeper
from collectors.shipping.spool_loss import Loss, Losses

__all__ = ["Spooling"]

#: Parcels written with one commit, and bytes read back at once of one topic.
_CHUNK = 1000
_LOAD_BYTES = 1 << 20
#: Parcels forgotten with one commit, unless nothing else is under way.
_FORGET = 1000


class Spooling:
    """What a shipper does with its spool; without a path it does nothing.

    All of it runs on the shipper's thread, except `settle`, `behind` and the figures. ``lock``
    guards ``backlog``, ``in_flight`` and ``losses``, which are the shipper's.
    """

    def __init__(
        self,
        path: Path | None,
        max_bytes: int,
        after_s: float,
        backlog: Backlog,
        in_flight: dict[int, Parcel],
        losses: Losses,
        lock: threading.RLock,
    ) -> None:
        """Look at what is in the spool; raises SpoolInUseError."""
        self._after_s = after_s
        self._backlog = backlog
        self._in_flight = in_flight
        self._losses = losses
        self._lock = lock
        self._settled: list[Parcel] = []
        self._look_at = 0.0
        self._moving = 0
        self._hasty = False
        self._keeper = SpoolKeeper(path, max_bytes, self._damaged)
        self._spool = self._keeper.spool

    @property
    def usable(self) -> bool:
        """Whether there is a spool whose disk takes records."""
        return self._keeper.usable(time.monotonic())

    @property
    def rows(self) -> int:
        """Parcels on the disk."""
        return self._spool.rows if self._spool else 0

    @property
    def bytes(self) -> int:
        """What they take there, in bytes."""
        return self._spool.bytes if self._spool else 0

    @property
    def dropped(self) -> Counter[str]:
        """Records that had to leave the disk, by topic."""
        return Counter(self._spool.dropped) if self._spool else Counter()

    @property
    def last_number(self) -> int:
        """The highest number on the disk."""
        return self._spool.last_number if self._spool else 0

    @property
    def waiting(self) -> int:
        """Parcels that are not in Kafka and that neither backlog nor producer has."""
        on_disk = (
            sum([*self._spool.unread.values()]) + len(self._spool.losses) if self._spool else 0
        )
        return on_disk + self._moving

    @property
    def crowded(self) -> bool:
        """Whether the disk's share is half used."""
        return self._spool is not None and self._spool.bytes * 2 >= self._spool.max_bytes

    @property
    def has_losses(self) -> bool:
        """Whether something that was lost was not told yet."""
        return bool(len(self._losses)) or (self._spool is not None and len(self._spool.losses) > 0)

    def hasten(self) -> None:
        """Write what waits at the next `tend`; call it with the lock."""
        self._hasty = True

    def deadline(self) -> float | None:
        """When `tend` has something to look at (monotonic seconds); None if nothing is waiting."""
        if self._spool is None:
            return None
        if self._in_flight or len(self._backlog):
            return max(self._look_at, self._keeper.resting_until)
        return self._keeper.reads_again_at if self.behind() else None

    def behind(self) -> dict[str, int]:
        """Up to which number a topic's parcels may go, since the rest is still to be read back."""
        if self._spool is None:
            return {}
        position = self._spool.position
        return {
            topic: position.get(topic, 0) for topic, count in self._spool.unread.items() if count
        }

    def take_loss(self, before: int | None) -> Loss | None:
        """Take the first untold loss whose place is before a number; call it with the lock."""
        found = self._losses.take(before)
        if found is None and self._spool is not None and len(self._spool.losses):
            found = self._spool.take_loss(before)
        return found

    def settle(self, parcel: Parcel) -> bool:
        """Note that the disk need not keep a parcel; call it with the lock.

        Returns whether there is enough of that for `tend`.
        """
        if self._spool is not None and (parcel.spooled or parcel.fact):
            self._settled.append(parcel)
        return bool(self._settled) and (len(self._settled) >= _FORGET or not self._in_flight)

    def tend(self, *, loads: bool, blocked: Collection[str]) -> None:
        """Forget what Kafka has, write what waits for long, read back what can be sent."""
        if self._spool is None:
            return
        now = time.monotonic()
        if self._settled and self._keeper.usable(now):
            self._forget()
        if self._is_due(now):
            self._put_away()
        if loads:
            self._read_back(blocked)

    def finish(self) -> None:
        """Write everything that is not on the disk yet, as far as the disk takes it."""
        if self._spool is None:
            return
        self._put_away()
        if self._settled:
            self._forget()

    def close(self) -> None:
        """Close the file and give its lock back."""
        self._keeper.close()

    def _is_due(self, now: float) -> bool:
        with self._lock:
            if not self._keeper.usable(now):
                return False
            hasty, self._hasty = self._hasty, False
            if self._backlog.crowded or hasty:
                return True
            if now < self._look_at or not (self._in_flight or len(self._backlog)):
                return False
            flying = (one.since for one in self._in_flight.values() if not one.spooled)
            oldest = min(
                (at for at in (next(flying, None), self._backlog.oldest_unspooled()) if at),
                default=now,
            )
            self._look_at = oldest + self._after_s
            return now >= self._look_at

    def _put_away(self) -> None:
        """Write all that the disk lacks: what is with the producer first, since it is oldest."""
        self._look_at = time.monotonic() + self._after_s
        with self._lock:
            flying = [one for one in self._in_flight.values() if not one.spooled]
        flying.sort(key=lambda one: one.number)
        for start in range(0, len(flying), _CHUNK):
            if not self._write(flying[start : start + _CHUNK], leaves=False):
                return
        while True:
            with self._lock:
                chunk = self._backlog.take_unspooled(_CHUNK)
                self._moving = len(chunk)
            if not chunk:
                break
            if not self._write(chunk, leaves=True):
                return
        self._keep_losses()

    def _write(self, chunk: Sequence[Parcel], *, leaves: bool) -> bool:
        """Write parcels; those that ``leave`` memory are read back later, in their turn."""
        assert self._spool is not None
        position = self._spool.position
        stay = {one.number for one in chunk}
        if leaves:
            stay = {one.number for one in chunk if one.number <= position.get(one.topic, 0)}
        written = self._keeper.write(chunk, stay)
        told: list[Callable[[bool], None]] = []
        with self._lock:
            self._moving = 0
            if not written:
                if leaves:
                    self._backlog.restore(chunk)
                return False
            for parcel in chunk:
                if parcel.landed:
                    parcel.spooled = True
                    self._settled.append(parcel)
                    continue
                parcel.spooled = True
                told.append(parcel.done)
                parcel.done = ignore
                if leaves and parcel.number in stay:
                    self._backlog.put_back(parcel)
        for done in told:
            done(True)
        return True

    def _keep_losses(self) -> None:
        """Let losses in memory outlive this process too."""
        with self._lock:
            found = []
            while (loss := self._losses.take()) is not None:
                found.append(loss)
        if found and not self._keeper.keep(found):
            with self._lock:
                for loss in found:
                    self._losses.note(loss)

    def _forget(self) -> None:
        with self._lock:
            done = self._settled
            if len(done) < _FORGET and self._in_flight:
                return
            self._settled = []
        if not self._keeper.delete(done):
            with self._lock:
                self._settled = done + self._settled

    def _read_back(self, blocked: Collection[str]) -> None:
        assert self._spool is not None
        room = min(_LOAD_BYTES, self._backlog.max_bytes // 16)
        for topic, count in list(self._spool.unread.items()):
            if count <= 0 or topic in blocked:
                continue
            with self._lock:
                if self._backlog.holds(topic):
                    continue
            parcels = self._keeper.load(topic, room)
            with self._lock:
                self._backlog.restore(parcels)

    def _damaged(self, lost: list[Loss]) -> None:
        """Begin anew: what is in memory is not on the disk any more, what is not is lost."""
        with self._lock:
            for parcel in self._in_flight.values():
                parcel.spooled, parcel.stored = False, 0
            self._backlog.unspool()
            self._settled = []
            for loss in lost:
                self._losses.note(loss)
