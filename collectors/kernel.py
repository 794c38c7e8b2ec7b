"""Collects what the kernel logs: live from /dev/kmsg, or from the log files that grow beside it.

Lines of no interest are not shipped one by one. Those that the kernel itself marked as a warning
or worse go out raw (equal ones merged, a bounded number a minute); of the others one record a
minute says how many there were. In files only journal lines tell their level, so the rest is
counted there.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from collectors.collector import Unavailable
from collectors.follow import Cursor, Follower, load_cursor, save_cursor
from collectors.kernel_grammar import parse_message
from collectors.kernel_kmsg import KmsgCursor, KmsgDevice, KmsgRing, load_kmsg_cursor, save_kmsg
from collectors.kernel_stream import MAX_LINE, KernelStream
from collectors.kernel_text import bounded_lines, parse_stream
from evidence.identity import digest
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
    overwrote before they were read are one record of kind overrun with their number.
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
    ) -> None:
        """Read ``path`` as of ``boot_id`` (/proc/sys/kernel/random/boot_id).

        ``boot_time`` is the wall-clock time of the kernel's second 0; without it, what the clock
        and CLOCK_MONOTONIC say. Without ``cursor_file`` each start sends the whole ring again.
        """
        self._host = host
        self._boot_id = boot_id
        self._cursor_file = cursor_file
        self._clock = clock
        self._boot_time_given = boot_time is not None
        self._device = KmsgDevice(path)
        stream = KernelStream(
            host=host, clock=clock, source="kmsg", keep_other=keep_other, coalesce=True
        )
        sent = None
        if cursor_file is not None:
            cursor = load_kmsg_cursor(cursor_file)
            if cursor is not None and cursor.boot_id == boot_id:
                sent = cursor.seq
                # The same message read twice shall have the same time to the microsecond.
                boot_time = boot_time or cursor.boot_time
        self._saved = sent
        self._ring = KmsgRing(
            stream,
            host=host,
            boot_id=boot_id,
            boot_time=boot_time or self._measured_boot_time(),
            clock=clock,
            sent=sent,
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
                    break
                ring.take(data)
        except Unavailable:
            if not ring.pending:
                raise
        return ring.settle(noise_every=_NOISE_EVERY)

    def saved(self) -> None:
        """Move the cursor behind everything that was returned."""
        seq = self._ring.last_seq
        if self._cursor_file is None or seq is None or seq == self._saved:
            return
        cursor = KmsgCursor(boot_id=self._boot_id, seq=seq, boot_time=self._ring.boot_time)
        try:
            save_kmsg(self._cursor_file, cursor)
        except OSError as error:
            _LOG.warning("cursor %s cannot be written: %s", self._cursor_file, error)
        else:
            self._saved = seq

    def close(self) -> None:
        """Close the device; a later read goes on where this one stopped."""
        self._device.close()

    def _measured_boot_time(self) -> datetime:
        return self._clock() - timedelta(seconds=time.clock_gettime(time.CLOCK_MONOTONIC))

    def _follow_clock(self) -> None:
        if not self._boot_time_given:
            measured = self._measured_boot_time()
            if abs(measured - self._ring.boot_time) > _STEP:
                self._ring.boot_time = measured


class _Followed:
    """One log file: its follower, the way of its lines, and the cursor that is safe to save."""

    def __init__(self, path: Path, cursor_file: Path | None, stream: KernelStream) -> None:
        self.path = path
        self.cursor_file = cursor_file
        self.saved = None if cursor_file is None else load_cursor(cursor_file)
        self.follower = Follower(path, cursor=self.saved, max_line=MAX_LINE)
        self.stream = stream
        self.safe: Cursor | None = self.saved
        #: Why it could not be read at the last look.
        self.missing = ""

    def read(self) -> list[KernelRecord]:
        before = self.follower.cursor
        lines = self.follower.read()
        self.stream.lines(lines)
        # An event cut in two by our reading waits for one more call, and the cursor with it.
        waits = bool(lines) and self.stream.unfinished
        records = self.stream.settle(joined=not waits)
        self.safe = before if waits else self.follower.cursor
        if (noise := self.stream.noise(at_most_every=_NOISE_EVERY)) is not None:
            records.append(noise)
        return records

    def save(self) -> None:
        if self.cursor_file is None or self.safe is None or self.safe == self.saved:
            return
        try:
            save_cursor(self.cursor_file, self.safe)
        except OSError as error:
            _LOG.warning("cursor %s cannot be written: %s", self.cursor_file, error)
        else:
            self.saved = self.safe


class FileCollector:
    """Kernel log files as they grow: kern.log, a journal as text or JSON, fabricmanager.log.

    A line that names another host than ours belongs to that host: the file may be that of a log
    server. Each line's record has the same id however often the line is read.
    """

    name = "kernel"
    topic = "kernel"

    def __init__(
        self,
        host: str,
        paths: Sequence[Path],
        cursor_dir: Path | None,
        clock: Callable[[], datetime] = _utc_now,
        *,
        zone: tzinfo | None = None,
        keep_other: bool = False,
    ) -> None:
        """Follow ``paths``; times without a zone are of ``zone`` (None: of this machine).

        Cursors are kept in ``cursor_dir``; without one each start reads the files anew.
        """
        self._files = [
            _Followed(
                path,
                _cursor_file(cursor_dir, path),
                KernelStream(
                    host=host,
                    clock=clock,
                    file=str(path),
                    zone=zone,
                    keep_other=keep_other,
                    coalesce=True,
                ),
            )
            for path in paths
        ]

    def read(self) -> Sequence[KernelRecord]:
        """Return the records of the lines the files gained since the last call.

        Raises Unavailable when none of the files is there; a missing one among others is asked
        again each time.
        """
        records: list[KernelRecord] = []
        missing: list[str] = []
        for file in self._files:
            why = ""
            try:
                records += file.read()
            except Unavailable as error:
                records += file.stream.settle()
                why = str(error)
                missing.append(why)
            self._tell(file, why)
        if len(missing) == len(self._files) and not records:
            raise Unavailable("; ".join(missing) or "no kernel log file is configured")
        return records

    def _tell(self, file: _Followed, why: str) -> None:
        """Say once that one file among several cannot be read, and once that it can again.

        Of an only file the caller hears by Unavailable.
        """
        if why != file.missing and len(self._files) > 1:
            if why:
                _LOG.warning("%s", why)
            else:
                _LOG.info("%s is read again", file.path)
        file.missing = why

    def saved(self) -> None:
        """Move the cursors behind everything that was returned."""
        for file in self._files:
            file.save()

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.follower.close()


def _cursor_file(folder: Path | None, path: Path) -> Path | None:
    if folder is None:
        return None
    return folder / f"kernel-{path.name}-{digest(str(path))[:8]}.json"
