"""Asks NVML for many values of one GPU in one call, nvmlDeviceGetFieldValues.

The driver fetches what belongs together once, and says of each value whether it has it and what it
cost. nvidia-ml-py's own wrapper builds and reads the array attribute by attribute, which costs more
than the rest of a reading: here one buffer is kept and unpacked at once.
"""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from collectors.gpu.nvml import FUNCTION_NOT_FOUND, pynvml

__all__ = ["Batch", "FieldReply"]

# nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value.
_FIELD = struct.Struct("=IIqqIIQ")
_DOUBLE = 0
_BITS = {1: 32, 5: 32, 6: 16}
_SIGNED = frozenset({4, 5})


class FieldReply(NamedTuple):
    """What the driver said to one field: its return code, the number if 0, its cost in us."""

    code: int
    number: int
    latency_us: int


class Batch:
    """A fixed list of fields, (id, scope) each, to be asked again and again.

    One thread at a time may ask: the buffer is its own answer.
    """

    def __init__(self, fields: Sequence[tuple[int, int]]) -> None:
        self._count = len(fields)
        self._asked = b"".join(_FIELD.pack(field, scope, 0, 0, 0, 0, 0) for field, scope in fields)
        self._buffer = ctypes.create_string_buffer(max(1, len(self._asked)))

    def ask(self, handle: Any) -> list[FieldReply]:  # noqa: ANN401 (pynvml has no types)
        """Return the replies in the order of the fields; raises pynvml.NVMLError for the call."""
        if not self._count:
            return []
        self._buffer.raw = self._asked
        try:
            call = pynvml.nvmlLib.nvmlDeviceGetFieldValues
        except AttributeError:
            raise pynvml.NVMLError(FUNCTION_NOT_FOUND) from None
        code = call(handle, self._count, self._buffer)
        if code:
            raise pynvml.NVMLError(code)
        return [
            FieldReply(code, 0 if code else _number(kind, raw), latency)
            for _, _, _, latency, kind, code, raw in _FIELD.iter_unpack(self._buffer)
        ]


def _number(kind: int, raw: int) -> int:
    """The union as the type that the driver names (nvml.h, nvmlValueType_t)."""
    if kind == _DOUBLE:
        value: float = struct.unpack("=d", struct.pack("=Q", raw))[0]
        return int(value)
    bits = _BITS.get(kind, 64)
    number = raw & ((1 << bits) - 1)
    if kind in _SIGNED and number >> (bits - 1):
        number -= 1 << bits
    return number
