"""Subcommands that keep the history in order: rewrite closed days, take old ones out."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from ringfence.cli.front import JSON, Front, Unreadable, build, need

__all__ = ["compact", "retain"]

ROOT = click.option("--root", type=click.Path(path_type=Path), help="Root of the Parquet files.")


def _config(context: Front, root: Path | None) -> Any:  # noqa: ANN401 (a part's own config)
    module = need("warehouse.sink", "warehouse")
    settings = context.settings(sink={"root": root})
    return build(settings, module.SinkConfig, "sink", kafka=settings.kafka, root=settings.warehouse)


def _checked(config: Any) -> Any:  # noqa: ANN401 (a part's own config)
    storage = need("warehouse.storage", "warehouse")
    if not storage.is_remote(config.root) and not config.root.is_dir():
        raise Unreadable(
            f"there is no warehouse at {config.root}: no sink has stored anything there"
        )
    return config


@click.command()
@ROOT
@click.option("--kind", "kinds", multiple=True, help="Only this kind (gpu, kernel ...).")
@click.option("--check", is_flag=True, help="Read every page of every file to find damaged ones.")
@JSON
@click.pass_obj
def compact(
    context: Front, root: Path | None, kinds: tuple[str, ...], check: bool, as_json: bool
) -> None:
    """Rewrite closed days into few sorted files; set damaged files aside."""
    module = need("warehouse.compaction", "warehouse")
    errors = need("warehouse.errors", "warehouse")
    names = {one.name for one in need("warehouse.kinds", "warehouse").KINDS.values()}
    unknown = sorted(set(kinds) - names)
    if unknown:
        raise Unreadable(f"no kind {unknown[0]!r}; there are {', '.join(sorted(names))}")
    config = _checked(_config(context, root))
    try:
        for one in module.compact(config.root, config.compaction, kinds=kinds, deep=check):
            if as_json:
                click.echo(json.dumps(dataclasses.asdict(one)))
                continue
            click.echo(
                f"{one.kind} {one.day}: {one.rows} rows, {one.small_files} files to {one.files}, "
                f"{one.bytes_before} bytes to {one.bytes_after}"
            )
    except (errors.WarehouseError, OSError) as error:
        raise Unreadable(f"cannot rewrite closed days: {error}") from error


@click.command()
@ROOT
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@JSON
@click.pass_obj
def retain(context: Front, root: Path | None, dry_run: bool, as_json: bool) -> None:
    """Take days out that are older than [sink] retain_days says for their kind."""
    module = need("warehouse.retention", "warehouse")
    errors = need("warehouse.errors", "warehouse")
    config = _checked(_config(context, root))
    try:
        taken = module.retain(config.root, config.retain_days, config.compaction, dry_run=dry_run)
    except (errors.WarehouseError, OSError) as error:
        raise Unreadable(f"cannot take old days out: {error}") from error
    for one in taken:
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(one)))
        else:
            click.echo(f"{one.kind} {one.day}: {one.rows} rows in {one.files} files")
