"""Finds the logs of an incident under a path and says of each what it is, by content.

Compressed and archived files are read as streams: nothing is unpacked to disk.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from ringfence import bug_report

__all__ = ["READ_ERRORS", "Log", "LogKind", "Unread", "find", "read"]

_SNIFF = 256 * 1024
_GZIP = b"\x1f\x8b"
#: Errors that a damaged or foreign file raises while it is opened or read.
READ_ERRORS = (OSError, EOFError, tarfile.TarError, gzip.BadGzipFile, zlib.error)


class LogKind(StrEnum):
    """What a file holds."""

    KERNEL = "kernel"
    NCCL = "nccl"
    GPU = "gpu"
    FABRIC = "fabric"


@dataclass(frozen=True, slots=True)
class Log:
    """One readable log: where it was found, whose it is, and how to read its lines."""

    file: str
    host: str
    kind: LogKind
    lines: Callable[[], Iterator[bytes]]
    job: str = "job"


@dataclass(frozen=True, slots=True)
class Unread:
    """A file nothing was read from, or not all of it, and why."""

    file: str
    reason: str


Recognise = Callable[[list[bytes]], tuple[LogKind, ...]]


def find(path: Path, recognise: Recognise) -> Iterator[Log | Unread]:
    """Every log under ``path`` (a file, a folder, or a tar archive), in order of name.

    ``recognise`` is shown the first lines of a file, at most 256 KiB, and says what it is: a log of
    each kind that it names. An nvidia-bug-report.log is what the kernel and nvidia-smi said. The
    host is the folder directly under ``path``, else the file's own name without endings; a host
    that stands in the lines themselves wins over it later.
    """
    if path.is_dir():
        for file in sorted(one for one in path.rglob("*") if one.is_file()):
            inside = file.relative_to(path)
            yield from _open(file, str(inside), _host(PurePosixPath(inside)), recognise)
    else:
        yield from _open(path, path.name, _host(PurePosixPath(path.name)), recognise)


def _host(inside: PurePosixPath) -> str:
    return inside.parts[0] if len(inside.parts) > 1 else inside.name.split(".")[0]


def _open(path: Path, name: str, host: str, recognise: Recognise) -> Iterator[Log | Unread]:
    try:
        if tarfile.is_tarfile(path):
            yield from _archive(path, name, recognise)
            return
    except READ_ERRORS as error:
        yield Unread(name, _reason(error))
        return
    yield from _logs(name, host, lambda: read(path.open("rb")), recognise)


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
        lines = partial(_member, path, member)
        yield from _logs(f"{name}:{member}", _host(inside), lines, recognise)


def _member(path: Path, member: str) -> Iterator[bytes]:
    with tarfile.open(path) as archive:
        stream = archive.extractfile(member)
        if stream is not None:
            yield from read(stream)


def read(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines of a stream, unzipped when it is gzip; closes it at the end.

    Of a line longer than 1 MiB only that much: the rest of it is passed over.

    Raises one of READ_ERRORS where a compressed stream is damaged or cut.
    """
    with stream:
        head = stream.read(2)
        rest = io.BufferedReader(_Chained(head, stream), 1 << 20)
        if head == _GZIP:
            with gzip.GzipFile(fileobj=rest) as unzipped:
                yield from _lines(unzipped)
        else:
            yield from _lines(rest)


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


_MAX_LINE = 1 << 20


def _lines(stream: "IO[bytes] | gzip.GzipFile | io.BufferedReader") -> Iterator[bytes]:
    while line := stream.readline(_MAX_LINE):
        yield line
        while len(line) == _MAX_LINE and not line.endswith(b"\n"):
            line = stream.readline(_MAX_LINE)


def _logs(
    name: str, host: str, lines: Callable[[], Iterator[bytes]], recognise: Recognise
) -> Iterator[Log | Unread]:
    head, error = _head(lines)
    if not head:
        yield Unread(name, error or "empty")
        return
    if bug_report.begins(head):
        host = bug_report.host_of(head) or host
        yield Log(name, host, LogKind.KERNEL, lambda: bug_report.kernel_lines(lines()))
        yield Log(name, host, LogKind.GPU, lambda: bug_report.gpu_lines(lines()))
        return
    kinds = recognise(head)
    if not kinds:
        reason = (
            "neither a kernel log nor a NCCL, PyTorch or torchrun log, "
            "nor output of nvidia-smi or of a fabric tool"
        )
        yield Unread(name, f"{reason} ({error})" if error else reason)
    for kind in kinds:
        yield Log(name, host, kind, lines)


def _head(lines: Callable[[], Iterator[bytes]]) -> tuple[list[bytes], str | None]:
    """The first lines of a file and, when it breaks off in them, why."""
    head: list[bytes] = []
    size = 0
    try:
        for line in lines():
            head.append(line)
            size += len(line)
            if size > _SNIFF:
                break
    except READ_ERRORS as error:
        return head, _reason(error)
    return head, None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
