"""JSON Schemas of everything on the wire, generated from the structs (kept in docs/schemas/).

An enum to which a newer minor version may add values is marked ``x-open`` (`OpenEnum`).
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from evidence.records.wire import OpenEnum
from evidence.topics import TOPICS

__all__ = ["schema", "write"]


def schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one struct."""
    made = msgspec.json.schema(kind)
    for name in _open_enums(kind):
        made["$defs"][name]["x-open"] = True
    return made


def _open_enums(kind: type[msgspec.Struct]) -> set[str]:
    """Names of the open enums that a struct holds, however deep."""
    found: set[str] = set()
    seen: set[object] = set()
    waiting: list[object] = [inspect.type_info(kind)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, inspect.EnumType):
            if issubclass(one.cls, OpenEnum):
                found.add(one.cls.__name__)
        elif isinstance(one, inspect.StructType):
            if one.cls not in seen:
                seen.add(one.cls)
                waiting += [field.type for field in one.fields]
        elif isinstance(one, inspect.UnionType):
            waiting += one.types
        elif isinstance(one, inspect.DictType):
            waiting += [one.key_type, one.value_type]
        elif isinstance(one, inspect.TupleType):
            waiting += one.item_types
        elif isinstance(one, inspect.CollectionType):
            waiting.append(one.item_type)
    return found


def write(folder: Path) -> list[Path]:
    """Write one schema file a struct into ``folder``; returns their paths."""
    kinds = {kind for topic in TOPICS.values() for kind in topic.types}
    written = []
    for kind in sorted(kinds, key=lambda one: one.__name__):
        name = str(kind.__struct_config__.tag).replace("/", ".v")
        path = folder / f"{name}.json"
        path.write_text(json.dumps(schema(kind), indent=2, sort_keys=True) + "\n")
        written.append(path)
    return written


if __name__ == "__main__":
    write(Path(sys.argv[1]))
