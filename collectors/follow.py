"""Follows a growing text file through rotation, truncation and half-written lines."""

import contextlib
import logging
import os
import stat
import time
from pathlib import Path

import msgspec

from collectors.collector import Unavailable
from collectors.follow_lines import Cursor, Line, OpenFile

__all__ = ["Cursor", "Follower", "Line", "load_cursor", "save_cursor", "write_atomic"]

_LOG = logging.getLogger(__name__)

#: Bytes read in one call at most, so that a reader of many files comes round to each.
READ_BYTES = 4 * 1024 * 1024
#: Calls without new bytes after which a rotated file's writer is taken to have moved on.
_OLD_IDLE_CALLS = 30
#: Between two looks at a file, by how long ago it last grew: (seconds since, seconds between).
_LOOKS = ((1.0, 0.2), (60.0, 0.5))
_CALMEST_S = 1.0
_GZIP = b"\x1f\x8b"


class Follower:
    """Reads the lines a plain file gains, over renames and truncations of it.

    A renamed file is read to its end (and a while longer, for a writer that has not reopened)
    before the new one; a truncated file is read from 0. A half line is held until its end comes.
    Nothing blocks, and memory stays below `READ_BYTES` + ``max_line``. Compressed files and
    anything that is not a plain file are `Unavailable`.
    """

    def __init__(
        self,
        path: Path,
        *,
        cursor: Cursor | None = None,
        max_line: int = 65536,
        read_bytes: int = READ_BYTES,
    ) -> None:
        """Follow ``path``, from ``cursor`` when that still fits the file, else from its start."""
        self.path = path
        self.max_line = max_line
        self.read_bytes = read_bytes
        #: Whether the file of the cursor was gone, or was no longer the same, at the start.
        self.lost_place = False
        self._resume = cursor
        self._current: OpenFile | None = None
        self._old: OpenFile | None = None
        self._name = os.fspath(path)
        #: What the path's file looked like when everything in it had been read.
        self._read_up: tuple[int, int, int, int] | None = None
        #: Whether the last call stopped before the end.
        self._left_over = False
        #: When a file that is not there is worth another look.
        self._look_at = 0.0
        self._grew_at = time.monotonic()

    @property
    def cursor(self) -> Cursor | None:
        """Where reading stands; None before the file was first opened."""
        return self._resume if self._current is None else self._current.cursor()

    @property
    def pending(self) -> int:
        """Bytes of a half line that are held."""
        return 0 if self._current is None else len(self._current.held)

    def read(self) -> list[Line]:
        """Return the complete lines since the last call, at most `READ_BYTES` of them.

        Raises Unavailable when the file is not there (or not a plain, readable one) and nothing
        is left to read of the file that was there before.
        """
        if self._current is None:
            self._look_at = time.monotonic() + _CALMEST_S
            self._start()
        elif self._unchanged():
            return []
        try:
            lines = self._read()
        except OSError as error:  # a stale NFS handle, a disk that fails: open anew next time
            self.close()
            raise Unavailable(f"{self.path} cannot be read: {error.strerror}") from error
        if lines:
            self._grew_at = time.monotonic()
        return lines

    def next_due(self, now: float) -> float:
        """When the next `read` is worth its cost (monotonic seconds, as ``now``).

        At once while more is known to be there, soon while the file grows, later when it is calm.
        """
        if self._current is None:
            return max(now, self._look_at)
        if self._left_over:
            return now
        if self._old is not None:
            return now + _LOOKS[0][1]
        calm_s = now - self._grew_at
        return now + next((pause for since, pause in _LOOKS if calm_s < since), _CALMEST_S)

    def _unchanged(self) -> bool:
        """Whether one look at the path says that there is nothing new: what most calls find."""
        if self._read_up is None:
            return False
        try:
            found = os.stat(self._name)  # noqa: PTH116 (half the time of Path.stat)
        except OSError:
            return False
        return _look(found) == self._read_up

    def _read(self) -> list[Line]:
        assert self._current is not None
        self._read_up = None
        lines = self._read_old() + self._current.read(self.read_bytes)
        self._left_over = self._current.idle_calls == 0 and self._more()
        if self._left_over:
            return lines
        try:
            found = self.path.stat()
        except OSError:
            if not lines:
                raise Unavailable(f"{self.path} is not there") from None
            return lines
        if (found.st_dev, found.st_ino) != (self._current.device, self._current.inode):
            lines += self._switch()
        elif self._old is None and self._current.ends_at(found):
            self._read_up = _look(found)
        return lines

    def flush_partial(self) -> list[Line]:
        """Return the half line that is held, for the end of input."""
        return [] if self._current is None else self._current.flush()

    def close(self) -> None:
        """Close the files; the cursor stays readable."""
        if self._current is not None:
            self._resume = self._current.cursor()
            self._current.close()
            self._current = None
        self._read_up = None
        self._close_old()

    def _start(self) -> None:
        cursor, generation = self._resume, 0
        if cursor is not None:
            generation = cursor.generation + 1
        opened = self._open(self.path, generation)
        if cursor is None:
            self._current = opened
            return
        if opened.inode == cursor.inode:
            if _fits(opened, cursor):
                opened.resume(cursor)
            else:
                self.lost_place = True
        else:
            self._old = self._find_rotated(cursor)
            self.lost_place = self._old is None
        self._current, self._resume = opened, None

    def _open(self, path: Path, generation: int) -> OpenFile:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Unavailable(f"{path} is not there") from None
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Unavailable(f"{path} is not a plain file")
        if os.pread(fd, len(_GZIP), 0) == _GZIP:
            os.close(fd)
            raise Unavailable(f"{path} is compressed; only plain files are followed")
        return OpenFile(fd, self.max_line, generation)

    def _find_rotated(self, cursor: Cursor) -> OpenFile | None:
        """The file the cursor speaks of, under a rotated name beside the path."""
        with contextlib.suppress(OSError), os.scandir(self.path.parent) as entries:
            for entry in entries:
                if entry.name.startswith(self.path.stem) and entry.inode() == cursor.inode:
                    with contextlib.suppress(Unavailable):
                        opened = self._open(Path(entry.path), cursor.generation)
                        if _fits(opened, cursor):
                            opened.resume(cursor)
                            return opened
                        opened.close()
        return None

    def _more(self) -> bool:
        """Whether the current file holds bytes that were not read yet."""
        assert self._current is not None
        position = self._current.offset + len(self._current.held)
        return os.fstat(self._current.fd).st_size > position

    def _switch(self) -> list[Line]:
        assert self._current is not None
        try:
            opened = self._open(self.path, self._current.generation + 1)
        except Unavailable:
            return []
        self._close_old()
        lines = self._current.flush()
        self._old, self._current = self._current, opened
        return lines + opened.read(self.read_bytes)

    def _read_old(self) -> list[Line]:
        if self._old is None:
            return []
        lines = self._old.read(self.read_bytes)
        if self._old.idle_calls > _OLD_IDLE_CALLS:
            self._close_old()
        return lines

    def _close_old(self) -> None:
        if self._old is not None:
            self._old.close()
            self._old = None


def _look(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _fits(opened: OpenFile, cursor: Cursor) -> bool:
    if os.fstat(opened.fd).st_size < cursor.offset:
        return False
    return opened.head(cursor.fingerprint_size) == (cursor.fingerprint, cursor.fingerprint_size)


def save_cursor(file: Path, cursor: Cursor) -> None:
    """Keep a cursor for the next start; raises OSError when the folder cannot be written."""
    write_atomic(file, msgspec.json.encode(cursor))


def write_atomic(file: Path, data: bytes) -> None:
    """Write a small file so that a crash leaves the old one or the new one, never half of one.

    Raises OSError when the folder cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_cursor(file: Path) -> Cursor | None:
    """Read a cursor back; None when there is none. A broken one is logged and ignored."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Cursor)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _LOG.warning("cursor %s is broken and ignored, the file is read again: %s", file, error)
        return None
