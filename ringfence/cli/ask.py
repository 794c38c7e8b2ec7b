"""Subcommands that answer: parse a log, triage an incident, replay the history."""

import importlib
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import click

from ringfence import logs, show
from ringfence.cli.front import (
    FAULT,
    JSON,
    TIME,
    Bounded,
    Front,
    Unreadable,
    build,
    need,
    one_sentence,
)

__all__ = ["parse", "replay", "triage"]


#: What can be parsed, and by which module.
_PARSERS = {
    "kernel": "collectors.kernel",
    "nccl": "collectors.nccl",
    "gpu": "collectors.nvidia_smi",
    "fabric": "collectors.fabric.text",
}
#: The kinds whose input may hold no record and yet be right: a fabric without errors.
_OF_TOOLS = {"gpu": "nvidia-smi", "fabric": "a fabric tool"}
_HEAD_LINES, _HEAD_BYTES = 2000, 4096


@click.command()
@click.argument("kind", type=click.Choice(list(_PARSERS)))
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--host", help="Host of lines that name none.")
@click.option("--job", default="job", show_default=True, help="Job of a NCCL log.")
@click.option("--subnet", default="default", show_default=True, help="Subnet of a fabric's text.")
@click.option("--coalesce", is_flag=True, help="One record with a count for a storm of equal ones.")
def parse(
    kind: str, file: IO[bytes], host: str | None, job: str, subnet: str, coalesce: bool
) -> None:
    """Parse a log, or the output of a tool, into NDJSON, one record a line.

    gpu is what nvidia-smi prints; fabric is ibqueryerrors, perfquery, iblinkinfo, ibnetdiscover and
    mlxlink.
    """
    name = getattr(file, "name", "<stdin>")
    head: list[bytes] = []
    lines = _remembered(logs.read(file), head)
    given: dict[str, dict[str, Any]] = {
        "kernel": {"host": host, "coalesce": coalesce},
        "nccl": {"job": job, "host": host, "keep_other": True},
        "gpu": {"host": host},
        "fabric": {"subnet": subnet},
    }
    parser = importlib.import_module(_PARSERS[kind])
    records = parser.parse_stream(lines, now=datetime.now(UTC), file=name, **given[kind])
    found = False
    try:
        for record in records:
            found = True
            click.echo(show.as_json_line(record))
    except logs.READ_ERRORS as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise Unreadable(f"{name}: broke off: {error}") from error
    if not found and kind in _OF_TOOLS and not parser.recognise(head):
        raise Unreadable(f"{name}: holds nothing that {_OF_TOOLS[kind]} prints")


def _remembered(lines: Iterator[bytes], head: list[bytes]) -> Iterator[bytes]:
    """Pass lines on, and keep the beginnings of the first of them in ``head``."""
    for line in lines:
        if len(head) < _HEAD_LINES:
            head.append(line[:_HEAD_BYTES])
        yield line


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--policy", type=click.Path(path_type=Path), help="Isolation policy (TOML).")
@click.option("--thresholds", type=click.Path(path_type=Path), help="Thresholds (TOML).")
@JSON
def triage(path: Path, policy: Path | None, thresholds: Path | None, as_json: bool) -> None:
    """Name the part at fault from the logs of an incident (file, folder or tar)."""
    module = importlib.import_module("ringfence.triage")
    tables = importlib.import_module("rules.tables")
    with one_sentence(ValueError, OSError):
        rules = tables.load(thresholds, policy)
    with one_sentence(FileNotFoundError):
        found = module.triage(path, rules, datetime.now(UTC))
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    elif found.read:
        show.triage(show.screen(), found)
    if not found.read:
        reason = found.unread[0].reason if found.unread else "no file"
        raise Unreadable(f"{path}: nothing readable ({reason})")
    sys.exit(FAULT if found.faulty else 0)


@click.command()
@click.option("--since", type=TIME, help="Compare what was decided from then on.")
@click.option("--until", type=TIME, help="Compare what was decided until then.")
@click.option("--host", help="Only the decisions about one host.")
@click.option(
    "--warm-up",
    "warm_up_h",
    type=Bounded(0, 24 * 366),
    default=24.0,
    show_default=True,
    help="Hours of records before --since that are stepped too.",
)
@click.option("--policy", type=click.Path(path_type=Path), help="What if: another policy (TOML).")
@click.option("--thresholds", type=click.Path(path_type=Path), help="What if: other thresholds.")
@JSON
@click.pass_obj
def replay(
    context: Front,
    since: datetime | None,
    until: datetime | None,
    host: str | None,
    warm_up_h: float,
    policy: Path | None,
    thresholds: Path | None,
    as_json: bool,
) -> None:
    """Run the stages again over the stored history: do they decide the same?"""
    module = need("ringfence.replay", "warehouse,streams")
    stored = need("warehouse.replay", "warehouse")
    errors = need("warehouse.errors", "warehouse")
    tables = importlib.import_module("rules.tables")
    settings = context.settings()
    worker = build(settings, need("streams.config", "streams").WorkerConfig, "worker")
    with one_sentence(ValueError, OSError):
        rules = tables.load(thresholds or worker.thresholds, policy or worker.policy)
    with one_sentence(errors.WarehouseError):
        known = stored.begin_and_end(settings.warehouse)
        if known is None:
            raise Unreadable(f"nothing is stored in the warehouse at {settings.warehouse}")
        first, last = since or known[0], until or known[1]
        if first > last:
            raise Unreadable(f"--since {first:%Y-%m-%d %H:%M} is after the end of the period")
        begin = max(known[0], first - timedelta(hours=warm_up_h)) if since else first
        period = module.Period(min(begin, first), first, last)
        found = module.replay(
            settings.warehouse, rules, worker.stages, period, host=host,
            what_if=bool(policy or thresholds),
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        show.replayed(show.screen(), found)
    sys.exit(FAULT if found.different or found.failed else 0)
