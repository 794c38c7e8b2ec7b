"""Finds the logs of an incident under a path and says of each what it is, by content.

Compressed and archived files are read as streams: nothing is unpacked to disk.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from ringfence import bug_report

__all__ = ["NEITHER", "READ_ERRORS", "Log", "LogKind", "NotReadable", "Unread", "find", "read"]

_SNIFF = 256 * 1024
_GZIP = b"\x1f\x8b"
#: Bytes of a line that are read, and bytes asked of a file at a time.
_MAX_LINE = _CHUNK = 1 << 20
#: Blocks are at least this large: what is looked for in them costs a little for each.
_BLOCK = 1 << 19
NEITHER = (
    "neither a kernel log nor a NCCL, PyTorch or torchrun log, "
    "nor output of nvidia-smi or of a fabric tool"
)
#: Errors that a damaged or foreign file raises while it is opened or read.
READ_ERRORS = (OSError, EOFError, tarfile.TarError, gzip.BadGzipFile, zlib.error)


class NotReadable(OSError):  # noqa: N818 (a state: the file is not what it looks like)
    """A file that is read as a whole and cannot be; the message is one sentence."""


class LogKind(StrEnum):
    """What a file holds; of ``text`` the first lines do not tell it."""

    KERNEL = "kernel"
    NCCL = "nccl"
    GPU = "gpu"
    FABRIC = "fabric"
    FLIGHT_RECORDER = "flight-recorder"
    RAS = "ras"
    TEXT = "text"


Chunks = Callable[[], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Log:
    """One readable log: where it was found, whose it is, and how to read it.

    ``folder`` is the folder directly under the path, where there is one, and ``host`` that or the
    file's name. ``section`` takes one program's lines out of a report of several.
    """

    file: str
    host: str
    kind: LogKind
    chunks: Chunks
    job: str = "job"
    folder: str | None = None
    section: Callable[[Iterable[bytes]], Iterator[bytes]] | None = None

    def lines(self) -> Iterator[bytes]:
        """Its lines with their ends; of a line longer than 1 MiB only that much."""
        lines = _lines(_blocks(self.chunks(), _BLOCK))
        return lines if self.section is None else self.section(lines)

    def blocks(self) -> Iterator[bytes]:
        """The same in blocks of about a MiB, each of which ends where a line ends."""
        if self.section is None:
            return _blocks(self.chunks(), _BLOCK)
        return _blocks(self.lines(), _BLOCK)


@dataclass(frozen=True, slots=True)
class Unread:
    """A file nothing was read from, or not all of it, and why."""

    file: str
    reason: str


Recognise = Callable[[list[bytes]], tuple[LogKind, ...]]


def find(path: Path, recognise: Recognise) -> Iterator[Log | Unread]:
    """Every log under ``path`` (a file, a folder, or a tar archive), in order of name.

    ``recognise`` is shown the first lines of a file, about 256 KiB, and says what it is: a log of
    each kind that it names. An nvidia-bug-report.log is what the kernel and nvidia-smi said. The
    host is the folder directly under ``path``, else the file's own name without endings; a host
    that stands in the lines themselves wins over it later.
    """
    if path.is_dir():
        for file in sorted(one for one in path.rglob("*") if one.is_file()):
            inside = file.relative_to(path)
            yield from _open(file, str(inside), PurePosixPath(inside), recognise)
    else:
        yield from _open(path, path.name, PurePosixPath(path.name), recognise)


def _open(
    path: Path, name: str, inside: PurePosixPath, recognise: Recognise
) -> Iterator[Log | Unread]:
    try:
        if tarfile.is_tarfile(path):
            yield from _archive(path, name, recognise)
            return
    except READ_ERRORS as error:
        yield Unread(name, _reason(error))
        return
    yield from _logs(name, inside, lambda: _chunks(path.open("rb")), recognise)


def _archive(path: Path, name: str, recognise: Recognise) -> Iterator[Log | Unread]:
    """A log per member; the archive is opened anew for each so that any order of reading works."""
    try:
        with tarfile.open(path) as archive:
            members = [member.name for member in archive if member.isfile()]
    except READ_ERRORS as error:
        yield Unread(name, _reason(error))
        return
    top = {PurePosixPath(member).parts[0] for member in members}
    for member in sorted(members):
        inside = PurePosixPath(member)
        # An archive of one folder: that folder is the incident, not a host.
        if len(top) == 1 and len(inside.parts) > 1:
            inside = inside.relative_to(inside.parts[0])
        yield from _logs(f"{name}:{member}", inside, partial(_member, path, member), recognise)


def _member(path: Path, member: str) -> Iterator[bytes]:
    with tarfile.open(path) as archive:
        stream = archive.extractfile(member)
        if stream is not None:
            yield from _chunks(stream)


def read(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines of a stream, unzipped when it is gzip, as they come; closes it at the end.

    Of a line longer than 1 MiB only that much: the rest of it is passed over.

    Raises one of READ_ERRORS where a compressed stream is damaged or cut.
    """
    return _lines(_blocks(_chunks(stream), 0))


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """The bytes of a stream in pieces of at most 1 MiB, unzipped when it is gzip; closes it."""
    with stream:
        head = stream.read(2)
        if head == _GZIP:
            rest = io.BufferedReader(_Chained(head, stream), _CHUNK)
            with gzip.GzipFile(fileobj=rest) as unzipped:
                while chunk := unzipped.read1(_CHUNK):
                    yield chunk
            return
        yield head
        some = getattr(stream, "read1", stream.read)
        while chunk := some(_CHUNK):
            yield chunk


class _Chained(io.RawIOBase):
    """The bytes already read for a look, then the rest of the stream."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._head, self._stream = head, stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        chunk = self._head or self._stream.read(len(buffer))
        self._head = b""
        buffer[: len(chunk)] = chunk
        return len(chunk)


def _blocks(chunks: Iterable[bytes], at_least: int) -> Iterator[bytes]:
    """The chunks put together to blocks of whole lines, each line at most 1 MiB of it.

    Where the chunks break off, what came before is a block like any other.
    """
    parts: list[bytes] = []
    size = 0
    skipping = False
    broken: Exception | None = None
    try:
        for chunk in chunks:
            if skipping:
                end = chunk.find(b"\n") + 1
                skipping, chunk = not end, chunk[end:] if end else b""  # noqa: PLW2901 (its rest)
            end = chunk.rfind(b"\n") + 1
            if end and size + end >= at_least:
                yield from _cut(b"".join((*parts, chunk[:end])))
                parts, size = [chunk[end:]], len(chunk) - end
            else:
                parts.append(chunk)
                size += len(chunk)
            if size >= _MAX_LINE + at_least:
                held = b"".join(parts)
                last = held.rfind(b"\n") + 1
                yield from _cut(held[:last])
                parts, size = [held[last:]], len(held) - last
                if size >= _MAX_LINE:
                    yield parts[0][:_MAX_LINE]
                    parts, size, skipping = [], 0, True
    except READ_ERRORS as error:
        broken = error
    yield from _cut(b"".join(parts))
    if broken is not None:
        raise broken


def _cut(block: bytes) -> Iterator[bytes]:
    """The block, and lines in it that are too long cut and by themselves."""
    at, size = 0, len(block)
    place = 0
    while size - place > _MAX_LINE:
        end = block.rfind(b"\n", place, place + _MAX_LINE) + 1
        if not end:
            if place > at:
                yield block[at:place]
            yield block[place : place + _MAX_LINE]
            end = block.find(b"\n", place + _MAX_LINE) + 1 or size
            at = end
        place = end
    if at < size:
        yield block[at:]


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks:
        *whole, last = block.split(b"\n")
        for line in whole:
            yield line + b"\n"
        if last:
            yield last


def _logs(
    name: str, inside: PurePosixPath, chunks: Chunks, recognise: Recognise
) -> Iterator[Log | Unread]:
    head, error = _head(chunks)
    if not head:
        yield Unread(name, error or "empty")
        return
    folder = inside.parts[0] if len(inside.parts) > 1 else None
    host = folder or inside.name.split(".")[0]
    if bug_report.begins(head):
        host = bug_report.host_of(head) or host
        for kind, section in (
            (LogKind.KERNEL, bug_report.kernel_lines),
            (LogKind.GPU, bug_report.gpu_lines),
        ):
            yield Log(name, host, kind, chunks, folder=folder, section=section)
        return
    kinds = recognise(head)
    if not kinds:
        yield Unread(name, f"{NEITHER} ({error})" if error else NEITHER)
    for kind in kinds:
        yield Log(name, host, kind, chunks, folder=folder)


def _head(chunks: Chunks) -> tuple[list[bytes], str | None]:
    """The first lines of a file and, when it breaks off in them, why."""
    head: list[bytes] = []
    size = 0
    try:
        for line in _lines(_blocks(chunks(), _SNIFF)):
            head.append(line)
            size += len(line)
            if size > _SNIFF:
                break
    except READ_ERRORS as error:
        return head, _reason(error)
    return head, None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
