"""What was dropped on the way to Kafka, counted, and told as a record in its place."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from evidence.identity import digest
from evidence.records import KernelKind, KernelRecord

__all__ = ["Loss", "Losses", "fact"]


@dataclass(slots=True)
class Loss:
    """``count`` records of a topic, the first of which had place ``number``.

    ``at`` and ``last_at`` are the first and last event times among them, where those are known.
    """

    number: int
    topic: str
    count: int
    at: datetime | None = None
    last_at: datetime | None = None

    def merge(self, other: "Loss") -> None:
        """Count another loss of the same topic in."""
        self.number = min(self.number, other.number)
        self.count += other.count
        self.at = min((at for at in (self.at, other.at) if at), default=None)
        self.last_at = max((at for at in (self.last_at, other.last_at) if at), default=None)


class Losses:
    """Losses that were not told yet: one a topic that grows, others that do not any more.

    Those that a process before this one left may have been told already, with the count they
    have: they stay as they are, so that telling them again gives the same record.
    """

    def __init__(self, told: Iterable[Loss] = ()) -> None:
        self._told = sorted(told, key=lambda loss: loss.number)
        self._growing: dict[str, Loss] = {}

    def __len__(self) -> int:
        return len(self._told) + len(self._growing)

    def __iter__(self) -> Iterator[Loss]:
        yield from self._told
        yield from self._growing.values()

    def note(self, loss: Loss) -> None:
        """Count a loss."""
        known = self._growing.get(loss.topic)
        if known is None:
            self._growing[loss.topic] = loss
        else:
            known.merge(loss)

    def take(self, before: int | None = None) -> Loss | None:
        """Take the first loss out, if its place is before a number; None when there is none."""
        first = min(self, key=lambda loss: loss.number, default=None)
        if first is None or (before is not None and first.number > before):
            return None
        if self._growing.get(first.topic) is first:
            del self._growing[first.topic]
        else:
            self._told.remove(first)
        return first


def fact(loss: Loss, host: str) -> KernelRecord:
    """Tell a loss as a record: the same loss gives the same id.

    Where no event time is known, now stands for ``observed_at``.
    """
    times = [at.isoformat() if at else "" for at in (loss.at, loss.last_at)]
    told = f"{loss.count} records for topic {loss.topic} were dropped before Kafka had them"
    return KernelRecord(
        id=digest("spool", host, loss.topic, loss.number, loss.count, *times),
        observed_at=loss.last_at or datetime.now(UTC),
        raw=told,
        kind=KernelKind.OVERRUN,
        host=host,
        at=loss.at,
        last_at=loss.last_at,
        count=loss.count,
        source="spool",
        seq=loss.number,
        device=loss.topic,
        message=told,
    )
