"""Running alarms: Poisson CUSUM (Lucas 1985) with a limit from a budget, and Wald's SPRT."""

from dataclasses import dataclass
from math import ceil, log

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

__all__ = ["Sprt", "average_run_length", "cusum", "limit_for", "reference", "sprt"]

Array = NDArray[np.float64]


def reference(accepted: float, detected: float) -> float:
    """Lucas's k between the accepted and the detected mean of an interval."""
    return (detected - accepted) / (log(detected) - log(accepted))


def cusum(counts: ArrayLike, expected: ArrayLike, factor: float, limit: float) -> tuple[Array, int]:
    """The sum S = max(0, S + x - k), and the interval of the first alarm (S >= limit), else -1.

    ``expected`` is the accepted mean of each interval, ``factor`` the multiple to detect.
    """
    seen, accepted = np.asarray(counts, float), np.asarray(expected, float)
    k = accepted * (factor - 1) / log(factor)
    total, path = 0.0, []
    for step in seen - k:
        total = max(0.0, total + float(step))
        path.append(total)
    above = np.flatnonzero(np.asarray(path) >= limit)
    return np.asarray(path), int(above[0]) if above.size else -1


def average_run_length(k: float, h: float, mean: float, *, parts: int = 1) -> float:
    """Intervals until an alarm, on average, of CUSUM(k, h) when counts are Poisson(``mean``).

    Exact (Brook and Evans 1972) where k and h are multiples of 1 / ``parts``; else both are
    rounded to that grid, towards more alarms for h.
    """
    steps, size = round(k * parts), max(1, ceil(h * parts - 1e-9))
    here, there = np.indices((size, size))
    jump = there - here + steps
    whole = (jump % parts == 0) & (jump >= 0)
    count = np.where(whole, jump // parts, 0)
    moves = np.where(whole, np.exp(count * log(mean) - mean - special.gammaln(count + 1)), 0.0)
    lowest = (steps - np.arange(size)) / parts  # counts up to here lead back to zero
    moves[:, 0] = np.where(lowest >= 0, special.pdtr(np.floor(np.maximum(lowest, 0)), mean), 0.0)
    return float(np.linalg.solve(np.eye(size) - moves, np.ones(size))[0])


def limit_for(mean: float, factor: float, run_length: float) -> float:
    """The least limit, to a tenth of a count, that alarms once in ``run_length`` intervals or less.

    ``mean`` is the accepted mean of one interval.
    """
    parts = 10
    k = max(1 / parts, round(reference(mean, factor * mean) * parts) / parts)
    low, high = 1, 8
    while average_run_length(k, high / parts, mean, parts=parts) < run_length and high < 1200:  # noqa: PLR2004
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if average_run_length(k, middle / parts, mean, parts=parts) < run_length:
            low = middle
        else:
            high = middle
    return high / parts


@dataclass(frozen=True, slots=True)
class Sprt:
    """Wald's test so far: log likelihood ratio and its two bounds; ``says`` worse, same or more."""

    ratio: float
    upper: float
    lower: float

    @property
    def says(self) -> str:
        """``worse``, ``same``, or ``go-on`` while neither bound is met."""
        if self.ratio >= self.upper:
            return "worse"
        return "same" if self.ratio <= self.lower else "go-on"


def sprt(
    count: float, exposure: float, rates: tuple[float, float], alpha: float, beta: float
) -> Sprt:
    """Sequential test of rate ``rates[1]`` against ``rates[0]`` with errors alpha and beta."""
    same, worse = rates
    found = count * log(worse / same) - (worse - same) * exposure
    return Sprt(found, log((1 - beta) / alpha), log(beta / (1 - alpha)))
