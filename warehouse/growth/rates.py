"""Rates of rare events: is this window worse than that one, and which of thousands of cards are.

Counts may be fractional: a count divided by its dispersion is the number of independent events
that it is worth.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

__all__ = ["exact_p", "garwood", "mid_p", "q_values", "ratio", "ratio_interval"]

Array = NDArray[np.float64]


def _upper(count: Array, total: Array, share: Array) -> Array:
    """P(X >= count) of X ~ Binomial(total, share), by the incomplete beta function."""
    with np.errstate(invalid="ignore"):
        tail = special.betainc(np.maximum(count, 1e-300), total - count + 1, share)
    return np.where(count <= 0, 1.0, np.where(count > total, 0.0, tail))


def _conditional(
    recent: ArrayLike, recent_e: ArrayLike, base: ArrayLike, base_e: ArrayLike
) -> tuple[Array, Array, Array]:
    one, two = np.asarray(recent, float), np.asarray(base, float)
    first, second = np.asarray(recent_e, float), np.asarray(base_e, float)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(first + second > 0, first / (first + second), 0.5)
    return one, one + two, share


def exact_p(recent: ArrayLike, recent_e: ArrayLike, base: ArrayLike, base_e: ArrayLike) -> Array:
    """One-sided p that the recent rate is higher, conditional on the sum (Przyborowski 1940).

    ``_e`` are exposures in one unit. Given n events, the recent ones are Binomial(n, share of
    exposure) where the rates are equal.
    """
    return _upper(*_conditional(recent, recent_e, base, base_e))


def mid_p(recent: ArrayLike, recent_e: ArrayLike, base: ArrayLike, base_e: ArrayLike) -> Array:
    """`exact_p` less half the probability of what was seen: the exact test is too shy for few."""
    count, total, share = _conditional(recent, recent_e, base, base_e)
    return 0.5 * (_upper(count, total, share) + _upper(count + 1, total, share))


def ratio(recent: ArrayLike, recent_e: ArrayLike, base: ArrayLike, base_e: ArrayLike) -> Array:
    """Recent rate by the older one, half an event added to both so that none is infinite."""
    one, two = np.asarray(recent, float) + 0.5, np.asarray(base, float) + 0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((one / np.asarray(recent_e, float)) / (two / np.asarray(base_e, float)))


def ratio_interval(
    recent: ArrayLike,
    recent_e: ArrayLike,
    base: ArrayLike,
    base_e: ArrayLike,
    level: float = 0.95,
) -> tuple[Array, Array]:
    """Score interval of the ratio of two rates (Wilson's, of the conditional binomial)."""
    count, total, _ = _conditional(recent, recent_e, base, base_e)
    z2 = float(special.ndtri(0.5 + level / 2)) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = (count + z2 / 2) / (total + z2)
        half = np.sqrt(z2 * (count * (total - count) / total + z2 / 4)) / (total + z2)
        half = np.where(total > 0, half, 0.5)
        scale = np.asarray(base_e, float) / np.asarray(recent_e, float)
        low, high = np.maximum(middle - half, 0), np.minimum(middle + half, 1)
        return low / (1 - low) * scale, high / (1 - high) * scale


def garwood(count: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
    """Exact interval of a Poisson mean (Garwood 1936): no event in 30 days is < 0.123 a day."""
    seen, tail = np.asarray(count, float), (1 - level) / 2
    low = np.where(seen > 0, special.gammaincinv(np.maximum(seen, 1e-300), tail), 0.0)
    return low, np.asarray(special.gammaincinv(seen + 1, 1 - tail), dtype=float)


def q_values(p: ArrayLike) -> Array:
    """Benjamini and Hochberg's adjusted p values, over everything that was tested.

    Cards without an event belong in with p = 1: whoever drops them looks at the outcome.
    """
    given = np.asarray(p, float)
    if not given.size:
        return given
    return np.asarray(stats.false_discovery_control(np.clip(given, 0, 1)), dtype=float)
