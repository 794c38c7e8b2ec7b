"""Many nodes of one rack failing together are the rack: one verdict, not one for each card.

Nodes whose failing rests on two witnesses count; the isolation stage gathers them across hosts,
waits for the rest of the rack, and says it once, on the topic that it reads itself.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from evidence.decisions import (
    Cause,
    Domain,
    DomainKind,
    EvidenceRef,
    Recovery,
    Says,
    Status,
    Testimony,
    Verdict,
    Witness,
)
from evidence.identity import digest
from rules.policy import WideningPolicy

__all__ = ["Down", "note", "racks", "settles_at"]

_KEPT = 512
_FORGET = timedelta(seconds=600)
_COUNTED = (Status.SUSPECTED, Status.LOCALIZED)


class Down(Struct, frozen=True, omit_defaults=True):
    """One node that failed as a whole or grew too hot, as its last verdict has it."""

    host: str
    rack: str
    at: datetime
    seen_at: datetime
    verdict: str
    hot: bool = False
    told: bool = False


def note(known: tuple[Down, ...], verdict: Verdict, now: datetime) -> tuple[Down, ...]:
    """The nodes that are down or hot with this verdict taken in; the same object when it is none.

    A node that is explained by a plan, or whose failing one witness alone tells, is none.
    """
    hot = verdict.cause in (Cause.GPU_THERMAL, Cause.FACILITY)
    whole = verdict.domain.kind is DomainKind.NODE and verdict.cause is Cause.NODE
    host = verdict.host or verdict.domain.host
    if not (hot or whole) or host is None or verdict.rack is None:
        return known
    kept = tuple(one for one in known if now - one.seen_at < _FORGET)
    others = tuple(one for one in kept if (one.host, one.hot) != (host, hot))
    accusers = {one.witness for one in verdict.testimony if one.says is Says.ACCUSES}
    counts = (
        verdict.status in _COUNTED
        and verdict.explained_by is None
        and (hot or len(accusers) > 1 or len(verdict.victims) > 1)
    )
    if not counts:
        return known if others == known else others
    told = any(one.told for one in kept if one not in others)
    down = Down(host, verdict.rack, verdict.at, now, verdict.id, hot, told)
    return (*others, down)[-_KEPT:]


def settles_at(known: Iterable[Down], wait: timedelta) -> datetime | None:
    """When the first rack is to be looked at; None while nothing waits."""
    waiting = [one.seen_at for one in known if not one.told]
    return min(waiting) + wait if waiting else None


def racks(
    known: tuple[Down, ...], now: datetime, policy: WideningPolicy, settle: timedelta
) -> tuple[tuple[Down, ...], list[Verdict]]:
    """What has settled: the racks of which enough nodes went together, each a verdict."""
    verdicts = []
    settled = {(one.rack, one.hot) for one in known if not one.told and one.seen_at + settle <= now}
    for rack, hot in sorted(settled):
        mine = [one for one in known if (one.rack, one.hot) == (rack, hot)]
        together = _together(mine, timedelta(seconds=policy.rack_within_s), anyhow=hot)
        if len(together) >= policy.rack_nodes and not any(one.told for one in together):
            verdicts.append(_said(rack, together, now, hot=hot))
    told = tuple(
        Down(one.host, one.rack, one.at, one.seen_at, one.verdict, one.hot, told=True)
        if (one.rack, one.hot) in settled
        else one
        for one in known
    )
    return (told if settled else known), verdicts


def _together(nodes: Iterable[Down], within: timedelta, *, anyhow: bool) -> Sequence[Down]:
    """The most nodes that failed within a window of that length; heat has no moment."""
    ordered = sorted(nodes, key=lambda one: (one.at, one.host))
    if anyhow:
        return ordered
    best: list[Down] = []
    for number, start in enumerate(ordered):
        group = [one for one in ordered[number:] if one.at - start.at <= within]
        if len(group) > len(best):
            best = group
    return best


def _said(rack: str, nodes: Sequence[Down], now: datetime, *, hot: bool) -> Verdict:
    """The verdict about a rack; a hot one is a matter of the building and isolates nothing."""
    hosts = [one.host for one in nodes]
    first = min(nodes, key=lambda one: (one.at, one.host))
    incident = digest("rack", rack, hot, first.verdict)
    named = ", ".join(hosts[:8]) + (" and others" if len(hosts) > 8 else "")  # noqa: PLR2004
    words = (
        f"{len(hosts)} nodes of rack {rack} are too hot ({named}): cooling of the rack"
        if hot
        else f"{len(hosts)} nodes of rack {rack} failed together ({named}), so the cause is above"
        " them: power or network of the rack"
    )
    return Verdict(
        id=digest(incident, 1),
        incident=incident,
        revision=1,
        at=first.at,
        decided_at=now,
        status=Status.LOCALIZED,
        cause=Cause.FACILITY if hot else Cause.NODE,
        domain=Domain(kind=DomainKind.RACK, rack=rack),
        confidence=0.85,
        reason=f"{words}.",
        recovery=Recovery.DIAGNOSE,
        testimony=(
            Testimony(witness=Witness.HEALTH, says=Says.ACCUSES, weight=0.85, words=words[:400]),
        ),
        evidence=tuple(
            EvidenceRef(id=one.verdict, source="verdicts", at=one.at, host=one.host)
            for one in nodes[:32]
        ),
        victims=tuple(Domain(kind=DomainKind.NODE, host=host, rack=rack) for host in hosts[:64]),
        rack=rack,
    )
