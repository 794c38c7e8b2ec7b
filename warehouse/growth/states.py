"""States that need no statistics: the only triggers of a replacement that a vendor publishes.

Source: NVIDIA, GPU memory error management (row remapping, SRAM threshold); DCGM's health watch for
retired pages of cards before Ampere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["State", "states"]

#: DCGM fails a card with so many retired pages (DcgmHealthWatch).
_RETIRED_PAGES = 63


@dataclass(frozen=True, slots=True)
class State:
    """One thing that a card says of itself; ``hard`` where it is to be replaced or is gone."""

    kind: str
    words: str
    hard: bool


#: Values that speak by being true: name of the field, kind, words, hard.
_FLAGS = (
    ("remap_failure", "remap-failure", "a row remap failed: replace after diagnostics", True),
    ("sram_threshold_exceeded", "sram-threshold", "SRAM error threshold exceeded: replace", True),
    ("unrepairable_memory", "unrepairable", "memory beyond repair: replace", True),
    ("remap_pending", "remap-pending", "a row remap waits for a GPU reset", False),
    ("channel_repair_pending", "channel-repair-pending", "a repair waits for a reset", False),
)


def states(seen: Mapping[str, Any]) -> tuple[State, ...]:
    """What the newest values of a card say; keys are those of a GPU snapshot, None is not read.

    Remap counts are no trigger: no vendor publishes a number for them. The histogram is: a bank
    without spare rows raises the failure flag with its next uncorrectable error.
    """
    found = [State(kind, words, hard) for name, kind, words, hard in _FLAGS if seen.get(name)]
    if seen.get("status") == "lost":
        found.insert(0, State("lost", "does not answer: lost", hard=True))
    if (pages := seen.get("retired_pages") or 0) >= _RETIRED_PAGES:
        found.append(State("retired-pages", f"{pages} pages retired of 64", hard=True))
    banks = seen.get("remap_banks") or {}
    if none := banks.get("none"):
        words = f"{none} banks without a spare row: the next error there fails"
        found.append(State("banks-none", words, hard=False))
    elif low := banks.get("low"):
        found.append(State("banks-low", f"{low} banks with one spare row left", hard=False))
    return tuple(found)
