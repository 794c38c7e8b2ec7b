"""Every record must come back from Parquet as it went in."""

from datetime import UTC, datetime, timedelta
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pyarrow.parquet as pq
import pytest
from msgspec import Struct, structs

from evidence.records import (
    FabricPort,
    FabricRecord,
    GpuEvent,
    GpuEventKind,
    GpuFrame,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    KernelKind,
    KernelRecord,
    Tick,
)
from evidence.topics import TOPICS
from evidence.wire import decode, encode
from warehouse.kinds import FIELD_OF, KINDS

AT = datetime(2026, 4, 7, 3, 12, 8, 123456, tzinfo=UTC)
EVENT = GpuEvent(at=AT, kind=GpuEventKind.XID, index=1, data=79)


def _full(annotation: Any, name: str = "x") -> Any:
    """A value of the type in which nothing is at its default."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _full(next(one for one in arguments if one is not type(None)), name)
    if origin is tuple:
        return (_full(arguments[0], name), _full(arguments[0], name))
    if origin is dict:
        return {"one": _full(arguments[1], name), "two": _full(arguments[1], name)}
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return list(annotation)[-1]
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _filled(annotation)
    plain = {str: f"{name} ≠ ø", bytes: b"\xff\x00", bool: True, int: 7, float: 0.25, datetime: AT}
    return plain[annotation]


def _filled(struct: type[Struct]) -> Any:
    hints = get_type_hints(struct)
    return struct(**{one.name: _full(hints[one.name], one.name) for one in structs.fields(struct)})


def _bare(struct: type[Struct]) -> Any:
    hints = get_type_hints(struct)
    needed = [one.name for one in structs.fields(struct) if one.required]
    return struct(**{name: _full(hints[name], name) for name in needed})


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {FIELD_OF.get(n, n): _present(one) for n, one in value.items() if one is not None}
    return [_present(one) for one in value] if isinstance(value, list) else value


def _rows(path: Any) -> list[dict[str, Any]]:
    return pq.ParquetFile(path).read().to_pylist(maps_as_pydicts="strict")


def test_no_two_columns_of_a_kind_have_one_name() -> None:
    for kind in KINDS.values():
        assert len(set(kind.schema.names)) == len(kind.schema.names), kind.name


FLAT = [topic for topic in TOPICS if topic not in ("gpu", "fabric")]


@pytest.mark.parametrize("topic", FLAT)
def test_every_field_of_a_record_comes_back_from_its_file(topic: str, store: Any) -> None:
    struct = TOPICS[topic].types[0]
    records = [_filled(struct), _bare(struct)]
    rows = _rows(store(topic, *records))
    back = [msgspec.convert(_present(row), struct) for row in rows]
    # Through the wire, because a struct holds tuples where JSON gives what it gives.
    assert back == [decode(topic, encode(record)) for record in records]


def test_a_gpu_frame_is_one_row_a_gpu_and_tick_with_every_field(store: Any) -> None:
    lost = GpuSnapshot(index=1, status=GpuStatus.LOST, error=15)
    frame = GpuFrame(
        id="f1",
        host="trn-17",
        observed_at=AT,
        seq=9,
        boot_id="b-1",
        driver="570.133.20",
        ticks=(
            GpuTick(at=AT, gpus=(_filled(GpuSnapshot), lost), events=(EVENT,)),
            GpuTick(at=AT + timedelta(seconds=1), error=9, error_text="driver not loaded"),
        ),
    )
    rows = _rows(store("gpu", frame))
    assert [(row["tick"], row["index"], row["status"]) for row in rows] == [
        (0, 7, _filled(GpuSnapshot).status),
        (0, 1, "lost"),
        (1, None, None),
    ]
    assert {(row["id"], row["host"], row["seq"], row["driver"]) for row in rows} == {
        ("f1", "trn-17", 9, "570.133.20")
    }
    assert msgspec.convert(_present(rows[0]), GpuSnapshot) == _filled(GpuSnapshot)
    assert msgspec.convert(_present(rows[1]), GpuSnapshot) == lost
    assert msgspec.convert(_present(rows[0]["nvml_events"]), list[GpuEvent]) == [EVENT]
    assert [row["nvml_events"] for row in rows[1:]] == [None, None]
    assert rows[2]["nvml_error"] == 9
    assert rows[2]["nvml_error_text"] == "driver not loaded"
    assert rows[2]["event_at"] == AT + timedelta(seconds=1)


def test_a_frame_without_ticks_still_has_a_row(store: Any) -> None:
    rows = _rows(store("gpu", GpuFrame(id="f0", host="trn-17", observed_at=AT, seq=1, ticks=())))
    assert [(row["id"], row["tick"], row["index"]) for row in rows] == [("f0", None, None)]


def test_a_sweep_is_one_row_a_port_and_a_counter_may_use_all_64_bits(store: Any) -> None:
    stuck = FabricPort(port=1, counters={"PortXmitData": 2**64 - 1}, saturated=("PortXmitData",))
    sweep = FabricRecord(
        id="s1", observed_at=AT, subnet="ib0", guid="0x1", ports=(stuck, _filled(FabricPort))
    )
    rows = _rows(
        store("fabric", sweep, FabricRecord(id="s2", observed_at=AT, subnet="ib0", guid="0x2"))
    )
    assert [(row["id"], row["port"]) for row in rows] == [("s1", 1), ("s1", 7), ("s2", None)]
    assert [msgspec.convert(_present(row), FabricPort) for row in rows[:2]] == [
        stuck,
        _filled(FabricPort),
    ]


def test_ticks_lie_in_their_topic_with_their_time(store: Any) -> None:
    for topic in ("kernel", "gpu", "fabric", "inventory"):
        rows = _rows(store(topic, Tick(id="t1", at=AT)))
        assert [(row["schema"], row["id"], row["event_at"]) for row in rows] == [
            ("tick/1", "t1", AT)
        ]


UNDECODABLE = {
    "random bytes": b"\x8b\x1f\xfe\x00\xc3\x28",
    "half a line": b'{"schema":"kernel/1","id":"k',
    "nothing": b"",
    "another topic's record": encode(GpuFrame(id="f", host="h", observed_at=AT, seq=0, ticks=())),
    "a newer major schema": b'{"schema":"kernel/2","id":"k","shape":"new"}',
    "nesting without end": b"[" * 100_000,
    "an integer of 80 bits": (
        b'{"schema":"kernel/1","id":"k","observed_at":"2026-04-07T03:12:08Z","raw":"",'
        b'"kind":"xid","code":1208925819614629174706176}'
    ),
    "a lone surrogate": (
        b'{"schema":"kernel/1","id":"k","observed_at":"2026-04-07T03:12:08Z",'
        b'"raw":"\\ud800","kind":"xid"}'
    ),
}


@pytest.mark.parametrize("what", UNDECODABLE)
def test_what_cannot_be_stored_as_a_record_is_stored_as_bytes(what: str, store: Any) -> None:
    good = KernelRecord(id="k1", observed_at=AT, raw="x", kind=KernelKind.OTHER)
    value = UNDECODABLE[what]
    rows = _rows(store("kernel", good, value, good))
    assert [row["id"] for row in rows] == ["k1", None, "k1"]
    assert rows[1]["undecodable_value"] == value
    assert rows[1]["undecodable"].startswith("topic kernel: ")
    assert [row["kafka_offset"] for row in rows] == [0, 1, 2]


def test_a_newer_minor_schema_is_stored_by_the_fields_this_build_knows(store: Any) -> None:
    value = (
        b'{"schema":"kernel/1","id":"k9","observed_at":"2026-04-07T03:12:08Z","raw":"x",'
        b'"kind":"xid","code":79,"weather":"sunny"}'
    )
    (row,) = _rows(store("kernel", value))
    assert (row["id"], row["code"], row["undecodable"]) == ("k9", 79, None)


def test_a_tombstone_is_a_row_without_a_value(store: Any) -> None:
    (row,) = _rows(store("isolation.state", None))
    assert (row["undecodable"], row["undecodable_value"]) == ("tombstone: no value", None)


def test_keys_headers_and_append_times_are_kept(partition: Any, fetched: Any) -> None:
    one = partition("kernel")
    good = encode(KernelRecord(id="k1", observed_at=AT, raw="x", kind=KernelKind.OTHER))
    headers = [("ce_id", b"k1"), ("empty", None)]
    one.add([fetched(5, good, b"\xffhost", headers, 1_775_531_529_123)], now=0.0)
    one.add([fetched(6, good, None, [], -1)], now=0.0)
    rows = _rows(one.flush(0.0))
    assert [row["kafka_key"] for row in rows] == [b"\xffhost", None]
    assert rows[0]["kafka_headers"] == {"ce_id": b"k1", "empty": None}
    assert rows[0]["appended_at"] == datetime(2026, 4, 7, 3, 12, 9, 123000, tzinfo=UTC)
    assert rows[1]["appended_at"] is None
    assert {row["kafka_topic"] for row in rows} == {"ringfence.kernel"}


def test_every_kind_has_a_folder_of_its_own() -> None:
    assert len({kind.name for kind in KINDS.values()}) == len(TOPICS)
