"""What a small file says of itself in its footer: its topic, and the range of offsets it holds."""

import errno
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse.errors import DamagedError

__all__ = ["covers", "is_damage", "last_offset", "metadata", "whole_metadata"]

_FOOTER = b"ringfence"
_COVERS = b"ringfence.covers"


def is_damage(error: Exception) -> bool:
    """Whether a file that raised this is damaged itself.

    No: a system without free descriptors, a permission, a file server that is away. These have the
    system's number; what pyarrow finds wrong in a file has none, a sector that is gone has EIO.
    """
    return not isinstance(error, OSError) or error.errno in (None, errno.EIO)


def metadata(topic: str, start: int, first: int, last: int) -> dict[bytes, bytes]:
    """The footer of a file that starts at position ``start`` and has offsets first to last."""
    facts = {"topic": topic, "start": start, "first": first, "last": last}
    return {_FOOTER: json.dumps(facts).encode()}


def last_offset(path: Path) -> int:
    """The last offset a file holds, from its footer; raises DamagedError where that is damaged.

    Raises OSError where the file itself could not be had: that says nothing about what is in it.
    """
    try:
        facts = json.loads(pq.read_schema(path).metadata[_FOOTER])
        return int(facts["last"])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        if not is_damage(error):
            raise
        raise DamagedError(f"{path} is damaged: {error}") from error


def whole_metadata(spans: dict[str, list[tuple[int, int]]]) -> dict[bytes, bytes]:
    """The footer of a rewritten file: the ranges it covers, should its watermark get lost."""
    return {_COVERS: json.dumps(spans).encode()}


def covers(path: Path) -> tuple[int, dict[str, list[tuple[int, int]]]]:
    """The rows of a rewritten file and the ranges it covers; raises as `last_offset` does."""
    try:
        with pq.ParquetFile(path) as file:
            spans = json.loads(file.schema_arrow.metadata[_COVERS])
            rows = file.metadata.num_rows
        return rows, {place: [(a, b) for a, b in found] for place, found in spans.items()}
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        if not is_damage(error):
            raise
        raise DamagedError(f"{path} is damaged: {error}") from error
