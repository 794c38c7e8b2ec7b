"""Is it growing? The decision, card by card, over the whole fleet at once.

GROWING needs all of: enough episodes; a two-window mid-p value that stands after
Benjamini-Hochberg over every card; a second test that clustered errors do not deceive; an effect
worth acting on; enough samples. States of the card itself (HARD) need no statistics.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from warehouse.growth import rates, trend
from warehouse.growth.change import Change, Shape, change_point, step_or_ramp
from warehouse.growth.dispersion import Slope
from warehouse.growth.dispersion import slope as slope_of
from warehouse.growth.history import COUNTERS, Fleet, Weeks, weeks
from warehouse.growth.peers import fit_prior, shrunk
from warehouse.growth.settings import Settings
from warehouse.growth.states import State, states

__all__ = ["Finding", "Screen", "Verdict", "decide", "screen"]

Array = NDArray[np.float64]
#: Weeks over which errors of one spell may be spread: bad cards are active one to three weeks
#: (arXiv 2508.03513).
_LAGS = 3
_DAY_H = 24.0
#: Standard errors by which a dispersion is taken for larger than it was measured.
_UNSURE = 1.5


class Verdict(StrEnum):
    """What is said of a card, worst first."""

    HARD = "hard"
    GROWING = "growing"
    SUSPECT = "suspect"
    INSUFFICIENT = "insufficient"
    STABLE = "stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One card's result for one counter, with all numbers that it rests on.

    Rates are episodes a day of use. ``effect`` is the rate now by that before, ``ratio`` that of
    the two windows with its 95 % interval ``low`` to ``high``. ``peers`` is the shrunk recent rate
    by that of the same model. ``why`` says in words what was weighed.
    """

    row: int
    counter: str
    verdict: Verdict
    episodes: int
    recent: int
    rate_recent: float
    rate_before: float
    ratio: float
    low: float
    high: float
    effect: float
    p: float
    q: float
    dispersion: float
    coverage: float
    peers: float
    lewis_robinson: trend.Test | None = None
    slope: Slope | None = None
    change: Change | None = None
    shape: Shape | None = None
    states: tuple[State, ...] = ()
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Screen:
    """The vectorised part for one counter: one value a card."""

    weeks: Weeks
    p: Array
    dispersion: Array
    recent: Array
    recent_e: Array
    base: Array
    base_e: Array
    ratio: Array
    low: Array
    high: Array
    peers: Array


def _long_variance(rest: Array) -> Array:
    """Sum of squares with neighbouring weeks' products (Newey and West 1987)."""
    found = (rest**2).sum(1)
    for lag in range(1, min(_LAGS, rest.shape[1] - 1) + 1):
        weight = 2 * (1 - lag / (_LAGS + 1))
        found = found + weight * (rest[:, :-lag] * rest[:, lag:]).sum(1)
    return np.asarray(np.maximum(found, (rest**2).sum(1)))


def _spread(binned: Weeks, weight: float) -> Array:
    """Dispersion of weekly counts around each window's own rate, drawn toward the fleet's.

    Variance by mean, where a week counts by the events expected in it: weeks in which nothing was
    to be expected do not make a clustered card look regular. At least 1.
    """
    squares = np.zeros(len(binned.counts))
    events = np.zeros(len(binned.counts))
    for part in (slice(None, -binned.recent), slice(-binned.recent, None)):
        counts, used = binned.counts[:, part], binned.exposure[:, part]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.nan_to_num(used / used.sum(1, keepdims=True))
        total = counts.sum(1)
        # E of the sum of squares is dispersion * total * (1 - sum of squared shares)
        free = 1 - (share**2).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = _long_variance(counts - share * total[:, None]) / free
        held = (free > 0) & (total > 1)
        squares += np.where(held, found, 0.0)
        events += np.where(held, total, 0.0)
    told = events > 0
    fleet = max(1.0, float(squares[told].sum() / events[told].sum())) if told.any() else 1.0
    found = np.maximum(1.0, (weight * fleet + squares) / (weight + events))
    # A few episodes do not tell how clustered they are: what they may be, not what they look like.
    return np.asarray(found * (1 + _UNSURE * np.sqrt(2 / (weight + events))))


def _steeper(counts: Array, used: Array, at: Array, recent: int, spread: float) -> Slope | None:
    """The surer of two slopes: over the whole history, and over the recent window alone.

    Two were tried, so the p is doubled.
    """
    bend = np.maximum(at - (at[-1] - recent), 0)
    tried = [slope_of(counts, used, one, least_spread=spread) for one in (at, bend)]
    found = min((one for one in tried if one is not None), key=lambda one: one.p, default=None)
    return None if found is None else replace(found, p=min(1.0, 2 * found.p))


def screen(fleet: Fleet, counter: str, settings: Settings) -> Screen:
    """Everything that is one formula over all cards: windows, dispersion, mid-p, peers."""
    binned = weeks(fleet, counter, settings)
    spread = _spread(binned, settings.peer_weight_episodes)
    tried = binned.windows()
    every = np.stack([_one_p(one, spread) for one in tried])
    best, rows = every.argmin(0), np.arange(len(fleet.cards))
    recent, recent_e, base, base_e = (np.stack(one)[best, rows] for one in zip(*tried, strict=True))
    low, high = rates.ratio_interval(recent / spread, recent_e, base / spread, base_e)
    return Screen(
        weeks=binned,
        # Several windows were looked at: the best of them is that much less surprising.
        p=np.minimum(every.min(0) * len(tried), 1.0),
        dispersion=spread,
        recent=recent,
        recent_e=recent_e,
        base=base,
        base_e=base_e,
        ratio=rates.ratio(recent, recent_e, base, base_e),
        low=low,
        high=high,
        peers=_beside_peers(fleet, recent, recent_e),
    )


def _one_p(window: tuple[Array, Array, Array, Array], spread: Array) -> Array:
    recent, recent_e, base, base_e = window
    p = rates.mid_p(recent / spread, recent_e, base / spread, base_e)
    return np.where((recent_e <= 0) | (base_e <= 0), 1.0, p)


def _beside_peers(fleet: Fleet, recent: Array, recent_e: Array) -> Array:
    """Each card's shrunk recent rate by its model's mean; 1 where the model has no errors."""
    found = np.ones(len(fleet.cards))
    models = np.array([one.model or "" for one in fleet.cards])
    for model in sorted(set(models.tolist())):
        mine = models == model
        prior = fit_prior(recent[mine], recent_e[mine])
        if prior is not None:
            found[mine] = shrunk(recent[mine], recent_e[mine], prior) / prior.mean
    return found


def decide(fleet: Fleet, settings: Settings) -> list[Finding]:
    """One finding a card and counter that has anything to say, worst first.

    Every card stands in the false-discovery rate, whatever its counts; those without an episode
    and without a state give one finding, for the first counter.
    """
    screened = {counter: screen(fleet, counter, settings) for counter in COUNTERS}
    p = np.concatenate([one.p for one in screened.values()])
    q = rates.q_values(p).reshape(len(COUNTERS), -1)
    covered = _coverage(fleet, settings)
    said = [states(card.seen) for card in fleet.cards]
    found = []
    for number, (counter, one) in enumerate(screened.items()):
        totals = one.weeks.counts.sum(1)
        for row in range(len(fleet.cards)):
            if totals[row] or (number == 0 and (said[row] or not _any(fleet, row))):
                judge = _Judge(fleet, settings, counter, one, row, q[number, row], covered[row])
                found.append(judge.finding(said[row]))
    return sorted(found, key=_rank)


def _any(fleet: Fleet, row: int) -> bool:
    return any(row in fleet.episodes.get(counter, {}) for counter in COUNTERS)


def _rank(one: Finding) -> tuple[object, ...]:
    order = list(Verdict).index(one.verdict)
    return (order, one.q, one.p, -one.ratio, -one.episodes, one.row, one.counter)


def _coverage(fleet: Fleet, settings: Settings) -> Array:
    """Share of hours with valid samples in the recent window, beside the fleet's where it lacks.

    A collector that was off for all says nothing about one card.
    """
    recent = fleet.covered[:, -settings.recent_days :]
    fleet_wide = np.median(recent, axis=0) if recent.size else np.zeros(0)
    hours = float(fleet_wide.sum())
    return np.asarray(
        np.minimum(recent.sum(1) / hours, 1.0) if hours > 0 else np.zeros(len(recent))
    )


@dataclass(frozen=True, slots=True)
class _Judge:
    """One card and counter while it is judged."""

    fleet: Fleet
    settings: Settings
    counter: str
    screen: Screen
    row: int
    q: float
    coverage: float

    def finding(self, said: tuple[State, ...]) -> Finding:
        """Weigh everything; the costly tests run only where the cheap one lets them decide."""
        row, part = self.row, self.screen
        recent, recent_e = float(part.recent[row]), float(part.recent_e[row])
        base, base_e = float(part.base[row]), float(part.base_e[row])
        total = int(part.weeks.counts[row].sum())
        robinson, slope, change, shape = self._trends(total)
        ratio = float(part.ratio[row])
        effect = max(ratio, shape.effect, shape.effect_ramp) if shape else ratio
        verdict, why = self._verdict(said, total, base_e, effect, robinson, slope)
        return Finding(
            row=row,
            counter=self.counter,
            verdict=verdict,
            episodes=total,
            recent=int(recent),
            rate_recent=recent / recent_e * _DAY_H if recent_e else 0.0,
            rate_before=base / base_e * _DAY_H if base_e else 0.0,
            ratio=ratio,
            low=float(self.screen.low[row]),
            high=float(self.screen.high[row]),
            effect=effect,
            p=float(self.screen.p[row]),
            q=float(self.q),
            dispersion=float(self.screen.dispersion[row]),
            coverage=float(self.coverage),
            peers=float(self.screen.peers[row]),
            lewis_robinson=robinson,
            slope=slope,
            change=change,
            shape=shape,
            states=said,
            why=why,
        )

    def _trends(
        self, total: int
    ) -> tuple[trend.Test | None, Slope | None, Change | None, Shape | None]:
        """The tests that cost milliseconds, where the screening leaves something to tell."""
        row, binned = self.row, self.screen.weeks
        if total < self.settings.min_episodes or self.screen.p[row] >= self.settings.trend_p:
            return None, None, None, None
        counts, used = binned.counts[row], binned.exposure[row]
        starts = np.array([one.start for one in self.fleet.episodes[self.counter][row]])
        begins = self.fleet.used_h(row, np.array([binned.first_day * _DAY_H]))[0]
        times = self.fleet.used_h(row, starts[starts >= binned.first_day * _DAY_H]) - begins
        end = float(self.fleet.busy[row, binned.first_day :].sum())
        middle = (np.arange(counts.size) + 0.5) * binned.bin_days
        spread = float(self.screen.dispersion[row])
        return (
            trend.lewis_robinson(times, max(end, float(times.max(initial=0.0)))),
            _steeper(counts, used, middle, binned.recent * binned.bin_days, spread),
            change_point(counts, used, dispersion=spread),
            step_or_ramp(counts, used, dispersion=spread),
        )

    def _verdict(
        self,
        said: tuple[State, ...],
        total: int,
        base_e: float,
        effect: float,
        robinson: trend.Test | None,
        slope: Slope | None,
    ) -> tuple[Verdict, tuple[str, ...]]:
        settings = self.settings
        words = [one.words for one in said]
        if any(one.hard for one in said):
            return Verdict.HARD, tuple(words)
        if lacking := self._lacking(total, base_e):
            return Verdict.INSUFFICIENT, (*words, lacking)
        agrees = [
            name
            for name, test in (("Lewis-Robinson", robinson), ("quasi-Poisson slope", slope))
            if test is not None and test.p < settings.trend_p
        ]
        thin = self.coverage < settings.min_coverage
        missing = f"{1 - self.coverage:.0%} of its samples are missing"
        if self.q < settings.false_discovery_rate and agrees and effect >= settings.min_effect:
            words.append(f"{effect:.1f} times its former rate, q {self.q:.2g}")
            words.append(f"{' and '.join(agrees)} agree")
            return (Verdict.SUSPECT, (*words, missing)) if thin else (Verdict.GROWING, tuple(words))
        if thin and total:
            return Verdict.SUSPECT, (*words, f"{missing}: its counts are a lower bound")
        return Verdict.STABLE, (*words, *self._why_not(effect, agrees))

    def _lacking(self, total: int, base_e: float) -> str | None:
        """What is missing for any judgement; None where it can be judged."""
        settings = self.settings
        if self.coverage <= 0 and total:
            return f"no sample of it in the recent {settings.recent_days} days"
        watched = int((self.fleet.covered[self.row, : -settings.recent_days] > 0).sum())
        if watched < settings.min_history_days or base_e <= 0:
            before = f"{watched} days before the recent {settings.recent_days}"
            return f"{before}, {settings.min_history_days} are needed"
        if 0 < total < settings.min_episodes and self._would_stand_out():
            return f"{total} episodes, {settings.min_episodes} are needed"
        return None

    def _would_stand_out(self) -> bool:
        """Whether so few episodes, each taken for independent, come late by more than chance."""
        part, row = self.screen, self.row
        p = rates.mid_p(part.recent[row], part.recent_e[row], part.base[row], part.base_e[row])
        return float(p) < self.settings.trend_p

    def _why_not(self, effect: float, agrees: list[str]) -> list[str]:
        """What a card that looks worse at first sight lacked."""
        if self.screen.p[self.row] >= self.settings.trend_p:
            return []
        if self.q >= self.settings.false_discovery_rate:
            return [f"p {self.screen.p[self.row]:.2g}, but q {self.q:.2g} over all cards"]
        if not agrees:
            return ["clustered: neither Lewis-Robinson nor the slope agrees"]
        return [f"only {effect:.1f} times its former rate"]
