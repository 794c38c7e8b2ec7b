"""Subcommand that takes old logs and exports into the history."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click
from rich.table import Table

from ringfence import show
from ringfence.cli.front import FAULT, JSON, TIME, Front, Unreadable, build, need, one_sentence
from ringfence.cli.storage import ROOT

__all__ = ["import_"]

_YEARS = click.IntRange(1990, 2100)


class _Zone(click.ParamType):
    """A time zone by its name (Europe/Berlin), or the offset of one."""

    name = "zone"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tzinfo:
        """Find the zone."""
        if isinstance(value, tzinfo):
            return value
        text = str(value)
        try:
            if text[:1] in "+-" and text[1:2].isdigit():
                found = datetime.fromisoformat(f"2000-01-01T00:00:00{text}").tzinfo
                assert found is not None
                return found
            return ZoneInfo(text)
        except (ValueError, OSError, LookupError):
            self.fail(f"{text!r} is no time zone like Europe/Berlin or +08:00", param, ctx)


@click.command("import")
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH...",
)
@ROOT
@click.option("--host", help="Host of lines and series that name none [folder or file name].")
@click.option("--year", type=_YEARS, help="Year of a file's first line, where lines have none.")
@click.option("--boot-time", type=TIME, help="When lines with seconds since boot count from.")
@click.option(
    "--timezone", "zone", type=_Zone(), default="UTC", show_default=True,
    help="Zone of times that name none.",
)  # fmt: skip
@click.option("--since", type=TIME, help="Leave out what happened before.")
@click.option("--until", type=TIME, help="Leave out what happened after.")
@click.option("--dry-run", is_flag=True, help="Only say what would be stored.")
@JSON
@click.pass_obj
def import_(
    context: Front,
    paths: tuple[Path, ...],
    root: Path | None,
    host: str | None,
    year: int | None,
    boot_time: datetime | None,
    zone: tzinfo,
    since: datetime | None,
    until: datetime | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take old kernel logs, nvidia-smi logs and DCGM metrics from Prometheus into the history.

    What is stored already is left out, so that a file may be given twice. Give all metrics of one
    time in one call. Exit code 1 where something could not be read; the rest is stored.
    """
    store = need("warehouse.backfill.store", "warehouse")
    spool = need("warehouse.backfill.spool", "warehouse")
    errors = need("warehouse.errors", "warehouse")
    reading = need("ringfence.backfill.run", "warehouse")
    module = need("warehouse.sink", "warehouse")
    settings = context.settings(sink={"root": root})
    config = build(
        settings, module.SinkConfig, "sink", kafka=settings.kafka, root=settings.warehouse
    )
    now = datetime.now(UTC)
    order = need("ringfence.backfill.order", "warehouse").Order(
        now=now, host=host, year=year, boot_time=boot_time, zone=zone, since=since, until=until
    )
    with (
        one_sentence(errors.WarehouseError, OSError),
        store.Store(config.root, now, compression=config.compression, dry_run=dry_run) as into,
    ):
        done = reading.read(paths, order, into.add, spool.Spool)
        into.flush()
    _tell(done, into.counts, dry_run=dry_run, as_json=as_json)
    differs = sum(count.differs for count in into.counts.values())
    if done.bad and not done.files:
        raise Unreadable(f"nothing could be read: {done.told()[0]}")
    sys.exit(FAULT if done.bad or differs else 0)


def _tell(done: Any, counts: Mapping[str, Any], *, dry_run: bool, as_json: bool) -> None:  # noqa: ANN401
    bad = done.told()
    if as_json:
        click.echo(json.dumps(_document(done, counts, bad, dry_run=dry_run), ensure_ascii=False))
        return
    for one in bad:
        click.echo(str(one), err=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("kind")
    for name in ("would be stored" if dry_run else "stored", "there already"):
        table.add_column(name, justify="right")
    table.add_column("first", no_wrap=True)
    table.add_column("last", no_wrap=True)
    for kind, count in sorted(counts.items()):
        table.add_row(
            kind, str(count.new), str(count.known), f"{count.first:%Y-%m-%d %H:%M:%S}",
            f"{count.last:%Y-%m-%d %H:%M:%S}",
        )  # fmt: skip
    if counts:
        show.screen().print(table)
    for kind, count in sorted(counts.items()):
        if count.differs:
            click.echo(
                f"{count.differs} samples of {kind} are stored for the same time with other "
                "values, and were left out: give all metrics of one time in one call",
                err=True,
            )
    click.echo(f"{done.files} files of {len(done.hosts)} hosts read", err=True)


def _document(
    done: Any,  # noqa: ANN401
    counts: Mapping[str, Any],
    bad: Sequence[Any],
    *,
    dry_run: bool,
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "files": done.files,
        "hosts": sorted(done.hosts),
        "kinds": {
            kind: {
                "new": count.new,
                "known": count.known,
                "differs": count.differs,
                "first": count.first.isoformat(),
                "last": count.last.isoformat(),
            }
            for kind, count in sorted(counts.items())
        },
        "unread": [
            {"file": one.file, "line": one.line, "reason": one.reason, "more": one.more}
            for one in bad
        ],
    }
