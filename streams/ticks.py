"""Time as the stages know it: the ticks that came back through their input partitions.

A stage's time in a partition is the smallest of its input topics' last ticks there, so that a
backlog in one topic holds time back instead of letting timeouts fire on records not yet read.
"""

from collections.abc import Collection, Iterable
from datetime import datetime

from evidence.identity import digest
from evidence.records import Tick
from evidence.topics import TOPICS

__all__ = ["TICK_KEY", "StageTime", "is_ticked", "tick"]

#: Key of a tick: a compacted topic refuses messages without one; no host name has a slash.
TICK_KEY = b"tick/1"


def is_ticked(topic: str) -> bool:
    """Whether a topic (short name) carries ticks."""
    return Tick in TOPICS[topic].types


def tick(now: datetime, *position: object) -> Tick:
    """The tick of one moment in one place (topic and partition, or stage)."""
    return Tick(id=digest("tick", now.isoformat(), *position), at=now)


class StageTime:
    """The time of one stage in each of its partitions.

    ``last`` has the last tick of each topic (short name) by partition, ``now`` the time they make;
    both are for reading.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics: Collection[str] = tuple(filter(is_ticked, topics))
        self.last: dict[int, dict[str, datetime]] = {}
        self.now: dict[int, datetime] = {}

    def advance(self, topic: str, partition: int, at: datetime) -> datetime | None:
        """Take one tick; returns the stage's new time if that moved it, else None.

        Time never goes back: a tick older than the last one (two workers' clocks) changes nothing.
        """
        last = self.last.setdefault(partition, {})
        if topic in last and at <= last[topic]:
            return None
        last[topic] = at
        if len(last) < len(self._topics):
            return None
        now = min(last.values())
        if partition in self.now and now <= self.now[partition]:
            return None
        self.now[partition] = now
        return now

    def forget(self) -> None:
        """Start anew: partitions were assigned, and others may have been ticked meanwhile."""
        self.last.clear()
        self.now.clear()
