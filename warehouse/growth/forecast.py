"""When a threshold will be reached: an interval and its model, or a refusal and its reason."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from warehouse.growth.trend import PowerLaw

__all__ = ["Forecast", "at_constant_rate", "at_growing_rate", "at_power_law", "refusal"]

Array = NDArray[np.float64]
_DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Forecast:
    """Units of time from now: median, and a 90 % interval of which ``low`` is "not before".

    ``refused`` says why there is none. ``high`` is infinite where it may never happen.
    """

    model: str
    median: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    refused: str | None = None


def at_constant_rate(needed: float, seen: float, exposure: float, level: float = 0.9) -> Forecast:
    """Time to ``needed`` more events after ``seen`` in ``exposure``, at an unchanged rate.

    With a Gamma(seen + 1/2, exposure) rate, the time is (k b / a) times an F(2k, 2a) variable.
    """
    shape, tail = seen + 0.5, (1 - level) / 2
    scale = needed * exposure / shape
    low, median, high = (
        scale * float(special.fdtri(2 * needed, 2 * shape, one)) for one in (tail, 0.5, 1 - tail)
    )
    return Forecast("constant rate", median, low, high)


def at_growing_rate(
    needed: float,
    rate_now: float,
    growth: float,
    errors: tuple[float, float],
    dispersion: float = 1.0,
    level: float = 0.9,
) -> Forecast:
    """Time to ``needed`` more events where the rate is ``rate_now`` e^(growth t).

    ``errors`` are standard errors of log rate and growth. The interval holds their uncertainty and
    the scatter of the events (dispersion times Poisson's). Draws are seeded: same input, same
    answer.
    """
    random = np.random.default_rng(20240501)
    tail = (1 - level) / 2
    level_now = rate_now * np.exp(errors[0] * random.standard_normal(_DRAWS))
    grows = growth + errors[1] * random.standard_normal(_DRAWS)
    # Events until the threshold scatter: a Gamma variable of the same mean and variance.
    spread = max(1.0, dispersion)
    wanted = random.gamma(needed / spread, spread, _DRAWS)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = 1 + wanted * grows / level_now
        times = np.where(
            np.abs(grows) < 1e-9,  # noqa: PLR2004 (as good as constant)
            wanted / level_now,
            np.where(inside > 0, np.log(np.maximum(inside, 1e-300)) / grows, np.inf),
        )
    low, median, high = np.quantile(times, [tail, 0.5, 1 - tail], method="lower")
    return Forecast("growing rate", float(median), float(low), float(high))


def at_power_law(count: float, law: PowerLaw) -> Forecast:
    """Time from the end of observation until the expected number of events is ``count``."""
    return Forecast("power law", max(0.0, law.time_of(count) - law.end))


def refusal(
    found: Forecast, *, episodes: int, least: int, observed: float, widest: float
) -> Forecast:
    """The forecast, or a refusal: too few episodes, too wide, or later than was observed.

    Nothing is forecast further ahead than the past that it rests on.
    """
    reason = None
    if episodes < least:
        reason = f"{episodes} episodes, {least} are needed"
    elif not np.isfinite(found.median) or found.median > observed:
        early = f"{found.low:.0f} days" if np.isfinite(found.low) else "the observed time"
        reason = f"not within the {observed:.0f} days that it rests on; not before {early}"
    elif found.low <= 0 or found.high / found.low > widest:
        reason = f"too uncertain: {found.low:.0f} to {found.high:.0f} days"
    if reason is None:
        return found
    return Forecast(found.model, found.median, found.low, found.high, reason)
