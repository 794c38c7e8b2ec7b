"""Counts that scatter more than Poisson's: how much, and a slope that is not deceived by it."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special
from statsmodels.genmod.families import Poisson
from statsmodels.genmod.generalized_linear_model import GLM
from statsmodels.tools.sm_exceptions import PerfectSeparationWarning

__all__ = ["Index", "Slope", "index_of_dispersion", "negative_binomial_k", "slope"]

Array = NDArray[np.float64]
_LEAST_BINS = 4


@dataclass(frozen=True, slots=True)
class Index:
    """Variance by mean, and the chi-square p that a Poisson count scatters so much."""

    index: float
    chi2: float
    p: float


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth of the log rate a unit of time, its robust error, its one-sided p of growing."""

    rate: float
    error: float
    p: float
    dispersion: float

    @property
    def doubling(self) -> float:
        """Units of time in which the rate doubles; infinite where it does not grow."""
        return float(np.log(2) / self.rate) if self.rate > 0 else float("inf")


def index_of_dispersion(counts: ArrayLike) -> Index:
    """Fisher's index of dispersion of equal intervals."""
    seen = np.asarray(counts, float)
    mean = seen.mean()
    if seen.size < 2 or mean <= 0:  # noqa: PLR2004 (a variance needs two)
        return Index(1.0, 0.0, 1.0)
    index = float(seen.var(ddof=1) / mean)
    chi2 = (seen.size - 1) * index
    return Index(index, chi2, float(special.gammaincc((seen.size - 1) / 2, chi2 / 2)))


def negative_binomial_k(counts: ArrayLike) -> float:
    """Maximum-likelihood k of the negative binomial (variance = mean + mean^2 / k).

    Infinite where the counts scatter no more than Poisson's. Source: Bliss 1953.
    """
    seen = np.asarray(counts, float)
    mean = float(seen.mean())
    if seen.size < 2 or mean <= 0 or seen.var(ddof=1) <= mean:  # noqa: PLR2004
        return float("inf")

    def loss(log_k: float) -> float:
        k = float(np.exp(log_k))
        terms = special.gammaln(seen + k) - special.gammaln(k) + k * np.log(k / (k + mean))
        return -float((terms + seen * np.log(mean / (k + mean))).sum())

    found = optimize.minimize_scalar(loss, bounds=(-12, 12), method="bounded",
                                     options={"xatol": 1e-10})  # fmt: skip
    return float(np.exp(found.x))


def slope(
    counts: ArrayLike, exposure: ArrayLike, at: ArrayLike, *, least_spread: float = 1.0
) -> Slope | None:
    """Quasi-Poisson regression on time, log exposure as offset, sandwich errors (HC1).

    ``at`` is the middle of each interval. Intervals without exposure tell nothing and are left
    out. The dispersion is taken for ``least_spread`` at least. None where fewer than four
    intervals or two events are left.
    """
    seen, used, when = (np.asarray(one, float) for one in (counts, exposure, at))
    held = used > 0
    seen, used, when = seen[held], used[held], when[held]
    if seen.size < _LEAST_BINS or seen.sum() < 2:  # noqa: PLR2004
        return None
    centre = float(np.average(when, weights=used))
    design = np.column_stack([np.ones_like(when), when - centre])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerfectSeparationWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        fit = GLM(seen, design, family=Poisson(), offset=np.log(used)).fit(cov_type="HC1")
    spread = max(1.0, float(fit.pearson_chi2) / max(1.0, float(fit.df_resid)))
    # With few events the sandwich is too thin: the quasi-Poisson error is its floor.
    plain = float(fit.normalized_cov_params[1, 1]) ** 0.5 * max(spread, least_spread) ** 0.5
    rate, error = float(fit.params[1]), max(float(fit.bse[1]), plain)
    if not np.isfinite(rate) or not np.isfinite(error) or error <= 0:
        return None
    degrees = seen.size - 2
    return Slope(rate, error, float(1 - special.stdtr(degrees, rate / error)), spread)
