"""The kinds of the warehouse: one folder a topic, and the Arrow schema of its files.

Schemas are derived from the structs of `evidence`, so a new field there is a new column here. A
file holds **every** message of its range of offsets: ticks and undecodable messages are rows too,
told apart by ``schema`` and ``undecodable``, because one range must be one file to be exactly once.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
from msgspec import Struct, structs

from evidence.records import FabricPort, FabricRecord, GpuFrame, GpuSnapshot, GpuTick
from evidence.topics import TOPICS

__all__ = ["COLUMN_OF", "FIELD_OF", "KAFKA_FIELDS", "KINDS", "UTC_TIME", "Kind", "fields_of"]

UTC_TIME = pa.timestamp("us", tz="UTC")

#: Where a row comes from, in every kind. ``appended_at`` is the time of the message in Kafka: the
#: broker's append time where the topic is so configured, else the producer's.
KAFKA_FIELDS = (
    pa.field("kafka_topic", pa.string()),
    pa.field("kafka_log", pa.string()),
    pa.field("kafka_partition", pa.int32()),
    pa.field("kafka_offset", pa.int64()),
    pa.field("kafka_key", pa.binary()),
    pa.field("kafka_headers", pa.map_(pa.string(), pa.binary())),
    pa.field("appended_at", UTC_TIME),
    pa.field("schema", pa.string()),
    pa.field("undecodable", pa.string()),
    pa.field("undecodable_value", pa.binary()),
)

#: Fields whose names SQL reserves (DuckDB 2 refuses ``select at``), and what their columns are
#: called. Inside lists of structs the fields keep their names.
COLUMN_OF = {
    "at": "event_at",
    "by": "by_whom",
    "group": "process_group",
    "offset": "source_offset",
}
FIELD_OF = {column: field for field, column in COLUMN_OF.items()}

_PLAIN: dict[Any, pa.DataType] = {
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    datetime: UTC_TIME,
}

#: 64-bit counters and registers that really use their highest bit: a saturated InfiniBand counter
#: is 2**64 - 1.
_UNSIGNED = {
    (FabricPort, "counters"): pa.map_(pa.string(), pa.uint64()),
    ("KernelRecord", "registers"): pa.list_(pa.uint64()),
}


def arrow_type(annotation: Any) -> pa.DataType:  # noqa: ANN401 (a type annotation)
    """The Arrow type of one struct field's annotation.

    Raises TypeError for an annotation that no column can hold.
    """
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        (inner,) = (one for one in arguments if one is not type(None))
        return arrow_type(inner)
    if origin is tuple:
        return pa.list_(arrow_type(arguments[0]))
    if origin is dict:
        return pa.map_(arrow_type(arguments[0]), arrow_type(arguments[1]))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return pa.string()
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return pa.struct(fields_of(annotation))
    raise TypeError(f"no column type for {annotation!r}")


def fields_of(struct: type[Struct]) -> list[pa.Field]:
    """One Arrow field a field of the struct, in its order."""
    hints = get_type_hints(struct)
    return [
        pa.field(one.name, _field_type(struct, one.name, hints[one.name]))
        for one in structs.fields(struct)
    ]


def _field_type(struct: type[Struct], name: str, annotation: Any) -> pa.DataType:  # noqa: ANN401
    special = _UNSIGNED.get((struct, name)) or _UNSIGNED.get((struct.__name__, name))
    return special or arrow_type(annotation)


@dataclass(frozen=True, slots=True)
class Kind:
    """One folder of the warehouse: what its topic carries and the columns of its files."""

    name: str
    topic: str
    record: type[Struct]
    columns: tuple[pa.Field, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the kind's files, without the hive column ``day``."""
        return pa.schema([*KAFKA_FIELDS, *self.columns])


def _gpu_columns() -> list[pa.Field]:
    """A frame is flattened to one row a GPU and tick; a tick without GPUs still has its row."""
    frame = [one for one in fields_of(GpuFrame) if one.name != "ticks"]
    tick = {one.name: one.type for one in fields_of(GpuTick)}
    return [
        *frame,
        pa.field("tick", pa.int32()),
        pa.field("event_at", tick["at"]),
        pa.field("nvml_error", tick["error"]),
        pa.field("nvml_error_text", tick["error_text"]),
        pa.field("nvml_events", tick["events"]),
        *fields_of(GpuSnapshot),
    ]


def _fabric_columns() -> list[pa.Field]:
    """A sweep of one switch or HCA is flattened to one row a port."""
    return [one for one in fields_of(FabricRecord) if one.name != "ports"] + fields_of(FabricPort)


def _kind(topic: str) -> Kind:
    record = TOPICS[topic].types[0]
    if record is GpuFrame:
        columns = _gpu_columns()
    elif record is FabricRecord:
        columns = _fabric_columns()
    else:
        columns = fields_of(record)
    columns = [one.with_name(COLUMN_OF.get(one.name, one.name)) for one in columns]
    if "event_at" not in {one.name for one in columns}:
        columns.append(pa.field("event_at", UTC_TIME))  # ticks share the folder and have a time
    name = {"isolation.state": "states"}.get(topic, topic.removeprefix("isolation."))
    return Kind(name, topic, record, tuple(columns))


#: Every kind by the short name of its topic.
KINDS: dict[str, Kind] = {topic: _kind(topic) for topic in TOPICS}
