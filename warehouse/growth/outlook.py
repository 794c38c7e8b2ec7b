"""What else is told of a card that is worth a line: since when, the running alarm, when it ends."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from warehouse.growth import alarm, forecast
from warehouse.growth.decide import Finding
from warehouse.growth.forecast import Forecast
from warehouse.growth.history import Fleet, Weeks, weeks
from warehouse.growth.settings import Settings

__all__ = ["Outlook", "outlook"]

_DAY_H = 24.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """``since`` with its interval; ``alarm_at`` of the CUSUM; ``reaches`` what, and when."""

    since: datetime | None = None
    since_first: datetime | None = None
    since_last: datetime | None = None
    alarm_at: datetime | None = None
    reaches: str | None = None
    forecast: Forecast | None = None


def outlook(fleet: Fleet, one: Finding, settings: Settings) -> Outlook:
    """Times of a finding; those that nothing can be said about are None."""
    binned = weeks(fleet, one.counter, settings)
    reaches, found = _reaches(fleet, one, binned, settings)
    change = one.change

    def begin_of(place: int) -> datetime:
        return fleet.begin + timedelta(days=binned.first_day + place * binned.bin_days)

    return Outlook(
        since=begin_of(one.shape.start) if one.shape else None,
        since_first=begin_of(change.first) if change else None,
        since_last=begin_of(change.last) if change else None,
        alarm_at=_alarm(fleet, one, binned, settings),
        reaches=reaches,
        forecast=found,
    )


def _alarm(fleet: Fleet, one: Finding, binned: Weeks, settings: Settings) -> datetime | None:
    """When the CUSUM of weekly counts against the card's older rate first stood too high.

    Counts are divided by their dispersion. The limit holds the fleet to a number of false alarms a
    year: each card may alarm once in so many weeks.
    """
    used = binned.exposure[one.row]
    expected = one.rate_before / _DAY_H * used / one.dispersion
    usual = float(expected[used > 0].mean()) if (used > 0).any() else 0.0
    if one.episodes < settings.min_episodes or usual <= 0:
        return None
    weeks_a_year = 365.25 / binned.bin_days
    run_length = len(fleet.cards) * weeks_a_year / settings.cusum_alarms_per_year
    limit = alarm.limit_for(max(usual, 0.02), settings.cusum_factor, run_length)
    counts = binned.counts[one.row] / one.dispersion
    _, first = alarm.cusum(counts, np.maximum(expected, 1e-9), settings.cusum_factor, limit)
    if first < 0:
        return None
    return fleet.begin + timedelta(days=binned.first_day + (first + 1) * binned.bin_days)


def _reaches(
    fleet: Fleet, one: Finding, binned: Weeks, settings: Settings
) -> tuple[str | None, Forecast | None]:
    """When uncorrectable errors reach the set threshold; corrected ones have no published end."""
    if one.counter != "uncorrected":
        return None, None
    name = f"{settings.errors_threshold} uncorrectable errors"
    bursts = fleet.episodes[one.counter].get(one.row, ())
    seen = fleet.cards[one.row].seen.get("ecc_aggregate_uncorrected")
    total = int(seen) if seen is not None else sum(burst.count for burst in bursts)
    if total >= settings.errors_threshold:
        return name, Forecast("", 0.0, 0.0, 0.0, f"it has {total} already")
    if not bursts:
        return name, Forecast("", refused="no episode yet")
    size = float(np.mean([burst.count for burst in bursts]))
    needed = max(1.0, (settings.errors_threshold - total) / size)
    observed = float((fleet.covered[one.row] > 0).sum())
    used_a_day = float(fleet.busy[one.row].sum()) / _DAY_H / max(1.0, observed)
    guess = _forecast(one, needed, used_a_day, binned, observed)
    told = forecast.refusal(
        guess,
        episodes=one.episodes,
        least=settings.min_episodes,
        observed=observed,
        widest=settings.forecast_ratio,
    )
    return name, told


def _forecast(
    one: Finding, needed: float, used_a_day: float, binned: Weeks, observed: float
) -> Forecast:
    """A growing rate where growth was found, else the rate of all that was observed."""
    slope = one.slope
    if one.verdict.value == "growing" and slope is not None and slope.rate > 0:
        now = one.rate_recent * used_a_day
        spread = (one.dispersion / max(1, one.recent)) ** 0.5
        return forecast.at_growing_rate(
            needed, now, slope.rate, (spread, slope.error), one.dispersion
        )
    seen = float(binned.counts[one.row].sum()) / one.dispersion
    return forecast.at_constant_rate(needed / one.dispersion, seen, observed)
