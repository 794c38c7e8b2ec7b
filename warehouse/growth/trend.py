"""Tests for trend in the times of events, and the power law of repairable systems.

Times count from the start of observation, in any unit, best in hours of use; ``end`` is when
observation ended. Where it ended *with* the last event pass ``failure=True``: that event then
tells the end, not the trend.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

__all__ = [
    "PowerLaw",
    "Test",
    "cramer_von_mises",
    "crow_amsaa",
    "crow_amsaa_grouped",
    "laplace",
    "lewis_robinson",
    "mil_hdbk_189",
    "pooled_laplace",
    "reversals",
]

Array = NDArray[np.float64]
_LEAST = 3  # below it a spread of gaps says nothing


@dataclass(frozen=True, slots=True)
class Test:
    """A statistic with its one-sided p of getting worse; ``df`` where it is a chi-square."""

    __test__ = False  # pytest takes Test* for tests

    statistic: float
    p: float
    df: int = 0


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """E N(t) = scale t^shape; ``shape`` above 1 is getting worse."""

    shape: float
    scale: float
    shape_unbiased: float
    end: float

    def intensity(self, at: float) -> float:
        """Events a unit of time at ``at``."""
        return float(self.scale * self.shape * at ** (self.shape - 1))

    def time_of(self, count: float) -> float:
        """When the expected number of events reaches ``count``."""
        return float((count / self.scale) ** (1 / self.shape))


def _used(times: ArrayLike, end: float, *, failure: bool) -> tuple[Array, float]:
    seen = np.sort(np.asarray(times, float))
    return (seen[:-1], float(seen[-1])) if failure else (seen, float(end))


def laplace(times: ArrayLike, end: float, *, failure: bool = False) -> Test:
    """Laplace's test: is the mean time of events later than the middle? Poisson is the null."""
    seen, until = _used(times, end, failure=failure)
    if not seen.size:
        return Test(0.0, 1.0)
    score = (seen.mean() - until / 2) / (until * np.sqrt(1 / (12 * seen.size)))
    return Test(float(score), float(special.ndtr(-score)))


def pooled_laplace(series: list[tuple[ArrayLike, float]]) -> Test:
    """Laplace's test over several parts of different length: does the rack get worse?"""
    above, spread = 0.0, 0.0
    for times, end in series:
        seen = np.asarray(times, float)
        above += float(seen.sum()) - seen.size * end / 2
        spread += seen.size * end**2 / 12
    if not spread:
        return Test(0.0, 1.0)
    score = above / np.sqrt(spread)
    return Test(float(score), float(special.ndtr(-score)))


def mil_hdbk_189(times: ArrayLike, end: float, *, failure: bool = False) -> Test:
    """Chi-square test of MIL-HDBK-189: a **small** value is getting worse; Poisson is the null."""
    seen, until = _used(times, end, failure=failure)
    statistic, df = float(2 * np.log(until / seen).sum()), 2 * seen.size
    return Test(statistic, float(special.gammainc(df / 2, statistic / 2)) if df else 1.0, df)


def lewis_robinson(times: ArrayLike, end: float, *, failure: bool = False) -> Test:
    """Laplace's score by the coefficient of variation of the gaps (Lewis and Robinson 1974).

    It keeps its size under any renewal process, so clustered errors alone do not look like growth.
    """
    seen = np.sort(np.asarray(times, float))
    if seen.size < _LEAST:
        return Test(0.0, 1.0)
    gaps = np.diff(seen, prepend=0.0)
    mean = gaps.mean()
    if mean <= 0:
        return Test(0.0, 1.0)
    variation = gaps.std(ddof=1) / mean
    if variation <= 0:
        return Test(0.0, 1.0)
    score = laplace(times, end, failure=failure).statistic / variation
    return Test(float(score), float(special.ndtr(-score)))


def reversals(times: ArrayLike) -> int:
    """Pairs of gaps of which the later is longer (reverse arrangements, NIST/SEMATECH 8.2.3.4)."""
    gaps = np.diff(np.sort(np.asarray(times, float)), prepend=0.0)
    return int(sum((gaps[number + 1 :] > gap).sum() for number, gap in enumerate(gaps)))


def crow_amsaa(times: ArrayLike, end: float, *, failure: bool = False) -> PowerLaw:
    """Maximum likelihood of the power law (Crow 1974), from exact times.

    It is anchored where observation began: a counter that was first seen late has a biased shape.
    """
    seen = np.sort(np.asarray(times, float))
    until = float(seen[-1]) if failure else float(end)
    count = seen.size
    shape = count / float(np.log(until / seen).sum())
    less = 2 if failure else 1
    return PowerLaw(shape, count / until**shape, shape * (count - less) / count, until)


def crow_amsaa_grouped(counts: ArrayLike, ends: ArrayLike) -> PowerLaw:
    """The power law from counts of intervals that end at ``ends``, as sampled counters give them.

    Raises ValueError where no shape between 0.01 and 20 fits.
    """
    found, later = np.asarray(counts, float), np.asarray(ends, float)
    earlier = np.concatenate(([0.0], later[:-1]))
    end = float(later[-1])

    def score(shape: float) -> float:
        up, down = (later / end) ** shape, (earlier / end) ** shape
        # t ln t -> 0 for t -> 0: the first interval begins at none
        falls = np.where(earlier > 0, down * np.log(np.maximum(earlier, 1e-300) / end), 0.0)
        return float((found * ((up * np.log(later / end) - falls) / (up - down))).sum())

    shape = float(optimize.brentq(score, 0.01, 20.0, xtol=1e-12))
    total = float(found.sum())
    return PowerLaw(shape, total / end**shape, shape * (total - 1) / total, end)


def cramer_von_mises(times: ArrayLike, law: PowerLaw, *, unbiased: bool = True) -> float:
    """How far the times lie from the power law (Cramer and von Mises)."""
    seen = np.sort(np.asarray(times, float))
    shape = law.shape_unbiased if unbiased else law.shape
    wanted = (2 * np.arange(1, seen.size + 1) - 1) / (2 * seen.size)
    return float(1 / (12 * seen.size) + (((seen / law.end) ** shape - wanted) ** 2).sum())
