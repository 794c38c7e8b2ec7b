"""Subcommands that ask the history: SQL, why a command was given, what happened around a time."""

import importlib
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from ringfence import show, show_timeline
from ringfence.cli.front import (
    FAULT,
    JSON,
    TIME,
    Front,
    Unreadable,
    build,
    need,
    one_sentence,
)

__all__ = ["sql", "timeline", "why"]

_FORMS = ("table", "csv", "json", "parquet")
#: What a file's name says about its form.
_SUFFIXES = {".csv": "csv", ".json": "json", ".ndjson": "json", ".parquet": "parquet"}
_AT = click.option("--at", type=TIME, help="Answer as it was known then.")
_BEGIN = datetime.min.replace(tzinfo=UTC)
_END = datetime.max.replace(tzinfo=UTC)


@click.command()
@click.argument("statement")
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMS),
    help="How rows are written [table; with --output what the name ends in].",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write to a file, whole or not at all.",
)
@_AT
@click.option("--since", type=TIME, help="Read only what happened from then on.")
@click.option("--until", type=TIME, help="Read only what happened until then.")
@JSON
@click.pass_obj
def sql(
    context: Front,
    statement: str,
    form: str | None,
    output: Path | None,
    at: datetime | None,
    since: datetime | None,
    until: datetime | None,
    as_json: bool,
) -> None:
    """Ask the history in SQL (DuckDB; views are in docs/warehouse.md, questions in forensics.md).

    json is one object a line. --since and --until bound kernel, gpu, nccl and fabric records, and
    the days whose files are read: a year's history is answered as fast as a day's.
    """
    answers = need("warehouse.answers", "warehouse")
    errors = need("warehouse.errors", "warehouse")
    chosen = _form(form, output, as_json=as_json)
    period = (since or _BEGIN, until or _END) if since or until else None
    if since and until and since > until:
        raise Unreadable("--since is after --until")
    root = context.settings().warehouse
    with (
        one_sentence(errors.WarehouseError, OSError),
        answers.answer(root, statement, at=at, period=period) as found,
    ):
        if chosen == "table":
            show.table(show.screen(), found.columns, found.rows())
            return
        rows = answers.write(found, chosen, output, sys.stdout.buffer)
    if output is not None:
        click.echo(f"{rows} rows in {output}", err=True)


def _form(form: str | None, output: Path | None, *, as_json: bool) -> str:
    """How the rows are written; raises where that is not clear."""
    if as_json and form not in (None, "json"):
        raise Unreadable(f"--json and --format {form} are two forms")
    chosen = "json" if as_json else form
    if chosen is None:
        chosen = "table" if output is None else _SUFFIXES.get(output.suffix, "")
    if output is None and chosen == "parquet":
        raise Unreadable("Parquet goes to a file: name it with --output")
    if output is not None and chosen in ("", "table"):
        raise Unreadable(
            f"{output} is written as csv, json or parquet: name it so, or say --format"
        )
    return chosen


@click.command()
@click.argument("command_id")
@click.option("--prove", is_flag=True, help="Run the stages again: does the same come out?")
@_AT
@JSON
@click.pass_obj
def why(context: Front, command_id: str, prove: bool, at: datetime | None, as_json: bool) -> None:
    """Tell why a command was given: its verdict, witnesses, evidence and acks."""
    module = need("warehouse.why", "warehouse")
    errors = need("warehouse.errors", "warehouse")
    root = context.settings().warehouse
    with one_sentence(errors.WarehouseError, OSError):
        found = module.why(root, command_id, at=at)
        if found is None:
            raise Unreadable(f"no command {command_id!r} in the warehouse")
        proof = _proof(context, root, found) if prove else None
    if as_json:
        plain = json.loads(show.as_json_line(found)) | {"replay": show.replay_command(found)}
        if proof is not None:
            plain["proof"] = proof.as_json()
        click.echo(json.dumps(plain, ensure_ascii=False))
    else:
        show.why(show.screen(), found)
        if proof is not None:
            show_timeline.proof(show.screen(), proof)
    sys.exit(FAULT if proof is not None and not proof.same else 0)


def _proof(context: Front, root: Path, found: Any) -> Any:  # noqa: ANN401 (parts come when needed)
    module = need("ringfence.proof", "warehouse,streams")
    tables = importlib.import_module("rules.tables")
    worker = build(context.settings(), need("streams.config", "streams").WorkerConfig, "worker")
    with one_sentence(ValueError, OSError):
        rules = tables.load(worker.thresholds, worker.policy)
    return module.prove(root, rules, worker.stages, found)


class _Span(click.ParamType):
    """A length of time: 90s, 30m, 1h, 2d."""

    name = "span"
    _UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}  # noqa: RUF012 (read only)
    _MOST = timedelta(days=366)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Read the length."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])", str(value))
        span = timedelta(seconds=float(found[1]) * self._UNITS[found[2]]) if found else None
        if not span or span > self._MOST:
            self.fail(f"{value!r} is no length like 90s, 30m, 1h or 2d, up to a year", param, ctx)
        return span


@click.command()
@click.argument("name", metavar="GPU|HOST|RACK|JOB")
@click.option("--around", type=TIME, required=True, help="The middle of the time looked at.")
@click.option("--window", type=_Span(), default="1h", show_default=True, help="Its whole length.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Draw it, too: FILE.png, FILE.svg or FILE.html (page with picture and table).",
)
@_AT
@JSON
@click.pass_obj
def timeline(
    context: Front,
    name: str,
    around: datetime,
    window: timedelta,
    plot: Path | None,
    at: datetime | None,
    as_json: bool,
) -> None:
    """Tell what happened to a part around a time, all sources merged in order.

    A GPU is named by its UUID, its serial number, or HOST/PCI address; gpu:, node:, rack: or job:
    before a name says which it is.
    """
    module = need("warehouse.timeline", "warehouse")
    errors = need("warehouse.errors", "warehouse")
    drawing = _drawing(plot) if plot is not None else None
    root = context.settings().warehouse
    with one_sentence(errors.WarehouseError, OSError):
        found = module.timeline(root, name, around, window, at=at)
    if drawing is not None and plot is not None:
        with one_sentence(OSError):
            drawing.draw(found, plot)
        click.echo(f"drawn in {plot}", err=True)
    if as_json:
        click.echo(json.dumps(show_timeline.as_json(found), ensure_ascii=False))
    else:
        show_timeline.timeline(show.screen(), found)


def _drawing(plot: Path) -> Any:  # noqa: ANN401 (a part that comes when needed)
    module = need("warehouse.timeline_plot", "growth")
    if plot.suffix not in module.FORMS:
        raise Unreadable(f"{plot} is drawn as {', '.join(module.FORMS)}: name it so")
    if not plot.parent.is_dir():
        raise Unreadable(f"{plot} cannot be drawn: there is no folder {plot.parent}")
    return module
