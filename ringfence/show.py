"""What a person sees: records, verdicts and reasons as text, plain enough to paste in a ticket."""

import itertools
import json
import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evidence.decisions import Ack, Command, Domain, Status, Verdict
from ringfence import next_steps

if TYPE_CHECKING:
    from collectors.doctor import Finding
    from ringfence.replay import Replayed
    from ringfence.triage import Triage
    from warehouse.why import Evidence, Why

__all__ = [
    "ack",
    "as_json_line",
    "command",
    "domain",
    "findings",
    "headline",
    "one_line",
    "proof_period",
    "replay_command",
    "replayed",
    "screen",
    "table",
    "triage",
    "verdict",
    "why",
]

_COLOUR = {
    Status.LOCALIZED: "bold red",
    Status.SUSPECTED: "yellow",
    Status.INSUFFICIENT: "yellow",
    Status.SOFTWARE: "cyan",
    Status.VICTIM: "blue",
    Status.RECOVERED: "green",
}
_VICTIMS_SHOWN, _EVIDENCE_SHOWN = 8, 6
_ROWS_SHOWN = 10_000
#: A decision is looked for this long before and after it was made.
_AROUND = timedelta(minutes=1)
_ISO = "%Y-%m-%dT%H:%M:%SZ"


def screen(*, stderr: bool = False) -> Console:
    """Where things are shown, as they are: to rich, the ``:ab:`` of an address is a picture."""
    return Console(stderr=stderr, emoji=False)


def as_json_line(record: Struct) -> str:
    """One record as one line of JSON, every field present (null where the source is silent)."""
    config = record.__struct_config__
    plain = {name: msgspec.to_builtins(getattr(record, name)) for name in record.__struct_fields__}
    if config.tag is not None and config.tag_field is not None:
        plain = {config.tag_field: config.tag} | plain
    return json.dumps(plain, ensure_ascii=False)


def one_line(record: Struct) -> str:
    """A record in the fewest words: only what is set."""
    plain = msgspec.to_builtins(record)
    return "  ".join(f"{name}={value}" for name, value in plain.items() if name != "id")


def table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows as a table on a terminal, nothing cut; tab-separated where another program reads.

    A terminal gets the first ten thousand rows: a table needs all it shows at once.
    """
    texts = (["" if value is None else str(value) for value in row] for row in rows)
    if not console.is_terminal:
        for cells in itertools.chain([columns], texts):
            console.file.write("\t".join(" ".join(cell.split()) for cell in cells) + "\n")
        return
    grid = Table()
    for name in columns:
        grid.add_column(escape(name), overflow="fold")
    for cells in itertools.islice(texts, _ROWS_SHOWN):
        grid.add_row(*map(escape, cells))
    console.print(grid)
    if next(texts, None) is not None:
        _say(console, f"and more than these {_ROWS_SHOWN} rows: --format csv has all", "yellow")


def findings(console: Console, found: Iterable["Finding"]) -> None:
    """How each collector of a node fares, and what it lacks there."""
    rows = [
        (
            one.name,
            one.state if one.required or one.state == "ok" else f"{one.state} (optional)",
            one.reason,
            "; ".join(f"{need.what}: {'yes' if need.has else 'NO'}" for need in one.needs),
            f"{one.took_ms:.1f}",
            one.records,
        )
        for one in found
    ]
    table(console, ("collector", "state", "reason", "needs", "ms", "records"), rows)


def domain(part: Domain) -> str:
    """A domain as one would say it: ``gpu 0000:3b:00 on node7 (GPU-..., serial ...)``."""
    name = part.id.partition(":")[0]
    where = {"gpu": part.pci, "mig": part.pci, "nvlink": f"{part.pci} link {part.link}"}.get(name)
    text = " ".join(filter(None, (name, where)))
    if name in ("link", "switch"):
        text += f" {part.switch or part.host}" + (f" port {part.port}" if name == "link" else "")
    elif name == "rack":
        text += f" {part.rack}"
    elif name == "job":
        text += f" {part.job}"
    elif part.host:
        text += f" on {part.host}" if where else f" {part.host}"
    known = [part.uuid, part.serial and f"serial {part.serial}", _rank(part)]
    more = ", ".join(filter(None, known))
    return f"{text} ({more})" if more else text


def _rank(part: Domain) -> str | None:
    return None if part.rank is None else f"rank {part.rank}"


def headline(console: Console, one: Verdict) -> None:
    """A verdict in two lines: what and where, and why."""
    what = f"[{_COLOUR[one.status]}]{one.status}[/]"
    if one.status is Status.SOFTWARE:  # a card is named only to say whose program it was
        where = f"the program on {escape(domain(one.domain))}, not the hardware"
    else:
        what, where = f"{what} [bold]{one.cause}[/]", escape(domain(one.domain))
    _print(console, f"{what}: {where}  confidence {one.confidence:.2f}")
    _say(console, one.reason)


def verdict(console: Console, one: Verdict) -> None:
    """A verdict whole: what, where, why, who said so, and what would settle it."""
    headline(console, one)
    for said in one.testimony:
        words = f": {said.words}" if said.words else ""
        _say(console, f"{said.witness:<10} {said.says} ({said.weight:.2f}){words}")
    for ref in one.evidence[:_EVIDENCE_SHOWN]:
        where = f"{ref.file}:{ref.line or ''}" if ref.file else ref.source
        _say(console, f"{_time(ref.at)} {where}  {ref.text}", style="dim")
    if len(one.evidence) > _EVIDENCE_SHOWN:
        _say(console, f"and {len(one.evidence) - _EVIDENCE_SHOWN} more records", style="dim")
    if one.victims:
        shown = ", ".join(map(domain, one.victims[:_VICTIMS_SHOWN]))
        _say(console, f"victims ({len(one.victims)}): {shown}" + (
            ", ..." if len(one.victims) > _VICTIMS_SHOWN else ""))  # fmt: skip
    for missing in one.missing:
        _say(console, f"would settle it: {missing}")
    for step in next_steps.of(one):
        on = f" on {step.on}" if step.on else ""
        _say(console, f"run{on}: {step.command}  # {step.why}")


def command(console: Console, one: Command) -> None:
    """A command, with the reason when it is not to be carried out."""
    mark = " [dim](dry run)[/]" if one.dry_run else ""
    mark += f" [yellow](held: {escape(one.held)})[/]" if one.held else ""
    where = escape(domain(one.domain))
    _print(console, f"[bold]{one.action} ({one.level})[/]{mark}: {where}  command {one.id}")
    _say(console, one.reason)


def ack(console: Console, one: Ack) -> None:
    """An ack."""
    scheduler = escape(one.scheduler)
    detail = f" ({escape(' '.join(one.detail.split()))})" if one.detail else ""
    _print(
        console, f"[bold green]ack[/] {one.status}{detail} by {scheduler}: command {one.command}"
    )


def triage(console: Console, found: "Triage") -> None:
    """All that triage found, or that it found nothing."""
    for one in found.verdicts:
        verdict(console, one)
    for order in found.commands:
        command(console, order)
    if not found.verdicts:
        logs = "1 log" if len(found.read) == 1 else f"{len(found.read)} logs"
        console.print(f"Nothing at fault in {logs}.")
    for missed in found.unread:
        _say(console, f"not read: {missed.file}: {missed.reason}", style="yellow")


def why(console: Console, found: "Why") -> None:
    """A command's whole story, oldest first: what was thought, what it rests on, what followed."""
    command(console, found.command)
    for one in found.verdicts:
        console.print(f"revision {one.revision}, decided {_time(one.decided_at)}", style="dim")
        verdict(console, one)
    for suspicion in found.suspicions:
        what = f"{suspicion.witness} {suspicion.says} {domain(suspicion.domain)}"
        _print(console, f"suspicion {suspicion.kind} at {_time(suspicion.at)}: {escape(what)}")
        if suspicion.reason:
            _say(console, suspicion.reason)
    if found.evidence:
        console.print("evidence as stored:", style="dim")
    for record in found.evidence:
        _say(console, _as_stored(record), style=None if record.stored else "yellow")
    for one_ack in found.acks:
        ack(console, one_ack)
    for state in found.states:
        holds = "; ".join(f"{hold.cause} by {hold.by}" for hold in state.holds)
        what = f"out of service ({holds})" if state.isolated else "in service"
        note = f": {state.note}" if state.note else ""
        _print(console, escape(f"{_time(state.at)} {state.domain_id} {what}{note}"))
    for asked in found.requests:
        _print(
            console, escape(f"{_time(asked.at)} {asked.by} asked: {asked.action} {asked.reason}")
        )
    for release in found.releases:
        command(console, release)
    _say(console, f"prove it: {replay_command(found)}", style="dim")


def _as_stored(record: "Evidence") -> str:
    """The raw line or the values of a record, and where it was read and stored."""
    ref = record.ref
    where = f"{record.file}:{record.line or ''}" if record.file else ref.source
    if not record.stored:
        return f"{_time(ref.at)} {where} {ref.id} is not in the warehouse: {ref.text}"
    values = record.values or {}
    text = record.raw or "  ".join(f"{name}={value}" for name, value in values.items())
    return f"{_time(ref.at)} {where} [{record.stored_in}] {text}"


def proof_period(found: "Why") -> tuple[datetime, datetime]:
    """When a command and its verdicts were decided, with a minute around it."""
    since = min((one.decided_at for one in found.verdicts), default=found.command.issued_at)
    return since - _AROUND, found.command.issued_at + _AROUND


def replay_command(found: "Why") -> str:
    """The command line that makes the decision again from the stored records."""
    since, until = proof_period(found)
    host = f" --host {shlex.quote(found.command.domain.host)}" if found.command.domain.host else ""
    return f"ringfence replay --since {since:{_ISO}} --until {until:{_ISO}}{host}"


def replayed(console: Console, found: "Replayed") -> None:
    """What was stepped again, and what came out otherwise."""
    read = ", ".join(f"{count} {topic}" for topic, count in sorted(found.read.items()))
    console.print(f"Read again: {read or 'nothing'}.", highlight=False)
    for order in found.commands:
        command(console, order)
    for one in found.different:
        how = {"stored": "was said, and is not now", "replayed": "is said now, and was not"}
        what = how.get(one.how) or f"is not the same in {', '.join(one.fields) or 'what followed'}"
        _print(console, f"[bold red]different[/] {one.kind} {one.id} {what}")
        _say(console, one.words)
    for failed in found.failed:
        _say(console, f"a step failed: {failed}", style="yellow")
    kinds = ("verdict", "command")
    same = " and ".join(f"{found.same[kind]} {kind}s" for kind in kinds)
    late = sum(found.late.values())
    apart = f"; {late} more rest on records that came late" if late else ""
    if met := sum(found.order.values()):
        apart += f"; {met} more came to the same conclusion by another order of records"
    console.print(f"The same: {same}; different: {len(found.different)}{apart}.", highlight=False)


def _say(console: Console, text: str, style: str | None = None) -> None:
    """One line of what somebody wrote, as it is: no markup, and cut only by the terminal."""
    _print(console, escape("  " + " ".join(text.split())), style)


def _print(console: Console, markup: str, style: str | None = None) -> None:
    console.print(markup, style=style, highlight=False, soft_wrap=True)


def _time(at: datetime | None) -> str:
    return "no time" if at is None else at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
