"""Subcommands that announce what is planned, so that it alarms nobody."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import click

from ringfence import show
from ringfence.cli.front import BOOTSTRAP, JSON, Bounded, Front, need, one_sentence

__all__ = ["announce", "context"]

MINUTES = Bounded(min=0, min_open=True, max=366 * 24 * 60)
#: What a person may announce; allocations and drains come from the schedulers.
_KINDS = ("maintenance", "reboot", "driver-upgrade", "gpu-reset", "mig-change")


class Span(click.ParamType):
    """A length of time: ``90s``, ``30m``, ``2h``, ``1d``; a bare number is minutes."""

    name = "span"
    _SHAPE = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
    _SECONDS: ClassVar[dict[str, int]] = {"s": 1, "m": 60, "": 60, "h": 3600, "d": 86400}
    _LONGEST_S = 366 * 86400

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Read it."""
        if isinstance(value, timedelta):
            return value
        found = self._SHAPE.fullmatch(str(value).strip())
        seconds = float(found[1]) * self._SECONDS[found[2]] if found is not None else 0.0
        if not 0 < seconds <= self._LONGEST_S:
            self.fail(f"{value!r} is no length of time like 90s, 30m, 2h or 1d", param, ctx)
        return timedelta(seconds=seconds)


@click.command()
@BOOTSTRAP
@click.argument("kind")
@click.option("--host", required=True, help="The host it concerns.")
@click.option("--gpu", "pci", help="The one GPU it concerns (PCI address).")
@click.option(
    "--for", "minutes", type=MINUTES, default=10, show_default=True, help="Minutes (to a year)."
)
@click.option("--by", help="Who announces it.")
@click.option("--reason", help="Why.")
@click.option("--ended", is_flag=True, help="It is over.")
@click.pass_obj
def announce(
    context: Front,
    bootstrap: str | None,
    kind: str,
    host: str,
    pci: str | None,
    minutes: float,
    by: str | None,
    reason: str | None,
    ended: bool,
) -> None:
    """Announce something planned (gpu-reset, reboot, maintenance ...), so that it alarms nobody."""
    _announce(
        context, bootstrap, kind, host, pci, timedelta(minutes=minutes), by, reason, ended=ended
    )


def _announce(
    front: Front,
    bootstrap: str | None,
    kind: str,
    host: str,
    pci: str | None,
    span: timedelta,
    by: str | None,
    reason: str | None,
    *,
    ended: bool = False,
) -> None:
    desk = need("ringfence.desk", "agent")
    settings = front.settings(kafka={"bootstrap": bootstrap})
    now = datetime.now(UTC)
    with one_sentence(desk.DeskError):
        record = desk.context_record(
            kind=kind, host=host, pci=pci, at=now, until=now + span,
            by=by, reason=reason, ended=ended,
        )  # fmt: skip
        desk.send(settings.kafka, "context", host, record)
    click.echo(f"announced {kind} on {host} ({record.id})")


@click.group()
def context() -> None:
    """Say what is planned on a host, so that it alarms nobody; list it, end it."""


def _kind(kind: str) -> click.Command:
    @click.command(name=kind, help=f"Announce a {kind} of HOST.")
    @BOOTSTRAP
    @click.argument("host")
    @click.option(
        "--for", "span", type=Span(), default="1h", show_default=True, help="How long: 30m, 2h, 1d."
    )
    @click.option("--gpu", "pci", help="The one GPU it concerns (PCI address).")
    @click.option("--by", help="Who announces it.")
    @click.option("--reason", help="Why.")
    @click.pass_obj
    def announce_kind(
        front: Front,
        bootstrap: str | None,
        host: str,
        span: timedelta,
        pci: str | None,
        by: str | None,
        reason: str | None,
    ) -> None:
        _announce(front, bootstrap, kind, host, pci, span, by, reason)

    return announce_kind


for _one in _KINDS:
    context.add_command(_kind(_one))


@context.command(name="end")
@BOOTSTRAP
@click.argument("host")
@click.argument("kind", type=click.Choice(_KINDS), default="maintenance", metavar="[KIND]")
@click.option("--gpu", "pci", help="The one GPU it concerns (PCI address).")
@click.option("--by", help="Who says so.")
@click.option("--reason", help="Why.")
@click.pass_obj
def context_end(
    front: Front,
    bootstrap: str | None,
    host: str,
    kind: str,
    pci: str | None,
    by: str | None,
    reason: str | None,
) -> None:
    """Say that what was announced of HOST is over (KIND: maintenance unless given)."""
    _announce(front, bootstrap, kind, host, pci, timedelta(0), by, reason, ended=True)


@context.command(name="list")
@BOOTSTRAP
@click.option("--all", "everything", is_flag=True, help="Also allocations and drains.")
@JSON
@click.pass_obj
def context_list(front: Front, bootstrap: str | None, everything: bool, as_json: bool) -> None:
    """List what is planned now."""
    reading = need("ringfence.reading_topics", "streams")
    desk = need("ringfence.desk", "agent")
    settings = front.settings(kafka={"bootstrap": bootstrap})
    with one_sentence(reading.ReadError):
        records = list(reading.read_topics(settings.kafka, ("context",)))
    now = datetime.now(UTC)
    standing = [one for one in desk.standing(records, now) if everything or one.kind in _KINDS]
    if as_json:
        click.echo(json.dumps([json.loads(show.as_json_line(one)) for one in standing]))
        return
    if not standing:
        click.echo("Nothing is planned.")
        return
    rows = [(o.host, o.kind, o.pci, o.at, o.until, o.by, o.reason) for o in standing]
    show.table(show.screen(), ("host", "kind", "gpu", "from", "until", "by", "why"), rows)
