"""Reads a kernel log from an open file or a list of lines, in bounded memory."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import IO

from collectors.follow import Line
from collectors.kernel.stream import MAX_LINE, KernelStream
from evidence.records import KernelRecord

__all__ = ["bounded_lines", "parse_stream"]

#: Lines looked at together where noise is only counted.
_BATCH = 2048


def bounded_lines(lines: Iterable[bytes] | IO[bytes]) -> Iterator[Line]:
    """Each line of a file, or of lines already split, at most `MAX_LINE` bytes of it.

    A file is read in pieces, so that a line of any length takes no more memory than that.
    """
    readline = getattr(lines, "readline", None)
    offset = number = 0
    if readline is None:
        for line in lines:
            number += 1
            size = len(line)
            data = line.rstrip(b"\r\n") if size <= MAX_LINE else line[:MAX_LINE]
            yield Line(data, offset, number, size > MAX_LINE)
            offset += size
        return
    while line := readline(MAX_LINE + 1):
        number += 1
        size = len(line)
        cut = size > MAX_LINE and line[-1:] != b"\n"
        yield Line(line[:MAX_LINE] if cut else line.rstrip(b"\r\n"), offset, number, cut)
        while cut and (rest := readline(MAX_LINE)):
            size += len(rest)
            cut = rest[-1:] != b"\n"
        offset += size


def parse_stream(
    lines: Iterable[bytes] | IO[bytes],
    *,
    host: str | None,
    now: Callable[[], datetime] | datetime,
    source: str = "file",
    file: str | None = None,
    year: int | None = None,
    zone: tzinfo | None = UTC,
    coalesce: bool = False,
    keep_other: bool = True,
) -> Iterator[KernelRecord]:
    """Parse the lines of a kernel log, in any mix of the known line prefixes.

    ``host`` is used where a line names none; ``now`` is when the lines are read, and where times
    without a year end; ``zone`` is that of times without one. One record a line, save that pieces
    of one event are joined, and with ``coalesce`` storms too. With ``keep_other`` false the lines
    of no interest are one record at the end.

    An error of the input (a truncated gzip) is raised after the records of what came before it.
    """
    stream = KernelStream(
        host=host,
        clock=now if callable(now) else lambda: now,
        source=source,
        file=file,
        zone=zone,
        year=year,
        keep_other=keep_other,
        coalesce=coalesce,
    )
    broken: Exception | None = None
    found = bounded_lines(lines)
    try:
        if keep_other:
            for line in found:
                stream.line(line)
                if stream.ready:
                    yield from stream.take()
        else:
            while batch := list(islice(found, _BATCH)):
                stream.lines(batch)
                yield from stream.take()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        broken = error
    yield from stream.settle()
    if (noise := stream.noise()) is not None:
        yield noise
    if broken is not None:
        raise broken
