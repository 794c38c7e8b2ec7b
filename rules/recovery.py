"""When a part that is out may return: its repair was seen, and it stayed clean for a while.

A verdict `recovered` (the driver or NVML took the fault back: a reset, a reboot, another card)
starts a hold's clock; what is said against the part since starts it anew. Only our own holds have
one.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from evidence.decisions import Hold, Status, Verdict
from rules.age import STALE
from rules.desired import OURSELVES, Part

__all__ = ["accuses", "again", "clean_at", "is_over", "looks_at", "proposable_at", "proposal"]

_ACCUSING = (Status.LOCALIZED, Status.SUSPECTED, Status.INSUFFICIENT)


def accuses(verdict: Verdict) -> bool:
    """Whether a verdict speaks against its part: also one that is not sure, or cannot see it."""
    return (
        verdict.status in _ACCUSING
        and verdict.explained_by is None
        and verdict.victim_of is None
        and verdict.muted != STALE
    )


def is_over(part: Part, incident: str, now: datetime) -> Part:
    """A part whose incident was said to be over; the same object when that is known."""
    if incident in part.over or not any(one.id == incident for one in part.holds if _ours(one)):
        return part
    return replace(part, over={**part.over, incident: now})


def again(part: Part, incident: str, now: datetime) -> Part:
    """A part that was accused since: the incident is not over, the other clocks restart."""
    over = {key: now for key in part.over if key != incident}
    return replace(part, over=over, proposed_at=None)


def clean_at(part: Part, clean_s: float) -> dict[str, datetime]:
    """When each hold that is over may be lifted, by incident."""
    held = {hold.id for hold in part.holds if _ours(hold)}
    clean = timedelta(seconds=clean_s)
    return {incident: at + clean for incident, at in part.over.items() if incident in held}


def proposable_at(part: Part, clean_s: float) -> datetime | None:
    """When a release may be proposed; None while a hold is not over, or is a person's."""
    if not part.holds or part.dry_run or part.proposed_at is not None:
        return None
    clean = clean_at(part, clean_s)
    if any(hold.id not in clean for hold in part.holds):
        return None
    return max(clean.values())


def looks_at(parts: Mapping[str, Part], clean_s: float, *, automatic: bool) -> datetime | None:
    """When the next part is to be looked at; None while none has a clock."""
    times: list[datetime] = []
    for part in parts.values():
        if not part.over:
            continue
        if automatic:
            times += clean_at(part, clean_s).values()
        elif (at := proposable_at(part, clean_s)) is not None:
            times.append(at)
    return min(times, default=None)


def proposal(part: Part, clean_s: float) -> str:
    """The words of a proposal, and of a release that is made."""
    since = max(part.over.values())
    return f"it works again since {since:%Y-%m-%d %H:%M:%S} UTC and stayed clean for {clean_s:g} s"


def _ours(hold: Hold) -> bool:
    return hold.by == OURSELVES and not hold.firm
