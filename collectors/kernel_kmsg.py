"""Reads /dev/kmsg, the kernel's message ring (Documentation/ABI/testing/dev-kmsg).

One read is one message: ``level,sequence,microseconds,flags[,...];text`` and, on further lines
that begin with a blank, ``KEY=value`` about the device the message is about.
"""

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct

from collectors.collector import Unavailable
from collectors.kernel_prefix import level
from collectors.kernel_stream import KernelStream
from evidence.identity import digest
from evidence.records import KernelKind, KernelRecord

__all__ = [
    "KmsgCursor",
    "KmsgDevice",
    "KmsgMessage",
    "KmsgRing",
    "load_kmsg_cursor",
    "read_message",
    "save_kmsg",
]

#: The longest message with its dictionary (CONSOLE_EXT_LOG_MAX, 8192; PRINTKRB_RECORD_MAX, 1024 +).
_READ_BYTES = 16384

# 4,1287,5141900,-,caller=T1;pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3b:00.0
_HEAD = re.compile(rb"(\d{1,4}),(\d{1,19}),(\d{1,19}),[^;]*\Z")
# \x0a stands for a line break inside the text
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
#  DEVICE=+pci:0000:3b:00.0
_DEVICE = re.compile(
    rb"^ DEVICE=\+pci:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-7]$", re.MULTILINE
)


class KmsgCursor(Struct, frozen=True, kw_only=True):
    """The last message that is safely sent: the sequence number counts within one boot."""

    boot_id: str
    seq: int
    boot_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class KmsgMessage:
    """One message of the ring; ``uptime_us`` counts from the kernel's start."""

    priority: int
    seq: int
    uptime_us: int
    text: str
    device_pci: str | None


def read_message(data: bytes) -> KmsgMessage | None:
    """Read what one read of /dev/kmsg returned; None when it is not a message."""
    head, separator, rest = data.partition(b";")
    found = _HEAD.match(head)
    if found is None or not separator:
        return None
    text, _, dictionary = rest.partition(b"\n")
    if b"\\x" in text:
        text = _ESCAPED.sub(lambda escaped: bytes([int(escaped[1], 16)]), text)
    device = _DEVICE.search(dictionary) if dictionary else None
    return KmsgMessage(
        priority=level(found[1].decode()),
        seq=int(found[2]),
        uptime_us=int(found[3]),
        text=text.decode("utf-8", "backslashreplace"),
        device_pci=None if device is None else device[1].decode(),
    )


class KmsgDevice:
    """The open device; `read` never blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def open(self) -> None:
        """Open the device at the oldest message of the ring, unless it is open.

        Raises Unavailable when it is not there or may not be read.
        """
        if self._fd is not None:
            return
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be opened: {error.strerror}") from error

    def read(self) -> bytes | None:
        """Return the next message, or None when there is none yet.

        Raises Unavailable when the device cannot be read any more.
        """
        assert self._fd is not None
        while True:
            try:
                return os.read(self._fd, _READ_BYTES) or None
            except BlockingIOError:
                return None
            except OSError as error:
                # The ring went round under us. The next read is the oldest message left, and the
                # gap in the sequence numbers says how many were lost.
                if error.errno == errno.EPIPE:
                    continue
                self.close()
                raise Unavailable(f"{self._path} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Close the device."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class KmsgRing:
    """What the messages of one boot's ring become, whoever reads them."""

    def __init__(
        self,
        stream: KernelStream,
        *,
        host: str,
        boot_id: str,
        boot_time: datetime,
        clock: Callable[[], datetime],
        sent: int | None,
    ) -> None:
        """Take messages after ``sent``, the last sequence number of an earlier run."""
        self.boot_time = boot_time
        self.last_seq = sent
        self._stream = stream
        self._host = host
        self._boot_id = boot_id
        self._clock = clock
        self._own: list[KernelRecord] = []

    @property
    def pending(self) -> bool:
        """Whether `settle` would return anything."""
        return bool(self._own) or self._stream.ready or self._stream.unfinished

    def take(self, data: bytes) -> None:
        """Take what one read of the device returned."""
        message = read_message(data)
        if message is None:
            self._unreadable(data)
            return
        if self.last_seq is not None:
            if message.seq <= self.last_seq:
                self._stream.learn(message.text)
                return
            if message.seq > self.last_seq + 1:
                self._overrun(self.last_seq + 1, message)
        self.last_seq = message.seq
        self._stream.message(
            message.text,
            {
                "id": digest(self._host, self._boot_id, message.seq),
                "observed_at": self._clock(),
                "raw": message.text,
                "host": self._host,
                "at": self._at(message),
                "uptime_s": message.uptime_us / 1e6,
                "source": "kmsg",
                "file": None,
                "line": None,
                "seq": message.seq,
                "boot_id": self._boot_id,
                "priority": message.priority,
                "clock_clamped": False,
            },
            device_pci=message.device_pci,
        )

    def settle(self, *, noise_every: timedelta) -> list[KernelRecord]:
        """Return everything that was taken; nothing is held over to the next time."""
        own, self._own = self._own, []
        records = own + self._stream.settle()
        if (noise := self._stream.noise(at_most_every=noise_every)) is not None:
            records.append(noise)
        return records

    def _at(self, message: KmsgMessage) -> datetime:
        return self.boot_time + timedelta(microseconds=message.uptime_us)

    def _overrun(self, first: int, after: KmsgMessage) -> None:
        lost = after.seq - first
        told = f"{lost} kernel messages were overwritten before they were read"
        self._own.append(
            KernelRecord(
                id=digest(self._host, self._boot_id, first, "overrun"),
                observed_at=self._clock(),
                raw=told,
                kind=KernelKind.OVERRUN,
                host=self._host,
                at=self._at(after),
                uptime_s=after.uptime_us / 1e6,
                source="kmsg",
                seq=first,
                boot_id=self._boot_id,
                count=lost,
                message=told,
            ),
        )

    def _unreadable(self, data: bytes) -> None:
        raw = data.decode("utf-8", "backslashreplace")
        self._own.append(
            KernelRecord(
                id=digest(self._host, self._boot_id, "unreadable", raw),
                observed_at=self._clock(),
                raw=raw,
                kind=KernelKind.UNREADABLE,
                host=self._host,
                source="kmsg",
                boot_id=self._boot_id,
                message="not a message of /dev/kmsg",
            ),
        )


def save_kmsg(file: Path, cursor: KmsgCursor) -> None:
    """Write the cursor so that a crash leaves the old one or the new one.

    Raises OSError when the folder cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as out:
        out.write(msgspec.json.encode(cursor))
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_kmsg_cursor(file: Path) -> KmsgCursor | None:
    """Read the cursor back; None when there is none, or one that cannot be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=KmsgCursor)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
