"""Follows a growing text file through rotation, truncation and half-written lines."""

import contextlib
import os
import stat
import time
from pathlib import Path

from collectors.collector import Unavailable
from collectors.follow_lines import Cursor, Line, OpenFile
from collectors.inotify import Ear

__all__ = ["Cursor", "Follower", "Line"]

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
        ear: Ear | None = None,
    ) -> None:
        """Follow ``path``, from ``cursor`` when that still fits the file, else from its start.

        With an ``ear`` the file is looked at less often, while its growth was heard.
        """
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
        self._ear = ear
        #: Whether the last growth was heard: a file system that told of one tells of the next.
        self._told = False

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
            if self._unchanged(self._look()):  # paused
                return []
            self._look_at = time.monotonic() + _CALMEST_S
            self._start()
        found = self._look()
        if self._unchanged(found):
            return []
        watch = None if self._current is None else self._current.watch
        try:
            lines = self._read(found)
        except OSError as error:  # a stale NFS handle, a disk that fails: open anew next time
            self.close()
            raise Unavailable(f"{self.path} cannot be read: {error.strerror}") from error
        heard = self._ear is not None and self._ear.heard(watch)
        if lines:
            self._grew_at, self._told = time.monotonic(), heard
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
        if self._told:
            return now + _CALMEST_S
        calm_s = now - self._grew_at
        return now + next((pause for since, pause in _LOOKS if calm_s < since), _CALMEST_S)

    def _look(self) -> os.stat_result | None:
        """How the path's file looks now; None when there is none."""
        try:
            return os.stat(self._name)  # noqa: PTH116 (half the time of Path.stat)
        except OSError:
            return None

    def _unchanged(self, found: os.stat_result | None) -> bool:
        """Whether one look at the path says that there is nothing new: what most calls find."""
        return found is not None and _looks(found) == self._read_up

    def _read(self, found: os.stat_result | None) -> list[Line]:
        current = self._current
        assert current is not None
        self._read_up = None
        same = found is not None and (found.st_dev, found.st_ino) == (current.device, current.inode)
        lines = self._read_old() + current.read(self.read_bytes, found if same else None)
        self._left_over = current.more
        if self._left_over:
            return lines
        if found is None:
            if not lines:
                raise Unavailable(f"{self.path} is not there")
        elif not same:
            lines += self._switch(quiet=not lines)
        elif self._old is None and current.ends_at(found):
            self._read_up = _looks(found)
        return lines

    def flush_partial(self) -> list[Line]:
        """Return the half line that is held, for the end of input."""
        return [] if self._current is None else self._current.flush()

    def pause(self) -> None:
        """Hold no file open until there is something new: a process may not open thousands.

        Does nothing while a half line, or a rotated file, is held.
        """
        if self._old is None and not self.pending:
            read_up = self._read_up
            self.close()
            self._read_up = read_up

    def close(self) -> None:
        """Close the files; the cursor stays readable."""
        if self._current is not None:
            self._resume = self._current.cursor()
            self._close_file(self._current)
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
        opened = OpenFile(fd, self.max_line, generation)
        if self._ear is not None:
            opened.watch = self._ear.watch(fd)
        return opened

    def _close_file(self, opened: OpenFile) -> None:
        if self._ear is not None:
            self._ear.forget(opened.watch)
        opened.close()

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
                        self._close_file(opened)
        return None

    def _switch(self, *, quiet: bool) -> list[Line]:
        assert self._current is not None
        try:
            opened = self._open(self.path, self._current.generation + 1)
        except Unavailable:
            # Its writer may go on in the one we have; if not, what comes now is not seen.
            if quiet and self._current.idle_calls > _OLD_IDLE_CALLS:
                raise
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
            self._close_file(self._old)
            self._old = None


def _looks(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _fits(opened: OpenFile, cursor: Cursor) -> bool:
    if os.fstat(opened.fd).st_size < cursor.offset:
        return False
    return opened.head(cursor.fingerprint_size) == (cursor.fingerprint, cursor.fingerprint_size)
