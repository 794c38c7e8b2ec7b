"""Makes bytes of a record, whatever text a file name or a driver put into it.

A path that is not UTF-8 is Python text with lone surrogates, which JSON cannot hold.
"""

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from evidence.wire import encode

__all__ = ["encodable", "pack"]

#: What Python makes of a byte that is no UTF-8 (PEP 383): U+DC80 to U+DCFF.
_OF_BYTES, _LAST_BYTE = 0xDC00, 0xFF
_SURROGATE = re.compile("[\ud800-\udfff]")

R = TypeVar("R", bound=Struct)


def pack(record: Struct) -> bytes:
    r"""Encode a record as UTF-8 JSON; a byte that is no UTF-8 becomes ``\xff``.

    Raises what the encoder does for a value that has no JSON at all.
    """
    try:
        return encode(record)
    except UnicodeEncodeError:
        return encode(encodable(record))


def encodable(record: R) -> R:
    """Return the record, or a copy whose text is UTF-8 where its own is not."""
    try:
        encode(record)
    except UnicodeEncodeError:
        return msgspec.convert(_cleaned(msgspec.to_builtins(record)), type(record))
    return record


def _cleaned(value: Any) -> Any:  # noqa: ANN401 (plain data of any shape)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(one) for one in value]
    return value


def _text(value: str) -> str:
    return _SURROGATE.sub(_spelled, value)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    byte = code - _OF_BYTES
    return f"\\x{byte:02x}" if 0 <= byte <= _LAST_BYTE else f"\\u{code:04x}"
