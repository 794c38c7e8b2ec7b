"""Many nodes failing alike within minutes have a cause in common: one alarm says so and names it.

A bad driver, a dip of the power or a firmware roll-out looks like many culprits. The alarm is one
incident, told once, at each doubling and when the count has come to rest; while it stands, what is
no hard fact is held for a person (`explains`), whatever the budget has left.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from evidence.decisions import Cause, DomainKind, Says, Status, Verdict
from evidence.identity import digest
from rules.age import STALE
from rules.policy import WideningPolicy

__all__ = [
    "CLUSTER",
    "RULE",
    "CommonCauses",
    "Failing",
    "Surge",
    "explains",
    "forgotten",
    "take",
]

RULE = "common-cause"
#: Where the alarm hangs: no part of the cluster, and so nothing that can be taken out.
CLUSTER = "cluster"
_KEPT = 1024
_ALONE_KEPT = 512
#: NVRM: Xid (PCI:0000:4f:00): 119, pid=3127, name=python3, Timeout waiting for RPC from GSP!
_XID = re.compile(r"\bXid \(PCI:[^)]*\): (\d{1,3})\b")
#: Verdicts about many parts themselves, and those of which another rule gathers many.
_WIDE = frozenset({RULE, "rack", "hot-rack", "switch", "silent-node", "silent-hosts"})
_WIDE_KINDS = (DomainKind.JOB, DomainKind.RACK, DomainKind.SWITCH)
_NO_CAUSE = (Cause.SOFTWARE, Cause.UNKNOWN)


class Failing(Struct, frozen=True, array_like=True):
    """One incident among many: its node (or link, switch), and what it may have in common."""

    unit: str
    revision: int
    cause: Cause
    at: datetime
    ref: str
    sign: str
    rack: str | None = None
    leaf: str | None = None
    pool: str | None = None
    driver: str | None = None


class Surge(Struct, frozen=True, omit_defaults=True):
    """The nodes that fail with one cause, by incident; told last when ``said`` were.

    ``first`` and ``last`` bound their events, ``more`` are counted only, beyond what is kept.
    """

    incident: str
    first: datetime
    last: datetime
    members: dict[str, Failing] = {}
    more: int = 0
    revision: int = 0
    said: int = 0

    @property
    def count(self) -> int:
        """How many nodes fail."""
        return len({one.unit for one in self.members.values()}) + self.more


class CommonCauses(Struct, frozen=True, omit_defaults=True):
    """What fails, by cause: alone, or in a surge. ``look_at`` is when a surge is told anew."""

    alone: dict[str, Failing] = {}
    surges: dict[str, Surge] = {}
    look_at: datetime | None = None


def explains(known: CommonCauses, verdict: Verdict, policy: WideningPolicy) -> str | None:
    """Why a verdict's command is held, in one sentence: it is one of many; None where it is not."""
    surge = known.surges.get(verdict.cause)
    if surge is None or _is_wide(verdict):
        return None
    if not surge.said or not _near(surge, verdict.at, policy):
        return None
    return (
        f"Common cause: {surge.count} nodes failed with {verdict.cause} within minutes (alarm"
        f" {surge.incident}); a person decides whether more are taken out."
    )


def take(
    known: CommonCauses, verdict: Verdict, now: datetime, policy: WideningPolicy
) -> CommonCauses:
    """What fails, with a verdict taken in; the same object when it changes nothing."""
    if _is_wide(verdict):
        return known
    incident = verdict.incident
    before = _find(known, incident)
    if before is not None and verdict.revision < before.revision:
        return known
    if not _counts(verdict):
        if before is not None:
            return forgotten(known, (incident,))
        return _counted_out(known, verdict)
    if before is not None and before.cause is verdict.cause:
        return known
    if before is not None:
        known = forgotten(known, (incident,))
    return _with(known, verdict, now, policy)


def forgotten(known: CommonCauses, incidents: Iterable[str]) -> CommonCauses:
    """What fails without some incidents; the same object when none of them is known."""
    gone = {one for one in incidents if _find(known, one) is not None}
    if not gone:
        return known
    alone = {key: one for key, one in known.alone.items() if key not in gone}
    surges = {
        cause: replace(surge, members={k: o for k, o in surge.members.items() if k not in gone})
        if gone & surge.members.keys()
        else surge
        for cause, surge in known.surges.items()
    }
    return replace(known, alone=alone, surges=surges)


def _is_wide(verdict: Verdict) -> bool:
    """Whether a verdict is about many parts itself: it is no one of them."""
    return verdict.rule in _WIDE or verdict.domain.kind in _WIDE_KINDS


def _find(known: CommonCauses, incident: str) -> Failing | None:
    if (one := known.alone.get(incident)) is not None:
        return one
    for surge in known.surges.values():
        if (one := surge.members.get(incident)) is not None:
            return one
    return None


def _counts(verdict: Verdict) -> bool:
    return (
        verdict.status in (Status.LOCALIZED, Status.SUSPECTED)
        and verdict.cause not in _NO_CAUSE
        and verdict.explained_by is None
        and verdict.victim_of is None
        and verdict.muted not in (STALE, "off")
        and not (
            verdict.status is Status.SUSPECTED and verdict.cause is Cause.NODE and _alone(verdict)
        )
    )


def _alone(verdict: Verdict) -> bool:
    """Whether one witness alone accuses a node: that may be our own pipeline."""
    return len({one.witness for one in verdict.testimony if one.says is Says.ACCUSES}) < 2  # noqa: PLR2004


def _counted_out(known: CommonCauses, verdict: Verdict) -> CommonCauses:
    """One that was counted only is over."""
    surge = known.surges.get(verdict.cause)
    if surge is None or not surge.more or verdict.status is not Status.RECOVERED:
        return known
    return replace(
        known, surges={**known.surges, verdict.cause: replace(surge, more=surge.more - 1)}
    )


def _with(
    known: CommonCauses, verdict: Verdict, now: datetime, policy: WideningPolicy
) -> CommonCauses:
    one = _failing(verdict)
    surge = known.surges.get(verdict.cause)
    if surge is not None and _near(surge, one.at, policy):
        joined = _joined(surge, {verdict.incident: one})
        # Its range grew, and may reach others now.
        near = {
            key: other
            for key, other in known.alone.items()
            if other.cause is one.cause and _near(joined, other.at, policy)
        }
        return _stands(known, one.cause, _joined(joined, near), near)
    oldest = now - 2 * timedelta(seconds=policy.common_within_s)
    alone = {key: other for key, other in known.alone.items() if other.at >= oldest}
    alone[verdict.incident] = one
    if len(alone) > _ALONE_KEPT:
        del alone[min(alone, key=lambda key: (alone[key].at, key))]
    known = replace(known, alone=alone)
    same = {key: other for key, other in alone.items() if other.cause is one.cause}
    together = _together(same, timedelta(seconds=policy.common_within_s))
    if len({other.unit for other in together.values()}) < policy.common_nodes:
        return known
    if surge is None:
        first = min(together.items(), key=lambda item: (item[1].at, item[0]))
        begun = first[1].at
        surge = Surge(digest(RULE, one.cause, first[0]), begun, begun)
    return _stands(known, one.cause, _joined(surge, together), together)


def _stands(
    known: CommonCauses, cause: Cause, surge: Surge, joined: Mapping[str, Failing]
) -> CommonCauses:
    alone = known.alone
    if joined:
        alone = {key: one for key, one in alone.items() if key not in joined}
    return replace(known, alone=alone, surges={**known.surges, str(cause): surge})


def _near(surge: Surge, at: datetime, policy: WideningPolicy) -> bool:
    within = timedelta(seconds=policy.common_within_s)
    return surge.first - within <= at <= surge.last + within


def _joined(surge: Surge, more: Mapping[str, Failing]) -> Surge:
    if not more:
        return surge
    room = max(0, _KEPT - len(surge.members))
    kept = dict(list(more.items())[:room])
    times = [one.at for one in more.values()]
    return replace(
        surge,
        members={**surge.members, **kept},
        more=surge.more + sum(one.revision <= 1 for one in list(more.values())[room:]),
        first=min(surge.first, *times),
        last=max(surge.last, *times),
    )


def _together(failing: Mapping[str, Failing], within: timedelta) -> dict[str, Failing]:
    """The most that failed within a window of that length, counted in nodes."""
    ordered = sorted(failing.items(), key=lambda item: (item[1].at, item[1].unit, item[0]))
    begin, best, most = 0, (0, 0), 0
    units: Counter[str] = Counter()
    for end, (_, one) in enumerate(ordered):
        units[one.unit] += 1
        while one.at - ordered[begin][1].at > within:
            left = ordered[begin][1].unit
            units[left] -= 1
            if not units[left]:
                del units[left]
            begin += 1
        if len(units) > most:
            most = len(units)
            best = (begin, end + 1)
    return dict(ordered[best[0] : best[1]])


def _failing(verdict: Verdict) -> Failing:
    found = (_XID.search(ref.text) for ref in verdict.evidence)
    code = next((match.group(1) for match in found if match is not None), None)
    return Failing(
        unit=verdict.host or verdict.domain.host or verdict.domain.switch or verdict.domain.id,
        revision=verdict.revision,
        cause=verdict.cause,
        at=verdict.at,
        ref=verdict.evidence[0].id if verdict.evidence else verdict.id,
        sign=f"Xid {code}" if code is not None else verdict.rule or "",
        rack=verdict.rack or verdict.domain.rack,
        leaf=verdict.leaf,
        pool=verdict.pool,
        driver=verdict.driver,
    )
