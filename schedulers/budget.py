"""What a consumer lets itself do, whatever it is told: belt and braces beside the policy's budget.

Counted from its own journal. A release is never held back.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from evidence.decisions import Action, Command, Domain, Level
from schedulers.adapter import Adapter, Sizing
from schedulers.journal import Journal

__all__ = ["Limits", "over", "weight"]

_ORDER = (Level.CORDON, Level.DRAIN, Level.EVICT)


@dataclass(frozen=True, slots=True)
class Limits:
    """At most ``max_isolations`` nodes within ``window_s``; ``per_minute`` commands; a level."""

    max_isolations: int = 20
    window_s: float = 3600.0
    per_minute: int | None = None
    at_most: Level = Level.EVICT
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.max_isolations < 0:
            raise ValueError("max_isolations must be 0 or more")
        if self.window_s <= 0:
            raise ValueError("window_s must be more than 0 seconds")
        if self.per_minute is not None and self.per_minute < 1:
            raise ValueError("per_minute must be at least 1")

    def capped(self, level: Level) -> Level:
        """The level that a command's level becomes here."""
        return min(level, self.at_most, key=_ORDER.index)


def weight(domain: Domain, adapter: Adapter, limits: Limits) -> int:
    """Nodes that isolating a domain takes out; what cannot be counted fills the whole budget."""
    if domain.host is not None:
        return 1
    known = adapter.nodes(domain) if isinstance(adapter, Sizing) else None
    return max(1, limits.max_isolations if known is None else known)


def over(
    command: Command, nodes: int, journal: Journal, limits: Limits, now: datetime
) -> str | None:
    """Why an isolate would go over a limit, or None. One that was begun before counts once."""
    if command.action is not Action.ISOLATE:
        return None
    place = command.domain.host or command.domain_id
    since = now - timedelta(seconds=limits.window_s)
    taken = journal.taken_out(since)
    used = sum(taken.values())
    if place not in taken and used + nodes > limits.max_isolations:
        return (
            f"this scheduler's own budget: {used} of {limits.max_isolations} nodes were taken out "
            f"in the last {limits.window_s:g} s, {nodes} more asked for"
        )
    if limits.per_minute is not None:
        begun = journal.begun_since(now - timedelta(minutes=1), but=command.id)
        if begun >= limits.per_minute:
            return f"this scheduler's own rate: {begun} isolations were begun in the last minute"
    return None
