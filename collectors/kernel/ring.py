"""Collects what the kernel logs live from /dev/kmsg, and what the ring lost from the journal.

Lines of no interest are not shipped one by one. Those that the kernel itself marked as a warning
or worse go out raw (equal ones merged, a bounded number a minute); of the others one record a
minute says how many there were. In files only journal lines tell their level, so the rest is
counted there.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from collectors.collector import Unavailable
from collectors.cursors import SavePace, load, save
from collectors.kernel.backfill import Backfill
from collectors.kernel.files import FileCollector
from collectors.kernel.grammar import parse_message
from collectors.kernel.identities import GpuIdentities
from collectors.kernel.kmsg import KmsgCursor, KmsgDevice, KmsgRing
from collectors.kernel.pace import HELD_S, IDLE_S
from collectors.kernel.stream import KernelStream
from collectors.kernel.text import bounded_lines, parse_stream
from evidence.records import KernelRecord

__all__ = ["FileCollector", "KmsgCollector", "bounded_lines", "parse_message", "parse_stream"]

_LOG = logging.getLogger(__name__)


#: Records of the ring taken in one read, so that a flood cannot keep the caller waiting.
_RING_BATCH = 8192
_NOISE_EVERY = timedelta(minutes=1)
#: A step of the wall clock (NTP after boot) that moves the time of all later records.
_STEP = timedelta(seconds=1)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class KmsgCollector:
    """The kernel's message ring of this boot, its past first, each message once.

    The cursor (boot id and sequence number) outlives a restart. Messages that the kernel
    overwrote before they were read are one record of kind overrun with their number. The ring is
    fast and the journal is complete: with ``journal`` what the ring lost while no agent ran, the
    end of the boot before this one above all, is read from there at the start.
    """

    name = "kernel"
    topic = "kernel"

    def __init__(
        self,
        host: str,
        boot_id: str,
        cursor_file: Path | None,
        *,
        path: Path = Path("/dev/kmsg"),
        clock: Callable[[], datetime] = _utc_now,
        boot_time: datetime | None = None,
        keep_other: bool = False,
        journal: bool = False,
        journal_directory: Path | None = None,
    ) -> None:
        """Read ``path`` as of ``boot_id`` (/proc/sys/kernel/random/boot_id).

        ``boot_time`` is the wall-clock time of the kernel's second 0; without it, what the clock
        and CLOCK_MONOTONIC say. Without ``cursor_file`` each start sends the whole ring again.
        ``journal_directory`` is where the journal lies, if not in its usual place.
        """
        self._host = host
        self._boot_id = boot_id
        self._cursor_file = cursor_file
        self._clock = clock
        self._boot_time_given = boot_time is not None
        self._keep_other = keep_other
        self._journal_directory = journal_directory
        self._device = KmsgDevice(path)
        cursor = load(cursor_file, KmsgCursor)
        #: Where a backfill begins, until it is known whether one is needed.
        self._left = cursor if journal and cursor is not None and cursor.id else None
        self._backfill: Backfill | None = None
        here = cursor if cursor is not None and cursor.boot_id == boot_id else None
        if here is not None:
            # The same message read twice shall have the same time to the microsecond.
            boot_time = boot_time or here.boot_time
        self._saved = self._unproved = here
        self._pace = SavePace()
        self._stream = KernelStream(
            host=host,
            clock=clock,
            source="kmsg",
            keep_other=keep_other,
            coalesce=True,
            identities=GpuIdentities(None if here is None else dict(here.cards)),
        )
        self._ring = KmsgRing(
            self._stream,
            host=host,
            boot_id=boot_id,
            boot_time=boot_time or self._measured_boot_time(),
            clock=clock,
            sent=None if here is None else here.seq,
            keep_gap=self._left is not None,
        )

    def read(self) -> Sequence[KernelRecord]:
        """Return what the kernel said since the last call.

        Raises Unavailable when the device is not there or may not be read.
        """
        self._device.open()
        self._follow_clock()
        ring = self._ring
        try:
            for _ in range(_RING_BATCH):
                data = self._device.read()
                if data is None:
                    self._prove()
                    break
                ring.take(data)
        except Unavailable:
            if not ring.pending:
                raise
        if self._left is not None:
            self._look_back(self._left)
        earlier = [] if self._backfill is None else self._earlier(self._backfill)
        records = earlier + ring.settle(noise_every=_NOISE_EVERY)
        self._pace.returned(records)
        return records

    def saved(self) -> None:
        """Move the cursor behind everything that was returned."""
        ring = self._ring
        if self._cursor_file is None or ring.safe_seq is None or self._backfill is not None:
            return
        if self._saved is not None and self._saved.seq == ring.safe_seq:
            return
        if not self._pace.due():
            return
        cursor = KmsgCursor(
            boot_id=self._boot_id,
            seq=ring.safe_seq,
            boot_time=ring.boot_time,
            id=ring.safe_id,
            uptime_us=ring.safe_us,
            cards=self._stream.identities.copy(),
        )
        save(self._cursor_file, cursor)
        self._saved = cursor
        self._pace.saved()

    def fileno(self) -> int | None:
        """A descriptor that is readable when the kernel said something; None while it is closed."""
        return self._device.fileno()

    def next_due(self, now: float) -> float:
        """When to read next (monotonic seconds, as ``now``) if the descriptor stays silent."""
        if self._device.fileno() is None:
            return now
        soon = self._backfill is not None or self._stream.unfinished
        return now + (HELD_S if soon else IDLE_S)

    def close(self) -> None:
        """Close the device; a later read goes on where this one stopped."""
        self._device.close()
        if self._backfill is not None:
            self._backfill.close()

    def _prove(self) -> None:
        """See, once, that the ring got as far as the cursor says: else nothing would be new."""
        ring, here = self._ring, self._unproved
        self._unproved = None
        if here is None or ring.newest is None or ring.newest >= here.seq:
            return
        _LOG.warning("the ring ends before the kept position %d: all of it is sent", here.seq)
        ring.begin_anew()
        self._left = None
        self._device.close()
        self._device.open()

    def _look_back(self, cursor: KmsgCursor) -> None:
        """Start reading from the journal what the ring does not have, if anything is missing."""
        ring, self._left = self._ring, None
        if cursor.boot_id == self._boot_id and ring.gap is None:
            return
        self._backfill = Backfill(
            cursor,
            host=self._host,
            boot_id=self._boot_id,
            first=ring.first,
            clock=self._clock,
            directory=self._journal_directory,
            keep_other=self._keep_other,
        )

    def _earlier(self, backfill: Backfill) -> list[KernelRecord]:
        records = backfill.read()
        if backfill.done:
            self._backfill = None
            if self._ring.tell_gap(backfill.recovered):
                self._stream.identities.adopt(backfill.identities, self._boot_id)
        return records

    def _measured_boot_time(self) -> datetime:
        return self._clock() - timedelta(seconds=time.clock_gettime(time.CLOCK_MONOTONIC))

    def _follow_clock(self) -> None:
        if not self._boot_time_given:
            measured = self._measured_boot_time()
            if abs(measured - self._ring.boot_time) > _STEP:
                self._ring.boot_time = measured
