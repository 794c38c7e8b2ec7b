"""How often healthy cards are called growing, and how often planted growth is found.

``python bench/growth.py [--cards 5000] [--seeds 5] [--json FILE]``
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from ailing import Illness, healthy, simulate

from warehouse.growth.decide import Verdict, decide
from warehouse.growth.settings import Settings, load

__all__ = ["false_alarms", "power"]


def false_alarms(seed: int, cards: int, settings: Settings) -> dict[str, int]:
    """Verdicts of a fleet in which nothing grows."""
    random = np.random.default_rng([seed, 1])
    fleet = simulate(seed, [healthy(random) for _ in range(cards)])
    found = decide(fleet, settings)
    counts = {verdict.value: 0 for verdict in Verdict}
    for one in found:
        counts[one.verdict.value] += 1
    return counts | {"cards": cards, "with_episodes": len(fleet.episodes["corrected"])}


def power(
    seed: int, cards: int, planted: Illness, count: int, settings: Settings
) -> dict[str, float]:
    """Share of ``count`` planted cards found in a fleet of ``cards``, and false ones among all."""
    random = np.random.default_rng([seed, 2])
    rest: list[Illness | None] = [healthy(random) for _ in range(cards - count)]
    fleet = simulate(seed, [planted] * count + rest)
    grown = {one.row for one in decide(fleet, settings) if one.verdict is Verdict.GROWING}
    true = sum(row < count for row in grown)
    busy = float(fleet.busy[:count].sum(1).mean()) / 24
    return {"found": true / count, "false": len(grown) - true, "busy_days": busy}


def main() -> int:
    """Run all seeds and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--planted", type=int, default=100)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    settings = load()
    result: dict[str, Any] = {"null": [], "power": []}
    for seed in range(300, 300 + given.seeds):
        begun = time.perf_counter()
        found = false_alarms(seed, given.cards, settings)
        result["null"].append(found)
        print("null", seed, found, f"{time.perf_counter() - begun:.1f} s", flush=True)
    for shape, held in (("step", 0), ("ramp", 0), ("ramp", 56)):
        for per_week in (4.0, 7.0, 10.0, 14.0, 20.0, 28.0):
            planted = Illness(per_week, shape, held_days=held)
            runs = [
                power(400 + seed, given.cards, planted, given.planted, settings)
                for seed in range(max(1, given.seeds // 2))
            ]
            mean = {key: float(np.mean([one[key] for one in runs])) for key in runs[0]}
            told = {"shape": shape, "held_days": held, "per_week": per_week} | mean
            result["power"].append(told)
            print(told, flush=True)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
