"""Reads one line of ``journalctl -o json``: the kernel's message and what journald knew of it.

A field is a text, a list of byte values when it is not UTF-8, null when it was too long, or a list
of these when it was given twice (systemd.journal-fields(7), "JSON" in systemd's export formats).
"""

import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from collectors.kernel.prefix import FABRIC_MANAGER

__all__ = ["JournalEntry", "StoredEntry", "read_journal", "read_stored"]

# s=(32 hex);i=3;b=(32 hex);m=f4a10;t=649ce3d40a7d0;x=60e235e87b08c4f0
_CURSOR = re.compile(
    r"s=([0-9a-f]{32});i=([0-9a-f]{1,16});b=([0-9a-f]{32});m=([0-9a-f]{1,16})"
    r";t=([0-9a-f]{1,16});x=[0-9a-f]{1,16}\Z",
)
# +pci:0000:3b:00.0
_PCI = re.compile(r"\+pci:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-7]\Z")


class _Line(Struct):
    message: Any = field(default=None, name="MESSAGE")
    host: Any = field(default=None, name="_HOSTNAME")
    received_us: Any = field(default=None, name="__REALTIME_TIMESTAMP")
    source_us: Any = field(default=None, name="_SOURCE_REALTIME_TIMESTAMP")
    monotonic_us: Any = field(default=None, name="_SOURCE_MONOTONIC_TIMESTAMP")
    boot_id: Any = field(default=None, name="_BOOT_ID")
    priority: Any = field(default=None, name="PRIORITY")
    transport: Any = field(default=None, name="_TRANSPORT")
    identifier: Any = field(default=None, name="SYSLOG_IDENTIFIER")
    facility: Any = field(default=None, name="SYSLOG_FACILITY")
    pid: Any = field(default=None, name="SYSLOG_PID")
    unit: Any = field(default=None, name="_SYSTEMD_UNIT")
    machine: Any = field(default=None, name="_MACHINE_ID")
    device: Any = field(default=None, name="_KERNEL_DEVICE")
    entry_us: Any = field(default=None, name="__MONOTONIC_TIMESTAMP")
    cursor: Any = field(default=None, name="__CURSOR")


_DECODER = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a journal with its position, as /dev/kmsg would tell the same message.

    ``cursor`` is its place (systemd.journal-fields(7)), ``seq`` the number in it, ``entry_us`` when
    journald took it in (microseconds since 1970), ``at`` and ``uptime_us`` when it was said.
    ``process`` is empty for what came by the kernel's ring, even if a process wrote it there.
    ``readable`` is false where there is no text (a field of more than 4096 bytes is left out).
    """

    cursor: str
    seq: int
    boot_id: str
    entry_us: int
    uptime_us: int
    at: datetime | None
    text: str
    readable: bool = True
    machine_id: str | None = None
    priority: int | None = None
    facility: int | None = None
    process: str = ""
    device_pci: str | None = None


def read_stored(line: bytes) -> StoredEntry | None:
    """Read one JSON line of the journal of this node; None when it is no journal entry."""
    try:
        found = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    place = _CURSOR.match(cursor := _text(found.cursor) or "")
    if place is None:
        return None
    entry_us, received_us = int(place[5], 16), int(place[4], 16)
    said_us = _number(found.monotonic_us)
    uptime_us = received_us if said_us is None else said_us
    priority = _number(found.priority)
    device = _PCI.match(_text(found.device) or "")
    text, process = _said(found)
    return StoredEntry(
        cursor=cursor,
        seq=int(place[2], 16),
        boot_id=_boot_id(place[3]) or place[3],
        entry_us=entry_us,
        uptime_us=uptime_us,
        # The first messages of a boot are older than journald.
        at=_time(entry_us - received_us + uptime_us),
        text=text or "",
        readable=text is not None,
        machine_id=_text(found.machine),
        priority=None if priority is None else priority & 7,
        facility=_number(found.facility),
        process=process,
        device_pci=None if device is None else device[1],
    )


def _said(found: _Line) -> tuple[str | None, str]:
    """The text as the kernel's ring has it, and the process that wrote it past the ring.

    journald takes ``name[pid]: `` off what a process wrote into the ring.
    """
    text, name = _text(found.message), _text(found.identifier) or ""
    if (_text(found.transport) or "kernel") != "kernel":
        unit = _text(found.unit) or ""
        return text, name if FABRIC_MANAGER in name else unit or name or "a process"
    if text is not None and name not in {"", "kernel"}:
        pid = _text(found.pid)
        text = f"{name}: {text}" if pid is None else f"{name}[{pid}]: {text}"
    return text, ""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One journal entry, with the attributes of a `LinePrefix`.

    ``user`` says that a process and not the kernel wrote it; ``message`` says so where the line
    could not be read, and ``readable`` is then false.
    """

    message: str
    readable: bool = True
    host: str | None = None
    time: datetime | None = None
    uptime_s: float | None = None
    boot_id: str | None = None
    priority: int | None = None
    facility: int | None = None
    user: bool = False
    fabric_manager: bool = False
    source: str = "journal"

    def at(self, _now: datetime) -> datetime | None:
        """The wall-clock time of the entry; it needs no year to be guessed."""
        return self.time


def read_journal(line: bytes) -> JournalEntry:
    """Read one JSON line; never raises."""
    try:
        found = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return JournalEntry(f"a journal line that is no JSON object: {error}", readable=False)
    message = _text(found.message)
    if message is None:
        return JournalEntry("a journal entry without a message", readable=False)
    transport, identifier = _text(found.transport), _text(found.identifier) or ""
    uptime_us = _number(found.monotonic_us)
    priority = _number(found.priority)
    at_us = _number(found.source_us)
    return JournalEntry(
        message=message.strip(),
        host=_text(found.host),
        time=_time(_number(found.received_us) if at_us is None else at_us),
        uptime_s=None if uptime_us is None else uptime_us / 1e6,
        boot_id=_boot_id(_text(found.boot_id)),
        priority=None if priority is None else priority & 7,
        facility=_number(found.facility),
        # What a process wrote to /dev/kmsg comes by the kernel, under the process's own name.
        user=(transport or "kernel") != "kernel" or (identifier or "kernel") != "kernel",
        fabric_manager=FABRIC_MANAGER in identifier,
    )


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        return None
    if isinstance(value[0], int):
        try:
            return bytes(value).decode("utf-8", "backslashreplace")
        except (TypeError, ValueError):
            return None
    return _text(value[0])


def _number(value: object) -> int | None:
    text = _text(value)
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 18:  # noqa: PLR2004 (63 bits)
        return None
    return int(text)


def _time(microseconds: int | None) -> datetime | None:
    if microseconds is None:
        return None
    try:
        return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(
            microsecond=microseconds % 1_000_000
        )
    except (ValueError, OverflowError, OSError):
        return None


def _boot_id(text: str | None) -> str | None:
    """The boot id as /proc spells it, with dashes; journald leaves them out."""
    try:
        return None if text is None else str(uuid.UUID(text))
    except ValueError:
        return text
