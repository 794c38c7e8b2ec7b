"""Since when: one change of a Poisson rate, with an interval, a p and a choice of step or ramp."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

__all__ = ["Change", "Shape", "change_point", "step_or_ramp"]

Array = NDArray[np.float64]
_PROFILE = 3.841458820694124  # chi-square(1), 95 %


@dataclass(frozen=True, slots=True)
class Change:
    """One change: the rate is ``after`` from interval ``split`` on, ``before`` until then.

    ``first`` and ``last`` are the splits that fit nearly as well (profile, 95 %); ``lr`` is twice
    the gain in log likelihood over no change, ``p`` how often chance alone gains as much.
    """

    split: int
    first: int
    last: int
    before: float
    after: float
    lr: float
    p: float


@dataclass(frozen=True, slots=True)
class Shape:
    """``step`` or ``ramp``, whichever has the lower BIC; ``start`` is the interval it begins in.

    ``effect`` is the rate now by that before, ``effect_ramp`` the same if it climbs.
    """

    name: str
    start: int
    effect: float
    effect_ramp: float
    bic_step: float
    bic_ramp: float
    bic_flat: float


def _xlogx(count: Array, used: Array) -> Array:
    """Poisson log likelihood at its maximum, without the terms that no split changes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(count > 0, count * np.log(count / used), 0.0)


def _gains(counts: Array, exposure: Array) -> Array:
    """Log likelihood of every split 1..n-1 (last axis) above that of no change."""
    done, used = counts.cumsum(-1), exposure.cumsum(-1)
    total, whole = done[..., -1:], used[..., -1:]
    left, left_e = done[..., :-1], used[..., :-1]
    gain = _xlogx(left, left_e) + _xlogx(total - left, whole - left_e) - _xlogx(total, whole)
    held = (left_e > 0) & (whole - left_e > 0)
    return np.where(held, gain, -np.inf)


def _seed(counts: Array, exposure: Array) -> int:
    """A seed of the data's own: the same history gives the same p, on every machine."""
    raw = counts.tobytes() + exposure.tobytes()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")


def change_point(
    counts: ArrayLike, exposure: ArrayLike, *, draws: int = 999, dispersion: float = 1.0
) -> Change | None:
    """The best single change of rate; None without two intervals or any event.

    The p is from ``draws`` redistributions of the events over the exposure (the likelihood ratio
    of the best of many splits is no chi-square). ``dispersion`` divides counts: clustered events
    are worth fewer independent ones.
    """
    seen = np.asarray(counts, float)
    used = np.asarray(exposure, float)
    if seen.size < 2 or seen.sum() <= 0 or (used > 0).sum() < 2:  # noqa: PLR2004
        return None
    gains = _gains(seen, used) / dispersion
    split = int(gains.argmax())
    near = np.flatnonzero(gains > gains[split] - _PROFILE / 2)
    random = np.random.default_rng(_seed(seen, used))
    events = max(1, round(float(seen.sum()) / dispersion))
    drawn = random.multinomial(events, used / used.sum(), size=draws).astype(float)
    chance = _gains(drawn, np.broadcast_to(used, drawn.shape)).max(axis=-1)
    p = (1 + int((chance >= gains[split] - 1e-12).sum())) / (draws + 1)
    before, after = slice(None, split + 1), slice(split + 1, None)
    return Change(
        split=split + 1,
        first=int(near[0]) + 1,
        last=int(near[-1]) + 1,
        before=float(seen[before].sum() / used[before].sum()),
        after=float(seen[after].sum() / used[after].sum()),
        lr=float(2 * gains[split]),
        p=p,
    )


def _ramp(counts: Array, used: Array, at: Array) -> tuple[float, float]:
    """Best growth a unit of ``at`` (zero before the start), and its profile log likelihood."""
    total = counts.sum()

    def loss(rate: float) -> float:
        growth = rate * at
        with np.errstate(over="ignore", divide="ignore"):
            expected = np.log((used * np.exp(growth)).sum())
        return float(total * expected - (counts * growth).sum())

    longest = float(at.max())
    found = optimize.minimize_scalar(
        loss, bounds=(-7 / longest, 7 / longest), method="bounded", options={"xatol": 1e-4}
    )
    return float(found.x), -float(found.fun) + float(_xlogx(total, np.asarray(1.0)))


def step_or_ramp(counts: ArrayLike, exposure: ArrayLike, *, dispersion: float = 1.0) -> Shape:
    """Whether the rate jumped once or climbs from some interval on, by BIC.

    Both have three parameters: the rate before, where it begins, how much. A ramp grows
    exponentially to the end. Likelihoods are divided by ``dispersion`` (quasi-BIC).
    """
    seen, used = np.asarray(counts, float), np.asarray(exposure, float)
    flat = float(_xlogx(seen.sum(), used.sum()))
    steps = _gains(seen, used)
    split = int(steps.argmax()) + 1
    best: tuple[float, int, float] = (-np.inf, 0, 0.0)
    index = np.arange(seen.size, dtype=float)
    # A ramp needs three intervals to be one; starts are tried at every third interval and then
    # around the best, since its likelihood is smooth in the start.
    coarse = range(0, max(1, seen.size - 3), 3)
    for start in coarse:
        rate, likelihood = _ramp(seen, used, np.maximum(index - start + 0.5, 0))
        best = max(best, (likelihood, start, rate))
    for start in {max(0, best[1] - 1), min(max(0, seen.size - 4), best[1] + 1)}:
        rate, likelihood = _ramp(seen, used, np.maximum(index - start + 0.5, 0))
        best = max(best, (likelihood, start, rate))
    likelihood, start, rate = best
    penalty = 3 * np.log(max(2.0, float(seen.size)))
    bic_step = penalty - 2 * (float(steps.max()) + flat) / dispersion
    bic_ramp = penalty - 2 * likelihood / dispersion
    bic_flat = penalty / 3 - 2 * flat / dispersion
    climbed = float(np.exp(rate * (seen.size - 0.5 - start)))
    if bic_step <= bic_ramp:
        early, late = seen[:split].sum() + 0.5, seen[split:].sum() + 0.5
        effect = float((late / used[split:].sum()) / (early / used[:split].sum()))
        return Shape("step", split, effect, climbed, bic_step, bic_ramp, bic_flat)
    return Shape("ramp", start, climbed, climbed, bic_step, bic_ramp, bic_flat)
