"""Where the files of a warehouse are: a folder of this machine, or a prefix of an object store.

A root on an object store is written ``s3://bucket/prefix?endpoint_override=host:port&scheme=http``.
It may have passed through `pathlib.Path`, which makes one slash of two: both are understood.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Protocol

from warehouse.errors import WarehouseError
from warehouse.folder import Entry, Folder
from warehouse.objects import Objects

__all__ = ["Entry", "Storage", "at", "cache_of", "day_entries", "is_remote"]

_S3 = re.compile(r"s3:/+(?P<rest>.+)")


class Storage(Protocol):
    """What a warehouse asks of the place its files lie in; keys are paths under the root.

    Every method raises OSError where the place cannot be reached or refuses.
    """

    @property
    def exclusive(self) -> bool:
        """Whether `publish` tells that a file of this name is there already."""

    def entries(self, kind: str, days: tuple[str, str] | None = None) -> list[Entry]:
        """The Parquet files in the days of a kind, in no order.

        ``days``, first and last, may leave files of other days out; it need not.
        """

    def notes(self, folder: str) -> list[str]:
        """The keys of the JSON files anywhere under a folder, in order."""

    def read(self, key: str) -> bytes | None:
        """A small file's content; None where there is none."""

    def write(self, key: str, data: bytes) -> None:
        """Write a small file, or put it in place of the one that is there, at once and durably."""

    def publish(self, made: Path, key: str) -> None:
        """Make a finished local file visible under the key, whole and durable.

        Raises FileExistsError where the place is ``exclusive`` and has such a file.
        """

    def remove(self, key: str) -> None:
        """Delete a file; one that is gone already is no error."""

    def move(self, key: str, to: str) -> None:
        """Move a file; raises FileNotFoundError where there is none."""

    def local(self, entry: Entry) -> Path:
        """The file as one of this machine: itself, or a copy that is kept for the next question.

        Raises FileNotFoundError where it is gone.
        """

    def scratch(self) -> Path:
        """A folder of this machine for files in the making."""

    def only(self, kind: str) -> AbstractContextManager[bool]:
        """Hold the kind for rewriting; False where another process of this machine holds it."""


def is_remote(root: Path | str) -> bool:
    """Whether the root is on an object store."""
    return _S3.fullmatch(str(root)) is not None


@cache
def at(root: Path) -> Storage:
    """The storage a root names.

    Raises WarehouseError where the root's text is not understood.
    """
    found = _S3.fullmatch(str(root))
    if found is None:
        return Folder(root)
    place, _, query = found["rest"].partition("?")
    try:
        return Objects.of(place.strip("/"), query, cache_of(root))
    except (TypeError, ValueError, OSError) as error:
        raise WarehouseError(f"the root {root} is not understood: {error}") from error


def cache_of(root: Path) -> Path:
    """The folder of this machine that keeps copies of a remote root's files."""
    above = Path(os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir())
    name = hashlib.sha256(str(root).encode()).hexdigest()[:16]
    return above / f"ringfence-warehouse-{os.getuid()}" / name


def day_entries(entries: list[Entry]) -> Iterator[tuple[str, str, Entry]]:
    """Day (``2026-04-07``), file name and entry of each file, in order of the paths."""
    for one in sorted(entries, key=lambda entry: entry.key):
        _, folder, name = one.key.split("/")
        yield folder.removeprefix("day="), name, one
