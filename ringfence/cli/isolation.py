"""The subcommands of ``ringfence isolation``: what is out and why, and a person's word about it."""

import getpass
import sys
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import click
import msgspec

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
)
from ringfence.settings import Settings

__all__ = ["isolate", "isolation", "release"]

_LEVELS = click.Choice(["cordon", "drain", "evict"])
_BY = click.option("--by", help="Who asks (default: you).")
_REASON = click.option("--reason", default="", help="Why.")
_LEVEL = click.option(
    "--level", type=_LEVELS, default="cordon", show_default=True, help="How hard."
)
_WITHIN = click.option(
    "--within",
    "within_s",
    type=Bounded(min=0, min_open=True, max=3600),
    default=15,
    show_default=True,
    help="Seconds that reading may take.",
)
_ROW = ("domain", "status", "level", "since", "until", "generation", "by", "why")
_WORDS = 110


@click.group()
def isolation() -> None:
    """Show what is out of service and why, and decide about it by hand."""


# --- What is out ----------------------------------------------------------------------------------


def _overview(context: Front, bootstrap: str | None, within_s: float) -> Any:  # noqa: ANN401
    module = need("ringfence.isolation", "streams")
    reading = need("ringfence.reading_topics", "streams")
    policies = need("rules.policy", "streams")
    settings = context.settings(kafka={"bootstrap": bootstrap})
    path = settings.sections["worker"].get("policy")
    with one_sentence(policies.PolicyError, OSError):
        policy = policies.load(None if path is None else Path(str(path)))
    with one_sentence(reading.ReadError):
        found = module.read(settings.kafka, within_s=within_s)
    folder = Path(settings.sections["scheduler"].get("state_dir", settings.data / "scheduler"))
    now = datetime.now(UTC)
    return module.overview(found, now, policy.budget, differing=module.differences(folder))


@isolation.command(name="list")
@BOOTSTRAP
@_WITHIN
@click.option("--all", "everything", is_flag=True, help="Also what is back in service.")
@JSON
@click.pass_obj
def isolation_list(
    context: Front, bootstrap: str | None, within_s: float, everything: bool, as_json: bool
) -> None:
    """List what is out, held or on its way back, the budget, alarms and differences."""
    told = _overview(context, bootstrap, within_s)
    if not everything:
        parts = tuple(one for one in told.parts if one.status != "in-service")
        told = msgspec.structs.replace(told, parts=parts)
    if as_json:
        click.echo(msgspec.json.encode(told))
        return
    console = show.screen()
    if told.parts:
        show.table(console, _ROW, [_row(one) for one in told.parts])
    else:
        click.echo("Nothing is out of service.")
    for part in told.parts:
        for words in _besides(part):
            click.echo(f"{part.domain_id}: {words}")
    hours = told.window_s / 3600
    spent = ", ".join(f"{one.used:g} of {one.limit:g} {one.kind}" for one in told.budget)
    click.echo(f"budget of {hours:g} h: {spent}")
    for alarm in told.alarms:
        click.echo(f"alarm ({alarm.rule}): {alarm.reason}")
    for one in told.differences:
        click.echo(f"difference at {one['scheduler']}: {one.get('kind')} {one.get('domain_id')}")


def _row(part: Any) -> tuple[object, ...]:  # noqa: ANN401 (ringfence.isolation.Part)
    return (
        part.domain_id,
        part.status,
        part.level,
        f"{part.since:%Y-%m-%d %H:%M:%S}",
        None if part.until is None else f"{part.until:%H:%M:%S}",
        part.generation,
        part.by,
        part.why[:_WORDS],
    )


def _besides(part: Any) -> list[str]:  # noqa: ANN401
    """What a row has no room for."""
    words = []
    if part.held:
        words.append(f"held: {part.held}")
    if part.note:
        words.append(part.note)
    if part.pending and part.status != "in-service":
        words.append(f"command {part.pending} waits for a scheduler")
    words += [
        f"{one.status} by {one.scheduler}: {one.detail}"
        for one in part.answers
        if one.status in ("failed", "refused", "expired")
    ]
    return words


@isolation.command(name="show")
@BOOTSTRAP
@_WITHIN
@click.argument("domain")
@JSON
@click.pass_obj
def isolation_show(
    context: Front, bootstrap: str | None, within_s: float, domain: str, as_json: bool
) -> None:
    """Show DOMAIN with every hold and answer; exit 1 while it is out or held."""
    desk = need("ringfence.desk", "agent")
    with one_sentence(desk.DeskError):
        named = desk.domain(domain)
    told = _overview(context, bootstrap, within_s)
    part = next((one for one in told.parts if one.domain_id in (domain, named.id)), None)
    if part is None:
        raise Unreadable(f"Nothing was ever decided about {named.id}.")
    if as_json:
        click.echo(msgspec.json.encode(part))
    else:
        _show(part)
    sys.exit(FAULT if part.status in ("isolated", "held") else 0)


def _show(part: Any) -> None:  # noqa: ANN401
    level = f" ({part.level})" if part.level else ""
    click.echo(f"{part.domain_id}: {part.status}{level}, generation {part.generation}")
    click.echo(f"  since {part.since:%Y-%m-%d %H:%M:%S} UTC by {part.by or '-'}: {part.why}")
    for hold in part.holds:
        firm = ", firm" if hold.firm else ""
        click.echo(
            f"  hold by {hold.by} since {hold.at:%Y-%m-%d %H:%M:%S} UTC"
            f" ({hold.level}, {hold.cause}{firm}): {hold.reason}"
        )
    for words in _besides(part):
        click.echo(f"  {words}")
    for one in part.answers:
        click.echo(f"  {one.scheduler}: {one.status} at {one.at:%H:%M:%S} {one.detail}".rstrip())


# --- A person's word ---------------------------------------------------------------------------


def _ask(
    context: Front, bootstrap: str | None, action: str, domain: str, **given: str | None
) -> None:
    desk = need("ringfence.desk", "agent")
    settings = context.settings(kafka={"bootstrap": bootstrap})
    with one_sentence(desk.DeskError):
        record = desk.request(action=action, domain=domain, at=datetime.now(UTC), **given)
        desk.send(settings.kafka, "requests", None, record)
    level = f" ({record.level})" if action in ("isolate", "hold") else ""
    click.echo(
        f"asked to {action}{level} {record.domain.id}: request {record.id}. "
        "A person's word is carried out in shadow mode too."
    )


@click.command()
@BOOTSTRAP
@click.argument("domain")
@_BY
@_REASON
@_LEVEL
@click.pass_obj
def isolate(
    context: Front, bootstrap: str | None, domain: str, by: str | None, reason: str, level: str
) -> None:
    """Ask to isolate DOMAIN (gpu:HOST/0000:3b:00, node:HOST, link:GUID/PORT, rack:NAME).

    It is carried out whatever the mode and the budget: shadow holds for our own commands only.
    """
    _ask(context, bootstrap, "isolate", domain, by=by, reason=reason, level=level)


@isolation.command(name="hold")
@BOOTSTRAP
@click.argument("domain")
@_BY
@_REASON
@_LEVEL
@click.pass_obj
def isolation_hold(
    context: Front, bootstrap: str | None, domain: str, by: str | None, reason: str, level: str
) -> None:
    """Take DOMAIN out until you lift it, whatever the evidence; only who held it lifts that."""
    _ask(context, bootstrap, "hold", domain, by=by, reason=reason, level=level)


@isolation.command(name="resume")
@BOOTSTRAP
@click.argument("domain")
@_BY
@_REASON
@click.option("--held", is_flag=True, help="Let the held command of DOMAIN go.")
@click.pass_obj
def isolation_resume(
    context: Front, bootstrap: str | None, domain: str, by: str | None, reason: str, held: bool
) -> None:
    """Lift your hold on DOMAIN, or, with --held, let the command go that waits for a person.

    DOMAIN `cluster` lets a stage act again that lost its state: say so only when you know what is
    out.
    """
    action = "resume" if held or domain == "cluster" else "lift"
    _ask(context, bootstrap, action, domain, by=by, reason=reason)


@click.command()
@BOOTSTRAP
@click.argument("domain")
@_BY
@_REASON
@click.option(
    "--direct",
    type=click.Choice(["slurm", "kubernetes", "exec"]),
    help="Without Kafka: have this scheduler release it now.",
)
@click.option("--name", help="With --direct: the name of that scheduler's consumer.")
@click.argument("program", nargs=-1)
@click.pass_obj
def release(
    context: Front,
    /,
    bootstrap: str | None,
    domain: str,
    by: str | None,
    reason: str,
    direct: str | None,
    name: str | None,
    program: tuple[str, ...],
) -> None:
    """Ask to take DOMAIN back into service; with --direct do it now, without Kafka.

    PROGRAM is what `--direct exec` runs, as `ringfence scheduler exec` does.
    """
    if direct is None:
        if program or name:
            raise Unreadable("PROGRAM and --name belong to --direct.")
        _ask(context, bootstrap, "release", domain, by=by, reason=reason)
        return
    _release_directly(context, domain, by, reason, (direct, name, program))


def _release_directly(
    context: Front,
    domain: str,
    by: str | None,
    reason: str,
    scheduler: tuple[str, str | None, tuple[str, ...]],
) -> None:
    desk = need("ringfence.desk", "agent")
    module = need("schedulers.direct", "schedulers")
    adapters = need("schedulers.adapter", "schedulers")
    kind, name, program = scheduler
    settings = context.settings()
    section = settings.sections["scheduler"]
    folder = Path(str(section.get("state_dir", settings.data / "scheduler")))
    with one_sentence(desk.DeskError):
        named = desk.domain(domain)
    with one_sentence(adapters.SchedulerError):
        adapter = _adapter(settings, kind, program, folder)
        done = module.release_directly(
            adapter,
            folder,
            name or str(section.get("name", kind)),
            named,
            by=by or getpass.getuser(),
            reason=reason,
            at=datetime.now(UTC),
        )
    outcome = done.outcome
    click.echo(f"{kind}: {outcome.status} release of {named.id} {outcome.detail}".rstrip())
    if done.noted:
        click.echo(
            f"Noted in {folder}: what is sent again isolates it no more, and the isolation stage is"
            " asked to release it when Kafka is back."
        )
    else:
        click.echo(f"Not noted for the consumer, which may isolate it again: {done.why_not}")
    sys.exit(0 if done.outcome.status == "done" else FAULT)


def _adapter(settings: Settings, kind: str, program: tuple[str, ...], folder: Path) -> Any:  # noqa: ANN401
    if (kind == "exec") != bool(program):
        raise Unreadable("PROGRAM is needed for --direct exec, and for nothing else.")
    if kind == "slurm":
        module = need("schedulers.slurm", "schedulers")
        return module.adapter(
            build(settings, module.SlurmConfig, "slurm"), stop=Event(), folder=folder
        )
    if kind == "kubernetes":
        module = need("schedulers.kubernetes.adapter", "kubernetes,schedulers")
        config = build(settings, module.KubernetesConfig, "kubernetes")
        return module.KubernetesAdapter(config, stop=Event())
    return need("schedulers.exec", "schedulers").ExecAdapter(program)


isolation.add_command(isolate)
isolation.add_command(release)
