"""Reads from the journal what the kernel's ring no longer has when an agent comes back.

That is the end of the boot before this one, boots in which no agent ran, and what was overwritten.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from collectors.collector import Unavailable
from collectors.kernel.identities import GpuIdentities
from collectors.kernel.ids import MessageIds
from collectors.kernel.journal import StoredEntry, read_stored
from collectors.kernel.journalctl import Journalctl
from collectors.kernel.journald import feed, this_machine
from collectors.kernel.kmsg import KmsgCursor, KmsgMessage
from collectors.kernel.stream import KernelStream
from evidence.identity import digest
from evidence.records import KernelKind, KernelRecord

__all__ = ["Backfill"]

_LOG = logging.getLogger(__name__)

#: How far a boot's clock may have been set back after the cursor was written.
_MARGIN_S = 3600.0
#: A journal that takes longer is given up, so that the cursor can move on.
_LONGEST_S = 120.0
#: Messages of several CPUs may stand in the ring a moment out of order.
_DISORDER_US = 1_000_000
#: Entries held while it is open whether the cursor's own entry is still to come.
_HELD = 20_000


class Backfill:
    """The entries between a cursor of the ring and the ring's first unsent message.

    ``recovered`` counts those of this boot.
    """

    def __init__(
        self,
        cursor: KmsgCursor,
        *,
        host: str,
        boot_id: str,
        first: tuple[KmsgMessage, str] | None,
        clock: Callable[[], datetime],
        directory: Path | None = None,
        keep_other: bool = False,
    ) -> None:
        """Begin after ``cursor``, end before ``first`` (message and id) of the boot ``boot_id``."""
        self.recovered = 0
        self.done = False
        self.identities = GpuIdentities(dict(cursor.cards))
        self._cursor = cursor
        self._host = host
        self._boot_id = boot_id
        self._first = first
        self._clock = clock
        self._machine = this_machine() if directory is None else None
        self._ids = MessageIds(host)
        self._stream = KernelStream(
            host=host,
            clock=clock,
            source="journal",
            keep_other=keep_other,
            coalesce=True,
            identities=self.identities,
        )
        self._began = time.monotonic()
        #: Entries that count only if the cursor's own entry does not come after them.
        self._held: list[tuple[StoredEntry, str]] | None = []
        #: Whether the journal goes back to before the cursor.
        self._older = False
        self._own: list[KernelRecord] = []
        self._child: Journalctl | None = None
        boot_time = cursor.boot_time or datetime.fromtimestamp(0, UTC)
        self._cursor_at = boot_time + timedelta(microseconds=cursor.uptime_us)
        since_s = max(0.0, self._cursor_at.timestamp() - _MARGIN_S)
        try:
            self._child = Journalctl(directory, follow=False, since_s=since_s)
        except Unavailable as error:
            self._give_up(str(error))

    def read(self) -> list[KernelRecord]:
        """Return what was found since the last call; ``done`` is set with the last of it."""
        child = self._child
        if child is None:
            return []
        for line in child.read():
            entry = read_stored(line)
            if entry is not None and self._ours(entry):
                self._take(entry)
        if child.ended or time.monotonic() - self._began > _LONGEST_S:
            self._let_go()
            if not child.ended or child.failure:
                self._give_up(child.failure or "the journal took too long")
            self.close()
        own, self._own = self._own, []
        return own + self._stream.settle(joined=self.done)

    def close(self) -> None:
        """End it."""
        self.done = True
        if self._child is not None:
            self._child.close()
            self._child = None

    def _ours(self, entry: StoredEntry) -> bool:
        if self._machine is None or entry.machine_id in {None, self._machine}:
            return True
        return entry.boot_id in {self._boot_id, self._cursor.boot_id}

    def _take(self, entry: StoredEntry) -> None:
        record_id = self._ids.of(entry.boot_id, entry.uptime_us, entry.text)
        if entry.boot_id == self._boot_id and self._in_the_ring(entry, record_id):
            return
        if self._held is None:
            self._give(entry, record_id)
            return
        if entry.boot_id == self._cursor.boot_id:
            if record_id == self._cursor.id:
                self._held = None
                return
            if entry.uptime_us <= self._cursor.uptime_us:
                self._older = True
                return
        elif entry.at is None or entry.at <= self._cursor_at:
            return
        self._held.append((entry, record_id))
        if len(self._held) > _HELD:
            self._let_go()

    def _in_the_ring(self, entry: StoredEntry, record_id: str) -> bool:
        if self._first is None:
            return False
        message, first_id = self._first
        if record_id == first_id or entry.uptime_us > message.uptime_us + _DISORDER_US:
            self._first = (message, "")
            return True
        return first_id == ""

    def _let_go(self) -> None:
        """The cursor's own entry does not come any more: everything later than it is new."""
        if self._held is None:
            return
        held, self._held = self._held, None
        if not self._older:
            self._lost()
        for entry, record_id in held:
            self._give(entry, record_id)

    def _give(self, entry: StoredEntry, record_id: str) -> None:
        self.recovered += entry.boot_id == self._boot_id
        feed(self._stream, entry, record_id=record_id, host=self._host, now=self._clock())

    def _lost(self) -> None:
        cursor = self._cursor
        told = "the journal does not have the kernel messages after the last one that was read"
        self._own.append(
            KernelRecord(
                id=digest(self._host, cursor.boot_id, cursor.seq, "overrun", "journal"),
                observed_at=self._clock(),
                raw=told,
                kind=KernelKind.OVERRUN,
                host=self._host,
                at=self._cursor_at,
                uptime_s=cursor.uptime_us / 1e6,
                source="journal",
                seq=cursor.seq,
                boot_id=cursor.boot_id,
                device="journal",
                message=told,
            )
        )

    def _give_up(self, why: str) -> None:
        self.done = True
        _LOG.warning("kernel messages of the time before this start are not read: %s", why)
