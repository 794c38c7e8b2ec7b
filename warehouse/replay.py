"""Reads stored messages back as the records they were, in the order in which Kafka took them.

A partition's files are read one behind the other and the partitions side by side, so that a stretch
of any length takes the memory of one batch a partition.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from evidence.decisions import DesiredState
from evidence.records import FabricPort, FabricRecord, GpuFrame, GpuSnapshot, GpuTick, Tick
from evidence.topics import TOPICS, Key
from warehouse.errors import WarehouseError
from warehouse.kinds import FIELD_OF, KAFKA_FIELDS, KINDS, Kind
from warehouse.sequence import logs, stored_days
from warehouse.storage import is_remote

__all__ = ["Place", "Stored", "begin_and_end", "desired_states", "messages", "places"]

#: Rows read at once of one partition.
_BATCH = 2048
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A file's day is that of its first message: the next day's may stand in it.
_DAY = timedelta(days=1)
_OF_KAFKA = frozenset(one.name for one in KAFKA_FIELDS)
_OF_GPU = frozenset(GpuSnapshot.__struct_fields__)
_OF_PORT = frozenset(FabricPort.__struct_fields__)
#: Key of a tick in every topic, as the worker sends it.
_TICK_KEY = b"tick/1"
_Row = dict[str, Any]
#: Topic (short), log, partition and offset of a message.
Place = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class Stored:
    """One message: ``topic`` is the short name, ``at`` Kafka's time of it.

    ``record`` is None for what could not be decoded and for a tombstone.
    """

    topic: str
    log: str
    partition: int
    offset: int
    key: bytes | None
    at: datetime
    record: Struct | None

    @property
    def order(self) -> tuple[str, int, int]:
        """What orders messages that Kafka took in the same millisecond."""
        return self.topic, self.partition, self.offset


def messages(
    root: Path,
    topics: Iterable[str],
    since: datetime,
    until: datetime,
    *,
    host: str | None = None,
    held: Mapping[Place, datetime] = MappingProxyType({}),
) -> Iterator[Stored]:
    """The messages of those topics that Kafka took in [since, until], in that order.

    The order is that of Kafka's time, topic, partition and offset; within a partition always that
    of the offsets. With ``host`` those of other hosts are left out where the key is one; a message
    in ``held`` comes not before that time, and nor do those behind it in its partition. Raises
    WarehouseError where there is no warehouse or a file is damaged.
    """
    _check(root)
    with TemporaryDirectory(prefix="ringfence-replay-") as scratch:
        streams = [
            _partition(_within(_found(KINDS[topic], files, held), since, until), _keys(topic, host))
            for topic in topics
            for files in logs(root, KINDS[topic], since, until, Path(scratch)).values()
        ]
        for _, stored in heapq.merge(*streams, key=itemgetter(0)):
            yield stored


def _keys(topic: str, host: str | None) -> frozenset[bytes]:
    """The keys that are read; none: all of them. Ticks have a key of their own."""
    if host is None or TOPICS[topic].key is not Key.HOST:
        return frozenset()
    return frozenset((host.encode(), _TICK_KEY))


def desired_states(root: Path, before: datetime) -> list[DesiredState]:
    """What each domain was to be at ``before``: its last state that was published until then."""
    last: dict[bytes, DesiredState] = {}
    for stored in messages(root, ["isolation.state"], _EPOCH, before):
        key = stored.key or b""
        last.pop(key, None)
        if isinstance(stored.record, DesiredState) and stored.at < before:
            last[key] = stored.record
    return list(last.values())


def begin_and_end(root: Path) -> tuple[datetime, datetime] | None:
    """When the first day begins and the last one ends of which anything is stored; None: nothing.

    Raises WarehouseError where there is no warehouse.
    """
    _check(root)
    days = [
        datetime.fromisoformat(day).replace(tzinfo=UTC)
        for kind in KINDS.values()
        for day in stored_days(root, kind)
    ]
    return (min(days), max(days) + 2 * _DAY) if days else None


def _check(root: Path) -> None:
    if not is_remote(root) and not root.is_dir():
        raise WarehouseError(f"there is no warehouse at {root}: no sink has stored anything there")


_Placed = tuple[tuple[datetime, str, int, int], Stored]
_Found = tuple[datetime, Kind, list[_Row]]


def _found(kind: Kind, files: list[list[Path]], held: Mapping[Place, datetime]) -> Iterator[_Found]:
    """The rows of each message of a partition, and when it is taken to come."""
    reached = _EPOCH
    rows = heapq.merge(*(_chained(one) for one in files), key=itemgetter("kafka_offset"))
    for _, group in groupby(rows, itemgetter("kafka_log", "kafka_offset")):
        of_message = list(group)
        first = of_message[0]
        reached = max(reached, first["appended_at"] or _EPOCH)
        if held:
            reached = max(reached, held.get(_place(kind, first), reached))
        yield reached, kind, of_message


def _within(found: Iterable[_Found], since: datetime, until: datetime) -> Iterator[_Found]:
    return (one for one in found if since <= one[0] <= until)


def _partition(found: Iterable[_Found], keys: frozenset[bytes]) -> Iterator[_Placed]:
    """One partition's messages with their place in the order of all."""
    for reached, kind, of_message in found:
        first = of_message[0]
        if keys and first["kafka_key"] not in keys:
            continue
        stored = Stored(
            topic=kind.topic,
            log=first["kafka_log"],
            partition=first["kafka_partition"],
            offset=first["kafka_offset"],
            key=first["kafka_key"],
            at=first["appended_at"] or _EPOCH,
            record=_record(kind, of_message),
        )
        yield (reached, *stored.order), stored


def places(
    root: Path, topics: Iterable[str], since: datetime, until: datetime, ids: Collection[str]
) -> dict[str, tuple[Place, datetime]]:
    """Where the records of those ids first stand, and when Kafka took them."""
    found: dict[str, tuple[Place, datetime]] = {}
    with TemporaryDirectory(prefix="ringfence-replay-") as scratch:
        for kind in (KINDS[topic] for topic in topics):
            for files in logs(root, kind, since, until, Path(scratch)).values():
                chains = (_chained(one, _PLACE) for one in files)
                for row in heapq.merge(*chains, key=itemgetter("kafka_offset")):
                    if row["id"] in ids and row["id"] not in found:
                        found[row["id"]] = _place(kind, row), row["appended_at"] or _EPOCH
    return found


_PLACE = ["kafka_log", "kafka_partition", "kafka_offset", "appended_at", "id"]


def _place(kind: Kind, row: _Row) -> Place:
    return kind.topic, row["kafka_log"], row["kafka_partition"], row["kafka_offset"]


def _chained(files: Iterable[Path], columns: list[str] | None = None) -> Iterator[_Row]:
    return (row for path in files for row in _rows(path, columns))


def _rows(path: Path, columns: list[str] | None = None) -> Iterator[_Row]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH, columns=columns):
                yield from pa.Table.from_batches([batch]).to_pylist(maps_as_pydicts="strict")
    except (OSError, pa.ArrowException, ValueError) as error:
        why = " ".join(str(error).split())
        raise WarehouseError(f"{path} cannot be read: {why}") from error


def _record(kind: Kind, rows: list[_Row]) -> Struct | None:
    """The record of one message from all its rows."""
    first = rows[0]
    schema = first["schema"]
    if schema is None:
        return None
    if schema.startswith("tick/"):
        return Tick(id=first["id"], at=first["event_at"])
    if kind.record is GpuFrame:
        own = _own(first, _OF_GPU | {"tick", "event_at"}) | {"ticks": _ticks(rows)}
    elif kind.record is FabricRecord:
        own = _own(first, _OF_PORT - {"name"}) | {"ports": _ports(rows)}
    else:
        own = _own(first, frozenset())
    return msgspec.convert(own, kind.record)


def _own(row: _Row, without: frozenset[str]) -> _Row:
    """The fields of the record itself; nulls stand for fields left at their defaults."""
    return {
        FIELD_OF.get(name, name): _present(value)
        for name, value in row.items()
        if value is not None and name not in _OF_KAFKA and name not in without
    }


def _present(value: Any) -> Any:  # noqa: ANN401 (whatever a column holds)
    """The value without nulls in structs."""
    if isinstance(value, dict):
        return {name: _present(one) for name, one in value.items() if one is not None}
    return [_present(one) for one in value] if isinstance(value, list) else value


def _part(row: _Row, names: frozenset[str]) -> _Row:
    return {name: _present(row[name]) for name in names if row.get(name) is not None}


def _ticks(rows: list[_Row]) -> list[GpuTick]:
    """A frame's ticks; one that could not be answered has one row without a GPU."""
    ticks = []
    for position, of_tick in groupby(rows, itemgetter("tick")):
        if position is None:
            continue
        found = list(of_tick)
        first = found[0]
        told = {
            "at": first["event_at"],
            "error": first["nvml_error"],
            "error_text": first["nvml_error_text"],
            "events": first.get("nvml_events"),
            "gpus": [_part(row, _OF_GPU) for row in found if row["index"] is not None],
        }
        ticks.append(msgspec.convert(_present(told), GpuTick))
    return ticks


def _ports(rows: list[_Row]) -> list[_Row]:
    return [_part(row, _OF_PORT) for row in rows if row["port"] is not None]
