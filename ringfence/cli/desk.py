"""Subcommands for a person's word: announce something planned, isolate, release."""

from datetime import UTC, datetime, timedelta

import click

from ringfence.cli.front import BOOTSTRAP, Bounded, Front, need, one_sentence

__all__ = ["announce", "isolate", "release"]

MINUTES = Bounded(min=0, min_open=True, max=366 * 24 * 60)


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
    desk = need("ringfence.desk", "agent")
    settings = context.settings(kafka={"bootstrap": bootstrap})
    now = datetime.now(UTC)
    with one_sentence(desk.DeskError):
        record = desk.context_record(
            kind=kind, host=host, pci=pci, at=now, until=now + timedelta(minutes=minutes),
            by=by, reason=reason, ended=ended,
        )  # fmt: skip
        desk.send(settings.kafka, "context", host, record)
    click.echo(f"announced {kind} on {host} ({record.id})")


def _request(
    context: Front, bootstrap: str | None, action: str, domain: str, **given: str | None
) -> None:
    desk = need("ringfence.desk", "agent")
    settings = context.settings(kafka={"bootstrap": bootstrap})
    with one_sentence(desk.DeskError):
        record = desk.request(action=action, domain=domain, at=datetime.now(UTC), **given)
        desk.send(settings.kafka, "requests", None, record)
    level = f" ({record.level})" if action == "isolate" else ""
    click.echo(
        f"asked to {action}{level} {record.domain.id}: request {record.id}. "
        "A person's word is carried out in shadow mode too."
    )


@click.command()
@BOOTSTRAP
@click.argument("domain")
@click.option("--by", help="Who asks (default: you).")
@click.option("--reason", default="", help="Why.")
@click.option(
    "--level",
    type=click.Choice(["cordon", "drain", "evict"]),
    default="cordon",
    show_default=True,
    help="How hard.",
)
@click.pass_obj
def isolate(
    context: Front, bootstrap: str | None, domain: str, by: str | None, reason: str, level: str
) -> None:
    """Ask to isolate DOMAIN (gpu:HOST/0000:3b:00, node:HOST, link:GUID/PORT, rack:NAME).

    It is carried out whatever the mode and the budget: shadow holds for our own commands only.
    """
    _request(context, bootstrap, "isolate", domain, by=by, reason=reason, level=level)


@click.command()
@BOOTSTRAP
@click.argument("domain")
@click.option("--by", help="Who asks (default: you).")
@click.option("--reason", default="", help="Why.")
@click.pass_obj
def release(
    context: Front, bootstrap: str | None, domain: str, by: str | None, reason: str
) -> None:
    """Ask to take DOMAIN back into service."""
    _request(context, bootstrap, "release", domain, by=by, reason=reason)
