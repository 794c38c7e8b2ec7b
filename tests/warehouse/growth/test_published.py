"""Values that others have published, from their own numbers."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from statsmodels.stats.rates import test_poisson_2indep as two_poisson

from warehouse.growth import alarm, change, dispersion, forecast, rates, trend

NIST = (5, 40, 43, 175, 389, 712, 747, 795, 1299, 1478)  # NIST/SEMATECH 8.4.5.1, T = 1500 h
RELIAWIKI = (
    2.7, 10.3, 12.5, 30.6, 57.0, 61.3, 80.0, 109.5, 125.0, 128.6, 143.8,
    167.9, 229.2, 296.7, 320.6, 328.2, 366.2, 396.7, 421.1, 438.2, 501.2, 620.0,
)  # fmt: skip
ROCOF_GAPS = (
    104, 131, 1597, 59, 4, 503, 157, 6, 118, 173, 114, 62, 101, 216, 106,
    140, 1, 102, 3, 393, 96, 232, 89, 61, 37, 293, 7, 165, 87, 99,
)  # fmt: skip
TEN = (10400, 26900, 43400, 66400, 89400, 130400, 163400, 232000, 242000, 340700)
# Jarrett 1979: British coal-mining disasters a year, 1851 to 1961
COAL = (
    "4540143406 3340263354 5314415534 2522342132 2111130010 1100310322"
    " 0111010100 0210001102 3311211112 4200140001 00000100101"
)


def near(value: float, places: int) -> object:
    """The value as printed, to half a unit of its last place."""
    return pytest.approx(value, abs=0.5000001 * 10**-places, rel=0)


def test_nist_repairs_get_better() -> None:
    found = trend.mil_hdbk_189(NIST, 1500)
    assert found.statistic == near(37.23, 2)
    assert found.df == 20
    assert 1 - found.p == near(0.0110, 4)
    assert trend.laplace(NIST, 1500).statistic == near(-1.3269, 4)
    assert trend.lewis_robinson(NIST, 1500).statistic == near(-1.2011, 4)
    assert trend.reversals(NIST) == 33
    law = trend.crow_amsaa(NIST, 1500)
    assert (law.shape, law.scale) == (near(0.53723, 5), near(0.19666, 5))


def test_reliawiki_developmental_test() -> None:
    law = trend.crow_amsaa(RELIAWIKI, 620, failure=True)
    assert (law.shape, law.scale) == (near(0.6142104, 7), near(0.4239422, 7))
    assert law.intensity(620) == near(0.0217946, 7)
    assert 1 / law.intensity(620) == near(45.883, 3)
    assert trend.laplace(RELIAWIKI, 620, failure=True).statistic == near(-2.7832, 4)
    found = trend.mil_hdbk_189(RELIAWIKI, 620, failure=True)
    assert (found.statistic, found.df) == (near(71.637, 3), 42)


def test_reliawiki_helicopter_from_grouped_counts() -> None:
    law = trend.crow_amsaa_grouped((12, 6, 15, 3, 18, 16), (62, 100, 187, 210, 350, 500))
    assert (law.shape, law.scale) == (near(0.8136085, 6), near(0.4458543, 6))


def test_the_reliability_package_s_two_series() -> None:
    law = trend.crow_amsaa(TEN, 340700, failure=True)
    assert law.shape == pytest.approx(0.741656619656656, rel=1e-12)
    assert law.scale == near(7.886414235e-4, 13)
    found = trend.mil_hdbk_189(TEN, 340700, failure=True)
    assert (found.statistic, found.df) == (near(26.967, 3), 18)
    gaps = np.cumsum(ROCOF_GAPS)
    worse = trend.laplace(gaps, 5256, failure=True)
    assert worse.statistic == pytest.approx(2.4094382960447107, rel=1e-12)
    law = trend.crow_amsaa(gaps, 5256, failure=True)
    assert law.shape == pytest.approx(1.5880533880966818, rel=1e-12)
    assert law.scale == pytest.approx(3.702728848984535e-05, rel=1e-12)
    found = trend.mil_hdbk_189(gaps, 5256, failure=True)
    assert (found.statistic, found.df, found.p) == (near(37.782, 3), 58, near(0.0183, 4))


def test_small_series_with_answers_known_in_closed_form() -> None:
    nine = (10, 19, 27, 34, 40, 45, 49, 52, 54)
    assert trend.laplace(nine, 60).statistic == pytest.approx(2 / 3**0.5, rel=1e-12)
    assert trend.mil_hdbk_189(nine, 60).statistic == near(10.904579, 6)
    assert trend.laplace((1, 2, 3, 4), 5).statistic == 0
    assert trend.mil_hdbk_189((1, 2, 3, 4), 5).statistic == pytest.approx(2 * np.log(625 / 24))


def test_two_poisson_rates_of_gu_and_others() -> None:
    given = (60, 51477.5, 30, 54308.7)
    assert rates.exact_p(*given) == near(0.000428, 6)
    assert rates.mid_p(*given) == near(0.000310, 6)
    assert near(2.1100, 4) == 60 / 51477.5 / (30 / 54308.7)
    low, high = rates.ratio_interval(*given)
    assert (float(low), float(high)) == (near(1.366, 3), near(3.259, 3))


@pytest.mark.parametrize("method", ["wald", "score", "exact-cond", "cond-midp", "etest"])
def test_the_library_agrees_on_that_pair(method: str) -> None:
    told = {"wald": 0.000356, "score": 0.000316, "exact-cond": 0.000428, "cond-midp": 0.000310,
            "etest": 0.000298}  # fmt: skip
    found = two_poisson(60, 51477.5, 30, 54308.7, method=method, alternative="larger")
    assert found.pvalue == near(told[method], 6)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0, 3.689), (1, 0.0253, 5.572), (2, 0.2422, 7.225), (5, 1.623, 11.668), (10, 4.795, 18.39)],
)  # fmt: skip
def test_garwood_s_intervals(count: int, low: float, high: float) -> None:
    found = rates.garwood(count)
    assert found[0] == pytest.approx(low, abs=6e-4)
    assert found[1] == near(high, 3)


def test_nothing_in_thirty_days_still_allows_an_eighth_a_day() -> None:
    assert rates.garwood(0)[1] / 30 == near(0.123, 3)


def test_bliss_s_red_mites() -> None:
    mites = np.repeat(np.arange(8), (70, 38, 17, 10, 9, 3, 2, 1))
    assert mites.size == 150
    found = dispersion.index_of_dispersion(mites)
    assert (mites.mean(), mites.var(ddof=1)) == (near(1.1467, 4), near(2.2736, 4))
    assert (found.index, found.chi2) == (near(1.983, 3), near(295.4, 1))
    assert found.p == pytest.approx(1e-11, rel=0.03)
    assert dispersion.negative_binomial_k(mites) == near(1.0246, 4)


def test_benjamini_and_hochberg_s_fifteen() -> None:
    p = (0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
         0.5719, 0.6528, 0.7590, 1)  # fmt: skip
    adjusted = rates.q_values(p)
    assert (adjusted <= 0.05).sum() == 4
    assert (np.asarray(p) <= 0.05 / 15).sum() == 3
    assert adjusted[:5] == pytest.approx([0.0015, 0.003, 0.0095, 0.035625, 0.0603])


def test_coal_mining_changed_after_1891() -> None:
    years = [int(one) for one in COAL if one.isdigit()]
    assert (len(years), sum(years)) == (111, 191)
    found = change.change_point(years, np.ones(111))
    assert found is not None
    assert 1851 + found.split - 1 == 1891
    assert (found.before, found.after) == (near(3.098, 3), near(0.914, 3))
    assert found.lr == near(68.4, 1)
    assert found.p == 0.001
    assert found.first <= found.split <= found.last


def test_mil_hdbk_189_time_to_sixty_failures() -> None:
    law = trend.PowerLaw(0.6164658150593465, 0.33054564782072915, 0.603064, 3000)
    assert law.time_of(60) == near(4616.4, 1)
    assert forecast.at_power_law(60, law).median == near(1616.4, 1)


def test_lucas_s_cusum_and_wald_s_bounds() -> None:
    assert alarm.reference(4, 7) == near(5.3608, 4)
    assert alarm.average_run_length(5, 10, 4) == near(421.65, 2)
    assert alarm.average_run_length(5, 10, 7) == near(5.594, 3)
    found = alarm.sprt(5, 1, (1, 3), 0.01, 0.05)
    assert (found.upper, found.lower, found.ratio) == (
        near(4.5539, 4),
        near(-2.9857, 4),
        near(3.4931, 4),
    )
    assert found.says == "go-on"


def test_twelve_events_in_thirty_days_reach_fifty_in_three_months() -> None:
    found = forecast.at_constant_rate(38, 12, 30)
    assert (found.median, found.low, found.high) == (near(92.9, 1), near(55.2, 1), near(164.1, 1))


def test_the_library_and_ours_agree_on_a_regression() -> None:
    # rate doubles every ten weeks: the slope is ln 2 / 10 a week
    weeks: ArrayLike = np.arange(40.0)
    counts = np.round(4 * 2 ** (np.asarray(weeks) / 10))
    found = dispersion.slope(counts, np.full(40, 168.0), weeks)
    assert found is not None
    assert found.doubling == pytest.approx(10, rel=0.02)
    assert found.p < 1e-9


MIL = (
    2.4, 24.9, 52.5, 53.4, 54.7, 57.2, 118.6, 140.2, 185.0, 207.6, 293.9, 322.3, 365.9, 366.8,
    544.8, 616.8, 627.5, 646.8, 664.0, 738.1, 764.7, 765.1, 779.6, 799.9, 852.9, 1116.3, 1161.1,
    1257.1, 1276.3, 1308.9, 1340.3, 1437.3, 1482.0, 1489.9, 1715.1, 1828.9, 1971.5, 2303.4, 2429.7,
    2457.4, 2535.2, 2609.9, 2674.2, 2704.8, 2849.6, 2923.5,
)  # fmt: skip


def test_mil_hdbk_189_example_1() -> None:
    law = trend.crow_amsaa(MIL, 3000)
    assert (law.shape, law.scale) == (near(0.616466, 6), near(0.330546, 6))
    assert law.shape_unbiased == near(0.603064, 6)
    assert 1 / law.intensity(3000) == near(105.79, 2)
    found = trend.mil_hdbk_189(MIL, 3000)
    assert (found.statistic, found.df) == (near(149.238, 3), 92)
    # the handbook's own 149.35 is 2n / beta with beta rounded to .616
    assert 2 * 46 / round(law.shape, 3) == near(149.35, 2)
    assert trend.laplace(MIL, 3000).statistic == near(-3.0785, 4)
    assert trend.lewis_robinson(MIL, 3000).statistic == near(-2.7476, 4)
    assert trend.cramer_von_mises(MIL, law) == near(0.04288, 5)
    rounded = trend.PowerLaw(0.616, law.scale, law.shape_unbiased, 3000)
    assert trend.cramer_von_mises(MIL, rounded, unbiased=False) == near(0.04865, 5)


SHARED = Path(os.environ.get("RINGFENCE_SHARED", Path(__file__).parents[4] / "shared"))


@pytest.fixture(scope="module")
def told() -> Any:
    path = SHARED / "facts" / "growth-statistics-reference.json"
    if not path.exists():
        pytest.skip(f"the shared folder has no {path.name} here (RINGFENCE_SHARED names another)")
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("name", "times", "end", "failure"),
    [
        ("reliawiki_22_failures_T620_failure_terminated", RELIAWIKI, 620, True),
        ("mil_hdbk_189_ex1_46_failures_T3000", MIL, 3000, False),
        ("reliability_pkg_test_10_failures", TEN, 340700, True),
        ("reliability_pkg_ROCOF_30_gaps", np.cumsum(ROCOF_GAPS), 5256, True),
        ("nist_10_repairs_T1500", NIST, 1500, False),
    ],
)
def test_every_shared_number_of_a_series(
    told: Any, name: str, times: ArrayLike, end: float, failure: bool
) -> None:
    one = told[name]
    law = trend.crow_amsaa(times, end, failure=failure)
    score = trend.laplace(times, end, failure=failure)
    chi = trend.mil_hdbk_189(times, end, failure=failure)
    found = {
        "beta_mle": law.shape,
        "lambda_mle": law.scale,
        "beta_unbiased": law.shape_unbiased,
        "eta": law.scale ** (-1 / law.shape),
        "intensity_T": law.intensity(end),
        "imtbf": 1 / law.intensity(end),
        "laplace_U": score.statistic,
        "laplace_p2": 2 * min(score.p, 1 - score.p),
        "laplace_p_increasing": score.p,
        "mil_chi2": chi.statistic,
        "mil_df": chi.df,
        "mil_p_increasing": chi.p,
        "mil_p_decreasing": 1 - chi.p,
        "cvm": trend.cramer_von_mises(times, law),
        "reversals": trend.reversals(times),
    }
    wanted = {key: one[key] for key in found if key in one}
    assert {key: found[key] for key in wanted} == pytest.approx(wanted, rel=1e-9)


def test_every_other_shared_number(told: Any) -> None:
    two = told["gu2008_two_poisson_60_51477.5_vs_30_54308.7"]
    given = (60, 51477.5, 30, 54308.7)
    assert rates.exact_p(*given) == pytest.approx(two["binom_exact_onesided"], rel=1e-9)
    assert rates.mid_p(*given) == pytest.approx(two["cond-midp"][1], rel=1e-9)
    assert np.array(rates.ratio_interval(*given)) == pytest.approx(two["ci95_score"], rel=1e-8)
    for count, interval in told["garwood95"].items():
        assert np.array(rates.garwood(int(count))) == pytest.approx(interval, rel=1e-9)
    k = told["bliss_red_mites"]["k_mle"]
    mites = np.repeat(np.arange(8), (70, 38, 17, 10, 9, 3, 2, 1))
    assert dispersion.negative_binomial_k(mites) == pytest.approx(k, rel=1e-6)
    years = [int(one) for one in COAL if one.isdigit()]
    coal = change.change_point(years, np.ones(111))
    assert coal is not None
    assert coal.split == told["coal_change_point"]["split_after_index"]
    assert coal.lr == pytest.approx(told["coal_change_point"]["LR"], rel=1e-9)
    sums = told["poisson_cusum"]
    assert alarm.reference(4, 7) == pytest.approx(sums["k_formula"], rel=1e-12)
    assert alarm.average_run_length(5, 10, 4) == pytest.approx(sums["arl0_k5_h10_mu4"], rel=1e-9)
    assert alarm.average_run_length(5, 10, 7) == pytest.approx(sums["arl1_k5_h10_mu7"], rel=1e-9)
    when = told["time_to_threshold_constant_rate"]
    found = forecast.at_constant_rate(38, 12, 30)
    assert [found.median, found.low, found.high] == pytest.approx(
        [when["median"], *when["pi90"]], rel=1e-9
    )


def test_laplace_over_several_parts_is_that_of_one_and_adds_up() -> None:
    assert trend.pooled_laplace([(NIST, 1500.0)]).statistic == near(
        trend.laplace(NIST, 1500).statistic, 12
    )
    # By hand: (6 - 5 + 16 - 10) / sqrt(10**2 / 12 + 20**2 / 12)
    found = trend.pooled_laplace([([6.0], 10.0), ([16.0], 20.0)])
    assert found.statistic == near(7 / (500 / 12) ** 0.5, 12)


def test_the_running_sum_takes_off_lucas_k_of_each_interval() -> None:
    expected = [2.0, 5.0]
    k = [alarm.reference(one, 3 * one) for one in expected]
    path, first = alarm.cusum([10, 10], expected, 3.0, 100.0)
    assert path[0] == near(10 - k[0], 12)
    assert path[1] == near(20 - k[0] - k[1], 12)
    assert first == -1
