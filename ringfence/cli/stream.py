"""Subcommands about the stream itself: its topics, and what could not be read from them."""

import getpass
import json
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from ringfence import show
from ringfence.cli.front import BOOTSTRAP, FAULT, JSON, TIME, Front, Unreadable, need, one_sentence

__all__ = ["deadletters", "topics"]

_LINE, _TEXT = 160, 4000


@click.group()
def topics() -> None:
    """Create our topics in a cluster, or say what is wrong with them."""


@topics.command(name="check")
@BOOTSTRAP
@JSON
@click.pass_obj
def topics_check(context: Front, bootstrap: str | None, as_json: bool) -> None:
    """Say what is wrong with the topics, one sentence each; exit 1 if anything is."""
    cluster = need("ringfence.cluster", "streams")
    wanted = _wanted_topics(context, bootstrap)
    with one_sentence(cluster.ClusterError):
        found = cluster.found_different(wanted, timeout_s=wanted.kafka.start_within_s)
    for one in found:
        click.echo(json.dumps(one.as_json()) if as_json else one.sentence)
    if not found and not as_json:
        click.echo(
            f"All {len(wanted.topics)} topics at {wanted.kafka.bootstrap} are as they must be."
        )
    sys.exit(FAULT if found else 0)


@topics.command(name="create")
@BOOTSTRAP
@click.option("--dry-run", is_flag=True, help="Print kafka-topics.sh commands and change nothing.")
@JSON
@click.pass_obj
def topics_create(context: Front, bootstrap: str | None, dry_run: bool, as_json: bool) -> None:
    """Create the topics that are missing; those that are there are left as they are."""
    cluster = need("ringfence.cluster", "streams")
    wanted = _wanted_topics(context, bootstrap)
    with one_sentence(cluster.ClusterError):
        within_s = wanted.kafka.start_within_s
        if dry_run:
            made = cluster.missing(wanted, timeout_s=within_s)
        else:
            made = cluster.create(wanted, timeout_s=within_s)
        wrong = [] if dry_run else cluster.found_different(wanted, timeout_s=within_s)
    for one in made:
        if as_json:
            click.echo(json.dumps(one.as_json() | {"created": not dry_run}))
        else:
            click.echo(one.command(wanted.kafka) if dry_run else f"created {one.described}")
    for difference in wrong:
        click.echo(json.dumps(difference.as_json()) if as_json else difference.sentence)
    if not made and not as_json:
        click.echo("No topic is missing.")
    sys.exit(FAULT if wrong else 0)


def _wanted_topics(context: Front, bootstrap: str | None) -> Any:  # noqa: ANN401 (ringfence.cluster's)
    cluster = need("ringfence.cluster", "streams")
    settings = context.settings(kafka={"bootstrap": bootstrap})
    return cluster.wanted(settings)


_FILTERS = (
    click.option("--topic", "topic_names", multiple=True, help="Letters of this topic only."),
    click.option("--stage", help="Those of this stage, or of `scheduler`."),
    click.option("--since", type=TIME, help="Those of messages from then on."),
    click.option("--error", help="Those whose error has these words."),
)


def _filters(command: Any) -> Any:  # noqa: ANN401 (a click decorator)
    for option in reversed(_FILTERS):
        command = option(command)
    return command


@click.group()
def deadletters() -> None:
    """Look at what could not be read or stepped, and send it to its topic again."""


@deadletters.command(name="list")
@BOOTSTRAP
@_filters
@JSON
@click.pass_obj
def letters_list(
    context: Front,
    /,
    bootstrap: str | None,
    as_json: bool,
    **filters: Any,  # noqa: ANN401
) -> None:
    """List the letters, oldest first."""
    module, kafka = _letters(context, bootstrap)
    with one_sentence(module.DeadLettersError):
        found = module.index(kafka, _wanted(module, (), **filters))
    if as_json:
        for one in found:
            click.echo(json.dumps(_plain(one), ensure_ascii=False))
        return
    columns = ("id", "at", "topic", "stage", "key", "bytes", "times", "sent again", "error")
    rows = [
        (
            one.letter.id, f"{one.letter.at:%Y-%m-%d %H:%M:%S}", one.letter.topic,
            one.letter.stage, _key(one.letter), one.size, one.times,
            "" if one.note is None else f"{one.note.resent_at:%Y-%m-%d %H:%M:%S}",
            one.letter.error[:_LINE],
        )
        for one in found
    ]  # fmt: skip
    show.table(show.screen(), columns, rows)


@deadletters.command(name="show")
@BOOTSTRAP
@click.argument("letter_id")
@click.option("--value", "file", type=click.Path(path_type=Path), help="Write its bytes here.")
@JSON
@click.pass_obj
def letters_show(
    context: Front, bootstrap: str | None, letter_id: str, file: Path | None, as_json: bool
) -> None:
    """Show one letter whole; LETTER_ID may be the beginning of an id."""
    module, kafka = _letters(context, bootstrap)
    with one_sentence(module.DeadLettersError):
        (found,) = module.index(kafka, module.Wanted(ids=(letter_id,)))
        letter = module.whole(kafka, found)
    if file is not None:
        with one_sentence(OSError):
            file.write_bytes(letter.value)
    if as_json:
        click.echo(json.dumps(_plain(found) | json.loads(show.as_json_line(letter))))
        return
    for name, value in _plain(found).items():
        if value not in (None, "", {}):
            click.echo(f"{name}: {value}")
    if file is None:
        click.echo(f"value: {_text(letter.value)}")


@deadletters.command(name="resend")
@BOOTSTRAP
@click.argument("letter_ids", nargs=-1)
@_filters
@click.option("--all", "everything", is_flag=True, help="Every letter there is.")
@click.option("--again", is_flag=True, help="Also what was sent before, or failed again since.")
@click.option("--yes", is_flag=True, help="Do it; without, only say what would be done.")
@JSON
@click.pass_obj
def letters_resend(
    context: Front,
    /,
    bootstrap: str | None,
    letter_ids: tuple[str, ...],
    everything: bool,
    again: bool,
    yes: bool,
    as_json: bool,
    **filters: Any,  # noqa: ANN401
) -> None:
    """Send letters to their topics again: those of LETTER_IDS, or all that fit the filters."""
    if not (letter_ids or everything or any(filters.values())):
        raise Unreadable("say which letters: ids, --topic, --stage, --since, --error or --all")
    module, kafka = _letters(context, bootstrap)
    told: Counter[str] = Counter()
    with one_sentence(module.DeadLettersError):
        for found, fate, words in module.resend(
            kafka, _wanted(module, letter_ids, **filters), by=getpass.getuser(),
            now=datetime.now(UTC), again=again, dry=not yes,
        ):  # fmt: skip
            told[fate] += 1
            if as_json:
                click.echo(json.dumps(_plain(found) | {"fate": fate, "words": words}))
            else:
                click.echo(f"{found.letter.id} {fate}: {words}")
    if not as_json:
        counted = ", ".join(f"{count} {fate}" for fate, count in sorted(told.items()))
        click.echo(counted or "No letter is wanted.")
        if told[module.Fate.WOULD]:
            click.echo("Nothing was sent; --yes sends.")
    sys.exit(FAULT if told[module.Fate.REFUSED] or told[module.Fate.FAILED] else 0)


def _letters(context: Front, bootstrap: str | None) -> tuple[ModuleType, Any]:
    module = need("ringfence.deadletters", "agent")
    return module, context.settings(kafka={"bootstrap": bootstrap}).kafka


def _wanted(
    module: ModuleType,
    ids: tuple[str, ...],
    *,
    topic_names: tuple[str, ...],
    stage: str | None,
    since: datetime | None,
    error: str | None,
) -> Any:  # noqa: ANN401 (deadletters.Wanted)
    return module.Wanted(ids, frozenset(topic_names), stage, since, error)


def _plain(found: Any) -> dict[str, Any]:  # noqa: ANN401 (deadletters.Found)
    """A letter without its bytes, as JSON and as lines."""
    letter, note = found.letter, found.note
    return {
        "id": letter.id,
        "at": letter.at.isoformat(),
        "topic": letter.topic,
        "stage": letter.stage,
        "error": letter.error,
        "key": _key(letter),
        "partition": letter.partition,
        "offset": letter.offset,
        "headers": letter.headers,
        "bytes": found.size,
        "times": found.times,
        "resent_at": None if note is None else note.resent_at.isoformat(),
        "resent_by": None if note is None else note.resent_by,
        "resent_to": None if note is None else note.resent_to,
    }


def _key(letter: Any) -> str | None:  # noqa: ANN401 (DeadLetter)
    return None if letter.key is None else letter.key.decode(errors="backslashreplace")


def _text(value: bytes) -> str:
    """The beginning of a message that may be anything."""
    cut = "" if len(value) <= _TEXT else f" ... ({len(value)} bytes; --value FILE has them all)"
    return value[:_TEXT].decode(errors="backslashreplace") + cut
