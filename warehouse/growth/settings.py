"""When an error count is said to grow: settings.toml, checked and typed."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from warehouse.errors import WarehouseError

__all__ = ["Ground", "Settings", "load"]

_SHIPPED = Path(__file__).with_name("settings.toml")
_PARTS = {"value", "reason", "source"}
_SHARES = frozenset({"min_coverage", "false_discovery_rate", "trend_p"})


@dataclass(frozen=True, slots=True)
class Ground:
    """Why a setting has its value, and where that comes from."""

    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of settings.toml: ``_h`` hours, ``_days`` days, ``_pct`` percent, else plain numbers."""

    episode_gap_h: float
    recent_days: int
    history_days: int
    bin_days: int
    busy_pct: int
    min_episodes: int
    min_history_days: int
    min_coverage: float
    false_discovery_rate: float
    trend_p: float
    min_effect: float
    peer_weight_episodes: float
    cusum_factor: float
    cusum_alarms_per_year: float
    errors_threshold: int
    forecast_ratio: float
    state_days: int
    grounds: Mapping[str, Ground]


_KINDS = {one.name: one.type for one in fields(Settings) if one.name != "grounds"}


def load(path: Path | None = None) -> Settings:
    """Read the shipped settings, overridden entry by entry by the file at ``path``.

    Raises WarehouseError, one sentence with file and key, for anything that is no setting.
    """
    table = _read(_SHIPPED)
    if path is not None:
        table |= _read(path)
    grounds = {key: Ground(one["reason"], one["source"]) for key, one in table.items()}
    values: dict[str, Any] = {key: one["value"] for key, one in table.items()}
    if values["recent_days"] % values["bin_days"]:
        raise WarehouseError(f"{path}: recent_days must be a multiple of bin_days")
    if values["history_days"] < values["recent_days"] + values["min_history_days"]:
        raise WarehouseError(
            f"{path}: history_days must hold recent_days and min_history_days before them"
        )
    return Settings(**values, grounds=MappingProxyType(grounds))


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WarehouseError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WarehouseError(f"{path}: is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise WarehouseError(f"{path}: is not TOML: {error}") from error
    for key, entry in table.items():
        if key not in _KINDS:
            raise WarehouseError(f"{path}: {key}: no such setting")
        if not isinstance(entry, dict) or set(entry) != _PARTS:
            raise WarehouseError(f"{path}: {key}: an entry has value, reason and source")
        for word in ("reason", "source"):
            if not isinstance(entry[word], str) or not entry[word].strip():
                raise WarehouseError(f"{path}: {key}.{word}: must be a sentence")
        entry["value"] = _value(path, key, entry["value"])
    return table


def _value(path: Path, key: str, value: object) -> float:
    whole = _KINDS[key] is int
    wanted = "a whole number above zero" if whole else "a number above zero"
    if key in _SHARES:
        wanted = "a number above 0 and below 1"
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right or not isfinite(number := float(str(value))) or number <= 0:
        raise WarehouseError(f"{path}: {key}: must be {wanted}, but is {value!r}")
    if key in _SHARES and number >= 1:
        raise WarehouseError(f"{path}: {key}: must be {wanted}, but is {value!r}")
    if key == "min_effect" and number < 1:
        raise WarehouseError(f"{path}: {key}: growth is a factor of at least 1, not {value!r}")
    return int(number) if whole else number
