"""Subcommands for before a job starts: is it ready for a fault, how many spares does it need?"""

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ringfence import show
from ringfence.cli.front import FAULT, JSON, Bounded, Front, Unreadable, need, one_sentence
from ringfence.preflight import Finding, LaunchError, Severity, examine, read
from ringfence.spares import Costs, Rate, Sizing, SparesError, size

__all__ = ["preflight", "spares"]

_STYLE = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_MOST_NODES = 1_000_000
#: Failures per node and day where nothing was measured: the larger of two published rates
#: (6.50 and 2.34 in 1,000 node-days; Kokolis et al., HPCA 2025).
_PUBLISHED = 0.0065


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--step-seconds",
    type=Bounded(min=0, min_open=True, max=86_400),
    help="How long a training step takes: intervals given in steps can then be judged.",
)
@click.option("--fail", is_flag=True, help="Exit 1 when there is an error: for a submit hook.")
@JSON
def preflight(
    files: tuple[Path, ...], step_seconds: float | None, fail: bool, as_json: bool
) -> None:
    """Check launch FILES: would the job survive the loss of a node?

    Shell scripts, Slurm batch scripts and DeepSpeed configs; nothing in them is executed.
    """
    with one_sentence(LaunchError):
        found = examine(read(files), step_s=step_seconds)
    if as_json:
        click.echo(
            json.dumps({"schema": "preflight/1", "findings": [_plain(one) for one in found]})
        )
    else:
        _show(found)
    if fail and any(one.severity is Severity.ERROR for one in found):
        sys.exit(FAULT)


def _plain(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in Finding.__slots__}


def _show(found: list[Finding]) -> None:
    screen = show.screen()
    for one in found:
        place = "" if one.file is None else f" ({one.file}:{one.line})"
        style = _STYLE[one.severity]
        screen.print(
            f"{one.severity} {one.check}{place}", style=style, markup=False, soft_wrap=True
        )
        screen.print(f"  {one.what}", markup=False, highlight=False, soft_wrap=True)
        screen.print(f"  -> {one.fix}", markup=False, highlight=False, soft_wrap=True)
    counts = {severity: sum(one.severity is severity for one in found) for severity in Severity}
    screen.print(
        ", ".join(f"{count} {severity}s" for severity, count in counts.items()), highlight=False
    )


@click.command()
@click.option("--nodes", type=click.IntRange(1, _MOST_NODES), required=True, help="Nodes in use.")
@click.option("--failures", type=click.IntRange(0), help="Failures seen that took a node out.")
@click.option(
    "--node-days", type=Bounded(min=0, min_open=True), help="Node-days in which they were seen."
)
@click.option(
    "--rate",
    type=Bounded(min=0, min_open=True),
    help="Failures in 1,000 node-days, taken as exact (default: 6.5, published).",
)
@click.option("--from-history", is_flag=True, help="Failures and repairs from the warehouse.")
@click.option(
    "--repair-days",
    type=Bounded(min=0, min_open=True),
    help="Mean days from a failure to the node's return (default: 2, or from the history).",
)
@click.option(
    "--probability",
    type=Bounded(min=0, max=1, min_open=True, max_open=True),
    default=0.99,
    show_default=True,
    help="Wanted share of time with enough nodes.",
)
@click.option(
    "--node-hour", type=Bounded(min=0), default=1.0, show_default=True, help="Cost of a node-hour."
)
@click.option(
    "--lost-minutes",
    type=Bounded(min=0),
    default=6.0,
    show_default=True,
    help="What a failure costs the whole job beside waiting: since the checkpoint, restart.",
)
@JSON
@click.pass_obj
def spares(
    context: Front,
    nodes: int,
    failures: int | None,
    node_days: float | None,
    rate: float | None,
    from_history: bool,
    repair_days: float | None,
    probability: float,
    node_hour: float,
    lost_minutes: float,
    as_json: bool,
) -> None:
    """Size the reserve of a job: spare nodes, their cost, and what waiting would cost."""
    measured = _measured(context) if from_history else None
    if measured is not None:
        known, repair_days = measured[0], repair_days or measured[1]
    elif failures is not None or node_days is not None:
        if failures is None or node_days is None:
            raise Unreadable("--failures and --node-days belong together")
        known = Rate(failures, node_days)
    else:
        known = Rate(assumed=_PUBLISHED if rate is None else rate / 1000)
    with one_sentence(SparesError):
        found = size(
            nodes, known, repair_days or 2.0, probability, Costs(node_hour, lost_minutes / 60)
        )
    if as_json:
        click.echo(json.dumps({"schema": "spares/1"} | found.as_json()))
    else:
        _show_sizing(found)


def _measured(context: Front) -> tuple[Rate, float | None]:
    """Failures, node-days and the mean repair in days that the warehouse tells."""
    history = need("warehouse.reliability", "warehouse")
    errors = need("warehouse.errors", "warehouse")
    with one_sentence(errors.WarehouseError):
        seen = history.reliability(context.settings().warehouse)
    if not seen.node_days:
        raise Unreadable("the warehouse holds no inventory of nodes: nothing was observed")
    return Rate(seen.failures, seen.node_days), seen.repair_days


def _show_sizing(found: Sizing) -> None:
    screen = show.screen()
    rate = found.rate
    origin = (
        f"{rate.failures} failures in {rate.node_days:,.0f} node-days"
        if rate.assumed is None
        else "assumed"
    )
    screen.print(
        f"{found.nodes} nodes, {rate.per_node_day * 1000:.2f} failures in 1,000 node-days "
        f"({origin}), repaired in {found.repair_days:g} days: {found.failures_a_year:.0f} failures "
        f"a year, {found.out_at_once:.1f} nodes out at once.",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("spares", "enough nodes", "hours waiting", "of spares", "of waiting", "both", "")
    for column in table.columns:
        column.justify = "right"
    for row in found.rows:
        marks = [
            word
            for word, at in (("needed", found.needed), ("cheapest", found.cheapest))
            if row.spares == at
        ]
        table.add_row(
            str(row.spares),
            f"{row.enough:.4%}",
            f"{row.waiting_hours:,.1f}",
            f"{row.cost_of_spares:,.0f}",
            f"{row.cost_of_waiting:,.0f}",
            f"{row.cost:,.0f}",
            ", ".join(marks),
        )
    screen.print(table)
    screen.print(
        f"{found.nodes} + {found.needed} = {found.nodes + found.needed} nodes have enough for "
        f"{found.probability:.2%} of the time; {found.cheapest} spares cost least. Costs are a "
        f"year's, by the price of a node-hour; restarts cost {found.unavoidable:,.0f} more, "
        "whatever the reserve.",
        highlight=False,
        soft_wrap=True,
    )
