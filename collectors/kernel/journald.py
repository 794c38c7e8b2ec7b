"""Collects what the kernel logs from journald, which keeps it over rotation and reboot.

The entries of the fabric manager and of nvidia-persistenced, which never pass the kernel's ring,
come along. A kernel message has the same id here as from /dev/kmsg.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct, field

from collectors.collector import Unavailable
from collectors.cursors import SavePace, load, save
from collectors.kernel.fields import Whence
from collectors.kernel.identities import GpuIdentities, HostCards
from collectors.kernel.ids import MessageIds
from collectors.kernel.journal import StoredEntry, read_stored
from collectors.kernel.journalctl import Journalctl
from collectors.kernel.pace import HELD_S, IDLE_S
from collectors.kernel.stream import KernelStream
from evidence.identity import digest
from evidence.records import KernelKind, KernelRecord

__all__ = ["JournalCollector", "JournalCursor", "feed", "this_machine"]

_LOG = logging.getLogger(__name__)

_MACHINE_ID = Path("/etc/machine-id")
_NOISE_EVERY = timedelta(minutes=1)
#: Between two starts of a journalctl that ended.
_RESTART_S = 1.0
#: Until a journalctl that prints nothing is taken to have found nothing.
_FIRST_WORD_S = 2.0


class JournalCursor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last entry that is safely sent: ``cursor`` is journald's name for it.

    ``entry_us`` is its time in microseconds since 1970, ``seen`` numbers the latest messages (see
    `MessageIds`), ``cards`` is what the driver said of the GPUs.
    """

    cursor: str
    boot_id: str
    entry_us: int
    seen: dict[str, int] = field(default_factory=dict)
    cards: dict[str, HostCards] = field(default_factory=dict)


def this_machine() -> str | None:
    """The id of this machine in its journal; None where it cannot be told."""
    try:
        return _MACHINE_ID.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def feed(
    stream: KernelStream, entry: StoredEntry, *, record_id: str, host: str, now: datetime
) -> None:
    """Give a journal entry to a stream of messages."""
    whence: Whence = {
        "id": record_id,
        "observed_at": now,
        "raw": entry.text,
        "host": host,
        "at": entry.at,
        "uptime_s": entry.uptime_us / 1e6,
        "source": "journal",
        "file": None,
        "line": None,
        "seq": entry.seq,
        "boot_id": entry.boot_id,
        "priority": entry.priority,
        "facility": entry.facility,
        "clock_clamped": False,
    }
    stream.message(entry.text, whence, device_pci=entry.device_pci, process=entry.process)


class JournalCollector:
    """The kernel's entries in the journal, in its order, each once, over boots and rotations.

    Without a cursor it begins with this boot. An entry that journald threw away before it was
    read is a record of kind overrun, and reading goes on with the oldest entry left.
    """

    name = "kernel"
    topic = "kernel"

    def __init__(
        self,
        host: str,
        boot_id: str,
        cursor_file: Path | None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        directory: Path | None = None,
        keep_other: bool = False,
    ) -> None:
        """Read the journal of this machine, or the journal files in ``directory``.

        ``boot_id`` (/proc/sys/kernel/random/boot_id) is where the first run begins; empty means at
        the oldest entry. Without ``cursor_file`` each start is the first.
        """
        self._host = host
        self._boot_id = boot_id
        self._cursor_file = cursor_file
        self._clock = clock
        self._directory = directory
        self._machine = this_machine() if directory is None else None
        self._saved = _load(cursor_file)
        self._safe = self._saved
        self._pace = SavePace()
        self._last: StoredEntry | None = None
        self._ids = MessageIds(host, self._saved.seen if self._saved else None)
        self._stream = KernelStream(
            host=host,
            clock=clock,
            source="journal",
            keep_other=keep_other,
            coalesce=True,
            identities=GpuIdentities(dict(self._saved.cards) if self._saved else None),
        )
        self._own: list[KernelRecord] = []
        self._child: Journalctl | None = None
        self._start_at = 0.0
        self._heard = False
        #: The entry that was read last, while it is not known whether it is still there.
        self._sought: JournalCursor | None = None

    def read(self) -> Sequence[KernelRecord]:
        """Return what the journal gained since the last call.

        Raises Unavailable when journalctl is not there, may not read the journal, or finds none.
        """
        child = self._running()
        lines = child.read()
        for line in lines:
            self._take(line)
        self._heard = self._heard or bool(lines)
        waits = bool(lines) and self._stream.unfinished
        own, self._own = self._own, []
        records = own + self._stream.settle(joined=not waits)
        if (noise := self._stream.noise(at_most_every=_NOISE_EVERY)) is not None:
            records.append(noise)
        if not waits and self._last is not None:
            self._safe = self._position(self._last)
            self._last = None
        self._pace.returned(records)
        if child.ended and not waits:
            self._child = None
            why = child.failure or "journalctl ended"
            if not records:
                raise Unavailable(why)
            _LOG.warning("%s; it is started again", why)
        return records

    def saved(self) -> None:
        """Move the cursor behind everything that was returned."""
        if self._cursor_file is None or self._safe is None or not self._pace.due():
            return
        if self._safe == self._saved:
            return
        save(self._cursor_file, self._safe)
        self._saved = self._safe
        self._pace.saved()

    def fileno(self) -> int | None:
        """A descriptor that is readable when `read` has work; None while there is none."""
        return None if self._child is None else self._child.fileno()

    def next_due(self, now: float) -> float:
        """When to read next (monotonic seconds, as ``now``) if the descriptor stays silent."""
        if self._child is None or self._child.ended:
            return max(now, self._start_at)
        return now + (HELD_S if self._stream.unfinished else IDLE_S)

    @property
    def busy(self) -> bool:
        """Whether journalctl was just started and has not printed anything yet."""
        just_started = time.monotonic() < self._start_at - _RESTART_S + _FIRST_WORD_S
        return self._child is not None and not self._heard and just_started

    def close(self) -> None:
        """End journalctl; a later read goes on where this one stopped."""
        if self._child is not None:
            self._child.close()
            self._child = None
        if self._last is not None:  # an event whose end had not come: it is read again
            self._last = None
            self._stream.settle()
            self._ids = MessageIds(self._host, self._safe.seen if self._safe else None)

    def _running(self) -> Journalctl:
        if self._child is not None:
            return self._child
        now = time.monotonic()
        if now < self._start_at:
            raise Unavailable("journalctl ended and is started again")
        self._start_at = now + _RESTART_S
        self._sought = here = self._safe
        self._child = Journalctl(
            self._directory,
            follow=True,
            units=True,
            cursor=None if here is None else here.cursor,
            boot_id=self._boot_id if here is None else None,
        )
        return self._child

    def _take(self, line: bytes) -> None:
        entry = read_stored(line)
        if entry is None:
            self._unreadable(line.decode("utf-8", "backslashreplace"), None)
            return
        if self._passed(entry):
            return
        self._last = entry
        if self._foreign(entry):
            return
        if not entry.readable:
            self._unreadable("", entry)
            return
        record_id = self._ids.of(entry.boot_id, entry.uptime_us, entry.text)
        feed(self._stream, entry, record_id=record_id, host=self._host, now=self._clock())

    def _foreign(self, entry: StoredEntry) -> bool:
        """Whether another machine sent this: of our boot, an initrd may have had another id."""
        return (
            self._machine is not None
            and entry.machine_id not in {None, self._machine}
            and entry.boot_id != self._boot_id
        )

    def _passed(self, entry: StoredEntry) -> bool:
        """Whether an entry is the one that an earlier read ended with.

        journalctl begins with that entry, or with the next one in time when it is gone.
        """
        sought, self._sought = self._sought, None
        if sought is not None:
            if _place(entry.cursor) == _place(sought.cursor):
                return True
            if not _follows(entry.cursor, sought.cursor):
                self._overrun(sought, entry)
        return False

    def _position(self, entry: StoredEntry) -> JournalCursor:
        return JournalCursor(
            cursor=entry.cursor,
            boot_id=entry.boot_id,
            entry_us=entry.entry_us,
            seen=self._ids.seen,
            cards=self._stream.identities.copy(),
        )

    def _overrun(self, sought: JournalCursor, entry: StoredEntry) -> None:
        told = "the journal lost the entry that was read last, and perhaps others after it"
        at = datetime.fromtimestamp(sought.entry_us / 1e6, UTC)
        self._own.append(
            KernelRecord(
                id=digest(self._host, sought.cursor, "overrun"),
                observed_at=self._clock(),
                raw=told,
                kind=KernelKind.OVERRUN,
                host=self._host,
                at=at,
                last_at=max(at, entry.at or at),
                source="journal",
                seq=entry.seq,
                boot_id=entry.boot_id,
                device="journal",
                message=told,
            )
        )

    def _unreadable(self, raw: str, entry: StoredEntry | None) -> None:
        told = "not an entry of a journal" if entry is None else "a journal entry without its text"
        self._own.append(
            KernelRecord(
                id=digest(self._host, "unreadable", raw if entry is None else entry.cursor),
                observed_at=self._clock(),
                raw=raw,
                kind=KernelKind.UNREADABLE,
                host=self._host,
                at=None if entry is None else entry.at,
                source="journal",
                seq=0 if entry is None else entry.seq,
                boot_id=None if entry is None else entry.boot_id,
                message=told,
            )
        )


def _place(cursor: str) -> str:
    """What names an entry whichever file it lies in: boot, times and hash."""
    return cursor.partition(";b=")[2]


def _follows(cursor: str, before: str) -> bool:
    """Whether an entry is the very next one after another in the same sequence."""
    sequence, _, number = cursor.partition(";b=")[0].partition(";i=")
    earlier, _, last = before.partition(";b=")[0].partition(";i=")
    return sequence == earlier and int(number, 16) == int(last, 16) + 1


def _load(file: Path | None) -> JournalCursor | None:
    """Read the cursor back; None when there is none, or (said in the log) one that is broken."""
    found = load(file, JournalCursor)
    if found is None:
        return None
    if read_stored(msgspec.json.encode({"__CURSOR": found.cursor})) is None:
        _LOG.warning("cursor %s is broken and ignored: %r", file, found.cursor)
        return None
    return found
