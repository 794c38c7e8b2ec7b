"""Time as the stages know it: the ticks that came back through their input partitions.

A stage's time in a partition is the smallest of its input topics' last ticks there, so that a
backlog in one topic holds time back instead of letting timeouts fire on records not yet read.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from evidence.identity import digest
from evidence.records import Tick
from evidence.topics import TOPICS

__all__ = ["TICK_KEY", "Place", "StageTime", "TickTimes", "is_ticked", "tick", "ticked_at"]

#: Key of a tick: a compacted topic refuses messages without one; no host name has a slash.
TICK_KEY = b"tick/1"
#: How far a worker's clock may be from the broker's, and how long a tick may be on its way.
_CLOCK_SLACK = timedelta(seconds=5)


def is_ticked(topic: str) -> bool:
    """Whether a topic (short name) carries ticks."""
    return Tick in TOPICS[topic].types


def tick(now: datetime, *position: object) -> Tick:
    """The tick of one moment in one place (topic and partition, or stage)."""
    return Tick(id=digest("tick", now.isoformat(), *position), at=now)


def ticked_at(said: datetime, appended: datetime) -> datetime:
    """What a tick makes of the time: what it says, or where its worker's clock is off, Kafka's.

    Records and ticks are told apart in time by one clock. A worker's that was stepped an hour on
    would end every wait at once, and after it was put right end none for an hour.
    """
    return said if abs(said - appended) <= _CLOCK_SLACK else appended


#: A stage's name and one of its partitions.
Place = tuple[str, int]


class TickTimes:
    """When to tick which place: each every ``every_s``, and where a key is due, when it is.

    So what waits to settle is judged when its time is up and not up to ``every_s`` later. Of two
    keys that are due within ``apart_s`` in one place, the second waits for that.
    """

    def __init__(self, every_s: float, apart_s: float = 0.05) -> None:
        self._every_s = every_s
        self._apart_s = min(apart_s, every_s)
        self._sent: dict[Place, tuple[float, datetime]] = {}

    def wanted(
        self, seconds: float, now: datetime, dues: Mapping[Place, datetime | None]
    ) -> list[Place]:
        """The places to tick now; takes them for ticked.

        ``seconds`` is of a clock that never goes back, ``now`` what the ticks will say; ``dues``
        has the first time at which a key of each place is due. A key that is still due after a
        tick (it is on its way, or behind a backlog) brings no second one.
        """
        wanted = []
        for place, due in dues.items():
            last_seconds, last = self._sent.get(place, (float("-inf"), None))
            since_s = seconds - last_seconds
            come = due is not None and due <= now and (last is None or last < due)
            if since_s >= self._every_s or (come and since_s >= self._apart_s):
                wanted.append(place)
                self._sent[place] = seconds, now
        return wanted

    def wait_s(self, seconds: float, now: datetime, dues: Mapping[Place, datetime | None]) -> float:
        """How long nothing will be wanted, as far as is known now."""
        waits = [self._every_s]
        for place, due in dues.items():
            last_seconds, last = self._sent.get(place, (float("-inf"), None))
            waits.append(last_seconds + self._every_s - seconds)
            if due is not None and (last is None or last < due):
                apart_s = last_seconds + self._apart_s - seconds
                waits.append(max((due - now).total_seconds(), apart_s))
        return max(0.0, min(waits))


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
