"""The ``ringfence`` command.

Exit codes: 0 done; 1 the thing asked about is bad (a verdict was found, a check failed); 2 usage or
unreadable input, with one sentence on stderr.
"""

import logging
import ssl
import sys
from pathlib import Path

import click

from ringfence.cli import (
    ask,
    backfill,
    desk,
    drill,
    fabric,
    growth,
    history,
    isolation,
    keys,
    preflight,
    run,
    schedulers,
    storage,
    stream,
)
from ringfence.cli.front import Front

__all__ = ["main"]


_LEVELS = ("debug", "info", "warning", "error", "critical")


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if level != "debug":
        logging.getLogger("kafka").setLevel(logging.WARNING)
        for handler in logging.getLogger().handlers:
            handler.addFilter(_worth_a_line)


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a line is more than one of kafka-python's many about one refused connection.

    Each part says itself that its broker is gone. What no exception of its tells is why TLS failed.
    """
    if not record.name.startswith("kafka.net"):
        return True
    return isinstance(record.args, tuple) and any(
        isinstance(one, ssl.SSLError) for one in record.args
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path), help="Settings file (TOML).")
@click.option("--data", type=click.Path(path_type=Path), help="Folder for everything kept.")
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Least level that is logged.",
)
@click.version_option(package_name="ringfence")
@click.pass_context
def main(context: click.Context, config: Path | None, data: Path | None, log_level: str) -> None:
    """Find the part at fault in a GPU training cluster, and isolate it."""
    _log_to_stderr(log_level)
    context.obj = Front(config, data)


for _command in (
    run.demo,
    run.up,
    run.agent,
    fabric.fabric_agent,
    run.worker,
    run.sink,
    storage.compact,
    storage.retain,
    backfill.import_,
    schedulers.scheduler,
    keys.keys,
    ask.parse,
    ask.triage,
    ask.replay,
    history.sql,
    history.timeline,
    history.why,
    stream.deadletters,
    stream.topics,
    growth.ecc_growth,
    desk.announce,
    desk.context,
    isolation.isolation,
    isolation.isolate,
    isolation.release,
    drill.drill,
    drill.drills,
    preflight.preflight,
    preflight.spares,
):
    main.add_command(_command)
