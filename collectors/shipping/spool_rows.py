"""A parcel as a row of the spool, and back; a row that is harmed is no parcel."""

import zlib
from datetime import UTC, datetime
from typing import Any

from collectors.shipping.backlog import Parcel

__all__ = ["Row", "parcel_of", "row_of", "text_of", "time_of"]

#: A row as SQLite gives it: number, topic, telemetry, at, key, value, size.
Row = tuple[int, str, int, str | None, bytes, bytes, int]

#: What a row costs beside its key and value: two B-tree entries and the page's share.
_ROW_BYTES = 80
#: Values from this size on are compressed: a frame of GPUs shrinks to a tenth.
_PACK_FROM = 512
_ZLIB = b"\x78"
#: Kafka takes no larger record, so none was written.
_LARGEST = 1 << 20


def row_of(parcel: Parcel) -> Row:
    """The row of a parcel; its ``size`` is what it costs on the disk in bytes."""
    value = parcel.value
    if len(value) >= _PACK_FROM:
        value = zlib.compress(value, 1)
    size = len(parcel.key) + len(value) + _ROW_BYTES
    return (
        parcel.number,
        parcel.topic,
        int(parcel.telemetry),
        text_of(parcel.at),
        parcel.key,
        value,
        size,
    )


def parcel_of(row: tuple[Any, ...]) -> Parcel | None:
    """The parcel of a row; None where key or value are not what was written.

    A harmed time is left out: what happened matters more than when it was written down.
    """
    number, topic, telemetry, at, key, value, size = row
    if not isinstance(key, bytes) or not isinstance(value, bytes) or not isinstance(size, int):
        return None
    if value.startswith(_ZLIB):
        unpacked = _unpacked(value)
        if unpacked is None:
            return None
        value = unpacked
    found = Parcel(number, topic, key, value, bool(telemetry), at=time_of(at), spooled=True)
    found.stored = size
    return found


def _unpacked(value: bytes) -> bytes | None:
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(value, _LARGEST)
    except zlib.error:
        return None
    return found if unpacker.eof else None


def text_of(at: datetime | None) -> str | None:
    """A time as it is written."""
    return at.isoformat() if at else None


def time_of(text: object) -> datetime | None:
    """A time as it was written; None where there is none, or none that can be read."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
