"""Writes old records into the warehouse's own files, each once, however often they are given.

A record's id is a function of its content. What an earlier import stored is found by it and left
out; a file is named by what it holds and published like the sink's, so that a run that was killed
is simply repeated. Its day is that of its events, for questions about a time open only the files of
those days; readers, compaction and retention treat it as a file of a sink that was late.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb
from msgspec import Struct

from evidence.records import GpuFrame, GpuSnapshot, KernelRecord
from evidence.wire import encode
from warehouse.backfill.place import TOPIC, place_of
from warehouse.backfill.stored import Name, StoredNames
from warehouse.errors import SinkError, WarehouseError
from warehouse.files import Taken, look, prepare, publish
from warehouse.kinds import KINDS
from warehouse.query import sentence
from warehouse.storage import at, is_remote
from warehouse.tables import Message, build

__all__ = ["Count", "Store", "key_of"]

#: A topic's records of one day.
_Day = tuple[str, date]

#: Bytes of records, as JSON, that are held: memory takes about four times that.
_BYTES = 32 << 20
#: What a record takes beside its own text.
_RECORD_BYTES = 500
#: Held while one import writes; a folder of this name is skipped by readers.
_LOCK = "_import"


@dataclass(slots=True)
class Count:
    """What became of one kind's records; ``first`` and ``last`` are event times of all of them.

    ``differs`` counts samples of a GPU that are stored for the same time with other values.
    """

    new: int = 0
    known: int = 0
    differs: int = 0
    first: datetime | None = None
    last: datetime | None = None

    def see(self, when: datetime) -> None:
        """Widen the span."""
        self.first = when if self.first is None else min(self.first, when)
        self.last = when if self.last is None else max(self.last, when)


class Store:
    """Takes records and stores them in files of some size; a context manager.

    What is left over is stored by `flush`. With ``dry_run`` nothing is written, and of records that
    are given twice only those are told apart that come together. Raises SinkError where
    another import writes, or nothing can be stored; OSError when the disk refuses.
    """

    def __init__(
        self, root: Path, now: datetime, *, compression: str = "zstd", dry_run: bool = False
    ) -> None:
        self._root = root
        self._now = now
        self._compression = compression
        self._dry_run = dry_run
        self._held: dict[_Day, list[tuple[Name, Message]]] = {}
        self._size: dict[_Day, int] = {}
        self._total = 0
        self._stack = ExitStack()
        self._stored: StoredNames | None = None
        self.counts: dict[str, Count] = {}

    def __enter__(self) -> Self:
        if not self._dry_run:
            prepare(self._root)
            if not self._stack.enter_context(at(self._root).only(_LOCK)):
                raise SinkError(f"another import writes under {self._root}: let it end first")
        if is_remote(self._root) or self._root.is_dir():
            self._stored = self._stack.enter_context(StoredNames(self._root))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def add(self, record: KernelRecord | GpuFrame) -> None:
        """Take one record with an event time; a frame holds one tick of at most one GPU."""
        topic = "gpu" if isinstance(record, GpuFrame) else "kernel"
        name = key_of(record)
        value = encode(record)
        day = topic, name.at.astimezone(UTC).date()
        held = self._held.setdefault(day, [])
        held.append((name, self._message(len(held), name, record, value)))
        self._size[day] = self._size.get(day, 0) + len(value) + _RECORD_BYTES
        self._total += len(value) + _RECORD_BYTES
        self.counts.setdefault(topic, Count()).see(name.at)
        if self._total >= _BYTES:
            # The largest days go: many days together would else become many tiny files.
            for one in sorted(self._held, key=self._size.__getitem__, reverse=True):
                if self._total > _BYTES / 2:
                    self._store(one)

    def flush(self) -> None:
        """Store what is held."""
        for day in sorted(self._held):
            self._store(day)

    def _message(self, number: int, name: Name, record: Struct, value: bytes) -> Message:
        return Message(
            offset=number,
            timestamp_ms=int(self._now.timestamp() * 1000),
            key=name.host.encode(),
            value=value,
            headers=(),
            record=record,
            error=None,
        )

    def _store(self, day: _Day) -> None:
        held = self._held.pop(day)
        self._total -= self._size.pop(day)
        topic, date_ = day
        count = self.counts[topic]
        once = list(self._once(held, count))
        known: dict[int, bool] = {}
        if self._stored is not None:
            try:
                known = self._stored.among(KINDS[topic].name, date_, [name for name, _ in once])
            except duckdb.Error as error:
                raise WarehouseError(
                    f"cannot read what is stored under {self._root}: {sentence(error)}"
                ) from error
        fresh = [one for number, one in enumerate(once) if number not in known]
        same = sum(known.values())
        count.known += same
        count.differs += len(known) - same
        if fresh and not self._dry_run:
            self._publish(topic, date_, fresh)
        count.new += len(fresh)

    @staticmethod
    def _once(held: list[tuple[Name, Message]], count: Count) -> Iterator[tuple[Name, Message]]:
        """Without what is there twice: a record by its id, a sample by what it is a sample of."""
        seen: dict[object, str] = {}
        for one in held:
            name = one[0]
            key = (name.host, name.source, name.gpu, name.at) if name.source else name.id
            if key not in seen:
                seen[key] = name.id
                yield one
            elif seen[key] == name.id:
                count.known += 1
            else:
                count.differs += 1

    def _publish(self, topic: str, day: date, fresh: list[tuple[Name, Message]]) -> None:
        kind = KINDS[topic]
        place = place_of(kind, (name.id for name, _ in fresh), day)
        messages = [
            Message(
                number, one.timestamp_ms, one.key, one.value, one.headers, one.record, one.error
            )
            for number, (_, one) in enumerate(fresh)
        ]
        try:
            look(self._root, place)
            table = build(kind, TOPIC, place.log, place.partition, messages)
            publish(self._root, place, table, self._compression)
        except Taken:
            return  # the very same rows


def key_of(record: KernelRecord | GpuFrame) -> Name:
    """What tells a record from others. Raises ValueError where it has no event time."""
    if isinstance(record, GpuFrame):
        (tick,) = record.ticks
        gpu = _gpu(record.host, tick.gpus[0]) if tick.gpus else ""
        return Name(record.id, tick.at, record.host, record.source, gpu)
    if record.at is None:
        raise ValueError(f"record {record.id} has no event time")
    return Name(record.id, record.at, record.host or "")


def _gpu(host: str, gpu: GpuSnapshot) -> str:
    return gpu.uuid or gpu.serial or f"{host}/{gpu.pci or gpu.index}"
