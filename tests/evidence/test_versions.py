"""Every record of an older and of a newer minor version, through the wire format."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT, Struct, inspect

from evidence.decisions import AckStatus, Action, Cause, Command, Level
from evidence.records import KernelKind, KernelRecord
from evidence.records.wire import OpenEnum
from evidence.topics import TOPICS
from evidence.wire import DecodeError, decode, encode

AT = datetime(2026, 9, 8, 7, 6, 5, tzinfo=UTC)
STRUCTS = [
    pytest.param(name, kind, id=str(kind.__struct_config__.tag))
    for name, topic in TOPICS.items()
    for kind in topic.types
]


PLAIN: dict[type, Any] = {
    inspect.StrType: "word",
    inspect.BoolType: True,
    inspect.IntType: 7,
    inspect.FloatType: 0.5,
    inspect.DateTimeType: AT.isoformat(),
    inspect.BytesType: "AP8=",
}


def value(kind: Any) -> Any:
    """Some plain value of a type, with every field set."""
    match kind:
        case inspect.StructType():
            return whole(kind.cls)
        case inspect.EnumType():
            return next(iter(kind.cls)).value
        case inspect.UnionType():
            return value(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case inspect.DictType():
            return {"a": value(kind.value_type)}
        case inspect.TupleType() | inspect.CollectionType():
            return [value(one) for one in getattr(kind, "item_types", None) or [kind.item_type]]
    return PLAIN[type(kind)]


def whole(cls: type[Struct]) -> dict[str, Any]:
    """A record with every field set, as plain data."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    tag = {} if info.tag is None else {str(info.tag_field): info.tag}
    return tag | {field.encode_name: value(field.type) for field in info.fields}


def grown(plain: Any) -> Any:
    """The same as a newer minor version would write it: one more field everywhere."""
    if isinstance(plain, list):
        return [grown(one) for one in plain]
    if isinstance(plain, dict):
        more = {"learned_later": {"x": [1, None]}} if plain.keys() != {"a"} else {}
        return {name: grown(one) for name, one in plain.items()} | more
    return plain


@pytest.mark.parametrize(("topic", "cls"), STRUCTS)
def test_a_newer_record_is_read_as_far_as_it_is_known(topic: str, cls: type[Struct]) -> None:
    plain = whole(cls)
    record = decode(topic, json.dumps(plain).encode())
    assert type(record) is cls
    assert decode(topic, json.dumps(grown(plain)).encode()) == record
    assert decode(topic, encode(record)) == record


@pytest.mark.parametrize(("topic", "cls"), STRUCTS)
def test_an_older_record_has_defaults_where_it_says_nothing(topic: str, cls: type[Struct]) -> None:
    plain = whole(cls)
    for field in msgspec.structs.fields(cls):
        if field.required:
            continue
        older = {name: one for name, one in plain.items() if name != field.encode_name}
        record = decode(topic, json.dumps(older).encode())
        default = field.default if field.default is not NODEFAULT else field.default_factory()
        assert getattr(record, field.name) == default


def test_a_kind_of_a_newer_build_is_kept_as_it_is_and_is_none_of_ours() -> None:
    plain = {"schema": "kernel/1", "id": "k", "observed_at": AT.isoformat(), "raw": "x",
             "kind": "nvme-timeout"}  # fmt: skip
    record = decode("kernel", json.dumps(plain).encode())
    assert isinstance(record, KernelRecord)
    assert record.kind == "nvme-timeout"
    assert record.kind not in list(KernelKind)
    assert json.loads(encode(record))["kind"] == "nvme-timeout"
    assert decode("kernel", encode(record)) == record


def test_a_command_with_a_cause_of_a_newer_build_is_read_and_one_with_a_new_level_is_not() -> None:
    plain = whole(Command)
    command = decode("isolation.commands", json.dumps(plain | {"cause": "gpu-nvjpg"}).encode())
    assert (command.cause, command.action) == ("gpu-nvjpg", Action.ISOLATE)
    for name in ("level", "action"):
        with pytest.raises(DecodeError, match="Invalid enum value 'sink'"):
            decode("isolation.commands", json.dumps(plain | {name: "sink"}).encode())


def test_what_decides_stays_closed_and_names_in_our_own_files_must_be_known() -> None:
    for closed in (Action, Level, AckStatus):
        assert not issubclass(closed, OpenEnum)
    assert Cause.known("pcie") is Cause.PCIE
    with pytest.raises(ValueError, match="'pci' is not a valid Cause"):
        Cause.known("pci")
