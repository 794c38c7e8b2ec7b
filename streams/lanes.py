"""In which order a worker takes what waits: its own words, then evidence, then telemetry.

Kafka promises no order between topics, so this changes how long things wait and nothing else: a
stage's time is still the smallest of its topics' ticks, and a backlog of telemetry holds it back.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Any

__all__ = ["Lane", "Turns"]

#: What stages tell one another, and what people and schedulers say: few, and commands wait for it.
_OWN = ("verdicts", "requests", "isolation.acks", "suspicions")
#: What comes whether something happened or not.
_TELEMETRY = ("gpu",)
#: Most records of a lane in one turn. A turn is stepped before the next one is, so that the last
#: lane's is what an Xid waits for in a backlog of frames: 96 of 40 snapshots are 20 to 40 ms.
_MOST = {0: None, 1: 512, 2: 96}
#: A worker that begins reads the evidence that is there before any telemetry, for so long at most.
_FIRST_S = 10.0
#: A flood of evidence holds telemetry up, but never for longer: time stands still without it.
_LONGEST_S = 1.0


class Lane(IntEnum):
    """What is taken together, first things first."""

    OWN = 0
    EVIDENCE = 1
    TELEMETRY = 2


_Fetch = Callable[[Lane, int | None], Awaitable[Mapping[Any, list[Any]]]]


class Turns:
    """Takes what was read, a turn at a time.

    ``full_name`` makes a topic's name in Kafka of its short one, ``clock`` never goes back.
    """

    def __init__(
        self, full_name: Callable[[str], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lanes = {full_name(name): Lane.OWN for name in _OWN}
        self._lanes |= {full_name(name): Lane.TELEMETRY for name in _TELEMETRY}
        self._clock = clock
        self._held_since: float | None = None
        self._began_at: float | None = None
        self._is_level = True

    def begin(self) -> None:
        """Start anew: partitions were assigned, and what explains a frame may not be read yet."""
        self._is_level, self._began_at = False, None

    def level(self, is_read: Callable[[], bool]) -> bool:
        """Whether telemetry may be taken at all: the evidence that was there has been read once.

        ``is_read`` tells whether every partition of evidence is read to its end; it is asked no
        more once it was so, or was not so for too long.
        """
        if not self._is_level:
            now = self._clock()
            if self._began_at is None:
                self._began_at = now
            self._is_level = is_read() or now - self._began_at >= _FIRST_S
        return self._is_level

    def lane(self, topic: str) -> Lane:
        """The lane of a topic (full name); the changelogs of tables go with evidence."""
        return self._lanes.get(topic, Lane.EVIDENCE)

    def room(self, waiting: int) -> bool:
        """Whether telemetry may be taken while ``waiting`` messages are not stepped yet."""
        most = _MOST[Lane.TELEMETRY]
        return most is None or waiting <= most

    async def take(
        self, fetch: _Fetch, waiting: int, *, level: bool = True
    ) -> dict[Any, list[Any]]:
        """One turn: what is there of each lane, telemetry only where evidence leaves room.

        ``level`` False leaves telemetry out. ``fetch`` gives what was read of a lane already, at
        most so many records of it, and does not wait.
        """
        found = dict(await fetch(Lane.OWN, _MOST[Lane.OWN]))
        most = _MOST[Lane.EVIDENCE]
        evidence = await fetch(Lane.EVIDENCE, most)
        found |= evidence
        if not level or not self.room(waiting):
            return found
        if most is not None and sum(map(len, evidence.values())) >= most and not self._overdue():
            return found
        self._held_since = None
        found |= await fetch(Lane.TELEMETRY, _MOST[Lane.TELEMETRY])
        return found

    def _overdue(self) -> bool:
        """Whether evidence has held telemetry up for long enough."""
        now = self._clock()
        if self._held_since is None:
            self._held_since = now
        return now - self._held_since >= _LONGEST_S
