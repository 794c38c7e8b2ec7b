"""The shape every stage shares: a record as it arrived, and ``step(state, arrived, rules)``.

A step is pure: it takes the time from what arrives, never from a clock. It returns
``(state, outputs)``; the **same state object** back means that nothing worth keeping changed, and
the stream then writes no table.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec import Struct

__all__ = ["Arrived", "reckonable"]

_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def reckonable(at: datetime) -> datetime:
    """A record's time within what a window can be added to or taken from.

    Times outside come from a broken clock, or mean "for ever".
    """
    return min(max(at, _FIRST), _LAST)


@dataclass(frozen=True, slots=True)
class Arrived:
    """One record as a stage meets it.

    ``topic`` is the short topic name, ``at`` the broker's append time (in triage: the event time),
    ``offset`` None where there is no broker. A Tick arrives like any record.
    """

    topic: str
    record: Struct
    at: datetime
    offset: int | None = None
