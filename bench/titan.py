"""Anchors and a back-test on the GPU failures of Titan (30,207 GPUs, 2014 to 2019).

``python bench/titan.py FOLDER`` with titan_events.csv.gz and titan_quarter_cage.csv in it (from
olcf/TitanGPULife, DOI 10.13139/ORNLNCCS/1657202; Ostrouchov et al., SC20). Not part of this
repository. Fits every cage of every column of cabinets to June 2016, and predicts the half year
after it.
"""

import csv
import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warehouse.growth import dispersion, trend
from warehouse.growth.forecast import at_constant_rate, at_growing_rate

__all__ = ["Event", "anchors", "back_test", "read"]

Array = NDArray[np.float64]
BEGIN = datetime(2014, 1, 21)  # noqa: DTZ001 (the data are in the machine's own time)
CUT = datetime(2016, 7, 1)  # noqa: DTZ001
END = datetime(2017, 1, 1)  # noqa: DTZ001
_WEEK_H, _WEEKS, _DRAWS = 168.0, 52, 4000
MODELS = ("no growth", "its own growth", "the machine's growth")


@dataclass(frozen=True, slots=True)
class Event:
    """One double-bit error or off-the-bus: when, which card, where."""

    at: datetime
    card: str
    column: int
    cage: int


def read(folder: Path) -> list[Event]:
    """All events, oldest first."""
    with gzip.open(folder / "titan_events.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        place = row["location"]  # c21-5c0s7n2: column 21, row 5, cage 0, slot 7, node 2
        column, rest = place[1:].split("-")
        cage = rest.split("c")[1].split("s")[0]
        found.append(Event(datetime.fromisoformat(row["time"]), row["sn"], int(column), int(cage)))
    return sorted(found, key=lambda one: one.at)


def anchors(events: list[Event], folder: Path) -> dict[str, Any]:
    """What others have published or counted, from the same files."""
    cards = Counter(one.card for one in events)
    quarters: Counter[str] = Counter(f"{one.at.year}Q{(one.at.month + 2) // 3}" for one in events)
    hours: dict[str, float] = defaultdict(float)
    with (folder / "titan_quarter_cage.csv").open() as file:
        for row in csv.DictReader(file):
            hours[row["quarter"]] += float(row["gpu_hours"])
    early = [(one.at - BEGIN).total_seconds() / 3600 for one in events if one.at < END]
    end_h = (END - BEGIN).total_seconds() / 3600
    many = Counter(one.card for one in events).most_common(10)
    law, score = trend.crow_amsaa(early, end_h), trend.laplace(early, end_h)
    return {
        "events": len(events),
        "cards": len(cards),
        "cards_with_2": sum(count >= 2 for count in cards.values()),
        "cards_with_3": sum(count >= 3 for count in cards.values()),
        "most": max(cards.values()),
        "top_10_share": sum(count for _, count in many) / len(events),
        "cages": [sum(one.cage == cage for one in events) for cage in range(3)],
        "gap_h": {name: _gap_h(events, name) for name in ("2015Q3", "2015Q4", "2019Q1", "2019Q2")},
        "per_million_h": {
            name: quarters[name] / hours[name] * 1e6 for name in ("2015Q2", "2016Q4")
        },
        "to_2017": {"n": len(early), "end_h": end_h, "beta": law.shape, "laplace": score.statistic},
    }


def _gap_h(events: list[Event], quarter: str) -> float:
    """Mean hours between events of a quarter."""
    year, number = int(quarter[:4]), int(quarter[-1])
    begin = datetime(year, 3 * number - 2, 1)  # noqa: DTZ001
    end = datetime(year + (number == 4), (3 * number) % 12 + 1, 1)  # noqa: DTZ001
    times = [one.at for one in events if begin <= one.at < end]
    return (times[-1] - times[0]).total_seconds() / 3600 / (len(times) - 1)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of ``groups`` how many half years lay within the 90 % interval; how the sums compare."""

    model: str
    groups: int
    inside: int
    predicted: float
    happened: int

    @property
    def share(self) -> float:
        """Share of intervals that held."""
        return self.inside / self.groups


def back_test(events: list[Event]) -> list[Coverage]:
    """Fit each cage of each column until the cut, predict its next half year, compare."""
    groups: Mapping[tuple[int, int], list[float]] = defaultdict(list)
    for one in events:
        if one.at < END:
            groups[one.column, one.cage].append((one.at - CUT).total_seconds() / 3600 / _WEEK_H)
    counts = np.array([_weekly(times) for times in groups.values()])
    happened = np.array([sum(at >= 0 for at in times) for times in groups.values()])
    machine = dispersion.slope(counts.sum(0), np.ones(_WEEKS), np.arange(_WEEKS))
    assert machine is not None
    result = []
    for model in MODELS:
        told = np.array([_predict(model, one, machine) for one in counts])
        inside = (told[:, 0] <= happened) & (happened <= told[:, 2])
        result.append(
            Coverage(model, len(groups), int(inside.sum()), told[:, 1].sum(), int(happened.sum()))
        )
    return result


def _weekly(times: list[float]) -> Array:
    found = np.array(times)
    return np.histogram(found[found < 0], np.arange(-_WEEKS, 1))[0].astype(float)


def _predict(model: str, counts: Array, machine: dispersion.Slope) -> tuple[float, float, float]:
    """5 %, median and 95 % of the count of the next half year.

    A group's rate is that of its last 26 weeks, its growth none, its own, or the machine's.
    """
    random = np.random.default_rng(int(counts @ np.arange(1, counts.size + 1)))
    ahead = (END - CUT).total_seconds() / 3600 / _WEEK_H
    spread = max(1.0, dispersion.index_of_dispersion(counts[-26:]).index)
    rate = random.gamma((counts[-26:].sum() + 0.5) / spread, spread / 26, _DRAWS)
    own = dispersion.slope(counts, np.ones(counts.size), np.arange(counts.size))
    fit = {"no growth": None, "its own growth": own, "the machine's growth": machine}[model]
    factor = np.full(_DRAWS, ahead)
    if fit is not None:
        grows = np.clip(fit.rate + fit.error * random.standard_normal(_DRAWS), -0.2, 0.2)
        # the rate of the last 26 weeks is that of their middle, 13 weeks before the cut
        factor = np.exp(grows * 13) * np.expm1(grows * ahead) / grows
    expected = np.minimum(rate * factor, 1e6)
    scattered = random.poisson(random.gamma(expected / spread + 1e-9, spread))
    low, middle, high = np.quantile(scattered, [0.05, 0.5, 0.95])
    return float(low), float(middle), float(high)


def whole_machine(events: list[Event]) -> dict[str, Any]:
    """When the whole machine would have its next 1,000 events, told at the cut, and when it had."""
    times = np.array([(one.at - CUT).total_seconds() / 86_400 for one in events])
    before = times[(times < 0) & (times >= -364)]
    counts = np.histogram(before, np.arange(-364, 1, 7))[0].astype(float)
    fit = dispersion.slope(counts, np.full(52, 7.0), (np.arange(52) + 0.5) * 7)
    assert fit is not None
    last = counts[-13:].sum()
    growing = at_growing_rate(
        1000, last / 91, fit.rate, ((fit.dispersion / last) ** 0.5, fit.error), fit.dispersion
    )
    constant = at_constant_rate(1000, last, 91.0)
    return {
        "happened_days": float(np.sort(times[times >= 0])[999]),
        "growing": asdict(growing),
        "constant": asdict(constant),
        "slope_per_year": fit.rate * 365.25,
    }


def main(arguments: list[str]) -> int:
    """Print anchors and back-test as JSON."""
    if len(arguments) != 1:
        print("usage: python bench/titan.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    events = read(folder)
    told = {
        "anchors": anchors(events, folder),
        "back_test": [asdict(one) | {"share": one.share} for one in back_test(events)],
        "whole_machine": whole_machine(events),
    }
    print(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
