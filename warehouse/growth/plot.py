"""Pictures of a report: the fleet's worst cards beside each other, or one card's whole history."""

import html
import io
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from warehouse.errors import WarehouseError
from warehouse.growth.decide import Finding
from warehouse.growth.history import Weeks, weeks
from warehouse.growth.report import Report

__all__ = ["FORMATS", "draw", "write"]

FORMATS = (".png", ".svg", ".html")

_ROWS = 20
_DAY_H = 24.0
#: Share of a week below which a rate is not drawn: one error in an hour of use says nothing.
_LEAST_USE = 0.05
#: Okabe and Ito's colours, told apart by everybody.
_COLOURS = {
    "hard": "#000000",
    "growing": "#d55e00",
    "suspect": "#e69f00",
    "insufficient": "#999999",
    "stable": "#0072b2",
}
_INK, _FAINT = "#333333", "#dddddd"


def write(report: Report, path: Path, *, one_card: bool) -> None:
    """Draw into ``path``; its suffix is the format.

    Raises WarehouseError for another suffix, nothing to draw, or a file that cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise WarehouseError(f"{path}: a plot is {', '.join(FORMATS)}")
    figure = draw(report, one_card=one_card)
    kind = path.suffix.lower()[1:]
    try:
        if kind != "html":
            # No date in it: the same data gives the same file.
            figure.savefig(
                path, format=kind, dpi=144, metadata={"Date": None} if kind == "svg" else {}
            )
            return
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        drawn = text.getvalue()
        path.write_text(
            "<!doctype html><meta charset='utf-8'><title>ECC growth</title>"
            f"<body style='margin:2em'>{drawn[drawn.index('<svg') :]}"
            f"<pre>{html.escape(_words(report))}</pre>",
            encoding="utf-8",
        )
    except OSError as error:
        raise WarehouseError(f"{path}: cannot be written: {error.strerror or error}") from error


def _words(report: Report) -> str:
    cards = report.fleet.cards
    return "\n".join(
        f"{cards[one.row].gpu} {one.counter} {one.verdict}: {'; '.join(one.why) or '-'}"
        for one in report.findings[:_ROWS]
    )


def draw(report: Report, *, one_card: bool) -> Figure:
    """The figure; raises WarehouseError where no card has an episode to draw."""
    shown = [one for one in report.findings if one.episodes or one.states]
    if not shown:
        raise WarehouseError("nothing to plot: no GPU had an error or a bad state in this time")
    return _card(report, shown[:2]) if one_card else _fleet(report, shown[:_ROWS])


def _label(report: Report, one: Finding) -> str:
    card = report.fleet.cards[one.row]
    name = card.gpu if len(card.gpu) <= 12 else card.gpu[:12] + "..."  # noqa: PLR2004
    place = f"{card.host} #{card.index}  " if card.host and card.index is not None else ""
    return f"{place}{name} {one.counter}"


def _fleet(report: Report, shown: list[Finding]) -> Figure:
    """Left how much, with its interval; right when: episodes a week of each card."""
    figure = Figure(figsize=(13, 1.8 + 0.32 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1, 1.4])
    for place, one in enumerate(shown):
        colour = _COLOURS[one.verdict.value]
        if one.episodes:
            low, high = max(one.low, 0.02), min(one.high, 500.0)
            left.plot([low, high], [place, place], color=colour, lw=1.6, solid_capstyle="butt")
            left.plot(min(max(one.ratio, 0.02), 500), place, "o", color=colour, ms=5)
    left.axvline(1, color=_INK, lw=0.8)
    left.axvline(report.settings.min_effect, color=_INK, lw=0.8, ls=":")
    left.set_xscale("log")
    left.set_xlim(0.05, 200)
    left.set_xticks([0.1, 0.5, 1, 2, 5, 20, 100], ["0.1", "0.5", "1", "2", "5", "20", "100"])
    left.minorticks_off()
    left.set_yticks(range(len(shown)), [_label(report, one) for one in shown], fontsize=8)
    left.set_ylim(len(shown) - 0.5, -0.5)
    left.set_xlabel("recent rate / former rate, 95 %", color=_INK)
    _heat(report, shown, right)
    _clean(left)
    handles = [
        left.plot([], [], "o-", color=_COLOURS[name], label=name)[0]
        for name in dict.fromkeys(one.verdict.value for one in shown)
    ]
    left.legend(handles=handles, frameon=False, fontsize=8, loc="lower right")
    figure.suptitle(_title(report), x=0.01, ha="left", fontsize=11)
    return figure


def _heat(report: Report, shown: list[Finding], axes: Axes) -> None:
    binned = {
        name: weeks(report.fleet, name, report.settings) for name in {o.counter for o in shown}
    }
    rows = []
    for one in shown:
        mine = binned[one.counter]
        used = np.maximum(mine.exposure[one.row], 1e-9)
        rate = mine.counts[one.row] / used * _DAY_H
        worked = mine.exposure[one.row] > _LEAST_USE * mine.bin_days * _DAY_H
        rows.append(np.where(worked, rate, np.nan))
    table = np.array(rows)
    edges = _edges(report, next(iter(binned.values())))
    top = float(np.nanquantile(table[table > 0], 0.98)) if (table > 0).any() else 1.0
    drawn = axes.pcolormesh(
        edges, np.arange(len(shown) + 1) - 0.5, np.ma.masked_invalid(table), cmap="Oranges",
        vmin=0, vmax=max(top, 1e-6),
    )  # fmt: skip
    axes.set_facecolor(_FAINT)
    axes.figure.colorbar(drawn, ax=axes, label="episodes a day of use", pad=0.01, aspect=30)
    first = next(iter(binned.values()))
    axes.axvline(edges[-1 - first.recent], color=_INK, lw=0.8, ls=":")
    axes.set_xlabel("week (grey: hardly used or not seen; dotted: the recent window)", color=_INK)
    _dates(axes)
    _clean(axes)


def _edges(report: Report, binned: Weeks) -> list[float]:
    days = binned.first_day + np.arange(binned.counts.shape[1] + 1) * binned.bin_days
    return [_number(report.fleet.begin + timedelta(days=float(one))) for one in days]


def _number(at: datetime) -> float:
    return float(date2num(at.replace(tzinfo=None)))  # type: ignore[no-untyped-call]


def _card(report: Report, shown: list[Finding]) -> Figure:
    """Weekly rate with its fit above, how much was seen and used below."""
    figure = Figure(figsize=(11, 2.2 + 2.6 * len(shown)), layout="constrained")
    parts = figure.subplots(
        len(shown) + 1, 1, sharex=True, height_ratios=[3] * len(shown) + [1], squeeze=False
    )[:, 0]
    for axes, one in zip(parts, shown, strict=False):
        _rates(report, one, axes)
    one = shown[0]
    binned = weeks(report.fleet, one.counter, report.settings)
    edges = _edges(report, binned)
    size = binned.bin_days * _DAY_H
    covered = report.fleet.covered[one.row, binned.first_day :]
    seen = covered.reshape(-1, binned.bin_days).sum(1) / size
    parts[-1].stairs(100 * seen, edges, color=_COLOURS["stable"], label="hours with samples")
    parts[-1].stairs(
        100 * binned.exposure[one.row] / size, edges, fill=True, color="#9ecae1", label="busy hours"
    )
    parts[-1].axhline(100 * report.settings.min_coverage, color=_INK, lw=0.7, ls=":")
    parts[-1].set_ylim(0, 105)
    parts[-1].set_ylabel("% of week")
    parts[-1].legend(fontsize=8, ncols=2, loc="lower left", framealpha=0.9)
    _dates(parts[-1])
    _clean(parts[-1])
    card = report.fleet.cards[one.row]
    figure.suptitle(
        f"{card.gpu}  {card.host or ''}  {card.model or ''}", x=0.01, ha="left", fontsize=11
    )
    return figure


def _rates(report: Report, one: Finding, axes: Axes) -> None:
    binned = weeks(report.fleet, one.counter, report.settings)
    edges = _edges(report, binned)
    used = binned.exposure[one.row]
    with np.errstate(divide="ignore", invalid="ignore"):
        worked = used > _LEAST_USE * binned.bin_days * _DAY_H
        rate = np.where(worked, binned.counts[one.row] / used * _DAY_H, np.nan)
    colour = _COLOURS[one.verdict.value]
    axes.stairs(np.nan_to_num(rate), edges, fill=True, color=colour, alpha=0.35)
    if one.shape is not None:
        axes.plot(
            *_fit(one, edges), color=colour, lw=2, label=f"{one.shape.name}, {one.effect:.1f} x"
        )
    if one.change is not None:
        axes.axvspan(
            edges[one.change.first], edges[one.change.last], ymax=0.03, color=_INK, lw=0,
            label="changed, 95 %",
        )  # fmt: skip
    axes.axvline(edges[-1 - binned.recent], color=_INK, lw=0.7, ls=":")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("episodes a day of use")
    words = "; ".join(one.why) or "nothing that grows"
    axes.set_title(f"{one.counter}: {one.verdict.value}  ({words})", loc="left", fontsize=9)
    if one.shape is not None:
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    _clean(axes)


def _fit(one: Finding, edges: list[float]) -> tuple[list[float], list[float]]:
    """The fitted rate along the weeks: two levels, or a level and an exponential climb."""
    assert one.shape is not None
    start, last = one.shape.start, len(edges) - 1
    before = one.rate_before
    if one.shape.name == "step":
        after = before * one.shape.effect
        return [edges[0], edges[start], edges[start], edges[last]], [before, before, after, after]
    climb = np.linspace(0, 1, 40)
    across = [edges[0], *(edges[start] + climb * (edges[last] - edges[start]))]
    return across, [before, *(before * one.shape.effect**climb)]


def _title(report: Report) -> str:
    fleet = report.fleet
    last = fleet.end - timedelta(days=1)
    return (
        f"ECC growth, {len(fleet.cards)} GPUs, {fleet.begin:%Y-%m-%d} to {last:%Y-%m-%d} "
        f"(false-discovery rate {report.settings.false_discovery_rate:g})"
    )


def _dates(axes: Axes) -> None:
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)


def _clean(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=8)
