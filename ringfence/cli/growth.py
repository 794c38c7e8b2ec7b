"""Subcommand that asks the history which GPUs' memory errors grow."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.markup import escape
from rich.table import Table

from ringfence import show
from ringfence.cli.front import BOOTSTRAP, FAULT, JSON, Front, Unreadable, need, one_sentence

__all__ = ["ecc_growth"]

_SHOWN = 20
_DAY = click.DateTime(["%Y-%m-%d"])


@click.command("ecc-growth")
@BOOTSTRAP
@click.option("--gpu", help="One GPU (UUID), judged beside all others.")
@click.option("--fleet", is_flag=True, help="All GPUs (the default).")
@click.option("--since", type=_DAY, help="First day of the history (UTC) [a year before].")
@click.option("--until", type=_DAY, help="Last day of the history (UTC) [yesterday].")
@click.option(
    "--settings", "file", type=click.Path(path_type=Path), help="Settings that differ (TOML)."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw it too (FILE.png, .svg or .html)."
)
@click.option("--publish", is_flag=True, help="Send the results to Kafka, as records.")
@JSON
@click.pass_obj
def ecc_growth(
    context: Front,
    bootstrap: str | None,
    gpu: str | None,
    fleet: bool,
    since: datetime | None,
    until: datetime | None,
    file: Path | None,
    plot: Path | None,
    publish: bool,
    as_json: bool,
) -> None:
    """Tell which GPUs' memory errors grow, since when, and whether that is chance.

    Exit code 1 where a GPU is growing, or says itself that it is to be replaced.
    """
    if gpu is not None and (fleet or publish):
        raise Unreadable("--gpu is about one GPU; --fleet and --publish are about all")
    errors = need("warehouse.errors", "warehouse")
    growth = need("warehouse.growth.report", "warehouse,growth")
    settings = context.settings(kafka={"bootstrap": bootstrap})
    with one_sentence(errors.WarehouseError):
        report = growth.assess(
            settings.warehouse,
            need("warehouse.growth.settings", "warehouse").load(file),
            since=since.date() if since else None,
            until=_end(until),
            gpu=gpu,
        )
        if plot is not None:
            need("warehouse.growth.plot", "growth").write(report, plot, one_card=gpu is not None)
    now = datetime.now(UTC)
    records = [growth.record(report, place, now) for place in range(len(report.findings))]
    if as_json:
        click.echo(json.dumps(_document(report, records), indent=2))
    else:
        _print(report, records, whole=gpu is not None)
    if publish:
        sender = need("warehouse.growth.publish", "warehouse")
        with one_sentence(errors.WarehouseError):
            count = sender.publish(settings.kafka, records)
        click.echo(f"sent {len(records)} results and {count} suspicions", err=True)
    sys.exit(FAULT if report.bad else 0)


def _end(until: datetime | None) -> date:
    """The day after the last one that is judged: whole days only, today is not over."""
    last = until.date() if until else datetime.now(UTC).date() - timedelta(days=1)
    try:
        return last + timedelta(days=1)
    except OverflowError:
        raise Unreadable(f"--until {last} is the last day of the calendar") from None


def _document(report: Any, records: Sequence[Any]) -> dict[str, Any]:  # noqa: ANN401
    return {
        "since": report.fleet.begin.date().isoformat(),
        "until": (report.fleet.end - timedelta(days=1)).date().isoformat(),
        "gpus": len(report.fleet.cards),
        "tested": report.tested,
        "false_discovery_rate": report.settings.false_discovery_rate,
        "results": msgspec.to_builtins(records),
    }


def _print(report: Any, records: Sequence[Any], *, whole: bool) -> None:  # noqa: ANN401
    console = show.screen()
    worth = [one for one in records if one.episodes or one.states or one.verdict != "stable"]
    table = Table(box=None, pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    for name in ("gpu", "place", "counter"):
        table.add_column(name, overflow="fold")  # a name is there to be copied
    for name in ("now/before", "q", "episodes", "seen"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("since", "why"):
        table.add_column(name)
    for one in worth[: None if whole else _SHOWN]:
        table.add_row(*map(escape, _cells(one)))
    if worth:
        console.print(table)
    for one in worth if whole else ():
        for line in _more(one):
            console.print(escape(line), highlight=False)
    console.print(escape(_summary(report, records, len(worth), whole=whole)), highlight=False)


def _cells(one: Any) -> tuple[str, ...]:  # noqa: ANN401
    began = f"{one.shape} {one.since:%Y-%m-%d}" if one.since and one.shape else "-"
    return (
        one.verdict.upper(),
        one.gpu,
        f"{one.host} {one.pci or ''}".strip(),
        one.counter,
        f"{one.effect:.1f}" if one.episodes and one.effect is not None else "-",
        f"{one.q:.2g}" if one.episodes else "-",
        f"{one.recent_episodes} of {one.episodes}",
        f"{one.coverage:.0%}",
        began if one.verdict in ("growing", "suspect") else "-",
        "; ".join(one.why) or "-",
    )


def _more(one: Any) -> list[str]:  # noqa: ANN401
    """What one card's own page tells beside the table."""
    lines = [
        f"{one.counter}: {one.rate_recent:.3g} episodes a day of use, "
        f"{one.rate_before:.3g} before; "
        f"ratio {one.ratio_low or 0:.2g} to {_or(one.ratio_high)} (95 %), "
        f"dispersion {one.dispersion:.2f}, {one.beside_peers or 1:.1f} times its model's rate"
    ]
    if one.since_first and one.since_last:
        lines.append(
            f"  taken as one step, it lies between {one.since_first:%Y-%m-%d} "
            f"and {one.since_last:%Y-%m-%d} (95 %)"
        )
    if one.alarm_at:
        lines.append(f"  the running sum alarmed on {one.alarm_at:%Y-%m-%d}")
    if one.refused:
        lines.append(f"  when it reaches {one.reaches}: not told, {one.refused}")
    elif one.reaches_days is not None:
        lines.append(
            f"  reaches {one.reaches} in {one.reaches_days:.0f} days, "
            f"not before {one.reaches_low_days:.0f} (90 %: to {_or(one.reaches_high_days)})"
        )
    return lines


def _or(number: float | None) -> str:
    return "any" if number is None else f"{number:.3g}"


def _summary(
    report: Any,  # noqa: ANN401
    records: Sequence[Any],
    worth: int,
    *,
    whole: bool,
) -> str:
    last = report.fleet.end - timedelta(days=1)
    told = (
        f"{len(report.fleet.cards)} GPUs from {report.fleet.begin:%Y-%m-%d} to {last:%Y-%m-%d}, "
        f"false-discovery rate {report.settings.false_discovery_rate:g} over {report.tested} tests."
    )
    if whole:
        return told
    quiet = len(records) - worth
    more = f" {worth - _SHOWN} more had errors (--json shows all)." if worth > _SHOWN else ""
    return f"{told} {quiet} had no error.{more}"
