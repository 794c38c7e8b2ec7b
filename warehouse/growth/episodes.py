"""Bursts as one thing each: an episode is errors with no quiet longer than the gap between them."""

from collections.abc import Iterable
from dataclasses import dataclass

from warehouse.growth.increments import Increment

__all__ = ["Episode", "episodes"]


@dataclass(frozen=True, slots=True)
class Episode:
    """Errors from ``start`` to ``end`` (hours), ``count`` of them at least.

    ``uncertain`` is how many hours before ``start`` the first error may have come: the time since
    the reading before it.
    """

    start: float
    end: float
    count: int
    uncertain: float = 0.0


def episodes(grown: Iterable[Increment], gap_h: float) -> list[Episode]:
    """Join increments that are separated by at most ``gap_h`` hours without an error.

    Quiet is what was seen to be quiet: hours between readings belong to the increment they end in.
    """
    found: list[Episode] = []
    for one in grown:
        if not one.count:
            continue
        if found and one.since - found[-1].end <= gap_h:
            last = found[-1]
            found[-1] = Episode(last.start, one.at, last.count + one.count, last.uncertain)
        else:
            found.append(Episode(one.at, one.at, one.count, max(0.0, one.at - one.since)))
    return found
