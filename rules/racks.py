"""Many nodes of one rack failing together are the rack: one verdict, not one for each card.

Nodes whose failing rests on two witnesses count; the isolation stage gathers them across hosts,
waits for the rest of the rack, and says it once; when its nodes are back it says that too.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

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

__all__ = ["Down", "is_hot", "note", "racks", "recovered", "settles_at"]

_KEPT = 512
#: How long a node that is no rack's is remembered, and one of a rack of which it was said.
_FORGET = timedelta(seconds=600)
_FORGET_SAID = timedelta(days=1)
_COUNTED = (Status.SUSPECTED, Status.LOCALIZED)


class Down(Struct, frozen=True, omit_defaults=True):
    """One node that failed as a whole or grew too hot, as its incident's last verdict has it.

    ``looked`` says that its rack was looked at with it, ``said`` is the rack's incident.
    """

    host: str
    rack: str
    at: datetime
    seen_at: datetime
    verdict: str
    hot: bool = False
    incident: str = ""
    looked: bool = False
    said: str = ""


def note(known: tuple[Down, ...], verdict: Verdict, now: datetime) -> tuple[Down, ...]:
    """The nodes that are down or hot with this verdict taken in; the same object when it is none.

    A node that is explained by a plan, or whose failing one witness alone tells, is none.
    """
    hot = verdict.cause in (Cause.GPU_THERMAL, Cause.FACILITY)
    whole = verdict.domain.kind is DomainKind.NODE and verdict.cause is Cause.NODE
    host = verdict.host or verdict.domain.host
    accusers = {one.witness for one in verdict.testimony if one.says is Says.ACCUSES}
    counts = (
        verdict.status in _COUNTED
        and verdict.explained_by is None
        and (hot or (whole and (len(accusers) > 1 or len(verdict.victims) > 1)))
    )
    before = next((one for one in known if one.incident == verdict.incident), None)
    others = tuple(one for one in known if one is not before)
    if not counts or host is None or verdict.rack is None:
        return others if before is not None else known
    kept = tuple(one for one in others if now - one.seen_at < _kept_for(one))
    down = Down(
        host=host,
        rack=verdict.rack,
        at=verdict.at,
        seen_at=now,
        verdict=verdict.id,
        hot=hot,
        incident=verdict.incident,
        said=before.said if before is not None else "",
        looked=before is not None and bool(before.said),
    )
    return (*kept, down)[-_KEPT:]


def _kept_for(one: Down) -> timedelta:
    return _FORGET_SAID if one.said else _FORGET


def settles_at(known: Iterable[Down], wait: timedelta) -> datetime | None:
    """When the first rack is to be looked at; None while nothing waits."""
    waiting = [one.seen_at for one in known if not one.looked]
    return min(waiting) + wait if waiting else None


def is_hot(known: Iterable[Down], rack: str | None) -> bool:
    """Whether it was said of a rack that it is too hot: then its cards are not at fault."""
    return rack is not None and any(one.hot and one.said and one.rack == rack for one in known)


def racks(
    known: tuple[Down, ...], now: datetime, policy: WideningPolicy, settle: timedelta
) -> tuple[tuple[Down, ...], list[Verdict]]:
    """What has settled: the racks of which enough nodes went together, each a verdict."""
    verdicts = []
    within = timedelta(seconds=policy.rack_within_s)
    said: dict[str, str] = {}
    settled = {
        (one.rack, one.hot) for one in known if not one.looked and one.seen_at + settle <= now
    }
    for rack, hot in sorted(settled):
        mine = [one for one in known if (one.rack, one.hot) == (rack, hot)]
        fresh = [one for one in mine if not one.said]
        joined = {one.incident: _joins(one, mine, within) for one in fresh}
        together = _together([one for one in fresh if not joined[one.incident]], within)
        if len({one.host for one in together}) >= policy.rack_nodes:
            verdicts.append(_said(rack, together, now, hot=hot))
            joined |= {one.incident: verdicts[-1].incident for one in together}
        said |= joined
    told = tuple(
        replace(one, looked=True, said=one.said or said.get(one.incident, ""))
        if (one.rack, one.hot) in settled
        else one
        for one in known
    )
    return (told if settled else known), verdicts


def _joins(one: Down, mine: Iterable[Down], within: timedelta) -> str:
    """The incident of the rack that a node came too late for; empty when there is none."""
    for other in mine:
        if other.said and (one.hot or abs(one.at - other.at) <= within):
            return other.said
    return ""


def recovered(
    before: Iterable[Down],
    after: Iterable[Down],
    incident: str,
    now: datetime,
    policy: WideningPolicy,
) -> Verdict | None:
    """The last word on a rack of which too few nodes are down, now that ``incident`` is none."""
    one = next((one for one in before if one.incident == incident and one.said), None)
    if one is None or any(other.incident == incident for other in after):
        return None
    left = {other.host for other in after if other.said == one.said}
    had = {other.host for other in before if other.said == one.said}
    if not len(left) < policy.rack_nodes <= len(had):
        return None
    but = f" but for {', '.join(sorted(left))}" if left else ""
    return Verdict(
        id=digest(one.said, 2),
        incident=one.said,
        revision=2,
        at=now,
        decided_at=now,
        status=Status.RECOVERED,
        cause=Cause.FACILITY if one.hot else Cause.NODE,
        domain=Domain(kind=DomainKind.RACK, rack=one.rack),
        confidence=0.7,
        reason=f"The nodes of rack {one.rack} work again{but}.",
        rack=one.rack,
        rule=_rule(hot=one.hot),
    )


def _together(nodes: Iterable[Down], within: timedelta) -> Sequence[Down]:
    """The most nodes that failed within a window of that length; heat has no moment."""
    ordered = sorted(nodes, key=lambda one: (one.at, one.host, one.incident))
    if ordered and ordered[0].hot:
        return ordered
    best: list[Down] = []
    for number, start in enumerate(ordered):
        group = [one for one in ordered[number:] if one.at - start.at <= within]
        if len({one.host for one in group}) > len({one.host for one in best}):
            best = group
    return best


def _rule(*, hot: bool) -> str:
    return "hot-rack" if hot else "rack"


def _said(rack: str, nodes: Sequence[Down], now: datetime, *, hot: bool) -> Verdict:
    """The verdict about a rack; a hot one is a matter of the building and isolates nothing."""
    hosts = list(dict.fromkeys(one.host for one in nodes))
    first = nodes[0]
    incident = digest("rack", rack, hot, first.incident)
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
        rule=_rule(hot=hot),
    )
