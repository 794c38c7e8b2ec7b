"""Cuts the lines out of an open file that grows, and knows when the file began anew.

A carriage return ends a line here as a newline does: progress bars are redrawn with it and would
otherwise be glued in front of the line that matters.
"""

import hashlib
import os
from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["Cursor", "Line", "OpenFile"]

#: Bytes at the head of a file that tell it from another one that got the same inode.
FINGERPRINT_BYTES = 1024
#: What is read at least, so that lines that came since the look are read too.
_LEAST_BYTES = 4096
_CR = 0x0D
#: What a file can hold; a cursor that says else is refused when it is read back.
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Cursor(Struct, frozen=True, kw_only=True):
    """Where a file was read to: ``offset`` is the first byte not yet returned as a line.

    ``fingerprint`` is a hash of the file's first ``fingerprint_size`` bytes; ``generation`` counts
    how often the path began anew (rotation, truncation); ``skipping`` is true inside an
    over-long line whose beginning was already returned.
    """

    device: int
    inode: int
    offset: _Count
    line: _Count
    fingerprint: str
    fingerprint_size: Annotated[int, Meta(ge=0, le=FINGERPRINT_BYTES)] = 0
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


class OpenFile:
    """One open file and what was read of it; lines are cut out of what `take` is given."""

    def __init__(self, fd: int, max_line: int, generation: int) -> None:
        found = os.fstat(fd)
        self.fd = fd
        #: The number under which its changes are heard of, if they are.
        self.watch: int | None = None
        self.device = found.st_dev
        self.inode = found.st_ino
        self.max_line = max_line
        self.generation = generation
        self.idle_calls = 0
        #: Whether the last `read` stopped before the end that the file had.
        self.more = False
        self.written_ns = 0
        self.fingerprint = ""
        self.fingerprint_size = 0
        self.rewind()

    def rewind(self) -> None:
        """Begin at the start of the file."""
        self.offset = 0  # first byte of `held`
        self.held = b""
        self.number = 0  # newlines met
        self.skipping = False
        self.after_cr = False

    def resume(self, cursor: Cursor) -> None:
        """Go on where a cursor of this file stands."""
        self.offset = cursor.offset
        self.number = cursor.line
        self.skipping = cursor.skipping
        self.generation = cursor.generation
        self.fingerprint = cursor.fingerprint
        self.fingerprint_size = cursor.fingerprint_size

    def head(self, size: int) -> tuple[str, int]:
        """The hash of the first ``size`` bytes, and how many there are."""
        data = os.pread(self.fd, size, 0)
        return hashlib.blake2b(data, digest_size=12).hexdigest(), len(data)

    def began_anew(self, found: os.stat_result) -> bool:
        """Whether the content before our position is no longer what we read."""
        if found.st_size < self.offset + len(self.held):
            return True
        untouched, self.written_ns = found.st_mtime_ns == self.written_ns, found.st_mtime_ns
        if untouched or not self.fingerprint_size:
            return False
        return self.head(self.fingerprint_size) != (self.fingerprint, self.fingerprint_size)

    def read(self, limit: int, found: os.stat_result | None = None) -> list[Line]:
        """Return the complete lines in the next ``limit`` bytes at most.

        ``found`` is how the file looked just now, where the caller knows it.
        """
        lines: list[Line] = []
        if found is None:
            found = os.fstat(self.fd)
        if self.began_anew(found):
            lines = self.flush()
            self.rewind()
            self.fingerprint_size = 0
            self.generation += 1
        position = self.offset + len(self.held)
        # Not ``limit`` at once: a buffer of megabytes costs more than the lines in it.
        wanted = min(limit, max(found.st_size - position, _LEAST_BYTES))
        chunk = os.pread(self.fd, wanted, position)
        self.more = position + len(chunk) < found.st_size and bool(chunk)
        if self.fingerprint_size < FINGERPRINT_BYTES:
            self.fingerprint, self.fingerprint_size = self.head(FINGERPRINT_BYTES)
        self.idle_calls = 0 if chunk else self.idle_calls + 1
        return lines + self.take(chunk)

    def take(self, chunk: bytes) -> list[Line]:
        """Cut the lines out of the bytes that follow; a half line is held."""
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

    def ends_at(self, found: os.stat_result) -> bool:
        """Whether everything was read of the file as it was found."""
        position = self.offset + len(self.held)
        return found.st_size == position and found.st_mtime_ns == self.written_ns

    def cursor(self) -> Cursor:
        """Where reading stands."""
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
        """Close the file."""
        os.close(self.fd)
