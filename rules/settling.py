"""Verdicts that are not acted upon yet: those that wait for others, and those shadow answered.

What arrives within one wait is acted upon in an order of its own (the wider part first, then the
earlier event), so that the budget goes to the same parts whoever was heard first.
"""

from collections.abc import Iterable
from datetime import datetime

from msgspec.structs import replace

from evidence.decisions import DomainKind, EvidenceRef, Verdict
from rules.desired import Standing

__all__ = ["STANDING_MOST", "WAITING_MOST", "in_order", "slim", "with_standing", "without"]

#: More verdicts than this do not wait: so many at once come from no hardware.
WAITING_MOST = 512
STANDING_MOST = 512

_WIDTH = {
    DomainKind.RACK: 0,
    DomainKind.SWITCH: 1,
    DomainKind.NODE: 2,
    DomainKind.LINK: 3,
    DomainKind.GPU: 4,
    DomainKind.NVLINK: 5,
    DomainKind.MIG: 6,
    DomainKind.JOB: 7,
}


def slim(verdict: Verdict) -> Verdict:
    """A verdict with no more of it than its command needs: the state is written on every change."""
    evidence = tuple(EvidenceRef(id=e.id, source=e.source, at=e.at) for e in verdict.evidence)
    return replace(verdict, testimony=(), missing=(), victims=(), evidence=evidence)


def in_order(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Verdicts in the order in which they are acted upon, however they arrived."""
    return sorted(verdicts, key=lambda v: (_WIDTH[v.domain.kind], v.at, v.domain.id, v.incident))


def without(verdicts: tuple[Verdict, ...], incident: str) -> tuple[Verdict, ...]:
    """Verdicts but for those of one incident; the same object when there is none of it."""
    kept = tuple(one for one in verdicts if one.incident != incident)
    return verdicts if len(kept) == len(verdicts) else kept


def with_standing(
    standing: tuple[Standing, ...], verdict: Verdict, now: datetime
) -> tuple[Standing, ...]:
    """What stands, with one more verdict or its newer revision; the oldest fall out."""
    others = tuple(one for one in standing if one.verdict.incident != verdict.incident)
    return (*others, Standing(slim(verdict), now))[-STANDING_MOST:]
