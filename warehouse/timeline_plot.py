"""Draws a timeline: what happened as marks by source, what lasted as bars, samples as lanes.

PNG and SVG are the picture; HTML is one file with the picture and the table of events in it.
"""

import html
import io
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from warehouse.timeline import Event, Series, Span, Timeline

__all__ = ["FORMS", "draw"]

#: What a picture's name may end in.
FORMS = (".png", ".svg", ".html")

_WIDTH_IN = 13.0
#: What a sensor said beyond is no number to draw, and no axis holds it.
_DRAWABLE = 1e30
_DPI = 120
_COLOUR = {
    "kernel": "#c0392b",
    "gpu": "#8e44ad",
    "nvml": "#6c3483",
    "nccl": "#d68910",
    "fabric": "#2471a3",
    "context": "#148f77",
    "suspicion": "#b7950b",
    "verdict": "#922b21",
    "request": "#34495e",
    "command": "#17202a",
    "state": "#5d6d7e",
    "ack": "#1e8449",
}
_SPAN_COLOUR = {"verdict": "#e6b0aa", "out of service": "#aeb6bf", "context": "#a2d9ce"}
_SPAN_NAME = {"verdict": "judged", "out of service": "out of service", "context": "planned"}
_LINES = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
#: With more GPUs than this no legend can tell them apart.
_NAMED = len(_LINES)
#: A label takes so much of the picture's width a character.
_OF_WIDTH = 0.0063
_TABLE_ROWS = 5000
#: Marks within this part of the picture's width share a label, of at most so many characters.
_NEAR, _LABEL = 0.06, 80

# `p9e4a17c0d2`: matplotlib makes them from addresses in memory
_ID = re.compile(r"\b[chmp][0-9a-f]{10}\b")

# Lane, unit, and what is drawn in it: field, name in the legend, style.
_LANES: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    ("temperature, °C", (("temperature_c", "GPU", "-"), ("temperature_memory_c", "memory", ":"))),
    ("utilisation, %", (("utilization_pct", "GPU", "-"),)),
    ("power, W", (("power_w", "GPU", "-"),)),
    ("ECC corrected", (("ecc_volatile_corrected", "since driver load", "-"),)),
    ("ECC uncorrected", (("ecc_volatile_uncorrected", "since driver load", "-"),
                         ("ecc_aggregate_uncorrected", "over the card's life", ":"))),
)  # fmt: skip


def draw(found: Timeline, path: Path) -> None:
    """Draw a timeline into a file of one of `FORMS`, whole or not at all.

    Raises OSError where it cannot be written.
    """
    figure = _figure(found)
    if path.suffix == ".html":
        content = _page(found, _svg(figure)).encode()
    elif path.suffix == ".svg":
        content = _svg(figure).encode()
    else:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=_DPI)
        content = picture.getvalue()
    made = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        made.write_bytes(content)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def _svg(figure: Figure) -> str:
    picture = io.StringIO()
    # The same timeline gives the same bytes: no date, and ids by their order; text stays text.
    with mpl.rc_context({"svg.hashsalt": "ringfence", "svg.fonttype": "none"}):
        figure.savefig(picture, format="svg", metadata={"Date": None})
    names: dict[str, str] = {}
    return _ID.sub(lambda found: names.setdefault(found[0], f"id{len(names)}"), picture.getvalue())


def _figure(found: Timeline) -> Figure:
    sources = [one for one in _COLOUR if any(event.source == one for event in found.events)]
    kinds = [one for one in _SPAN_COLOUR if any(span.kind == one for span in found.spans)]
    lanes = [(unit, fields) for unit, fields in _LANES if _has(found.series, fields)]
    rows = max(2, len(sources) + len(kinds))
    heights = [0.36 * rows + 0.3, *[1.1] * len(lanes)]
    figure = Figure(figsize=(_WIDTH_IN, sum(heights) + 1.1), layout="constrained")
    grid = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
    top, *below = [row[0] for row in grid]
    _marks(top, found, sources, kinds)
    for axes, (unit, fields) in zip(below, lanes, strict=True):
        _lane(axes, found.series, unit, fields)
    for axes in (top, *below):
        for gap in found.gaps:
            several = len(found.series) > 1
            axes.axvspan(_x(gap.since), _x(gap.until), color="#000000", lw=0,
                         alpha=0.12 / max(1, len(found.series)) if several else 0.10)  # fmt: skip
        axes.set_xlim(_x(found.since), _x(found.until))
        axes.grid(axis="x", color="#e5e7e9", lw=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    locator = AutoDateLocator(tz=found.since.tzinfo)  # type: ignore[no-untyped-call]
    last = (top, *below)[-1]
    last.xaxis.set_major_locator(locator)
    shown = ConciseDateFormatter(locator, tz=found.since.tzinfo)  # type: ignore[no-untyped-call]
    last.xaxis.set_major_formatter(shown)
    last.tick_params(axis="x", labelsize=8)
    last.xaxis.get_offset_text().set_fontsize(8)
    last.set_xlabel("UTC" + ("; grey: no samples" if found.gaps else ""), fontsize=8)
    figure.suptitle(_title(found), x=0.01, ha="left", fontsize=11, fontweight="bold")
    if len(found.series) in range(2, _NAMED + 1) and below:
        names = [f"{one.host} GPU {one.index}" for one in found.series]
        handles = [below[0].plot([], [], color=colour)[0] for colour in _LINES[: len(names)]]
        figure.legend(
            handles, names, loc="outside lower center", ncols=4, fontsize=7, frameon=False
        )
    return figure


def _title(found: Timeline) -> str:
    target = found.target
    place = target.hosts[0] + (f" {target.pci}" if target.pci else "") if target.hosts else ""
    where = f" on {place}" if target.kind == "gpu" else ""
    return (
        f"{target.kind} {target.name}{where}\n"
        f"{found.since:%Y-%m-%d %H:%M} to {found.until:%Y-%m-%d %H:%M} UTC, "
        f"{len(found.events)} events"
    )


def _x(at: datetime) -> float:
    return float(date2num(at))  # type: ignore[no-untyped-call]


def _has(series: Iterable[Series], fields: Iterable[tuple[str, str, str]]) -> bool:
    return any(
        value is not None for one in series for name, _, _ in fields for value in one.values[name]
    )


def _marks(axes: Axes, found: Timeline, sources: list[str], kinds: list[str]) -> None:
    """Each source's events in a row of its own, causes above effects; under them what lasted."""
    length = found.until - found.since
    names = [*sources, *(_SPAN_NAME[one] for one in kinds)]
    for row, source in enumerate(sources):
        of_source = [one for one in found.events if one.source == source]
        axes.scatter(
            [_x(one.at) for one in of_source], [row] * len(of_source), marker="|", s=170,
            linewidths=1.6, color=_COLOUR[source],
        )  # fmt: skip
        taken = found.since
        for at, text in _labels(of_source, length):
            width = _OF_WIDTH * len(text) * length
            begin = min(at, found.until - width)
            if begin >= taken:
                axes.text(
                    _x(begin) + 0.004 * length / timedelta(days=1), row - 0.34, text, fontsize=7,
                    va="center", color=_COLOUR[source], clip_on=True,
                )  # fmt: skip
                taken = begin + width
    for row, kind in enumerate(kinds, start=len(sources)):
        _bars(axes, row, [one for one in found.spans if one.kind == kind], length)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(max(2, len(names)) - 0.4, -0.7)
    axes.tick_params(axis="y", length=0)
    if not found.events:
        axes.text(0.5, 0.5, "nothing happened", transform=axes.transAxes, ha="center", color="gray")


def _labels(events: list[Event], length: timedelta) -> Iterable[tuple[datetime, str]]:
    """Words for marks: those that stand close together share one, each thing with its count."""
    near: list[Event] = []
    for one in events:
        if near and one.at - near[0].at > length * _NEAR:
            yield near[0].at, _words(near)
            near = []
        near.append(one)
    if near:
        yield near[0].at, _words(near)


def _words(near: list[Event]) -> str:
    counts = Counter(one.what for one in near)
    words = ", ".join(
        what if count == 1 else f"{what} ×{count}"  # noqa: RUF001 (the sign of times)
        for what, count in sorted(counts.items(), key=lambda one: one[1])  # the rare ones first
    )
    return words if len(words) <= _LABEL else words[: _LABEL - 3] + "..."


def _bars(axes: Axes, row: int, spans: list[Span], length: timedelta) -> None:
    taken: datetime | None = None
    for one in spans:
        axes.barh(
            row, max(_x(one.until) - _x(one.since), 1e-6), left=_x(one.since), height=0.62,
            color=_SPAN_COLOUR[one.kind], edgecolor="#7f8c8d", linewidth=0.5,
        )  # fmt: skip
        wide = one.until - one.since > length / 100
        if wide and (taken is None or one.since >= taken):
            text = " ".join(f"{one.what}  {one.where if one.kind != 'context' else ''}".split())
            axes.text(
                _x(one.since) + 0.004 * length / timedelta(days=1), row, text, fontsize=7,
                va="center", clip_on=True,
            )  # fmt: skip
            taken = one.since + _OF_WIDTH * len(text) * length


def _lane(
    axes: Axes, series: tuple[Series, ...], unit: str, fields: tuple[tuple[str, str, str], ...]
) -> None:
    """One kind of sample, a line a GPU; where a value was not read the line is broken."""
    many = len(series) > _NAMED
    for number, one in enumerate(series):
        for name, words, style in fields:
            points = [
                (at, value)
                for at, value in zip(one.at, one.values[name], strict=True)
                if value is not None and abs(value) < _DRAWABLE
            ]
            if not points:
                continue
            colour = "#85929e" if many else _LINES[number % _NAMED]
            if len(series) == 1 and style != "-":
                colour = "#c0392b"
            how: dict[str, Any] = {"drawstyle": "steps-post"} if unit.startswith("ECC") else {}
            times, values = _broken(points, one)
            axes.plot(
                times, values, style, color=colour, lw=0.6 if many else 1.1, label=words, **how
            )
    axes.set_ylabel(unit, fontsize=8, rotation=0, ha="right", va="center")
    axes.tick_params(axis="y", labelsize=7)
    axes.margins(y=0.15)
    if unit.endswith("%"):
        axes.set_ylim(-5, 105)
    if len(series) == 1 and len(fields) > 1 and len(axes.lines) > 1:
        axes.legend(fontsize=7, loc="upper left", frameon=False, ncols=2)


def _broken(points: list[tuple[datetime, float]], one: Series) -> tuple[list[float], list[float]]:
    """The line's points, with a hole where samples are missing."""
    usual = (one.at[-1] - one.at[0]) / max(1, len(one.at) - 1)
    times: list[float] = []
    values: list[float] = []
    before: datetime | None = None
    for at, value in points:
        if before is not None and at - before > max(20 * usual, timedelta(seconds=30)):
            times.append(_x(before))
            values.append(float("nan"))
        times.append(_x(at))
        values.append(value)
        before = at
    return times, values


_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 1.5rem; color: #17202a; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid #e5e7e9;
         vertical-align: top; }
td:first-child { white-space: nowrap; font-variant-numeric: tabular-nums; }
td:last-child { font-family: ui-monospace, monospace; font-size: 12px; word-break: break-word; }
"""


def _page(found: Timeline, picture: str) -> str:
    """One page that needs nothing else: the picture and the table."""
    title = html.escape(_title(found).replace("\n", ", "))
    head = ("time (UTC)", "source", "host", "address", "what", "text")
    rows = [
        (f"{one.at:%Y-%m-%d %H:%M:%S}.{one.at.microsecond // 1000:03d}", one.source,
         one.host or "", one.pci or "", one.what, one.text)
        for one in found.events[:_TABLE_ROWS]
    ]  # fmt: skip
    more = len(found.events) - len(rows)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    svg = picture[picture.index("<svg") :]
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{title}</h1>\n{svg}\n"
        f"<table><tr>{''.join(f'<th>{one}</th>' for one in head)}</tr>\n{body}</table>\n"
        + (f"<p>and {more} more events</p>\n" if more > 0 else "")
        + "</html>\n"
    )
