"""When something counts and for how long: thresholds.toml, checked and typed.

Every entry stands with its reason and its source; a file of an operator's own overrides entries
one by one, and each override gives its own.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["Ground", "Thresholds", "ThresholdsError", "load"]

SHIPPED = Path(__file__).with_name("thresholds.toml")

_ENTRY = ("value", "reason", "source")
#: Entries that may be zero or below: degrees left to a limit.
_SIGNED = frozenset({"temperature_margin_c"})


class ThresholdsError(ValueError):
    """A thresholds file that cannot be used; one sentence with file, line and key."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Why a threshold has its value, and where that comes from."""

    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """All of thresholds.toml: ``_s`` seconds, ``_c`` degrees Celsius, else counts or weights.

    ``grounds`` holds reason and source of each entry; `dataclasses.replace` varies one in code.
    """

    settle_s: float
    incident_window_s: float
    incident_limit_s: float
    propagation_s: float
    peer_window_s: float
    port_before_lost_s: float
    collective_before_s: float
    collective_after_s: float
    node_window_s: float
    service_wait_s: float
    forget_after_s: float
    context_lead_s: float
    clock_skew_s: float
    context_grace_s: float
    context_open_s: float
    maintenance_open_s: float
    ecc_uncorrectable_growth: int
    temperature_c: float
    temperature_for_s: float
    temperature_margin_c: float
    temperature_gap_s: float
    unresponsive_s: float
    health_lag_s: float
    seen_every_s: float
    kernel_fresh_s: float
    old_news_s: float
    boots_in_a_day: int
    ib_symbol_errors: int
    ib_retrainings: int
    ib_damaged_packets: int
    ib_flaps: int
    ib_down_settle_s: float
    ib_down_s: float
    agree_weight: float
    strong_collective: float
    repeats_distinct: int
    repeats_window_s: float
    grounds: Mapping[str, Ground]


_KINDS: Mapping[str, object] = MappingProxyType(
    {field.name: field.type for field in fields(Thresholds) if field.name != "grounds"}
)


def load(path: Path | None = None) -> Thresholds:
    """Read the shipped thresholds, overridden entry by entry by the file at ``path``.

    Raises ThresholdsError, one sentence with file, line and key, for anything that is no threshold.
    """
    entries = _read(SHIPPED)
    missing = [key for key in _KINDS if key not in entries]
    if missing:
        raise ThresholdsError(f"{SHIPPED}: {', '.join(missing)}: missing")
    if path is not None:
        entries |= _read(path)
    grounds = {key: ground for key, (_, ground) in entries.items()}
    values: dict[str, Any] = {key: value for key, (value, _) in entries.items()}
    return Thresholds(**values, grounds=MappingProxyType(grounds))


def _read(path: Path) -> dict[str, tuple[float, Ground]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ThresholdsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ThresholdsError(f"{path}: is not UTF-8 text") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ThresholdsError(f"{path}: is not TOML: {error}") from error
    entries = {}
    for key, content in table.items():
        try:
            entries[key] = _entry(key, content)
        except ValueError as error:
            line = _line_of(text, key)
            raise ThresholdsError(f"{path}, line {line}: {key}: {error}") from error
    return entries


def _entry(key: str, content: object) -> tuple[float, Ground]:
    if key not in _KINDS:
        raise ValueError("no such threshold")
    if not isinstance(content, dict):
        raise ValueError("an entry is a table with value, reason and source")  # noqa: TRY004
    for name in content:
        if name not in _ENTRY:
            raise ValueError(f"{name}: an entry has only value, reason and source")
    for name in _ENTRY:
        if name not in content:
            raise ValueError(f"{name} is missing")
    for name in ("reason", "source"):
        if not isinstance(content[name], str) or not content[name].strip():
            raise ValueError(f"{name} must be a sentence")
    return _value(key, content["value"]), Ground(content["reason"], content["source"])


def _value(key: str, value: object) -> float:
    whole = _KINDS[key] is int
    wanted = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(f"value must be {wanted}, but is {value!r}")  # noqa: TRY004 (one kind)
    if key not in _SIGNED and not 0 < value < 1e9:  # noqa: PLR2004 (31 years in seconds)
        raise ValueError(f"value must be {wanted} above zero, but is {value!r}")
    return value if whole else float(value)


def _line_of(text: str, key: str) -> int:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith((f"[{key}]", f"{key} ", f"{key}=", f'["{key}"]')):
            return number
    return 1
