"""What waits in memory for Kafka, bounded: when it is full the oldest telemetry goes first.

Order within a topic is kept, since readers compare a record with the one before it.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec import Struct

from collectors.shipping.spool_loss import Loss
from evidence.records import (
    FabricRecord,
    GpuFrame,
    GpuStatus,
    KernelKind,
    KernelRecord,
    NcclKind,
    NcclRecord,
)

__all__ = ["Backlog", "Parcel", "event_time", "ignore", "is_telemetry"]


def ignore(_safe: bool) -> None:
    """The sender does not ask."""


@dataclass(slots=True, eq=False)
class Parcel:
    """One encoded record on its way; ``done`` is told whether it is safe or was given up.

    ``number`` is its place among all parcels, ``at`` its event time and ``since`` when it was
    queued (monotonic seconds). ``spooled``: the disk has it and ``done`` was told so. ``landed``:
    Kafka has it or refused it. ``fact`` is the loss it tells of. ``stored`` is what it costs on
    the disk in bytes.
    """

    number: int
    topic: str
    key: bytes
    value: bytes
    telemetry: bool
    done: Callable[[bool], None] = ignore
    at: datetime | None = None
    since: float = 0.0
    spooled: bool = False
    landed: bool = False
    fact: Loss | None = None
    stored: int = 0

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key) + len(self.value)


def is_telemetry(record: Struct) -> bool:
    """Whether a record is one of many like it, so that a later one tells nearly the same.

    Counters are cumulative, so a calm GPU frame and a fabric sweep are; so is a line that no
    parser knows. A frame in which a GPU or NVML itself fails or tells an event is evidence, and so
    is a port that went missing and everything else.
    """
    if isinstance(record, GpuFrame):
        return all(
            tick.error is None
            and not tick.events
            and all(gpu.status is GpuStatus.OK for gpu in tick.gpus)
            for tick in record.ticks
        )
    if isinstance(record, FabricRecord):
        return not record.missing
    if isinstance(record, KernelRecord):
        return record.kind is KernelKind.OTHER
    return isinstance(record, NcclRecord) and record.kind is NcclKind.OTHER


def event_time(record: Struct) -> datetime | None:
    """When what a record tells happened, as far as it knows; always with a time zone."""
    found: object
    if isinstance(record, GpuFrame) and record.ticks:
        found = record.ticks[0].at
    else:
        found = getattr(record, "at", None) or getattr(record, "observed_at", None)
    if not isinstance(found, datetime):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _number(parcel: Parcel) -> int:
    return parcel.number


#: Parcels of one topic and worth, in the order of their numbers.
_Lane = tuple[str, bool]


class Backlog:
    """Parcels by topic, ``max_bytes`` of keys and values at most; not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._lanes: dict[_Lane, deque[Parcel]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    @property
    def crowded(self) -> bool:
        """Half full: a source that can wait (a file) should."""
        return self.bytes * 2 >= self.max_bytes

    def add(self, parcel: Parcel) -> list[Parcel]:
        """Take a parcel in; return those that had to go for it, oldest telemetry first."""
        self._lane(parcel).append(parcel)
        self.bytes += parcel.size
        gone: list[Parcel] = []
        while self.bytes > self.max_bytes and len(self) > 1:
            oldest = self._head(telemetry=(True,)) or self._head()
            assert oldest is not None
            self._pop(oldest)
            gone.append(oldest)
        return gone

    def first(
        self, blocked: Collection[str] = (), behind: Mapping[str, int] | None = None
    ) -> Parcel | None:
        """Look at what `take` would take."""
        return self._head(blocked, behind)

    def take(
        self, blocked: Collection[str] = (), behind: Mapping[str, int] | None = None
    ) -> Parcel | None:
        """Take the oldest parcel whose topic is not blocked; None when there is none.

        ``behind`` names topics of which only parcels up to a number may go, since the disk has
        what comes after it.
        """
        parcel = self.first(blocked, behind)
        if parcel is not None:
            self._pop(parcel)
        return parcel

    def take_unspooled(self, count: int) -> list[Parcel]:
        """Take out the oldest parcels that the disk does not have, ``count`` at most, in order."""
        aside: dict[_Lane, list[Parcel]] = {}
        found: list[Parcel] = []
        while len(found) < count and (oldest := self._head()) is not None:
            self._pop(oldest)
            if oldest.spooled:
                aside.setdefault((oldest.topic, oldest.telemetry), []).append(oldest)
            else:
                found.append(oldest)
        for parcels in aside.values():
            self.restore(parcels)
        return found

    def restore(self, parcels: Sequence[Parcel]) -> None:
        """Take in parcels in order that come before what is here of their topics, mostly."""
        lanes: dict[_Lane, list[Parcel]] = {}
        for parcel in parcels:
            lanes.setdefault((parcel.topic, parcel.telemetry), []).append(parcel)
        for name, group in lanes.items():
            lane = self._lanes.setdefault(name, deque())
            if lane and lane[0].number < group[-1].number:
                for parcel in group:
                    self.put_back(parcel)
                continue
            lane.extendleft(reversed(group))
            self.bytes += sum(parcel.size for parcel in group)

    def put_back(self, parcel: Parcel) -> None:
        """Take back a parcel that did not arrive, to its place by number."""
        lane = self._lane(parcel)
        lane.insert(bisect_left(lane, parcel.number, key=_number), parcel)
        self.bytes += parcel.size

    def unspool(self) -> None:
        """Forget that the disk has any of it."""
        for lane in self._lanes.values():
            for parcel in lane:
                parcel.spooled, parcel.stored = False, 0

    def oldest_unspooled(self) -> float | None:
        """Since when the disk lacks something; None when it lacks nothing."""
        firsts = (
            next((one.since for one in lane if not one.spooled), None)
            for lane in self._lanes.values()
        )
        return min((since for since in firsts if since is not None), default=None)

    def holds(self, topic: str) -> bool:
        """Whether something of a topic is here that came back from the disk."""
        return any(
            lane[0].spooled
            for worth in (True, False)
            if (lane := self._lanes.get((topic, worth))) is not None and lane
        )

    def _head(
        self,
        blocked: Collection[str] = (),
        behind: Mapping[str, int] | None = None,
        telemetry: Iterable[bool] = (True, False),
    ) -> Parcel | None:
        behind = behind or {}
        oldest: Parcel | None = None
        for (topic, worth), lane in self._lanes.items():
            if not lane or topic in blocked or worth not in telemetry:
                continue
            first = lane[0]
            if topic in behind and first.number > behind[topic]:
                continue
            if oldest is None or first.number < oldest.number:
                oldest = first
        return oldest

    def _lane(self, parcel: Parcel) -> deque[Parcel]:
        return self._lanes.setdefault((parcel.topic, parcel.telemetry), deque())

    def _pop(self, parcel: Parcel) -> None:
        self._lane(parcel).popleft()
        self.bytes -= parcel.size
