"""The subcommand that sweeps a fabric."""

import click

from ringfence import show
from ringfence.cli.front import BOOTSTRAP, JSON, Front, build, need, one_sentence, stop_event

__all__ = ["fabric_agent"]


@click.command(name="fabric-agent")
@BOOTSTRAP
@click.option("--device", help="Adapter to ask through (default: the first active one).")
@click.option("--port", type=click.IntRange(min=0), help="Port of that adapter.")
@click.option("--subnet", help="Name of the subnet in every record (default: default).")
@click.option("--interval", "interval_s", type=float, help="Seconds between two sweeps.")
@click.option("--once", is_flag=True, help="One sweep without Kafka: print it and exit.")
@JSON
@click.pass_obj
def fabric_agent(
    context: Front, /, bootstrap: str | None, once: bool, as_json: bool, **flags: object
) -> None:
    """Sweep an InfiniBand fabric and ship what its ports say."""
    module = need("collectors.fabric.agent", "agent")
    errors = need("collectors.collector", "agent")
    settings = context.settings(kafka={"bootstrap": bootstrap}, fabric_agent=flags)
    given = settings.sections["fabric_agent"].get("state_dir", settings.data / "fabric-agent")
    config = build(
        settings,
        module.FabricAgentConfig,
        "fabric_agent",
        kafka=settings.kafka,
        state_dir=given,
    )
    if not once:
        with one_sentence(module.SpoolInUseError):
            module.run(config, stop_event())
        return
    with one_sentence(errors.CollectorError):
        records = module.once(config)
    for record in records:
        click.echo(show.as_json_line(record) if as_json else show.one_line(record))
