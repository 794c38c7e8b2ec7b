"""Healthy cards are left alone, planted growth is found; Titan's failures are predicted."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import growth  # noqa: E402
import titan  # noqa: E402
from ailing import Illness  # noqa: E402

from warehouse.growth.settings import load  # noqa: E402

SETTINGS = load()
SHARED = Path(os.environ.get("RINGFENCE_SHARED", Path(__file__).parents[3] / "shared"))


def test_of_two_thousand_healthy_cards_none_is_growing() -> None:
    found = growth.false_alarms(300, 2000, SETTINGS)
    assert found["with_episodes"] > 500
    assert found["growing"] == 0


def test_a_doubling_of_a_frequent_error_is_found() -> None:
    found = growth.power(400, 1000, Illness(20, "step"), 40, SETTINGS)
    assert found["found"] >= 0.9
    assert found["false"] <= 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_null_control_in_full() -> None:
    every = [growth.false_alarms(300 + seed, 5000, SETTINGS) for seed in range(20)]
    # one fleet in twenty may have a false alarm; three in twenty happen by chance in 7 of 100
    assert sum(one["growing"] > 0 for one in every) <= 3
    assert sum(one["growing"] for one in every) <= SETTINGS.false_discovery_rate * 5000 * 20


@pytest.fixture(scope="module")
def folder() -> Path:
    path = SHARED / "data" / "titan"
    if not path.exists():
        pytest.skip(f"the shared folder has no {path.name} here (RINGFENCE_SHARED names another)")
    return path


def test_titan_s_anchors_are_those_that_were_published(folder: Path) -> None:
    found = titan.anchors(titan.read(folder), folder)
    assert found["cages"] == [1461, 2241, 2665]
    counted = ("events", "cards", "cards_with_2", "cards_with_3", "most")
    assert [found[name] for name in counted] == [6367, 5190, 551, 123, 106]
    assert found["top_10_share"] == pytest.approx(0.060, abs=5e-4)
    assert {name: round(gap, 1) for name, gap in found["gap_h"].items()} == {
        "2015Q3": pytest.approx(33, abs=0.5), "2015Q4": 7.7, "2019Q1": 5.9, "2019Q2": 5.9,
    }  # fmt: skip
    assert found["per_million_h"] == {
        "2015Q2": pytest.approx(0.22, abs=5e-3), "2016Q4": pytest.approx(21.75, abs=5e-3),
    }  # fmt: skip
    whole = found["to_2017"]
    assert (whole["n"], whole["end_h"]) == (3039, 25_824)
    assert (whole["beta"], whole["laplace"]) == (
        pytest.approx(3.98, abs=5e-3),
        pytest.approx(58.5, abs=0.05),
    )


def test_titan_s_next_half_year_lies_in_the_intervals_of_a_shared_growth(folder: Path) -> None:
    found = {one.model: one for one in titan.back_test(titan.read(folder))}
    assert {one.happened for one in found.values()} == {1570}
    assert found["the machine's growth"].share >= 0.85
    assert found["no growth"].share < found["the machine's growth"].share
