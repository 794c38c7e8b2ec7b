"""Subcommands that run parts: the demo, everything here, or one part."""

import json
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from ringfence import show
from ringfence.cli.front import (
    BOOTSTRAP,
    FAULT,
    JSON,
    Bounded,
    Front,
    build,
    need,
    one_sentence,
    stop_event,
)
from ringfence.settings import Settings

__all__ = ["agent", "demo", "sink", "up", "worker"]

SECONDS = Bounded(min=0, min_open=True, max=24 * 3600)


@click.command()
@click.option("--bootstrap", metavar="HOST:PORT", help="A broker to use instead of the embedded.")
@click.option("--seed", type=int, help="Draw the same incident again.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep what the run wrote here.")
@click.option("--within", type=SECONDS, default=60, show_default=True, help="Seconds to end in.")
@JSON
def demo(
    bootstrap: str | None,
    seed: int | None,
    keep: Path | None,
    within: float,
    as_json: bool,
) -> None:
    """Play a recorded incident through every part, live, and show what is found."""
    module = need("ringfence.demo", "agent,streams,warehouse,schedulers,embedded")
    for name in (None, "kafka"):  # the screen belongs to what is found
        logging.getLogger(name).setLevel(logging.ERROR)
    play = module.Demo(bootstrap=bootstrap, seed=seed, keep=keep, within_s=within)
    console = show.screen(stderr=as_json)
    with one_sentence(module.DemoError):
        result = play.run(console)
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    sys.exit(0 if result.passed else FAULT)


@click.command()
@BOOTSTRAP
@click.option("--agent/--no-agent", default=True, help="Collect on this node too.")
@click.option("--exec", "program", help="Program that carries commands out (default: none).")
@click.pass_obj
def up(context: Front, bootstrap: str | None, agent: bool, program: str | None) -> None:
    """Run all parts here and keep them running until Ctrl-C."""
    module = need("ringfence.up", "agent,streams,warehouse,schedulers,embedded")
    settings = context.settings(kafka={"bootstrap": bootstrap})
    with one_sentence(module.UpError):
        module.up(settings, context.file, agent=agent, program=program, stop=stop_event())


@click.command()
@BOOTSTRAP
@click.option("--host", help="Name of this node (default: its hostname).")
@click.option("--once", is_flag=True, help="One round: print it, say what is missing, and exit.")
@click.option(
    "--kernel", "kernel_source", help="Where kernel messages come from: kmsg, journal, none."
)
@click.option("--kmsg/--no-kmsg", default=None, help="Short for --kernel kmsg and --kernel none.")
@click.option("--journal-directory", help="Read the journal of this folder.")
@click.option("--kernel-file", "kernel_files", multiple=True, help="Follow a kernel log file.")
@click.option("--nccl", "nccl_paths", multiple=True, help="Pattern of NCCL logs ({job} {rank}).")
@click.option(
    "--nccl-flight-recorder",
    "nccl_flight_recorder",
    multiple=True,
    help="Pattern of PyTorch's flight-recorder dumps.",
)
@click.option("--nccl-ras", metavar="HOST:PORT", help="Where NCCL's RAS service listens.")
@click.option(
    "--gpu",
    "--gpu.source",
    "gpu_source",
    help="Where GPU snapshots come from: nvml, dcgm, recording, none.",
)
@click.option("--dcgm-url", "--gpu.dcgm-url", "dcgm_url", help="Page of a dcgm-exporter.")
@click.option("--gpu-recording", help="File of recorded snapshots.")
@click.option(
    "--fabric-sysfs/--no-fabric-sysfs", default=None, help="Read this node's adapters from sysfs."
)
@click.option("--metrics-listen", help="HOST:PORT of the Prometheus metrics; empty: none.")
@click.option("--rack", help="Rack of this node.")
@click.option("--pool", help="Pool of this node.")
@click.option("--rack-file", help="File of lines: host, rack, leaf, pool, NVLink domain.")
@click.option("--rack-pattern", help="Regular expression of host names with (?P<rack>...).")
@click.option("--label-file", help='File of key="value" labels of this node.')
@JSON
@click.pass_obj
def agent(
    context: Front,
    /,
    bootstrap: str | None,
    once: bool,
    kmsg: bool | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Collect what this node says about itself and ship it."""
    module = need("collectors.agent", "agent")
    flags = {name: value for name, value in flags.items() if value not in (None, ())}
    if kmsg is not None:
        flags.setdefault("kernel_source", "kmsg" if kmsg else "none")
    settings = context.settings(kafka={"bootstrap": bootstrap}, agent=flags)
    config = build(
        settings,
        module.AgentConfig,
        "agent",
        kafka=settings.kafka,
        state_dir=settings.sections["agent"].get("state_dir", settings.data / "agent"),
    )
    if once:
        named = "bootstrap" in settings.sections.get("kafka", {})
        _examine(module, config, ask=named, as_json=as_json)
        return
    with one_sentence(module.SpoolInUseError):
        module.run(config, stop_event())


def _examine(module: ModuleType, config: Any, *, ask: bool, as_json: bool) -> None:  # noqa: ANN401
    """Print one round of records and how each collector fares; exit 1 where one is missing."""
    records, findings = module.once(config)
    if ask:
        findings.append(need("collectors.doctor", "agent").ask_kafka(config.kafka))
    for record in records:
        click.echo(show.as_json_line(record) if as_json else show.one_line(record))
    if as_json:
        last = {"schema": "doctor/1", "doctor": [one.as_json() for one in findings]}
        click.echo(json.dumps(last, ensure_ascii=False))
    else:
        show.findings(show.screen(), findings)
    if not all(one.good for one in findings):
        sys.exit(FAULT)


@click.command()
@BOOTSTRAP
@click.pass_obj
def worker(context: Front, bootstrap: str | None) -> None:
    """Judge: move records through the rules (Faust)."""
    module = need("streams.worker", "streams")
    streams = need("streams.config", "streams")
    cluster = need("ringfence.cluster", "streams")
    settings = context.settings(kafka={"bootstrap": bootstrap})
    config = build(
        settings,
        module.WorkerConfig,
        "worker",
        kafka=settings.kafka,
        state_dir=settings.sections["worker"].get("state_dir", settings.data / "worker"),
    )
    _ensure(cluster, settings)
    with one_sentence(streams.StreamsError, ValueError, OSError):
        module.run(config)


@click.command()
@BOOTSTRAP
@click.option("--root", type=click.Path(path_type=Path), help="Root of the Parquet files.")
@click.pass_obj
def sink(context: Front, bootstrap: str | None, root: Path | None) -> None:
    """Keep the history: Kafka to Parquet, exactly once."""
    module = need("warehouse.sink", "warehouse")
    errors = need("warehouse.errors", "warehouse")
    cluster = need("ringfence.cluster", "warehouse")
    settings = context.settings(kafka={"bootstrap": bootstrap}, sink={"root": root})
    config = build(
        settings, module.SinkConfig, "sink", kafka=settings.kafka, root=settings.warehouse
    )
    _ensure(cluster, settings)
    with one_sentence(errors.WarehouseError):
        module.run(config, stop_event())


def _ensure(cluster: ModuleType, settings: Settings) -> None:
    """Create the topics, waiting for a broker that is still starting."""
    with one_sentence(cluster.ClusterError):
        cluster.ensure_topics(settings.kafka)
