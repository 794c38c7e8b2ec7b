"""Each card beside cards of its own model: rates pulled toward the model's by Gamma-Poisson."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

__all__ = ["Prior", "fit_prior", "shrunk"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prior:
    """Gamma prior of the rates of one model: ``shape`` events in ``exposure``."""

    shape: float
    exposure: float

    @property
    def mean(self) -> float:
        """Mean rate of the model."""
        return self.shape / self.exposure


def fit_prior(counts: ArrayLike, exposure: ArrayLike) -> Prior | None:
    """Maximum-likelihood Gamma prior of cards of one model; None where none has an event.

    Counts of a Gamma mixture of Poisson rates are negative binomial, with each card's exposure.
    """
    seen, used = np.asarray(counts, float), np.asarray(exposure, float)
    held = used > 0
    seen, used = seen[held], used[held]
    if not seen.size or seen.sum() <= 0:
        return None
    mean = float(seen.sum() / used.sum())

    def loss(log_shape: float) -> float:
        shape = float(np.exp(log_shape))
        rate = shape / mean
        terms = special.gammaln(seen + shape) - special.gammaln(shape)
        terms += shape * np.log(rate / (rate + used)) + seen * np.log(used / (rate + used))
        return -float(terms.sum())

    found = optimize.minimize_scalar(loss, bounds=(-8, 8), method="bounded")
    shape = float(np.exp(found.x))
    return Prior(shape, shape / mean)


def shrunk(counts: ArrayLike, exposure: ArrayLike, prior: Prior) -> Array:
    """Posterior mean rates: a card without history has its model's."""
    seen, used = np.asarray(counts, float), np.asarray(exposure, float)
    return np.asarray((seen + prior.shape) / (used + prior.exposure))
