"""A year of simulated cards: bursts, resets, lost samples, idle weeks; some planted to grow.

Counters are made as a collector would read them, run by run, and go through the same increments and
episodes as a warehouse's. Growth is planted in the rate an hour of use, over eight weeks: a
step to ``times`` or an exponential ramp up to it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from warehouse.growth.episodes import Episode, episodes
from warehouse.growth.history import Card, Fleet
from warehouse.growth.increments import Run, increments

__all__ = ["Illness", "simulate"]

Array = NDArray[np.float64]
DAYS = 364
GROWN_DAYS = 56
BEGIN = datetime(2025, 4, 6, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Illness:
    """``per_week``: spells of errors a week of full use before the growth; ``shape``: step, ramp.

    A ``spell`` is that many episodes on average, spread over ``spell_days``. ``held_days`` is how
    long ago the eight weeks of growth ended; the rate has stayed where it was then.
    """

    per_week: float
    shape: str = "none"
    times: float = 2.0
    spell: float = 1.0
    spell_days: float = 3.0
    held_days: int = 0


def _use(random: np.random.Generator, cards: int) -> Array:
    """Share of each day that a card works: jobs of weeks, idle ones between, a trend in some."""
    level = random.uniform(0.3, 0.95, (cards, DAYS // 7))
    level[random.random(level.shape) < 0.08] = 0.02  # drained or nobody's
    drift = np.linspace(-1, 1, DAYS // 7) * random.choice([0, 0, 0.4], (cards, 1))
    weekly = np.clip(level * (1 + drift), 0.02, 1.0)
    daily = np.repeat(weekly, 7, axis=1) * random.uniform(0.9, 1.1, (cards, DAYS))
    return np.asarray(np.minimum(daily, 1.0))


def _seen(random: np.random.Generator, cards: int) -> Array:
    """Share of each day that was sampled: most days whole; one card in fifty loses 18 to 82 %."""
    seen = np.ones((cards, DAYS))
    seen[random.random(seen.shape) < 0.01] = 0.0  # its collector was down
    for row in np.flatnonzero(random.random(cards) < 0.02):
        begin = random.integers(0, DAYS)
        seen[row, begin : begin + int(random.integers(7, 60))] *= 1 - random.uniform(0.18, 0.82)
    return seen


def _starts(random: np.random.Generator, illness: Illness, use: Array) -> Array:
    """Hours at which episodes start: spells by hours of use, episodes spread behind each."""
    rate = np.full(DAYS, illness.per_week / 7) * use
    late = np.arange(DAYS) - (DAYS - GROWN_DAYS - illness.held_days)
    if illness.shape == "step":
        rate *= np.where(late >= 0, illness.times, 1.0)
    elif illness.shape == "ramp":
        rate *= illness.times ** np.clip((late + 1) / GROWN_DAYS, 0, 1)
    per_day = random.poisson(rate)
    first = np.repeat(np.arange(DAYS, dtype=float), per_day) + random.random(per_day.sum())
    many = random.geometric(1 / illness.spell, first.size) if illness.spell > 1 else 1
    at = np.repeat(first, many)
    behind = random.exponential(illness.spell_days, at.size) if illness.spell > 1 else 0.0
    at = np.sort(at + behind)
    return np.asarray(at[at < DAYS] * 24)


def _read(random: np.random.Generator, starts: Array, seen: Array) -> tuple[Episode, ...]:
    """Episodes as they look through a counter: bursts of any size, resets, samples missing."""
    volatile = random.random() < 0.5
    boots = np.sort(random.uniform(0, DAYS * 24, random.poisson(12)))
    runs: list[Run] = [Run(0.0, 0.0, 0, "0")]
    value, size = 0, np.ceil(random.lognormal(3.0, 2.5, starts.size)).astype(int)
    events = sorted([(float(at), int(grown)) for at, grown in zip(starts, size, strict=True)]
                    + [(float(at), -1) for at in boots])  # fmt: skip
    epoch = 0
    for at, grown in events:
        sampled = random.random() < seen[min(int(at // 24), DAYS - 1)]
        runs[-1] = Run(
            runs[-1].first, max(runs[-1].first, at - 0.01), runs[-1].value, runs[-1].epoch
        )
        if grown < 0:
            epoch += 1
            value = 0 if volatile else value
        else:
            value += grown
        if sampled:
            runs.append(Run(at, at, value, str(epoch)))
    runs[-1] = Run(runs[-1].first, DAYS * 24.0, runs[-1].value, runs[-1].epoch)
    return tuple(episodes(increments(runs, aggregate=not volatile), 1.0))


def simulate(seed: int, illnesses: list[Illness | None]) -> Fleet:
    """A fleet with one card an illness; None is a card that never errs."""
    random = np.random.default_rng(seed)
    count = len(illnesses)
    use, seen = _use(random, count), _seen(random, count)
    found: dict[int, tuple[Episode, ...]] = {}
    for row, illness in enumerate(illnesses):
        if illness is None:
            continue
        starts = _starts(random, illness, use[row])
        if starts.size and (read := _read(random, starts, seen[row])):
            found[row] = read
    cards = tuple(Card(gpu=f"GPU-{row:05d}", host=f"sim-{row // 8:04d}", model="SIM-80GB")
                  for row in range(count))  # fmt: skip
    covered = 24 * seen
    return Fleet(BEGIN, cards, covered, covered * use, {"corrected": found})


def healthy(random: np.random.Generator) -> Illness | None:
    """One healthy card: half never err; of the rest most rarely, some weekly; a third in spells."""
    if random.random() < 0.5:
        return None
    per_week = float(random.gamma(0.6, 1.5))
    if random.random() < 1 / 3:
        return Illness(per_week / 3, spell=3.0, spell_days=float(random.uniform(1, 5)))
    return Illness(per_week)
