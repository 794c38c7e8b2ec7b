"""Follows a growing text file through rotation, truncation and half-written lines.

A carriage return ends a line here as a newline does: progress bars are redrawn with it and would
otherwise be glued in front of the line that matters.
"""

import contextlib
import hashlib
import logging
import os
import stat
from pathlib import Path

import msgspec
from msgspec import Struct

from collectors.collector import Unavailable

__all__ = ["Cursor", "Follower", "Line", "load_cursor", "save_cursor", "write_atomic"]

_LOG = logging.getLogger(__name__)

#: Bytes read in one call at most, so that a reader of many files comes round to each.
READ_BYTES = 4 * 1024 * 1024
#: Bytes at the head of a file that tell it from another one that got the same inode.
FINGERPRINT_BYTES = 1024
#: Calls without new bytes after which a rotated file's writer is taken to have moved on.
_OLD_IDLE_CALLS = 30
_GZIP = b"\x1f\x8b"
_CR = 0x0D


class Cursor(Struct, frozen=True, kw_only=True):
    """Where a file was read to: ``offset`` is the first byte not yet returned as a line.

    ``fingerprint`` is a hash of the file's first ``fingerprint_size`` bytes; ``generation`` counts
    how often the path began anew (rotation, truncation); ``skipping`` is true inside an
    over-long line whose beginning was already returned.
    """

    device: int
    inode: int
    offset: int
    line: int
    fingerprint: str
    fingerprint_size: int = 0
    generation: int = 0
    skipping: bool = False


class Line(Struct, frozen=True, gc=False):
    r"""One complete line without its end.

    ``offset`` is the position of its first byte in the file, ``number`` counts newlines from 1
    (pieces between carriage returns share one), ``cut`` says that the rest of an over-long line
    was left out. ``inode`` and ``generation`` tell equal offsets of successive files apart. A
    Struct and no dataclass, since a busy node makes hundreds of thousands a second.
    """

    data: bytes
    offset: int
    number: int
    cut: bool = False
    inode: int = 0
    generation: int = 0


class _Open:
    """One open file and what was read of it; lines are cut out of what `take` is given."""

    def __init__(self, fd: int, max_line: int, generation: int) -> None:
        found = os.fstat(fd)
        self.fd = fd
        self.device = found.st_dev
        self.inode = found.st_ino
        self.max_line = max_line
        self.generation = generation
        self.idle_calls = 0
        self.written_ns = 0
        self.fingerprint = ""
        self.fingerprint_size = 0
        self.rewind()

    def rewind(self) -> None:
        self.offset = 0  # first byte of `held`
        self.held = b""
        self.number = 0  # newlines met
        self.skipping = False
        self.after_cr = False

    def resume(self, cursor: Cursor) -> None:
        self.offset = cursor.offset
        self.number = cursor.line
        self.skipping = cursor.skipping
        self.generation = cursor.generation
        self.fingerprint = cursor.fingerprint
        self.fingerprint_size = cursor.fingerprint_size

    def head(self, size: int) -> tuple[str, int]:
        data = os.pread(self.fd, size, 0)
        return hashlib.blake2b(data, digest_size=12).hexdigest(), len(data)

    def began_anew(self) -> bool:
        """Whether the content before our position is no longer what we read."""
        found = os.fstat(self.fd)
        if found.st_size < self.offset + len(self.held):
            return True
        untouched, self.written_ns = found.st_mtime_ns == self.written_ns, found.st_mtime_ns
        if untouched or not self.fingerprint_size:
            return False
        return self.head(self.fingerprint_size) != (self.fingerprint, self.fingerprint_size)

    def read(self, limit: int) -> list[Line]:
        lines: list[Line] = []
        if self.began_anew():
            lines = self.flush()
            self.rewind()
            self.fingerprint_size = 0
            self.generation += 1
        chunk = os.pread(self.fd, limit, self.offset + len(self.held))
        if self.fingerprint_size < FINGERPRINT_BYTES:
            self.fingerprint, self.fingerprint_size = self.head(FINGERPRINT_BYTES)
        self.idle_calls = 0 if chunk else self.idle_calls + 1
        return lines + self.take(chunk)

    def take(self, chunk: bytes) -> list[Line]:
        lines: list[Line] = []
        first = chunk.find(b"\n") + 1
        last = chunk.rfind(b"\n") + 1
        if b"\r" in chunk or b"\0" in chunk or not first:
            self._take_slowly(chunk, lines)
        else:
            self._end(chunk[:first], lines)
            self._take_whole(chunk[first:last], lines)
            if last < len(chunk):
                self._hold(chunk[last:], lines)
        return lines

    def _take_whole(self, chunk: bytes, lines: list[Line]) -> None:
        """Whole lines with nothing unusual in them: nearly all there are."""
        offset, number, limit = self.offset, self.number, self.max_line
        inode, generation = self.inode, self.generation
        for data in chunk.split(b"\n")[:-1]:
            number += 1
            size = len(data)
            cut = size > limit
            lines.append(
                Line(data[:limit] if cut else data, offset, number, cut, inode, generation)
            )
            offset += size + 1
        self.offset, self.number = offset, number

    def _take_slowly(self, chunk: bytes, lines: list[Line]) -> None:
        # Only b"\n" and b"\r" end a line: str.splitlines would cut at form feeds and U+2028 too.
        for part in chunk.splitlines(keepends=True):
            if part[-1:] not in (b"\n", b"\r"):
                self._hold(part, lines)
                continue
            self._end(part, lines)

    def _hold(self, part: bytes, lines: list[Line]) -> None:
        self.after_cr = False
        if self.skipping:
            self.offset += len(part)
            return
        held = self.held + part
        # A writer without O_APPEND leaves a hole of NULs in front when its file is truncated.
        data = held.lstrip(b"\0")
        self.offset += len(held) - len(data)
        self.held = data
        if len(data) > self.max_line:
            lines.append(self._line(data[: self.max_line], cut=True))
            self.offset += len(data)
            self.held = b""
            self.skipping = True

    def _end(self, part: bytes, lines: list[Line]) -> None:
        newline = part[-1:] == b"\n"
        whole = self.held + part
        data = whole[:-1].lstrip(b"\0")
        if newline and data[-1:] == b"\r":  # CRLF inside one chunk
            data = data[:-1]
        second_half = whole == b"\n" and self.after_cr  # of a CRLF torn between two reads
        if not self.skipping and not second_half and (data or newline):
            start = len(whole) - len(whole.lstrip(b"\0")) if data else 0
            cut = len(data) > self.max_line
            lines.append(self._line(data[: self.max_line], cut=cut, skip=start))
        self.offset += len(whole)
        self.held = b""
        self.number += newline
        self.after_cr = part[-1] == _CR and bool(data or self.skipping)
        self.skipping = False

    def _line(self, data: bytes, *, cut: bool = False, skip: int = 0) -> Line:
        return Line(data, self.offset + skip, self.number + 1, cut, self.inode, self.generation)

    def flush(self) -> list[Line]:
        """Return the held half line as a line: no more will come."""
        data = self.held
        if not data:
            return []
        line = self._line(data)
        self.offset += len(data)
        self.held = b""
        return [line]

    def cursor(self) -> Cursor:
        return Cursor(
            device=self.device,
            inode=self.inode,
            offset=self.offset,
            line=self.number,
            fingerprint=self.fingerprint,
            fingerprint_size=self.fingerprint_size,
            generation=self.generation,
            skipping=self.skipping,
        )

    def close(self) -> None:
        os.close(self.fd)


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
        self._resume = cursor
        self._current: _Open | None = None
        self._old: _Open | None = None

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
            self._start()
        try:
            return self._read()
        except OSError as error:  # a stale NFS handle, a disk that fails: open anew next time
            self.close()
            raise Unavailable(f"{self.path} cannot be read: {error.strerror}") from error

    def _read(self) -> list[Line]:
        assert self._current is not None
        lines = self._read_old() + self._current.read(self.read_bytes)
        if self._current.idle_calls == 0 and self._more():
            return lines
        moved = self._moved()
        if moved is None:
            if not lines:
                raise Unavailable(f"{self.path} is not there")
            return lines
        if moved:
            lines += self._switch()
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
            self._old = self._find_rotated(cursor)
        self._current, self._resume = opened, None

    def _open(self, path: Path, generation: int) -> _Open:
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
        return _Open(fd, self.max_line, generation)

    def _find_rotated(self, cursor: Cursor) -> _Open | None:
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

    def _moved(self) -> bool | None:
        """True when the path names another file now, None when it names none."""
        assert self._current is not None
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino) != (self._current.device, self._current.inode)

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


def _fits(opened: _Open, cursor: Cursor) -> bool:
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
