"""``make accuracy``: how often the right part is isolated, and how often an innocent one.

A fleet is simulated (bench/fleet, bench/scenarios), its texts are parsed by the collectors and
judged by the very steps that run in the stream. Exits 1 when a mark is missed.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from fleet.cast import Cast
from fleet.plant import Plant
from fleet.play import play
from fleet.scenario import Scenario, ScenarioError, load_all
from fleet.schedule import lead_s, schedule
from fleet.score import Score, score
from rich.console import Console
from rich.table import Table

from ringfence.drive import Driver, Outcome
from rules.policy import Mode
from rules.tables import Rules, load

__all__ = ["drive", "main", "rules_in_force"]

SCENARIOS = Path(__file__).with_name("scenarios")
NODES = 2_048
PRECISION, RECALL = 0.99, 0.95


@dataclass(slots=True)
class Part:
    """One group of incidents as it was measured."""

    name: str
    found: Score
    took_s: float
    days: float

    @property
    def met(self) -> bool:
        """Whether its marks are met: nothing isolated in chatter, few errors in faults."""
        if self.name == "chatter":
            return not self.found.false
        return self.found.precision >= PRECISION and self.found.recall >= RECALL

    @property
    def per_1000_node_days(self) -> float:
        """False isolations in 1,000 days of one node."""
        return len(self.found.false) / (NODES * self.days) * 1_000

    def figures(self) -> dict[str, Any]:
        """Everything that was measured, as plain data."""
        found = self.found
        return {
            "incidents": len(found.told),
            "took_s": round(self.took_s, 1),
            "precision": found.precision,
            "recall": found.recall,
            "cause_right": found.cause_right,
            "insufficient": found.insufficient,
            "false_isolations": len(found.false),
            "false_per_1000_node_days": self.per_1000_node_days,
            "met": self.met,
            "by_part": {
                part: asdict(row) | {"precision": row.precision, "recall": row.recall}
                for part, row in found.by_part().items()
            },
            "confusion": {
                f"{true} -> {called}": times
                for (true, called), times in sorted(found.confusion().items())
            },
            "wrong": found.wrong(),
        }


def main(arguments: list[str] | None = None) -> int:
    """Simulate, judge, print; 0 when every mark is met, 2 when it cannot be asked."""
    given = _arguments(arguments)
    try:
        scenarios = _scenarios(given.only)
        if given.write:
            write(scenarios[0], given.variant, given.seed, given.write)
            return 0
        parts = list(_measure(scenarios, given))
    except (ScenarioError, ValueError) as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    for part in parts:
        _show(console, part)
    if given.json:
        told = {part.name: part.figures() for part in parts}
        given.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 0 if all(part.met for part in parts) else 1


def _scenarios(prefix: str) -> list[Scenario]:
    found = [one for one in load_all(SCENARIOS) if one.name.startswith(prefix)]
    if not found:
        raise ScenarioError(f"no scenario's name begins with {prefix!r}")
    return found


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how right the verdicts are.")
    parser.add_argument("--incidents", type=int, default=1_000, help="faults in the fleet")
    parser.add_argument("--chatter", type=int, default=1_500, help="incidents that are nobody's")
    parser.add_argument("--days", type=float, default=30.0, help="over how long each is spread")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only scenarios whose name begins so")
    parser.add_argument("--write", type=Path, help="write the first one's texts here and end")
    parser.add_argument("--variant", help="which variant to write")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser.parse_args(arguments)


def write(scenario: Scenario, variant: str | None, seed: int, folder: Path) -> Cast:
    """Write one incident as native texts; raises ScenarioError where there is no such variant."""
    plant = Plant(NODES, seed)
    (cast,) = schedule(plant, [scenario], incidents=1, days=1, seed=seed)
    if variant is not None:
        found = next((one for one in scenario.variant if one.name == variant), None)
        if found is None:
            raise ScenarioError(f"{scenario.name} has no variant {variant!r}")
        cast = replace(cast, variant=found)
    play(cast, with_looks=True).write(folder)
    return cast


def _measure(scenarios: Sequence[Scenario], given: argparse.Namespace) -> Iterator[Part]:
    plant = Plant(NODES, given.seed)
    for number, (group, wanted) in enumerate(
        (("fault", given.incidents), ("chatter", given.chatter))
    ):
        mine = [one for one in scenarios if one.group == group]
        if not mine or not wanted:
            continue
        began = time.perf_counter()
        casts = list(
            schedule(
                plant,
                mine,
                incidents=wanted,
                days=given.days,
                seed=given.seed + number,
                reuse_hosts=group == "chatter",
            )
        )
        outcome = drive(casts)
        found = score(casts, outcome.verdicts, outcome.commands)
        yield Part(group, found, time.perf_counter() - began, given.days)


def rules_in_force() -> Rules:
    """The shipped rules, acting for real on a fleet whose size is known."""
    rules = load()
    policy = rules.policy
    budget = replace(policy.budget, fleet_nodes=NODES, rack_absolute=1.0)
    return replace(rules, policy=replace(policy, mode=Mode.ENFORCE, budget=budget))


def drive(casts: Iterable[Cast], rules: Rules | None = None) -> Outcome:
    """Judge incidents that come in order of time; few are held at once."""
    driver = Driver(rules or rules_in_force())
    for cast in casts:
        driver.advance(cast.begin - timedelta(seconds=lead_s(cast.scenario)))
        for one in play(cast).records:
            driver.add(one.topic, one.key, one.record, one.at)
    return driver.run()


def _show(console: Console, part: Part) -> None:
    found = part.found
    title = f"{part.name}: {len(found.told):,} incidents, judged in {part.took_s:.0f} s"
    names = ["incidents", "due", "found", "right", "narrow", "false", "undecided"]
    names += ["precision", "recall"]
    table = Table("part", *names, title=title, title_justify="left")
    for kind, row in found.by_part().items():
        cells = (getattr(row, name) for name in names)
        table.add_row(kind, *(_cell(cell) for cell in cells))
    console.print(table)
    causes = Table("true cause", "called", "times", title_justify="left", title="causes")
    for (true, called), times in sorted(found.confusion().items()):
        causes.add_row(true, called, f"{times:,}")
    console.print(causes)
    for line in found.wrong():
        console.print(f"  {line[:300]}", markup=False)
    console.print(
        f"{part.name}: precision {found.precision:.4f}, recall where evidence suffices "
        f"{found.recall:.4f}, cause right {found.cause_right:.4f}, insufficient "
        f"{found.insufficient:.3f}; false isolations {len(found.false)} in {part.days:g} days of "
        f"{NODES:,} nodes ({part.per_1000_node_days:.4f} per 1,000 node-days): "
        f"{'marks met' if part.met else 'MARKS MISSED'}"
    )


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}"


if __name__ == "__main__":
    sys.exit(main())
