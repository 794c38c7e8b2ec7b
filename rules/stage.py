"""The shape every stage shares: a record as it arrived, and ``step(state, arrived, rules)``.

A step is pure: it takes the time from what arrives, never from a clock. It returns
``(state, outputs)``; the **same state object** back means that nothing worth keeping changed, and
the stream then writes no table.
"""

from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct

__all__ = ["Arrived"]


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
