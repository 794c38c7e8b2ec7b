"""What a drill has to undo, on disk before the fault is made: a killed drill is undone by the next.

The file of a running drill is locked by its process, so that a file whose lock can be had is what a
killed one left.
"""

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evidence.records import DrillRecord
from ringfence.drills.plan import DrillError

__all__ = ["Undo", "UndoFile", "call", "left_over"]

_CALL_WITHIN_S = 60.0
_WORDS = 300


class Undo(Struct, frozen=True):
    """The record as it was at the start, and what undoes the fault; ``release`` is a domain id."""

    record: DrillRecord
    via: tuple[str, ...] = ()
    line: str | None = None
    release: str | None = None


def call(via: Sequence[str], line: str) -> None:
    """Run a shell's command line by ``via``. Raises DrillError where it does not succeed."""
    try:
        done = subprocess.run(
            [*via, line],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_CALL_WITHIN_S,
            start_new_session=True,  # Ctrl-C is for us: what was begun is finished, then undone
        )
    except subprocess.TimeoutExpired as error:
        raise DrillError(f"not done within {_CALL_WITHIN_S:g} s: {line}") from error
    except OSError as error:
        raise DrillError(f"{via[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        words = done.stdout.decode("utf-8", "replace").strip()[-_WORDS:]
        raise DrillError(f"ended with {done.returncode}: {line} ({words or 'no output'})")


class UndoFile:
    """One file in ``folder``, locked while we live; a context manager that leaves it as it is."""

    def __init__(self, path: Path, file: IO[bytes], undo: Undo) -> None:
        self._path = path
        self._file = file
        self.undo = undo

    @classmethod
    def write(cls, folder: Path, undo: Undo) -> Self:
        """Write what is to be undone, durably. Raises DrillError where it cannot be written."""
        path = folder / f"{undo.record.id}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("w+b")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            made = cls(path, file, undo)
            made._save()
            folder_fd = os.open(folder, os.O_RDONLY)
            os.fsync(folder_fd)
            os.close(folder_fd)
        except OSError as error:
            raise DrillError(f"{path} cannot be written: {error.strerror}") from error
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def isolated(self, domain_id: str) -> None:
        """Note what has to be released."""
        self.undo = replace(self.undo, release=domain_id)
        with contextlib.suppress(OSError):  # the fault is undone all the same
            self._save()

    def keep(self, record: DrillRecord) -> None:
        """Note the record of a drill that is undone, to be told by the next where we cannot."""
        self.undo = Undo(record)
        with contextlib.suppress(OSError):
            self._save()

    def make_undone(self) -> None:
        """Undo the fault. Raises DrillError, and keeps the file, where that fails."""
        if self.undo.line is not None:
            call(self.undo.via, self.undo.line)

    def forget(self) -> None:
        """Nothing is left to be done."""
        self._path.unlink(missing_ok=True)

    def _save(self) -> None:
        # Its length never shrinks on the way: a file cut in the middle is read as what it was.
        text = msgspec.json.encode(self.undo) + b"\n"
        self._file.seek(0, os.SEEK_END)
        self._file.write(text)
        self._file.flush()
        os.fsync(self._file.fileno())


def left_over(folder: Path) -> Iterator[UndoFile]:
    """The files that killed drills left, each locked until the next is asked for.

    The last whole line of a file counts. Raises DrillError where a file cannot be read: what it
    would have undone is for a person.
    """
    for path in sorted(folder.glob("*.json")):
        try:
            file = path.open("r+b")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DrillError(f"{path} cannot be read: {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            undo = _last(file.read())
            if undo is None:  # the fault is made after the file is whole
                path.unlink(missing_ok=True)
                continue
            yield UndoFile(path, file, undo)


def _last(content: bytes) -> Undo | None:
    for line in reversed(content.split(b"\n")):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode(line, type=Undo)
    return None
