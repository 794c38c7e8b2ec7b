"""A warehouse on an S3-compatible object store, through pyarrow's own client.

An object appears whole, and one of the same name takes its place: pyarrow cannot ask for a name
that must be free. So names say the whole range of offsets, and readers resolve what overlaps.
"""

import mmap
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from pyarrow import fs

from warehouse.folder import Entry, is_day

__all__ = ["Objects"]

#: What the root's text may say after its question mark; credentials come from the environment,
#: from ~/.aws or from the machine's role, as every S3 client takes them.
_OPTIONS = frozenset({"endpoint_override", "scheme", "region", "role_arn", "external_id"})

_COPY_BYTES = 8 << 20


def _client(query: str) -> Any:  # noqa: ANN401 (pyarrow has no types)
    options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise ValueError(f"no option {unknown[0]!r}, there are {', '.join(sorted(_OPTIONS))}")
    # A small object is then one PUT; an error shows when it is closed, which is early enough.
    return fs.S3FileSystem(allow_delayed_open=True, **options)


@dataclass(frozen=True, slots=True)
class Objects:
    """The storage under a prefix of a bucket; see `warehouse.storage.Storage`.

    ``cache`` keeps copies of files, each with the size and time of its object.
    """

    client: Any
    prefix: str
    cache: Path

    @classmethod
    def of(cls, prefix: str, query: str, cache: Path) -> "Objects":
        """From the text of a root; raises ValueError where it says what is not understood."""
        return cls(_client(query), prefix, cache)

    @property
    def exclusive(self) -> bool:
        """The last writer of a name wins."""
        return False

    def entries(self, kind: str, days: tuple[str, str] | None = None) -> list[Entry]:
        """The Parquet files in all days of a kind: one that overlaps may lie in another day."""
        del days
        above = f"{self.prefix}/"
        folder = fs.FileSelector(f"{above}{kind}", recursive=True, allow_not_found=True)
        found = []
        for one in self.client.get_file_info(folder):
            key = one.path.removeprefix(above)
            names = key.split("/")  # kind, day and file, nothing below
            mine = len(names) == 3 and is_day(names[1]) and key.endswith(".parquet")  # noqa: PLR2004
            if one.type == fs.FileType.File and mine:
                found.append(Entry(key, one.size, one.mtime_ns / 1e9))
        return found

    def notes(self, folder: str) -> list[str]:
        """The JSON objects anywhere under a prefix, in order."""
        below = fs.FileSelector(f"{self.prefix}/{folder}", recursive=True, allow_not_found=True)
        paths = sorted(one.path for one in self.client.get_file_info(below))
        return [one.removeprefix(f"{self.prefix}/") for one in paths if one.endswith(".json")]

    def read(self, key: str) -> bytes | None:
        """A small object's content; None where there is none."""
        try:
            with self.client.open_input_stream(f"{self.prefix}/{key}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, key: str, data: bytes) -> None:
        """Put a small object in place of the one that is there."""
        with self.client.open_output_stream(f"{self.prefix}/{key}", compression=None) as stream:
            stream.write(data)

    def publish(self, made: Path, key: str) -> None:
        """Upload a finished file; it appears when all of it is there.

        It is written by one call: an error between two would close, and so show, a half.
        """
        with made.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            self.write(key, data)  # type: ignore[arg-type]  # anything with a buffer

    def remove(self, key: str) -> None:
        """Delete an object; one that is gone already is no error."""
        try:
            self.client.delete_file(f"{self.prefix}/{key}")
        except FileNotFoundError:
            return

    def move(self, key: str, to: str) -> None:
        """Copy and delete; raises FileNotFoundError where there is none."""
        self.client.move(f"{self.prefix}/{key}", f"{self.prefix}/{to}")

    def local(self, entry: Entry) -> Path:
        """A copy in the cache, fetched where it is not there or of another size or time."""
        path = self.cache / entry.key
        if path.exists():
            facts = path.stat()
            if (facts.st_size, int(facts.st_mtime)) == (entry.size, int(entry.modified_s)):
                return path
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            source = self.client.open_input_stream(f"{self.prefix}/{entry.key}")
            with source as stream, made.open("wb") as copy:
                shutil.copyfileobj(stream, copy, _COPY_BYTES)
            os.utime(made, (entry.modified_s, entry.modified_s))
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
        return path

    def scratch(self) -> Path:
        """A folder under the system's temporary folder."""
        folder = Path(tempfile.gettempdir()) / f"ringfence-sink-{os.getuid()}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextmanager
    def only(self, kind: str) -> Iterator[bool]:
        """Nothing to hold: an object store has no locks. Run one compactor at a time."""
        del kind
        yield True
