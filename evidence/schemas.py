"""JSON Schemas of everything on the wire, generated from the structs (kept in docs/schemas/)."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from evidence.topics import TOPICS

__all__ = ["schema", "write"]


def schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one struct."""
    return msgspec.json.schema(kind)


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
