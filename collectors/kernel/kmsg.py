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
from typing import Annotated

from msgspec import Meta, Struct, field

from collectors.collector import Unavailable
from collectors.kernel.identities import HostCards
from collectors.kernel.ids import MessageIds
from collectors.kernel.prefix import facility_of, level
from collectors.kernel.stream import KernelStream
from evidence.identity import digest
from evidence.records import KernelKind, KernelRecord

__all__ = [
    "Gap",
    "KmsgCursor",
    "KmsgDevice",
    "KmsgMessage",
    "KmsgRing",
    "read_message",
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


class KmsgCursor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last message that is safely sent: the sequence number counts within one boot.

    ``id`` and ``uptime_us`` find the same message in the journal; ``cards`` is what the driver
    said of the GPUs in this boot.
    """

    boot_id: str
    seq: Annotated[int, Meta(ge=0)]
    boot_time: datetime | None = None
    id: str = ""
    uptime_us: int = 0
    cards: dict[str, HostCards] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KmsgMessage:
    """One message of the ring; ``uptime_us`` counts from the kernel's start."""

    priority: int
    facility: int
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
        facility=facility_of(found[1].decode()),
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

    def fileno(self) -> int | None:
        """The open device's descriptor, readable when there is a message; None when closed."""
        return self._fd

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


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages ``first`` to before ``after`` were overwritten while no agent read the ring."""

    first: int
    after: KmsgMessage


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
        keep_gap: bool = False,
    ) -> None:
        """Take messages after ``sent``, the last sequence number of an earlier run.

        With ``keep_gap`` what is missing before the first of them is left in ``gap``, for somebody
        who may find it elsewhere, and is no record until `tell_gap`.
        """
        self.boot_time = boot_time
        #: The last message up to which everything was returned, and its place in the journal.
        self.safe_seq = sent
        self.safe_id = ""
        self.safe_us = 0
        #: The first message that was not sent before, and its id.
        self.first: tuple[KmsgMessage, str] | None = None
        self.gap: Gap | None = None
        #: The newest message that the device gave, whether it was sent before or not.
        self.newest: int | None = None
        self._last_seq = sent
        self._stream = stream
        self._host = host
        self._boot_id = boot_id
        self._clock = clock
        self._keep_gap = keep_gap
        self._ids = MessageIds(host)
        self._last_id = ""
        self._last_us = 0
        self._taken = False
        self._own: list[KernelRecord] = []

    @property
    def pending(self) -> bool:
        """Whether `settle` would return anything."""
        return bool(self._own) or self._stream.ready or self._stream.unfinished

    def begin_anew(self) -> None:
        """Forget what was sent: the next message is the first."""
        self.safe_seq = self._last_seq = None

    def take(self, data: bytes) -> None:
        """Take what one read of the device returned."""
        message = read_message(data)
        if message is None:
            self._unreadable(data)
            return
        record_id = self._ids.of(self._boot_id, message.uptime_us, message.text)
        self.newest = message.seq
        last = self._last_seq
        if last is not None and message.seq <= last:
            self._stream.learn(message.text, self._boot_id)
            if message.seq == self.safe_seq:
                self.safe_id, self.safe_us = record_id, message.uptime_us
            return
        if last is not None and message.seq > last + 1:
            self._missed(Gap(last + 1, message))
        if self.first is None:
            self.first = (message, record_id)
        self._taken = True
        self._last_seq, self._last_id, self._last_us = message.seq, record_id, message.uptime_us
        self._stream.message(
            message.text,
            {
                "id": record_id,
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
                "facility": message.facility,
                "clock_clamped": False,
            },
            device_pci=message.device_pci,
        )

    def settle(self, *, noise_every: timedelta) -> list[KernelRecord]:
        """Return what was taken.

        An event of which lines are still to come is held until a call before which nothing came.
        """
        taken, self._taken = self._taken, False
        waits = taken and self._stream.unfinished
        own, self._own = self._own, []
        records = own + self._stream.settle(joined=not waits)
        if (noise := self._stream.noise(at_most_every=noise_every)) is not None:
            records.append(noise)
        if not waits and self._last_seq != self.safe_seq:
            self.safe_seq, self.safe_id, self.safe_us = self._last_seq, self._last_id, self._last_us
        return records

    def tell_gap(self, found: int) -> bool:
        """Make a record of what is missing of ``gap``, ``found`` messages of it aside.

        Returns whether nothing is missing.
        """
        gap, self.gap = self.gap, None
        return gap is None or not self._overrun(gap, found)

    def _missed(self, gap: Gap) -> None:
        if self.first is not None:
            self._overrun(gap, 0)
            return
        # While no agent ran a driver may have been loaded whose words are lost.
        self._stream.identities.forget()
        if self._keep_gap:
            self.gap = gap
        else:
            self._overrun(gap, 0)

    def _at(self, message: KmsgMessage) -> datetime:
        return self.boot_time + timedelta(microseconds=message.uptime_us)

    def _overrun(self, gap: Gap, found: int) -> bool:
        lost = gap.after.seq - gap.first - found
        if lost <= 0:
            return False
        told = f"{lost} kernel messages were overwritten before they were read"
        self._own.append(
            KernelRecord(
                id=digest(self._host, self._boot_id, gap.first, "overrun"),
                observed_at=self._clock(),
                raw=told,
                kind=KernelKind.OVERRUN,
                host=self._host,
                at=self._at(gap.after),
                uptime_s=gap.after.uptime_us / 1e6,
                source="kmsg",
                seq=gap.first,
                boot_id=self._boot_id,
                count=lost,
                message=told,
            ),
        )
        return True

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
