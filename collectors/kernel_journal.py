"""Reads one line of ``journalctl -o json``: the kernel's message and what journald knew of it.

A field is a text, a list of byte values when it is not UTF-8, null when it was too long, or a list
of these when it was given twice (systemd.journal-fields(7), "JSON" in systemd's export formats).
"""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from collectors.kernel_prefix import FABRIC_MANAGER

__all__ = ["JournalEntry", "read_journal"]


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


_DECODER = msgspec.json.Decoder(_Line)


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
