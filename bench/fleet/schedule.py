"""Draws which incidents happen in a fleet, where and when, from one seed.

A fault's part is on a node that has no other fault: what is judged about one never stands in the
way of the next. A job's other nodes may be in several.
"""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from fleet.cast import Cast, draw
from fleet.plant import Host, Plant
from fleet.sampled import AFTER_S, BEFORE_S
from fleet.scenario import Scenario, Variant

__all__ = ["BEGIN", "lead_s", "schedule"]

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
#: How often an incident is seen whole, against the weights of its variants.
_WHOLE = 3.0
_TRIES = 10_000
_NEVER = float("inf")
#: A record may be stamped this much before its incident begins to be watched.
_MARGIN_S = 30.0


def schedule(
    plant: Plant,
    scenarios: Sequence[Scenario],
    *,
    incidents: int,
    days: float,
    seed: int,
    reuse_hosts: bool = False,
) -> Iterator[Cast]:
    """Draw ``incidents`` over ``days``, in order of time; each scenario and variant comes once.

    The others are drawn by their weights. Where two happen at once, it is behind different leaf
    switches. ``reuse_hosts`` lets nodes have several, as in a month of chatter. Raises ValueError
    where the fleet is too small for so many.
    """
    dice = random.Random(seed)
    chosen = _chosen(scenarios, incidents, dice)
    whens = sorted(dice.uniform(0, days * 86_400) for _ in chosen)
    free = _Free(plant, dice, reuse=reuse_hosts)
    for number, ((scenario, variant), when) in enumerate(zip(chosen, whens, strict=True)):
        until = when + scenario.lasts_s + AFTER_S
        host = free.host(when - lead_s(scenario), _NEVER if _ends_leaf(scenario) else until)
        begin = BEGIN + timedelta(seconds=when)
        yield draw(number, scenario, variant, begin, plant, host, dice.getrandbits(48))


def _ends_leaf(scenario: Scenario) -> bool:
    """Whether nothing can be seen behind the leaf switch any more: nobody repairs it here."""
    return scenario.truth.part == "switch"


def lead_s(scenario: Scenario) -> float:
    """How long before it begins a scenario's first record may be."""
    return max(BEFORE_S, -min((s.heard_s for s in scenario.steps()), default=0.0)) + _MARGIN_S


def _chosen(
    scenarios: Sequence[Scenario], incidents: int, dice: random.Random
) -> list[tuple[Scenario, Variant | None]]:
    chosen: list[tuple[Scenario, Variant | None]] = [(scenario, None) for scenario in scenarios]
    chosen += [(scenario, variant) for scenario in scenarios for variant in scenario.variant]
    del chosen[incidents:]
    weights = [scenario.weight for scenario in scenarios]
    while len(chosen) < incidents:
        scenario = dice.choices(scenarios, weights)[0]
        chosen.append((scenario, _seen(scenario, dice)))
    dice.shuffle(chosen)
    return chosen


def _seen(scenario: Scenario, dice: random.Random) -> Variant | None:
    whole: list[Variant | None] = [None, *scenario.variant]
    weights = [_WHOLE, *(variant.weight for variant in scenario.variant)]
    return dice.choices(whole, weights)[0]


class _Free:
    """The nodes to which something may still happen."""

    def __init__(self, plant: Plant, dice: random.Random, *, reuse: bool) -> None:
        self._hosts = plant.hosts
        self._dice = dice
        self._reuse = reuse
        self._used: set[str] = set()
        self._busy: dict[str, float] = {}

    def host(self, since: float, until: float) -> Host:
        """Draw a node behind a leaf switch where nothing happens at that time."""
        for _ in range(_TRIES):
            host = self._dice.choice(self._hosts)
            if host.name in self._used or self._busy.get(host.leaf, since) > since:
                continue
            self._busy[host.leaf] = until
            if not self._reuse:
                self._used.add(host.name)
            return host
        raise ValueError(f"{len(self._hosts)} nodes are too few for so many incidents")
