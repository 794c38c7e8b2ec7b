"""What waits for Kafka, bounded: when it is full the oldest telemetry goes first, evidence last.

Order within a topic is kept, since readers compare a record with the one before it.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from msgspec import Struct

from evidence.records import FabricRecord, GpuFrame, GpuStatus

__all__ = ["Backlog", "Parcel", "is_telemetry"]


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """One encoded record on its way; ``done`` is told whether it arrived or was given up."""

    number: int
    topic: str
    key: bytes
    value: bytes
    telemetry: bool
    done: Callable[[bool], None]


def is_telemetry(record: Struct) -> bool:
    """Whether a record is one of many like it, so that a later one tells nearly the same.

    Counters are cumulative, so a calm GPU frame and a fabric sweep are; a frame in which a GPU or
    NVML itself fails is evidence, and so is everything else.
    """
    if isinstance(record, GpuFrame):
        return all(
            tick.error is None and all(gpu.status is GpuStatus.OK for gpu in tick.gpus)
            for tick in record.ticks
        )
    return isinstance(record, FabricRecord)


class Backlog:
    """Parcels by topic, ``max_bytes`` of keys and values at most; not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        #: Parcels dropped for want of room, by topic.
        self.dropped: Counter[str] = Counter()
        self._topics: dict[str, deque[Parcel]] = {}
        self._telemetry: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    @property
    def crowded(self) -> bool:
        """Half full: a source that can wait (a file) should."""
        return self.bytes * 2 >= self.max_bytes

    def add(self, parcel: Parcel) -> list[Parcel]:
        """Take a parcel in; return those that had to go for it, oldest telemetry first."""
        self._topics.setdefault(parcel.topic, deque()).append(parcel)
        self._weigh(parcel, 1)
        gone: list[Parcel] = []
        while self.bytes > self.max_bytes and len(self) > 1:
            oldest = self._oldest_to_drop()
            self._topics[oldest.topic].remove(oldest)
            self._weigh(oldest, -1)
            self.dropped[oldest.topic] += 1
            gone.append(oldest)
        return gone

    def take(self, blocked: Collection[str] = ()) -> Parcel | None:
        """Take the oldest parcel whose topic is not blocked; None when there is none."""
        parcel = _oldest(
            parcels[0]
            for topic, parcels in self._topics.items()
            if parcels and topic not in blocked
        )
        if parcel is not None:
            self._topics[parcel.topic].popleft()
            self._weigh(parcel, -1)
        return parcel

    def put_back(self, parcel: Parcel) -> None:
        """Take back a parcel that did not arrive, to its place by number."""
        parcels = self._topics.setdefault(parcel.topic, deque())
        later = 0
        while later < len(parcels) and parcels[later].number < parcel.number:
            later += 1
        parcels.insert(later, parcel)
        self._weigh(parcel, 1)

    def _oldest_to_drop(self) -> Parcel:
        telemetry = _oldest(
            next(parcel for parcel in self._topics[topic] if parcel.telemetry)
            for topic, count in self._telemetry.items()
            if count
        )
        oldest = telemetry or _oldest(parcels[0] for parcels in self._topics.values() if parcels)
        assert oldest is not None
        return oldest

    def _weigh(self, parcel: Parcel, sign: int) -> None:
        self.bytes += sign * (len(parcel.key) + len(parcel.value))
        if parcel.telemetry:
            self._telemetry[parcel.topic] += sign


def _oldest(parcels: Iterable[Parcel]) -> Parcel | None:
    return min(parcels, key=lambda parcel: parcel.number, default=None)
