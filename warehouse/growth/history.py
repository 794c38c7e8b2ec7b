"""What is known of each card: when its errors came, and for how long it was watched and busy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warehouse.growth.episodes import Episode
from warehouse.growth.settings import Settings

__all__ = ["COUNTERS", "Card", "Fleet", "Weeks", "weeks"]

Array = NDArray[np.float64]
COUNTERS = ("corrected", "uncorrected")
_DAY_H = 24.0


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU's names, and its newest values by the names of a GPU snapshot."""

    gpu: str
    host: str | None = None
    pci: str | None = None
    uuid: str | None = None
    serial: str | None = None
    index: int | None = None
    model: str | None = None
    seen: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All cards over whole days from ``begin``; rows of the arrays are cards, columns days.

    ``covered``: hours of the day with valid samples; ``busy``: those of them in which the card
    worked. ``episodes`` by counter and row, in hours since ``begin``; ``marks`` counts resets and
    cleared counters by (counter, row).
    """

    begin: datetime
    cards: tuple[Card, ...]
    covered: Array
    busy: Array
    episodes: Mapping[str, Mapping[int, tuple[Episode, ...]]]
    marks: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def days(self) -> int:
        """How many days there are."""
        return int(self.covered.shape[1])

    @property
    def end(self) -> datetime:
        """The end of the last day."""
        return self.begin + timedelta(days=self.days)

    def used_h(self, row: int, hours: Array) -> Array:
        """Hours of use of a card at ``hours`` since the begin: its own clock."""
        used = np.concatenate(([0.0], self.busy[row].cumsum()))
        return np.asarray(np.interp(hours / _DAY_H, np.arange(self.days + 1), used))


@dataclass(frozen=True, slots=True)
class Weeks:
    """Episodes and exposure of one counter in equal bins that end with the history.

    ``recent`` bins at the end are the newer window. ``counts`` and ``exposure`` are cards x bins.
    """

    counts: Array
    exposure: Array
    recent: int
    first_day: int
    bin_days: int

    def windows(self) -> list[tuple[Array, Array, Array, Array]]:
        """Recent events and exposure, older events and exposure of each card, by window.

        The recent window is the whole of ``recent``, its last half and its last quarter: what grows
        fast shows in the short ones first. The older one is always all before ``recent``.
        """
        old, old_e = self.counts[:, : -self.recent].sum(1), self.exposure[:, : -self.recent].sum(1)
        sizes = sorted({self.recent, self.recent // 2, self.recent // 4} - {0})
        return [
            (self.counts[:, -one:].sum(1), self.exposure[:, -one:].sum(1), old, old_e)
            for one in sizes
        ]


def weeks(fleet: Fleet, counter: str, settings: Settings) -> Weeks:
    """Bin one counter's episodes; days before the first whole bin are left out."""
    size = settings.bin_days
    bins = fleet.days // size
    first = fleet.days - bins * size
    shape = (len(fleet.cards), bins, size)
    exposure = fleet.busy[:, first:].reshape(shape).sum(2)
    counts = np.zeros((len(fleet.cards), bins))
    for row, found in fleet.episodes.get(counter, {}).items():
        at = np.array([one.start for one in found]) / _DAY_H
        places = np.floor((at - first) / size).astype(int)
        held = (places >= 0) & (places < bins)
        np.add.at(counts[row], places[held], 1.0)
    recent = min(settings.recent_days // size, max(1, bins - 1))
    # Errors came while no sample said that the card was busy: an hour at least, it must have been.
    exposure = np.where((exposure <= 0) & (counts > 0), 1.0, exposure)
    return Weeks(counts, exposure, recent, first, size)
