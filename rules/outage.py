"""Hosts that fell silent, seen across the cluster: one of them is that host, many are ourselves.

Each host's own verdict of its silence comes marked as waiting (`rules.silence.TOGETHER`). A few are
said again without the mark, after the wait; when many fall silent together one verdict says so,
once and at each doubling, and theirs stay marked: no number of silent hosts makes more alarms.
"""

from collections.abc import Sequence
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
from rules.silence import RULE, is_gathered

__all__ = ["Outage", "Silent", "look_at", "take", "tell"]

MANY = "silent-hosts"
#: Hosts that are kept by name; more are only counted.
_KEPT = 1024
_NAMED = 8
#: As long as the host stage remembers a silence (thresholds.toml, forget_after_s).
_FORGET = timedelta(days=1)


class Silent(Struct, frozen=True, omit_defaults=True):
    """One host that is silent since ``at``.

    ``told`` when an unmarked verdict says so, ``many`` when it is one of many that went together.
    """

    host: str
    incident: str
    revision: int
    at: datetime
    seen_at: datetime
    ref: str
    rack: str | None = None
    pool: str | None = None
    told: bool = False
    many: bool = False


class Outage(Struct, frozen=True, omit_defaults=True):
    """All silent hosts; ``incident`` while many are, last told when ``said`` were.

    ``more`` are those of them that are counted only, beyond what is kept.
    """

    hosts: tuple[Silent, ...] = ()
    more: int = 0
    incident: str = ""
    revision: int = 0
    said: int = 0

    @property
    def members(self) -> list[Silent]:
        """The hosts that are silent together, in order."""
        return sorted((one for one in self.hosts if one.many), key=_order)

    @property
    def count(self) -> int:
        """How many hosts are silent together."""
        return sum(one.many for one in self.hosts) + self.more


def _order(one: Silent) -> tuple[datetime, str, str]:
    return (one.at, one.host, one.incident)


def take(known: Outage, verdict: Verdict, now: datetime) -> Outage:
    """The silent hosts with a verdict taken in; the same object when it tells of none."""
    if verdict.rule != RULE or verdict.host is None:
        return known
    mine = next((one for one in known.hosts if one.incident == verdict.incident), None)
    if mine is not None and verdict.revision < mine.revision:
        return known
    waits = is_gathered(verdict)
    silent = verdict.status in (Status.INSUFFICIENT, Status.SUSPECTED)
    if not silent or verdict.explained_by is not None:
        return _without(known, mine)
    if mine is not None:
        new = replace(mine, revision=verdict.revision, told=mine.told or not waits)
        hosts = tuple(new if one is mine else one for one in known.hosts)
        return known if new == mine else replace(known, hosts=hosts)
    return _with(known, verdict, now, told=not waits)


def _without(known: Outage, gone: Silent | None) -> Outage:
    if gone is not None:
        return replace(known, hosts=tuple(one for one in known.hosts if one is not gone))
    return replace(known, more=known.more - 1) if known.more else known


def _with(known: Outage, verdict: Verdict, now: datetime, *, told: bool) -> Outage:
    assert verdict.host is not None
    if len(known.hosts) >= _KEPT:
        return replace(known, more=known.more + (not told))
    one = Silent(
        host=verdict.host,
        incident=verdict.incident,
        revision=verdict.revision,
        at=verdict.at,
        seen_at=now,
        ref=verdict.evidence[0].id if verdict.evidence else verdict.id,
        rack=verdict.rack,
        pool=verdict.pool,
        told=told,
    )
    return replace(known, hosts=(*known.hosts, one))


def look_at(known: Outage, policy: WideningPolicy) -> datetime | None:
    """When silent hosts are to be told; None while none waits."""
    waiting = [one.seen_at for one in known.hosts if not one.told and not one.many]
    return min(waiting) + timedelta(seconds=policy.silent_wait_s) if waiting else None


def tell(known: Outage, now: datetime, policy: WideningPolicy) -> tuple[Outage, list[Verdict]]:
    """What is to be said now; the same object back when nothing changed.

    A host that is silent for a day is left to whoever was told of it.
    """
    wait = timedelta(seconds=policy.silent_wait_s)
    lately = tuple(one for one in known.hosts if now - one.seen_at < _FORGET)
    if len(lately) < len(known.hosts):
        known = replace(known, hosts=lately)
    known = _joined(known, wait, policy.silent_hosts)
    verdicts: list[Verdict] = []
    count = known.count
    if known.incident and count < policy.silent_hosts:
        last = replace(known, revision=known.revision + 1)
        verdicts.append(_many(last, now, over=True))
        hosts = tuple(replace(one, many=False) for one in known.hosts)
        known = Outage(hosts=hosts)
    elif count >= policy.silent_hosts and count >= 2 * known.said:
        incident = known.incident or digest("silent-hosts", known.members[0].incident)
        revision = known.revision + 1
        known = replace(known, incident=incident, revision=revision, said=count)
        verdicts.append(_many(known, now))
    due = {
        one.incident
        for one in known.hosts
        if not (one.told or one.many) and now - one.seen_at >= wait
    }
    if due:
        verdicts += [
            _one(one, now) for one in sorted(known.hosts, key=_order) if one.incident in due
        ]
        hosts = tuple(
            replace(one, told=True) if one.incident in due else one for one in known.hosts
        )
        known = replace(known, hosts=hosts)
    return known, verdicts


def _joined(known: Outage, wait: timedelta, many: int) -> Outage:
    """The hosts that went together marked as such: many at once, and those that follow them."""
    alone = [one for one in known.hosts if not one.many]
    if not alone:
        return known
    members = known.members
    together = _together(alone, wait)
    joining = {one.incident for one in together} if len(together) >= many else set()
    if members:
        first, last = members[0].at - wait, members[-1].at + wait
        joining |= {one.incident for one in alone if first <= one.at <= last}
    if not joining:
        return known
    hosts = tuple(
        replace(one, many=True) if one.incident in joining else one for one in known.hosts
    )
    return replace(known, hosts=hosts)


def _together(hosts: Sequence[Silent], within: timedelta) -> list[Silent]:
    """The most hosts that fell silent within a window of that length, in order."""
    ordered = sorted(hosts, key=_order)
    begin, best = 0, (0, 0)
    for end, one in enumerate(ordered):
        while one.at - ordered[begin].at > within:
            begin += 1
        if end + 1 - begin > best[1] - best[0]:
            best = (begin, end + 1)
    return ordered[best[0] : best[1]]


def _one(one: Silent, now: datetime) -> Verdict:
    words = f"nothing was heard of it since {one.at:%H:%M:%S} UTC"
    return Verdict(
        id=digest(one.incident, one.revision, "alone"),
        incident=one.incident,
        revision=one.revision,
        at=one.at,
        decided_at=now,
        status=Status.INSUFFICIENT,
        cause=Cause.UNKNOWN,
        domain=Domain(kind=DomainKind.NODE, host=one.host, rack=one.rack),
        confidence=0.1,
        reason=f"{one.host} fell silent, and few others did: {words}.",
        recovery=Recovery.DIAGNOSE,
        testimony=(Testimony(witness=Witness.HEALTH, says=Says.BLIND, words=words),),
        evidence=(EvidenceRef(id=one.ref, source="gpu", at=one.at, host=one.host),),
        missing=("whether the node answers (ping, its BMC)", "whether its agent reaches Kafka"),
        host=one.host,
        rack=one.rack,
        pool=one.pool,
        rule=RULE,
    )


def _many(known: Outage, now: datetime, *, over: bool = False) -> Verdict:
    """The one verdict about many silent hosts; its place is a rack where they are all of one."""
    members = known.members
    racks = {one.rack for one in members}
    rack = racks.pop() if len(racks) == 1 and not known.more else None
    hosts = sorted(one.host for one in members)
    named = ", ".join(hosts[:_NAMED]) + (" and others" if known.count > _NAMED else "")
    whose = (
        f"rack {rack}, of which they all are (its power or network), and at our own pipeline"
        if rack is not None
        else "our own pipeline (the agents, the network to Kafka, Kafka), not at each node"
    )
    words = f"{known.count} hosts fell silent together ({named}): look at {whose}"
    if over:
        but = f"; still silent: {named}" if hosts else ""
        words = f"The hosts that fell silent together are heard again, or gone for a day{but}"
    place = Domain(kind=DomainKind.JOB, job="ringfence")
    if rack is not None:
        place = Domain(kind=DomainKind.RACK, rack=rack)
    says = Says.CLEARS if over else Says.BLIND
    return Verdict(
        id=digest(known.incident, known.revision),
        incident=known.incident,
        revision=known.revision,
        at=min((one.at for one in members), default=now),
        decided_at=now,
        status=Status.RECOVERED if over else Status.INSUFFICIENT,
        cause=Cause.UNKNOWN,
        domain=place,
        confidence=0.7 if over else 0.3,
        reason=f"{words}.",
        recovery=Recovery.NONE if over else Recovery.DIAGNOSE,
        testimony=(Testimony(witness=Witness.HEALTH, says=says, words=words[:400]),),
        evidence=tuple(
            EvidenceRef(id=one.ref, source="gpu", at=one.at, host=one.host) for one in members[:32]
        ),
        missing=() if over else ("the agents' own metrics", "the lag of the worker and of Kafka"),
        victims=tuple(
            Domain(kind=DomainKind.NODE, host=one.host, rack=one.rack) for one in members[:64]
        ),
        rack=rack,
        rule=MANY,
    )
