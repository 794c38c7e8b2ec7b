"""The ``ringfence`` command.

Exit codes: 0 done; 1 the thing asked about is bad (a verdict was found, a check failed); 2 usage or
unreadable input, with one sentence on stderr.
"""

import logging
import sys
from pathlib import Path

import click

from ringfence.cli import ask, desk, run
from ringfence.cli.front import Front

__all__ = ["main"]


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # kafka-python tells of every connection attempt; its warnings are enough.
    logging.getLogger("kafka").setLevel(logging.WARNING)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path), help="Settings file (TOML).")
@click.option("--data", type=click.Path(path_type=Path), help="Folder for everything kept.")
@click.option("--log-level", default="info", show_default=True, help="Least level that is logged.")
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
    run.worker,
    run.sink,
    run.scheduler,
    ask.parse,
    ask.triage,
    ask.sql,
    ask.why,
    desk.announce,
    desk.isolate,
    desk.release,
):
    main.add_command(_command)
