"""What is said of many nodes that fail alike: the one alarm, its growth and its end."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

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
from rules.surge import CLUSTER, RULE, CommonCauses, Surge

__all__ = ["forget_at", "tell"]

_NAMED = 8
_FORGET = timedelta(days=1)
#: What so many of the nodes share is named; a few were hit by something else at the same time.
_MOST = 0.9
#: Causes that `rules.racks` may explain by a rack, after its wait.
_RACKS = (Cause.NODE, Cause.GPU_THERMAL)


def forget_at(known: CommonCauses) -> datetime | None:
    """When the next surge is left to whoever was told of it; None while none stands."""
    return min((one.last + _FORGET for one in known.surges.values()), default=None)


def tell(
    known: CommonCauses,
    now: datetime,
    policy: WideningPolicy,
    settle: timedelta,
    racks_told: Iterable[str],
) -> tuple[CommonCauses, list[Verdict]]:
    """What is to be said now; the same object back when nothing changed.

    ``settle`` is the wait for a count to come to rest; ``racks_told`` are racks that have a verdict
    of their own: what happens inside one of them alone is said already.
    """
    if not known.surges:
        return (replace(known, look_at=None) if known.look_at else known), []
    due = known.look_at is not None and known.look_at <= now
    told_racks = set(racks_told)
    surges: dict[str, Surge] = {}
    verdicts: list[Verdict] = []
    restless = False
    for cause in sorted(known.surges):
        surge = known.surges[cause]
        upper = len(surge.members) + surge.more
        if surge.last + _FORGET <= now or upper < policy.common_nodes or due:
            count = surge.count
            if surge.last + _FORGET <= now or count < policy.common_nodes:
                if surge.said:
                    verdicts.append(_verdict(cause, surge, now, count, over=True))
                continue
        else:
            count = surge.count if upper >= 2 * surge.said else 0
        waits = not surge.said and Cause(cause) in _RACKS and len(_racks(surge)) == 1
        inside = waits and _racks(surge) <= told_racks
        grown = due and count != surge.said
        if not inside and count and (grown or (not waits and count >= 2 * surge.said)):
            surge = replace(surge, revision=surge.revision + 1, said=count)
            verdicts.append(_verdict(cause, surge, now, count))
        elif not inside or not due:
            restless = restless or upper != surge.said
        surges[cause] = surge
    look_at = known.look_at
    if look_at is None or due:
        look_at = now + settle if restless and not due else None
    after = replace(known, surges=surges, look_at=look_at)
    return (known if after == known else after), verdicts


def _racks(surge: Surge) -> set[str | None]:
    return {one.rack for one in surge.members.values()}


def _shared(surge: Surge, name: str) -> tuple[str, int] | None:
    """What most members have under a name, and how many of them; None where there is no such."""
    values = [value for one in surge.members.values() if (value := getattr(one, name))]
    if not values:
        return None
    value, number = min(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    return (value, number) if number >= _MOST * len(surge.members) else None


def _words(cause: str, surge: Surge, count: int) -> str:
    """What they are, when it was, and what they have in common."""
    members = surge.members
    said = [f"{count} nodes failed alike ({cause}) from {surge.first:%H:%M:%S} to"]
    said[0] += f" {surge.last:%H:%M:%S} UTC"
    common = []
    for name, word in (
        ("sign", ""),
        ("driver", "driver "),
        ("pool", "pool "),
        ("rack", "rack "),
        ("leaf", "leaf "),
    ):
        if (one := _shared(surge, name)) is not None:
            how = "" if one[1] == len(members) else f" ({one[1]} of {len(members)})"
            common.append(f"{word}{one[0]}{how}")
    racks = {one.rack for one in members.values() if one.rack}
    if len(racks) > 1:
        common.append(f"{len(racks)} racks")
    if common:
        said.append("in common: " + ", ".join(common))
    return "; ".join(said)


def _verdict(cause: str, surge: Surge, now: datetime, count: int, *, over: bool = False) -> Verdict:
    """The one alarm; it is about no part, so it takes out nothing."""
    ordered = sorted(surge.members.values(), key=lambda one: (one.at, one.unit, one.ref))
    units = list(dict.fromkeys(one.unit for one in ordered))
    named = ", ".join(units[:_NAMED]) + (" and others" if count > _NAMED else "")
    words = (
        f"{_words(cause, surge, count)} ({named}). Look for one cause above them (driver or"
        " firmware, power, cooling, one job) before more is taken out"
    )
    if over:
        but = f"; still failing: {named}" if units else ""
        words = f"The nodes that failed alike ({cause}) work again, or were seen to{but}"

    def place(name: str) -> str | None:
        shared = _shared(surge, name)
        return shared[0] if shared is not None and shared[1] == len(surge.members) else None

    return Verdict(
        id=digest(surge.incident, surge.revision + over),
        incident=surge.incident,
        revision=surge.revision + over,
        at=surge.first,
        decided_at=now,
        status=Status.RECOVERED if over else Status.SUSPECTED,
        cause=Cause(cause),
        domain=Domain(kind=DomainKind.JOB, job=CLUSTER),
        confidence=0.7,
        reason=f"{words}.",
        recovery=Recovery.NONE if over else Recovery.DIAGNOSE,
        testimony=(
            Testimony(
                witness=Witness.HEALTH,
                says=Says.CLEARS if over else Says.ACCUSES,
                words=words[:400],
            ),
        ),
        evidence=tuple(
            EvidenceRef(id=one.ref, source="verdicts", at=one.at, host=one.unit)
            for one in ordered[:32]
        ),
        missing=() if over else ("what was changed on these nodes before", "power and cooling"),
        victims=tuple(
            Domain(kind=DomainKind.NODE, host=one.unit, rack=one.rack) for one in ordered[:64]
        ),
        rack=place("rack"),
        leaf=place("leaf"),
        pool=place("pool"),
        driver=place("driver"),
        rule=RULE,
    )
