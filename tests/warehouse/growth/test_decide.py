"""Who is growing, and who is not: a case for each verdict, and its nearest neighbour."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from warehouse.growth.decide import Finding, Verdict, decide
from warehouse.growth.episodes import Episode
from warehouse.growth.history import Card, Fleet
from warehouse.growth.report import evaluate
from warehouse.growth.settings import load

SETTINGS = load()
DAYS = 364
QUIET = 200  # cards beside, without an error


def _spread(per_week: float, begin: int, end: int, seed: int) -> list[float]:
    """Hours of random times at an even rate from day to day."""
    random = np.random.default_rng(seed)
    count = round(per_week * (end - begin) / 7)
    return [float(one) for one in random.uniform(begin * 24, end * 24, count)]


def _fleet(starts: Sequence[float], *, counter: str = "corrected", size: int = 10) -> Fleet:
    found = tuple(Episode(at, at, size) for at in sorted(starts))
    cards = tuple(
        Card(gpu=f"GPU-{row}", host=f"h{row // 8}", model="M") for row in range(QUIET + 1)
    )
    whole = np.full((QUIET + 1, DAYS), 24.0)
    episodes = {counter: {0: found}} if found else {}
    return Fleet(datetime(2025, 3, 1, tzinfo=UTC), cards, whole, whole * 0.6, episodes)


def _first(fleet: Fleet) -> Finding:
    (found,) = [one for one in decide(fleet, SETTINGS) if one.row == 0]
    return found


STEADY = _spread(2, 0, DAYS, 1)
STEP = _spread(2, 0, 308, 2) + _spread(8, 308, DAYS, 3)
RAMP = list(_spread(6, 0, 280, 4)) + [
    at for week in range(12) for at in _spread(6 * 1.22**week, 280 + 7 * week, 287 + 7 * week, week)
]


def test_a_steady_rate_is_stable() -> None:
    found = _first(_fleet(STEADY))
    assert found.verdict is Verdict.STABLE
    assert found.q > 0.05


def test_a_rate_that_jumps_is_growing_by_a_step_and_says_since_when() -> None:
    fleet = _fleet(STEP)
    report = evaluate(fleet, SETTINGS, 0)
    (found,), (more,) = report.findings, report.outlooks
    assert found.verdict is Verdict.GROWING
    assert found.shape is not None
    assert found.shape.name == "step"
    assert 3 < found.effect < 7
    assert more.since is not None
    assert abs((more.since - fleet.begin).days - 308) <= 14
    assert more.since_first is not None
    assert more.since_last is not None
    assert more.since_first <= more.since_last
    assert more.alarm_at is not None
    assert (more.alarm_at - fleet.begin).days > 308


def test_a_rate_that_climbs_is_growing_by_a_ramp() -> None:
    found = _first(_fleet(RAMP))
    assert found.verdict is Verdict.GROWING
    assert found.shape is not None
    assert found.shape.name == "ramp"


def test_a_trend_that_use_explains_is_no_trend() -> None:
    fleet = _fleet(STEP)
    busy = fleet.busy.copy()
    busy[0, :308] = 24 * 0.2
    busy[0, 308:] = 24 * 0.8
    assert _first(replace(fleet, busy=busy)).verdict is Verdict.STABLE


def test_one_burst_of_thousands_is_no_growth() -> None:
    found = _first(_fleet([*STEADY, 350 * 24.0], size=100_000))
    assert found.verdict is Verdict.STABLE


def test_one_crowded_week_is_no_growth() -> None:
    crowd = [340 * 24 + 2.5 * one for one in range(24)]
    found = _first(_fleet([*_spread(0.5, 0, DAYS, 5), *crowd]))
    assert found.verdict is Verdict.STABLE


def test_growth_with_samples_missing_is_suspect_only() -> None:
    fleet = _fleet(STEP)
    covered = fleet.covered.copy()
    covered[0, -56:] *= 0.5
    found = _first(replace(fleet, covered=covered))
    assert found.verdict is Verdict.SUSPECT
    assert "50% of its samples are missing" in found.why


def test_a_card_that_left_months_ago_is_not_suspect() -> None:
    fleet = _fleet(_spread(2, 0, 200, 1))
    covered = fleet.covered.copy()
    covered[0, 200:] = 0
    found = _first(replace(fleet, covered=covered))
    assert found.verdict is Verdict.INSUFFICIENT
    assert "no sample of it in the recent 56 days" in found.why


def test_a_collector_that_was_off_for_all_makes_nobody_suspect() -> None:
    fleet = _fleet(STEADY)
    covered = fleet.covered.copy()
    covered[:, -30:-10] = 0
    assert _first(replace(fleet, covered=covered)).verdict is Verdict.STABLE


def test_four_episodes_are_too_few_however_late_they_come() -> None:
    found = _first(_fleet([350 * 24.0, 353 * 24.0, 356 * 24.0, 361 * 24.0]))
    assert found.verdict is Verdict.INSUFFICIENT
    assert "4 episodes, 5 are needed" in found.why


def test_a_new_card_has_nothing_to_be_compared_with() -> None:
    fleet = _fleet(_spread(8, 320, DAYS, 6))
    covered, busy = fleet.covered.copy(), fleet.busy.copy()
    covered[0, :290] = busy[0, :290] = 0
    found = _first(replace(fleet, covered=covered, busy=busy))
    assert found.verdict is Verdict.INSUFFICIENT
    assert "18 days before the recent 56, 28 are needed" in found.why


@pytest.mark.parametrize("starts", [STEP, STEADY, []])
def test_a_failed_remap_needs_no_statistics(starts: list[float]) -> None:
    fleet = _fleet(starts)
    card = replace(fleet.cards[0], seen={"remap_failure": True})
    found = decide(replace(fleet, cards=(card, *fleet.cards[1:])), SETTINGS)
    assert (found[0].row, found[0].verdict) == (0, Verdict.HARD)


def test_what_is_chance_among_thousands_may_be_growth_among_few() -> None:
    starts = _spread(1, 0, 308, 7) + _spread(4.5, 308, DAYS, 8)
    few = _fleet(starts)
    many = replace(
        few,
        cards=few.cards + tuple(Card(gpu=f"more-{one}") for one in range(20_000)),
        covered=np.vstack([few.covered, np.full((20_000, DAYS), 24.0)]),
        busy=np.vstack([few.busy, np.full((20_000, DAYS), 12.0)]),
    )
    (found,) = [one for one in decide(many, SETTINGS) if one.row == 0]
    assert _first(few).verdict is Verdict.GROWING
    assert found.verdict is Verdict.STABLE
    assert found.p == pytest.approx(_first(few).p)


def test_the_same_history_gives_the_same_findings() -> None:
    assert decide(_fleet(STEP), SETTINGS) == decide(_fleet(STEP), SETTINGS)


def test_when_a_growing_card_reaches_the_threshold_is_told_with_an_interval() -> None:
    report = evaluate(
        _fleet(STEP, counter="uncorrected", size=1), replace(SETTINGS, errors_threshold=200), 0
    )
    (more,) = [one for one in report.outlooks if one.reaches]
    assert more.forecast is not None
    assert more.forecast.model == "growing rate"
    assert more.forecast.refused is None
    assert 0 < more.forecast.low < more.forecast.median < more.forecast.high


def test_too_few_episodes_are_refused_a_forecast_with_the_reason() -> None:
    report = evaluate(_fleet([300 * 24.0, 310 * 24.0], counter="uncorrected", size=3), SETTINGS, 0)
    (more,) = [one for one in report.outlooks if one.reaches]
    assert more.forecast is not None
    assert more.forecast.refused == "2 episodes, 5 are needed"


def test_a_fleet_without_errors_is_all_stable() -> None:
    found = decide(_fleet([]), SETTINGS)
    assert len(found) == QUIET + 1
    assert {one.verdict for one in found} == {Verdict.STABLE}
