"""Messages to one Arrow table, column by column.

A record that decodes but does not fit its columns (an integer beyond 64 bits, a lone surrogate)
becomes an undecodable row with its bytes, so that one odd record never stops the sink.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Protocol

import pyarrow as pa
from msgspec import Struct, structs

from evidence.records import FabricPort, FabricRecord, GpuFrame, GpuSnapshot, GpuTick
from evidence.wire import DecodeError, decode
from warehouse.convert import Convert, converters
from warehouse.kinds import FIELD_OF, Kind, fields_of

__all__ = ["Fetched", "Message", "build", "read"]

_US_PER_MS = 1000

_SNAPSHOT_FIELDS = tuple(fields_of(GpuSnapshot))
_PORT_FIELDS = tuple(fields_of(FabricPort))
_EVENTS = converters(GpuTick)["events"]
_TICK_TYPES = {one.name: one.type for one in fields_of(GpuTick) if one.name != "gpus"}
#: The row of a message, or a tick, that has no GPU or port.
_NO_SNAPSHOT: tuple[object, ...] = (None,) * len(_SNAPSHOT_FIELDS)
_NO_PORT: tuple[object, ...] = (None,) * len(_PORT_FIELDS)


class Fetched(Protocol):
    """What a consumer hands out (kafka-python's ConsumerRecord)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Message:
    """One Kafka message with what was made of it: ``record``, or ``error`` and why not.

    ``timestamp_ms`` is Kafka's own time of the message (ms since 1970, -1 where it has none).
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    record: Struct | None
    error: str | None


def read(kind: Kind, fetched: Fetched) -> Message:
    """Decode one message; what cannot be decoded keeps its bytes and says why."""
    record, error = None, None
    if fetched.value is None:
        error = "tombstone: no value"
    else:
        try:
            record = decode(kind.topic, fetched.value)
        except DecodeError as refused:
            error = _storable(str(refused))
    return Message(
        offset=fetched.offset,
        timestamp_ms=fetched.timestamp,
        key=fetched.key,
        value=fetched.value,
        headers=fetched.headers,
        record=record,
        error=error,
    )


def _storable(sentence: str) -> str:
    """The sentence as valid UTF-8: it may quote what made the record undecodable."""
    return sentence.encode("utf-8", "backslashreplace").decode()


def build(kind: Kind, topic: str, log: str, partition: int, messages: list[Message]) -> pa.Table:
    """All messages of one range as one table of the kind's schema, in order of their offsets."""
    try:
        return _build(kind, topic, log, partition, messages)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        # Rare, so slow is fine: find the messages that do not fit one by one.
        fitting = [_fit(kind, topic, log, partition, message) for message in messages]
        return _build(kind, topic, log, partition, fitting)


def _fit(kind: Kind, topic: str, log: str, partition: int, message: Message) -> Message:
    try:
        _build(kind, topic, log, partition, [message])
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        sentence = f"topic {kind.topic}: does not fit its columns ({error})"
        return replace(message, record=None, error=_storable(sentence))
    return message


def _build(kind: Kind, topic: str, log: str, partition: int, messages: list[Message]) -> pa.Table:
    if kind.record is GpuFrame:
        parents, columns = _gpu(messages)
    elif kind.record is FabricRecord:
        parents, columns = _fabric(messages)
    else:
        parents, columns = None, {}
    schema = kind.schema
    for name, values in _record_values(kind, messages, set(columns)).items():
        columns[name] = _spread(_array(values, schema.field(name).type), parents)
    columns |= {
        name: _spread(array, parents)
        for name, array in _origin(kind, topic, log, partition, messages).items()
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _spread(array: pa.Array, parents: pa.Array | None) -> pa.Array:
    return array if parents is None else array.take(parents)


def _origin(
    kind: Kind, topic: str, log: str, partition: int, messages: list[Message]
) -> dict[str, pa.Array]:
    count = len(messages)
    undecodable = [None if one.record is not None else one.value for one in messages]
    headers = [list(one.headers) if one.headers else None for one in messages]
    times = [one.timestamp_ms * _US_PER_MS if one.timestamp_ms >= 0 else None for one in messages]
    type_of = kind.schema.field
    return {
        "kafka_topic": pa.repeat(pa.scalar(topic, pa.string()), count),
        "kafka_log": pa.repeat(pa.scalar(log, pa.string()), count),
        "kafka_partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "kafka_offset": pa.array([one.offset for one in messages], pa.int64()),
        "kafka_key": pa.array([one.key for one in messages], pa.binary()),
        "kafka_headers": pa.array(headers, type_of("kafka_headers").type),
        "appended_at": pa.array(times, pa.int64()).cast(type_of("appended_at").type),
        "schema": pa.array([_schema_of(one.record) for one in messages], pa.string()),
        "undecodable": pa.array([one.error for one in messages], pa.string()),
        "undecodable_value": pa.array(undecodable, pa.binary()),
    }


def _schema_of(record: Struct | None) -> str | None:
    return None if record is None else str(record.__struct_config__.tag)


def _record_values(
    kind: Kind, messages: list[Message], done: set[str]
) -> dict[str, Sequence[object]]:
    """Values of the fields that the record itself has, one a message; None where it has none.

    Only a record of the kind's own struct fills them; a Tick has an ``id`` and an ``at``.
    """
    convert_of = converters(kind.record)
    values: dict[str, Sequence[object]] = {}
    for column in kind.columns:
        name = column.name
        if name in done:
            continue
        field = FIELD_OF.get(name, name)
        convert = convert_of.get(field)
        found = [getattr(message.record, field, None) for message in messages]
        values[name] = (
            found if convert is None else [None if v is None else convert(v) for v in found]
        )
    return values


def _gpu(messages: list[Message]) -> tuple[pa.Array, dict[str, pa.Array]]:
    """Rows of frames: which message each row comes from, and the columns of ticks and GPUs.

    The events of a tick stand in its first row.
    """
    parents: list[int] = []
    tick_of_row: list[int] = []
    ticks: list[tuple[int | None, datetime | None, int | None, str | None]] = []
    events: list[object] = []
    cells: list[object] = []
    for number, message in enumerate(messages):
        record = message.record
        if not isinstance(record, GpuFrame) or not record.ticks:
            at = getattr(record, "at", None)
            ticks.append((None, at, None, None))
            parents.append(number)
            tick_of_row.append(len(ticks) - 1)
            events.append(None)
            cells += _NO_SNAPSHOT
            continue
        for position, tick in enumerate(record.ticks):
            ticks.append((position, tick.at, tick.error, tick.error_text))
            cells += (
                chain.from_iterable(map(structs.astuple, tick.gpus)) if tick.gpus else _NO_SNAPSHOT
            )
            count = len(tick.gpus) or 1
            parents += [number] * count
            tick_of_row += [len(ticks) - 1] * count
            events += [_EVENTS(tick.events) if tick.events else None, *[None] * (count - 1)]
    columns = _columns(GpuSnapshot, _SNAPSHOT_FIELDS, cells)
    spread = pa.array(tick_of_row, pa.int32())
    fields = {
        "tick": pa.int32(),
        "event_at": _TICK_TYPES["at"],
        "nvml_error": _TICK_TYPES["error"],
        "nvml_error_text": _TICK_TYPES["error_text"],
    }
    for (name, arrow), values in zip(fields.items(), zip(*ticks, strict=True), strict=True):
        columns[name] = _array(values, arrow).take(spread)
    columns["nvml_events"] = pa.array(events, _TICK_TYPES["events"])
    return pa.array(parents, pa.int32()), columns


def _fabric(messages: list[Message]) -> tuple[pa.Array, dict[str, pa.Array]]:
    """Rows of sweeps: which message each row comes from, and the columns of the ports."""
    parents: list[int] = []
    cells: list[object] = []
    for number, message in enumerate(messages):
        record = message.record
        found = record.ports if isinstance(record, FabricRecord) else ()
        cells += chain.from_iterable(map(structs.astuple, found)) if found else _NO_PORT
        parents += [number] * (len(found) or 1)
    return pa.array(parents, pa.int32()), _columns(FabricPort, _PORT_FIELDS, cells)


def _columns(
    struct: type[Struct], fields: Sequence[pa.Field], cells: list[object]
) -> dict[str, pa.Array]:
    """Columns of rows that lie one behind the other in ``cells``.

    A slice with a stride takes a third of the time of zip(*rows) on 80,000 rows.
    """
    width = len(fields)
    convert_of = converters(struct)
    columns = {}
    for number, column in enumerate(fields):
        values = cells[number::width]
        convert = convert_of.get(column.name)
        if convert is not None:
            columns[column.name] = _nested(values, convert, column.type)
        else:
            columns[column.name] = _array(values, column.type)
    return columns


def _nested(values: list[object], convert: Convert, arrow: pa.DataType) -> pa.Array:
    """Converted values as an array; a column of one value (what a make cannot tell) needs one."""
    count, first = len(values), values[0]
    if first == values[-1] and values.count(first) == count:
        one = pa.array([None if first is None else convert(first)], arrow)
        return one.take(pa.repeat(pa.scalar(0, pa.int8()), count))
    return _array([None if one is None else convert(one) for one in values], arrow)


def _array(values: Sequence[object], arrow: pa.DataType) -> pa.Array:
    """The values as an array; a column of one value, as most health columns are, costs no loop."""
    count, first = len(values), values[0]
    if not pa.types.is_nested(arrow) and first == values[-1] and values.count(first) == count:
        return (
            pa.nulls(count, arrow) if first is None else pa.repeat(pa.scalar(first, arrow), count)
        )
    return pa.array(values, arrow)
