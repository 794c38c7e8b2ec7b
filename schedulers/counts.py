"""What one consumer has done since it began, for its metrics."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

__all__ = ["Counts"]


@dataclass(slots=True)
class Counts:
    """Plain numbers, written by the consumer's thread and read by that of the metrics."""

    #: monotonic time of the last turn of the loop, and whether its last word with Kafka was good
    turned: float = 0.0
    connected: bool = False
    acks: Counter[str] = field(default_factory=Counter)  # by status
    letters: int = 0
    passed_over: int = 0
    settles: int = 0
    requests: Counter[str] = field(default_factory=Counter)  # by action
    context: int = 0
    looks: int = 0
    looks_failed: int = 0
    looked_at: datetime | None = None
    #: differences between what is desired and what the scheduler says, now, by kind
    differences: dict[str, int] = field(default_factory=dict)
