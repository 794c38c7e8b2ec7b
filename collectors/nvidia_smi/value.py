"""Reads single values of nvidia-smi's outputs: numbers with units, yes and no, times.

A cell that is no value (`[N/A]`, `ERR!`, `[GPU is lost]`) has a reason instead, and is never zero.
"""

import re
from collections.abc import Callable
from datetime import datetime, tzinfo
from typing import Any

__all__ = [
    "Kind",
    "cluster",
    "fraction",
    "mebibytes",
    "moment",
    "nanoseconds",
    "performance_state",
    "reason",
    "recovery_action",
    "text",
    "whole",
    "yes",
]

#: Turns the text of a value into a value; raises ValueError where it is none.
Kind = Callable[[str], Any]

_REASONS = frozenset(
    {
        "n/a",
        "not supported",
        "not available",
        "unknown error",
        "err!",
        "gpu is lost",
        "gpu requires reset",
        "insufficient permissions",
        "requested functionality has been deprecated",
        "function not found",
        "timeout",
        "unknown",
    }
)
# `29 C`, `81559 MiB`, `16x`, `2560 bank(s)`, `0x0000000000000001`, `71.15 W`, `100.00 %`
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s*(x|%|C|W|mW|MHz|us|ms|ns|KiB|MiB|GiB|bank\(s\))?\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}\Z")
#: No text of a number is longer, and int() of a longer one costs time.
_MOST_TEXT = 32
#: NVML's counters have 64 bits, the history's columns a sign among them.
_MOST = (1 << 63) - 1


def reason(value: str) -> str | None:
    """Return why a cell holds no value, in nvidia-smi's words; None where it may be one."""
    value = value.strip()
    if value.startswith("[") and value.endswith("]"):
        return value[1:-1].strip() or "empty"
    if not value:
        return "empty"
    if value.casefold() in _REASONS or "GPU is lost" in value or "requires reset" in value:
        return value
    return None


def _number(value: str) -> tuple[str, str]:
    found = _NUMBER.match(value)
    if found is None or len(value) > _MOST_TEXT:
        raise ValueError(value)
    return found[1], found[2] or ""


def _bounded(number: float) -> int:
    if abs(number) > _MOST:
        raise ValueError(number)
    return round(number)


def whole(value: str) -> int:
    """`29 C`, `16x`, `2560 bank(s)`, `0x1F`."""
    if _HEX.match(value):
        return _bounded(int(value, 16))
    digits, _ = _number(value)
    return _bounded(float(digits) if "." in digits else int(digits))


def fraction(value: str) -> float:
    """`71.15 W`."""
    digits, unit = _number(value)
    return float(digits) / 1000 if unit == "mW" else float(digits)


_MEBIBYTES = {"": 1.0, "KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


def mebibytes(value: str) -> int:
    """`81559 MiB`, `79 GiB`; a bare number is MiB, as with `nounits`."""
    digits, unit = _number(value)
    if unit not in _MEBIBYTES:
        raise ValueError(value)
    return _bounded(float(digits) * _MEBIBYTES[unit])


_NANOSECONDS = {"": 1000, "ns": 1, "us": 1000, "ms": 1_000_000}


def nanoseconds(value: str) -> int:
    """`1250 us`; a bare number is microseconds, as with `nounits`."""
    digits, unit = _number(value)
    if unit not in _NANOSECONDS:
        raise ValueError(value)
    return _bounded((float(digits) if "." in digits else int(digits)) * _NANOSECONDS[unit])


_YES = {"yes": True, "enabled": True, "active": True, "1": True, "true": True, "on": True}
_NO = {"no": False, "disabled": False, "not active": False, "0": False, "false": False}
_ANSWERS = _YES | _NO | {"off": False}


def yes(value: str) -> bool:
    """`Yes`, `Enabled`, `Active`, `1` and their opposites."""
    answer = _ANSWERS.get(value.casefold())
    if answer is None:
        raise ValueError(value)
    return answer


def text(value: str) -> str:
    """A name, of sane length."""
    if len(value) > 256:  # noqa: PLR2004
        raise ValueError(value[:64])
    return value


_CLUSTER = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")


def cluster(value: str) -> str:
    """The UUID of an NVLink cluster."""
    if not _CLUSTER.match(value):
        raise ValueError(value)
    return value


def performance_state(value: str) -> int:
    """`P0` to `P15`."""
    if not re.fullmatch(r"P\d{1,2}", value):
        raise ValueError(value)
    return int(value[1:])


#: nvidia-smi's words for NVML field 230 (nvml.h, nvmlDeviceGpuRecoveryAction_t).
_ACTIONS = (
    ("none", 0),
    ("drain and reset", 4),
    ("drain p2p", 3),
    ("imex", 5),
    ("reboot", 2),
    ("reset", 1),
)


def recovery_action(value: str) -> int:
    """`None`, `Reset`, `Node Reboot`, `Drain P2P`, `Drain and Reset` as NVML's number."""
    words = value.casefold().replace("_", " ")
    for words_of, number in _ACTIONS:
        if words_of in words:
            return number
    raise ValueError(value)


# Wed Sep 25 10:40:24 2024
_CTIME = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\Z")
# 2026/07/14 09:00:27.792
_SLASHED = re.compile(r"(\d{4})/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?\Z")
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}


def moment(value: str, zone: tzinfo) -> datetime | None:
    """The time that nvidia-smi prints, local and without a zone; None where it is none."""
    value = value.strip()
    try:
        if found := _CTIME.match(value):
            month, day, hour, minute, second, year = found.groups()
            return datetime(
                int(year),
                _MONTHS[month],
                int(day),
                int(hour),
                int(minute),
                int(second),
                tzinfo=zone,
            )
        if found := _SLASHED.match(value):
            *parts, fraction_of = found.groups()
            micros = int((fraction_of or "0").ljust(6, "0"))
            year_, month_, day_, hour_, minute_, second_ = map(int, parts)
            return datetime(year_, month_, day_, hour_, minute_, second_, micros, tzinfo=zone)
    except (ValueError, KeyError):
        return None
    return None
