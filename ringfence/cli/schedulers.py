"""The subcommands of ``ringfence scheduler``: one an adapter, all with the same consumer.

An adapter is imported only when it is asked for; its settings are the section of its name.
"""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import click

from ringfence.cli.front import (
    BOOTSTRAP,
    Bounded,
    Front,
    Unreadable,
    build,
    need,
    one_sentence,
    stop_event,
)
from ringfence.settings import Settings

__all__ = ["CONSUMER", "carry_out", "scheduler"]

#: Builds an adapter: all settings, the event that ends the part, the consumer's state folder.
Factory = Callable[[Settings, Event, Path], Any]

_SECONDS = Bounded(min=0, min_open=True, max=24 * 3600)


def CONSUMER(command: Callable[..., None]) -> Callable[..., None]:  # noqa: N802 (an option, like BOOTSTRAP)
    """Add the flags that every adapter's consumer takes: hand them on to `carry_out`."""
    options = (
        BOOTSTRAP,
        click.option("--name", help="Name of this scheduler in its acks (default: the adapter's)."),
        click.option(
            "--dry-run/--no-dry-run", default=None, help="Ack every command, carry none out."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def carry_out(context: Front, kind: str, consumer: Mapping[str, Any], adapter: Factory) -> None:
    """Read commands until SIGTERM and have ``adapter`` carry them out.

    ``kind`` names the adapter and, unless a setting does, this scheduler; ``consumer`` has the
    values of `CONSUMER`'s flags. Errors of either are one sentence and exit code 2.
    """
    module = need("schedulers.consumer", "schedulers")
    cluster = need("ringfence.cluster", "schedulers")
    settings, config = _consumer(context, kind, consumer)
    stop = stop_event()
    with one_sentence(module.SchedulerError):
        built = adapter(settings, stop, config.state_dir)
    with one_sentence(cluster.ClusterError):
        cluster.ensure_topics(settings.kafka)
    with one_sentence(module.SchedulerError):
        module.run(config, built, stop)


def _consumer(context: Front, kind: str, consumer: Mapping[str, Any]) -> tuple[Settings, Any]:
    """All settings, and the consumer's config with the values of `CONSUMER`'s flags."""
    module = need("schedulers.consumer", "schedulers")
    flags = dict(consumer)
    settings = context.settings(kafka={"bootstrap": flags.pop("bootstrap")}, scheduler=flags)
    section = settings.sections["scheduler"]
    config = build(
        settings,
        module.SchedulerConfig,
        "scheduler",
        kafka=settings.kafka,
        name=section.get("name", kind),
        state_dir=section.get("state_dir", settings.data / "scheduler"),
    )
    return settings, config


@click.group()
def scheduler() -> None:
    """Carry isolation commands out."""


@scheduler.command(name="exec")
@CONSUMER
@click.option("--timeout", type=_SECONDS, default=60, show_default=True, help="Seconds a call has.")
@click.option("--observe", help="Command line that prints what stands out of service, as JSON.")
@click.argument("program", nargs=-1, required=True)
@click.pass_obj
def scheduler_exec(
    context: Front,
    /,
    timeout: float,
    observe: str | None,
    program: tuple[str, ...],
    **consumer: Any,  # noqa: ANN401
) -> None:
    """Run PROGRAM with each command's JSON on stdin; its exit code is the ack."""
    try:
        looks = shlex.split(observe or "")
    except ValueError as error:
        raise Unreadable(f"--observe: {observe!r} is no command line: {error}") from error

    def adapter(_settings: Settings, _stop: Event, folder: Path) -> Any:  # noqa: ANN401
        module = need("schedulers.exec", "schedulers")
        made = module.ExecAdapter(program, timeout_s=timeout, outputs=folder / "output")
        return module.ObservingExec(made, looks, timeout_s=timeout) if looks else made

    carry_out(context, "exec", consumer, adapter)


@scheduler.command(name="slurm")
@CONSUMER
@click.pass_obj
def scheduler_slurm(context: Front, /, **consumer: Any) -> None:  # noqa: ANN401
    """Drain and resume nodes of a Slurm cluster (settings: [slurm])."""

    def adapter(settings: Settings, stop: Event, folder: Path) -> Any:  # noqa: ANN401
        module = need("schedulers.slurm", "schedulers")
        config = build(settings, module.SlurmConfig, "slurm")
        return module.adapter(config, stop=stop, folder=folder)

    carry_out(context, "slurm", consumer, adapter)


@scheduler.command(name="kubernetes")
@CONSUMER
@click.pass_obj
def scheduler_kubernetes(context: Front, /, **consumer: Any) -> None:  # noqa: ANN401
    """Cordon and taint nodes and single GPUs of a Kubernetes cluster (settings: [kubernetes])."""

    def adapter(settings: Settings, stop: Event, _folder: Path) -> Any:  # noqa: ANN401
        module = need("schedulers.kubernetes.adapter", "kubernetes,schedulers")
        config = build(settings, module.KubernetesConfig, "kubernetes")
        return module.KubernetesAdapter(config, stop=stop)

    carry_out(context, "kubernetes", consumer, adapter)


@scheduler.command(name="torchrun", context_settings={"allow_interspersed_args": False})
@CONSUMER
@click.option("--host", help="Name of this node in commands (default: the machine's).")
@click.option("--clear", is_flag=True, help="Forget first what this node is out for, by hand.")
@click.argument("command", nargs=-1, required=True)
@click.pass_obj
def scheduler_torchrun(
    context: Front,
    /,
    host: str | None,
    clear: bool,
    command: tuple[str, ...],
    **consumer: Any,  # noqa: ANN401
) -> None:
    """Run COMMAND, a node's elastic agent, as long as it may (settings: [torchrun])."""
    module = need("schedulers.torchrun", "schedulers")
    adapters = need("schedulers.adapter", "schedulers")
    cluster = need("ringfence.cluster", "schedulers")
    settings, config = _consumer(context, "torchrun", consumer)
    torchrun = build(settings, module.TorchrunConfig, "torchrun", host=host)
    with one_sentence(adapters.SchedulerError):
        code = module.supervise(
            torchrun, config, command, clear=clear, prepare=cluster.ensure_topics
        )
    raise SystemExit(code)
