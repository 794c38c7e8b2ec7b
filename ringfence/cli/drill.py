"""Subcommands for fault drills: run one, and list what came of them."""

import getpass
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from ringfence import show
from ringfence.cli.front import (
    BOOTSTRAP,
    FAULT,
    JSON,
    Bounded,
    Front,
    Unreadable,
    build,
    need,
    one_sentence,
    stop_event,
)
from ringfence.settings import Settings

__all__ = ["drill", "drills"]

_SECONDS = Bounded(min=0, min_open=True, max=24 * 3600)
_DAYS = Bounded(min=0, min_open=True, max=10_000)


@click.command()
@BOOTSTRAP
@click.argument("name", required=False)
@click.option("--pool", help="Pool to drill in: its first host that nothing speaks against.")
@click.option("--host", help="Host to hit.")
@click.option("--owner", "owners", multiple=True, help="Owner whose jobs may be hit.")
@click.option(
    "--set", "values", multiple=True, metavar="NAME=VALUE", help="A value of the drill's file."
)
@click.option("--within", type=_SECONDS, help="Seconds from fault to training [the drill's own].")
@click.option("--by", help="Who drills (default: you).")
@click.option("--yes", is_flag=True, help="Drill though what follows is carried out for real.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--undo", is_flag=True, help="Only undo what a killed drill left.")
@JSON
@click.pass_obj
def drill(
    context: Front,
    bootstrap: str | None,
    name: str | None,
    pool: str | None,
    host: str | None,
    owners: tuple[str, ...],
    values: tuple[str, ...],
    within: float | None,
    by: str | None,
    yes: bool,
    dry_run: bool,
    undo: bool,
    as_json: bool,
) -> None:
    """Run the drill NAME: break something on purpose, and time what follows.

    NAME is a file, or the name of one in [drill] folder. Exit code 1 where it did not go as
    expected or was too late, 2 where it may not be run.
    """
    if (name is None) != undo:
        raise Unreadable("a drill needs a NAME (and --undo none)")
    plans = need("ringfence.drills.plan", "schedulers")
    module = need("ringfence.drills.run", "schedulers")
    guard = need("ringfence.drills.guard", "schedulers")
    settings = context.settings(kafka={"bootstrap": bootstrap})
    logging.getLogger("kafka").setLevel(logging.ERROR)  # the screen belongs to the drill
    screen = show.screen(stderr=as_json)
    call = _call(
        settings, by, lambda words: screen.print(escape(words), highlight=False, soft_wrap=True)
    )
    with one_sentence(plans.DrillError):
        if name is None:
            click.echo(f"{module.undo_left_over(call)} undone")
            return
        plan = plans.load(name, call.config.folder, _pairs(values))
        if within is not None:
            plan = plans.with_limit(plan, within)
        asked = guard.Asked(pool, host, owners, yes)
        record = module.run(call, plan, asked, dry_run=dry_run)
    if as_json:
        click.echo(show.as_json_line(record))
    elif not dry_run:
        _conclude(screen, record)
    sys.exit(0 if dry_run or record.outcome == "passed" else FAULT)


def _call(settings: Settings, by: str | None, say: Any) -> Any:  # noqa: ANN401
    module = need("ringfence.drills.run", "schedulers")
    config = need("ringfence.drills.config", "schedulers").DrillConfig
    policy = need("rules.policy", "schedulers")
    state_dir = settings.sections["drill"].get("state_dir", settings.data / "drills")
    try:
        return module.Call(
            kafka=settings.kafka,
            config=build(settings, config, "drill", state_dir=state_dir),
            policy=policy.load(_policy_file(settings)),
            by=by or getpass.getuser(),
            stop=stop_event(),
            say=say,
        )
    except (ValueError, OSError) as error:
        raise Unreadable(str(error)) from error


def _policy_file(settings: Settings) -> Any:  # noqa: ANN401
    """The worker's policy: it says what follows a verdict."""
    config = need("streams.config", "streams").WorkerConfig
    return build(settings, config, "worker", kafka=settings.kafka, state_dir=settings.data).policy


def _pairs(values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise Unreadable(f"--set {name!r} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _conclude(screen: Any, record: Any) -> None:  # noqa: ANN401
    for words in record.differed:
        screen.print(f"differed: {escape(words)}", highlight=False)
    took = (
        "" if record.recovered_s is None else f", training again after {record.recovered_s:.1f} s"
    )
    screen.print(
        f"{record.drill} on {record.host}: {record.outcome}{took} "
        f"(objective {record.objective_s:g} s; record {record.id})",
        highlight=False,
        soft_wrap=True,
    )


@click.command()
@click.option(
    "--stale-days", type=_DAYS, default=90, show_default=True, help="Days a drill may be old."
)
@JSON
@click.pass_obj
def drills(context: Front, stale_days: float, as_json: bool) -> None:
    """List the drills that were run, against the objective.

    Exit code 1 where the last drill of a name did not pass, or is older than --stale-days.
    """
    errors = need("warehouse.errors", "warehouse")
    module = need("ringfence.drills.history", "warehouse")
    root = context.settings().warehouse
    with one_sentence(errors.WarehouseError):
        history = module.read(root, now=datetime.now(UTC), stale_days=stale_days)
    if as_json:
        click.echo(json.dumps(history.as_json(), ensure_ascii=False))
    else:
        _list(history)
    sys.exit(FAULT if history.wrong else 0)


def _list(history: Any) -> None:  # noqa: ANN401
    screen = show.screen()
    table = Table(box=None, pad_edge=False)
    for name in ("at", "drill", "host"):
        table.add_column(name, no_wrap=True)
    for name in ("verdict", "command", "ack", "out", "training", "objective", "released"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome")
    for row in history.drills:
        seconds = (
            "detected_s", "commanded_s", "acked_s", "out_s", "recovered_s", "objective_s",
            "released_s",
        )  # fmt: skip
        table.add_row(
            f"{row['event_at']:%Y-%m-%d %H:%M}",
            escape(row["drill"]),
            escape(row["host"]),
            *("-" if row[one] is None else f"{row[one]:.1f}" for one in seconds),
            row["outcome"],
        )
    screen.print(table)
    for words in history.wrong:
        screen.print(escape(words), highlight=False, soft_wrap=True)
