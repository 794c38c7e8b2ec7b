"""From counter readings to increments: resets, gaps and swaps told apart, nothing filled in.

Readings come as runs of one value: ``value`` was read from ``first`` to ``last``. The rules are
those of NVML: a volatile count begins anew with the driver, an aggregate one lives as long as the
card, so where it drops it was cleared or the card is another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Increment", "Run", "increments"]


@dataclass(frozen=True, slots=True)
class Run:
    """One value of a counter, read from ``first`` to ``last`` (hours) in one ``epoch``.

    ``epoch`` names boot and driver load.
    """

    first: float
    last: float
    value: int
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Increment:
    """Errors between two readings at ``since`` and ``at`` (hours).

    ``reset``: the count began anew, ``count`` is a lower bound. ``cleared``: an aggregate count
    dropped, nothing is known of the errors in between, ``count`` is None. ``quiet_since`` is when
    the increment before it was seen (the value has not changed from then to ``since``).
    """

    since: float
    at: float
    count: int | None
    quiet_since: float
    reset: bool = False
    cleared: bool = False


def increments(runs: Sequence[Run], *, aggregate: bool) -> list[Increment]:
    """What a counter grew by, in order of time; readings that changed nothing give nothing."""
    found: list[Increment] = []
    ordered = sorted(runs, key=lambda run: (run.first, run.last, run.value))
    quiet_since = ordered[0].first if ordered else 0.0
    for before, after in pairwise(ordered):
        since, at = before.last, after.first
        if after.value >= before.value and (aggregate or after.epoch == before.epoch):
            if after.value > before.value:
                grown = after.value - before.value
                found.append(Increment(since, at, grown, quiet_since))
                quiet_since = at
        elif aggregate:
            found.append(Increment(since, at, None, quiet_since, cleared=True))
        else:
            count = after.value
            found.append(Increment(since, at, count, quiet_since, reset=True))
            quiet_since = at if count else quiet_since
    return found
