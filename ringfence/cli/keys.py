"""Subcommands about the keys that sign commands."""

from pathlib import Path

import click

from ringfence.cli.front import Front, need, one_sentence

__all__ = ["keys"]


@click.group()
def keys() -> None:
    """Keys that sign commands, so that schedulers carry out no others."""


@keys.command(name="new")
@click.argument("name")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where (default: keys in the data folder)."
)
@click.pass_obj
def keys_new(context: Front, name: str, folder: Path | None) -> None:
    """Write a pair NAME.key (private, for the worker) and NAME.pem (public, for consumers)."""
    module = need("ringfence.keys", "schedulers")
    place = folder or context.settings().data / "keys"
    with one_sentence(module.KeyPairError):
        private, public = module.new(place, name)
    click.echo(f"{private}: for the worker alone (worker.signing_key)")
    click.echo(f"{public}: for every consumer (scheduler.verify_keys: this file, or its folder)")
