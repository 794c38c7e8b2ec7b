"""What a person sees of a timeline and of a proof."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from ringfence.proof import Proof
    from warehouse.timeline import Event, Timeline

__all__ = ["as_json", "proof", "timeline"]

_COLOUR = {
    "kernel": "red",
    "gpu": "magenta",
    "nvml": "magenta",
    "nccl": "yellow",
    "fabric": "blue",
    "context": "cyan",
    "suspicion": "yellow",
    "verdict": "bold red",
    "command": "bold",
    "state": "bold",
    "ack": "green",
}


def as_json(found: "Timeline") -> dict[str, Any]:
    """Everything but the samples, for which there is SQL; of them how far they cover the time."""
    plain: dict[str, Any] = msgspec.to_builtins(found)
    plain["coverage"] = {one["gpu"]: one["coverage"] for one in plain.pop("series")}
    return plain


def timeline(console: Console, found: "Timeline") -> None:
    """One line an event, oldest first; then what lasted, and where samples are missing."""
    target = found.target
    where = f" on {target.hosts[0]}" if target.kind == "gpu" and target.hosts else ""
    _print(
        console,
        f"[bold]{target.kind} {escape(target.name)}[/]{escape(where)}, "
        f"{_time(found.since)} to {_time(found.until)}: {len(found.events)} events",
    )
    several = len(target.hosts) > 1
    day = None
    for one in found.events:
        if one.at.date() != day:
            day = one.at.date()
            _print(console, f"[dim]{day}[/]")
        _print(console, _line(one, several=several))
    for span in found.spans:
        _print(
            console,
            f"[dim]{_time(span.since)} to {_time(span.until)}[/] {escape(span.kind)}: "
            f"{escape(' '.join(f'{span.what} {span.where}'.split()))}",
        )
    for gap in found.gaps:
        _print(
            console,
            f"[yellow]no samples[/] of {escape(gap.gpu)} from {_time(gap.since)} "
            f"to {_time(gap.until)}",
        )


def _line(one: "Event", *, several: bool) -> str:
    host = f"{escape(one.host or '-')} " if several else ""
    place = f"{escape(one.pci)} " if one.pci else ""
    text = escape(" ".join(one.text.split()))
    colour = _COLOUR.get(one.source, "white")
    what = f"[{colour}]{one.source:<9}[/] {host}{place}{escape(one.what)}"
    return f"{one.at:%H:%M:%S}.{one.at.microsecond // 1000:03d} {what}" + (
        f"  [dim]{text}[/]" if text else ""
    )


def proof(console: Console, found: "Proof") -> None:
    """Whether the same came out again, and what did not."""
    verdict = "[bold green]same[/]" if found.same else "[bold red]different[/]"
    apart = f", {found.other_way} by another order of records" if found.other_way else ""
    apart += f", {found.late} rest on late records" if found.late else ""
    _print(console, f"replayed: {verdict} ({found.verdicts} revisions of its verdict{apart})")
    for one in found.differences:
        fields = f" in {', '.join(one.fields)}" if one.fields else ""
        _print(console, f"  {one.kind} {one.id}: {one.how}{escape(fields)}")
    for failed in found.failed:
        _print(console, f"  [yellow]a step failed: {escape(failed)}[/]")


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")


def _print(console: Console, markup: str) -> None:
    console.print(markup, highlight=False, soft_wrap=True)
