"""When something counts and for how long: thresholds.toml, checked and typed.

Every entry stands with its reason and its source; a file of an operator's own overrides entries
one by one, and each override gives its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rules.entries import Entry, EntryError, Reader, read

__all__ = ["Ground", "Thresholds", "ThresholdsError", "load"]

SHIPPED = Path(__file__).with_name("thresholds.toml")

#: Entries that may be zero or below: degrees left to a limit.
_SIGNED = frozenset({"temperature_margin_c"})


#: A thresholds file that cannot be used; the message names file, line and key in one sentence.
ThresholdsError = EntryError


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
    silent_after_s: float
    silent_again_s: float
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
    nvlink_repeats: int
    nvlink_repeats_window_s: float
    degraded_for_s: float
    degraded_load_pct: float
    degraded_clock_share: float
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
    grounds = {key: Ground(entry.why, entry.source) for key, entry in entries.items()}
    values: dict[str, Any] = {key: entry.value for key, entry in entries.items()}
    return Thresholds(**values, grounds=MappingProxyType(grounds))


def _read(path: Path) -> dict[str, Entry]:
    return read(path, _reader, ("reason", "threshold"))


def _reader(key: str) -> Reader | None:
    return partial(_value, key) if key in _KINDS else None


def _value(key: str, value: object) -> float:
    whole = _KINDS[key] is int
    wanted = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(wanted)  # noqa: TRY004 (one kind of error for all)
    if key not in _SIGNED and not 0 < value < 1e9:  # noqa: PLR2004 (31 years in seconds)
        raise ValueError(f"{wanted} above zero")
    if not isfinite(value):
        raise ValueError(wanted)
    return value if whole else float(value)
