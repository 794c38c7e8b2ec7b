"""A warehouse in a folder of this machine: files appear by hard link, once, whole and durable."""

import fcntl
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

__all__ = ["PROCESS", "SCRATCH", "Entry", "Folder", "is_day", "sync", "temporary"]

SCRATCH = "_tmp"  # readers of hive layouts skip names that begin with an underscore
#: Tells this process from an earlier one of the same number: in a container it is always 1.
PROCESS = f"{os.getpid()}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a kind: its path under the root (with slashes), bytes, and seconds since 1970."""

    key: str
    size: int
    modified_s: float


def is_day(name: str) -> bool:
    """Whether a folder is a day's; ``day=2026-04-07.bak`` is a copy, its rows would count twice."""
    day = name.removeprefix("day=")
    try:
        return day != name and date.fromisoformat(day).isoformat() == day
    except ValueError:
        return False


def temporary(scratch: Path, name: str) -> Path:
    """The path of a file in the making, of this thread alone."""
    return scratch / f"{socket.gethostname()}-{PROCESS}-{threading.get_ident()}-{name}.tmp"


def sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Folder:
    """The storage of a local root; see `warehouse.storage.Storage`."""

    root: Path

    @property
    def exclusive(self) -> bool:
        """A hard link fails where its name exists."""
        return True

    def entries(self, kind: str, days: tuple[str, str] | None = None) -> list[Entry]:
        """The Parquet files in these days of a kind; what vanishes meanwhile is left out."""
        found = []
        for day in sorted((self.root / kind).glob("day=*")):
            if not is_day(day.name):
                continue
            if days is not None and not days[0] <= day.name.removeprefix("day=") <= days[1]:
                continue
            try:
                with os.scandir(day) as inside:
                    names = [one for one in inside if one.name.endswith(".parquet")]
            except (FileNotFoundError, NotADirectoryError):
                continue
            for one in names:
                try:
                    facts = one.stat()
                except FileNotFoundError:
                    continue
                key = f"{kind}/{day.name}/{one.name}"
                found.append(Entry(key, facts.st_size, facts.st_mtime))
        return found

    def notes(self, folder: str) -> list[str]:
        """The JSON files anywhere under a folder, in order."""
        found = (self.root / folder).rglob("*.json")
        return sorted(one.relative_to(self.root).as_posix() for one in found)

    def read(self, key: str) -> bytes | None:
        """A small file's content; None where there is none."""
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, key: str, data: bytes) -> None:
        """Write a small file in place of the one that is there, by one rename."""
        final = self.root / key
        made = temporary(self.scratch(), final.name)
        try:
            with made.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            final.parent.mkdir(parents=True, exist_ok=True)
            made.replace(final)
            sync(final.parent)
        finally:
            made.unlink(missing_ok=True)

    def publish(self, made: Path, key: str) -> None:
        """Link a finished file to its name; raises FileExistsError where the name is taken."""
        final = self.root / key
        folder = final.parent
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)
        try:
            os.link(made, final)
        except FileExistsError:
            # Over NFS a repeated request may answer so although the first one made the link.
            if made.stat().st_nlink != 2:  # noqa: PLR2004 (its own name and the link)
                raise
        sync(folder)

    def remove(self, key: str) -> None:
        """Delete a file, and its folder if that is a day and empty now."""
        path = self.root / key
        path.unlink(missing_ok=True)
        if path.parent.name.startswith("day="):
            try:
                path.parent.rmdir()
            except OSError:
                return  # not empty, or gone

    def move(self, key: str, to: str) -> None:
        """Move a file; raises FileNotFoundError where there is none."""
        final = self.root / to
        final.parent.mkdir(parents=True, exist_ok=True)
        (self.root / key).rename(final)

    def local(self, entry: Entry) -> Path:
        """The file itself."""
        return self.root / entry.key

    def scratch(self) -> Path:
        """The folder of files in the making, on the same file system."""
        folder = self.root / SCRATCH
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextmanager
    def only(self, kind: str) -> Iterator[bool]:
        """Hold the kind; the kernel lets go when the process ends, however it ends."""
        path = self.root / kind / "_lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
