"""One evaluation of a fleet, and what of it goes on the wire: records, and suspicions of growth."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from math import isfinite
from pathlib import Path

from evidence.decisions import Cause, Domain, DomainKind, EvidenceRef, Says, Suspicion, Witness
from evidence.identity import digest
from evidence.records import GrowthRecord
from warehouse.errors import WarehouseError
from warehouse.growth.decide import Finding, Verdict, decide
from warehouse.growth.history import COUNTERS, Fleet
from warehouse.growth.load import load
from warehouse.growth.outlook import Outlook, outlook
from warehouse.growth.settings import Settings
from warehouse.listing import shifted
from warehouse.query import connect

__all__ = ["KIND", "Report", "assess", "evaluate", "record", "suspicion"]

#: Each day of each card takes memory; earlier samples are those of a clock that was never set.
_FIRST = date(2000, 1, 1)
#: The kind of the suspicions that growth makes.
KIND = "ecc-growth"


@dataclass(frozen=True, slots=True)
class Report:
    """A fleet, what was found in it, worst first, and what else there is to each."""

    fleet: Fleet
    findings: tuple[Finding, ...]
    outlooks: tuple[Outlook, ...]
    settings: Settings

    @property
    def tested(self) -> int:
        """How many cards and counters share the false-discovery rate."""
        return len(self.fleet.cards) * len(COUNTERS)

    @property
    def bad(self) -> bool:
        """Whether any card is growing or says itself that it is broken."""
        return any(one.verdict in (Verdict.HARD, Verdict.GROWING) for one in self.findings)


def assess(
    root: Path,
    settings: Settings,
    *,
    since: date | None,
    until: date,
    gpu: str | None = None,
) -> Report:
    """Judge all cards by the days before ``until``; with ``gpu`` tell of that one alone.

    One card is judged beside the others all the same: whether its growth is chance depends on how
    many were looked at. Raises WarehouseError where there is no warehouse, no sample, or no card of
    that name.
    """
    begin = max(since or shifted(until, -timedelta(days=settings.history_days)), _FIRST)
    last = shifted(until, -timedelta(days=1))
    if begin >= until:
        raise WarehouseError(f"the first day, {begin}, is after the last, {last}")
    connection = connect(root)
    try:
        fleet = load(connection, settings, begin, until)
    finally:
        connection.close()
    if not fleet.cards:
        raise WarehouseError(f"no GPU was sampled from {begin} to {last} in {root}")
    names = {card.gpu: row for row, card in enumerate(fleet.cards)}
    if gpu is not None and gpu not in names:
        raise WarehouseError(f"no GPU {gpu!r} was sampled from {begin} to {last}")
    return evaluate(fleet, settings, None if gpu is None else names[gpu])


def evaluate(fleet: Fleet, settings: Settings, row: int | None = None) -> Report:
    """Judge a fleet; with ``row`` keep what concerns that card."""
    findings = decide(fleet, settings)
    kept = tuple(one for one in findings if row is None or one.row == row)
    return Report(fleet, kept, tuple(_outlook(fleet, one, settings) for one in kept), settings)


def _outlook(fleet: Fleet, one: Finding, settings: Settings) -> Outlook:
    """Where there is nothing but a quiet card an outlook would cost more than it tells."""
    if one.episodes < settings.min_episodes and one.counter == "corrected":
        return Outlook()
    if one.verdict is Verdict.STABLE and one.p >= settings.trend_p and one.counter == "corrected":
        return Outlook()
    return outlook(fleet, one, settings)


def record(report: Report, place: int, observed_at: datetime) -> GrowthRecord:
    """One finding as a record; the same day's result has the same id however often it is made."""
    one, more = report.findings[place], report.outlooks[place]
    card, fleet = report.fleet.cards[one.row], report.fleet
    told = more.forecast
    reached = told if told is not None and told.refused is None else None
    return GrowthRecord(
        id=digest("growth", card.gpu, one.counter, fleet.end.date().isoformat(), one.verdict),
        host=card.host or "",
        at=fleet.end,
        observed_at=observed_at,
        gpu=card.gpu,
        counter=one.counter,
        verdict=one.verdict.value,
        pci=card.pci,
        uuid=card.uuid,
        serial=card.serial,
        model=card.model,
        shape=one.shape.name if one.shape else None,
        since=more.since,
        since_first=more.since_first,
        since_last=more.since_last,
        episodes=one.episodes,
        recent_episodes=one.recent,
        rate_recent=one.rate_recent,
        rate_before=one.rate_before,
        ratio=_finite(one.ratio),
        ratio_low=_finite(one.low),
        ratio_high=_finite(one.high),
        effect=_finite(one.effect) if one.episodes else None,
        p=one.p,
        q=one.q,
        tested=report.tested,
        dispersion=one.dispersion,
        lewis_robinson_p=one.lewis_robinson.p if one.lewis_robinson else None,
        slope_p=one.slope.p if one.slope else None,
        change_p=one.change.p if one.change else None,
        coverage=one.coverage,
        beside_peers=_finite(one.peers),
        alarm_at=more.alarm_at,
        states=tuple(state.kind for state in one.states),
        reaches=more.reaches,
        reaches_days=_finite(reached.median) if reached else None,
        reaches_low_days=_finite(reached.low) if reached else None,
        reaches_high_days=_finite(reached.high) if reached else None,
        refused=told.refused if told else None,
        why=one.why,
    )


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None


def suspicion(one: GrowthRecord) -> Suspicion:
    """What a growing card is told to the rules as: suspected, never more."""
    words = f"{one.counter} memory errors grow: {'; '.join(one.why)}"
    return Suspicion(
        id=digest("suspicion", KIND, one.id),
        at=one.at,
        observed_at=one.observed_at,
        witness=Witness.HEALTH,
        says=Says.ACCUSES,
        kind=KIND,
        domain=Domain(
            kind=DomainKind.GPU, host=one.host, pci=one.pci, uuid=one.uuid, serial=one.serial
        ),
        cause=Cause.GPU_MEMORY,
        weight=0.5,
        reason=words,
        host=one.host,
        evidence=(EvidenceRef(id=one.id, source="growth", at=one.at, host=one.host, text=words),),
    )


def growing(records: Sequence[GrowthRecord]) -> list[Suspicion]:
    """The suspicions of all records whose verdict is growing."""
    return [suspicion(one) for one in records if one.verdict == Verdict.GROWING.value]
