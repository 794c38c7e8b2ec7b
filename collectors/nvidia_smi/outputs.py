"""Reads the outputs of nvidia-smi, of drivers 440 to 595, into the records that NVML gives.

CSV of `--query-gpu` with its header, `-q` as text and XML, the table, `-L`, and the messages that
it prints instead; several of them may follow each other in one input.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo

import msgspec

from collectors.nvidia_smi.card import Look
from collectors.nvidia_smi.looks import Looks
from collectors.nvidia_smi.query import QueryText, QueryXml
from collectors.nvidia_smi.rows import CsvRows, Listing, Messages, TableRows
from evidence.identity import digest
from evidence.records import GpuFrame, GpuTick

__all__ = ["parse_stream", "recognise"]

_MAX_LINE = 1 << 20
#: Most characters of a line that are looked at to recognise it.
_LOOKED_AT = 16384


def recognise(head: list[bytes]) -> bool:
    """Whether the first lines of a file hold an output of nvidia-smi."""
    for raw in head:
        line = raw[:_LOOKED_AT].decode("utf-8", "replace").rstrip("\r\n")
        if "nvidia_smi_log" in line or any(
            shape.begins(line) for shape in (QueryText, TableRows, Listing, Messages, CsvRows)
        ):
            return True
    return False


def parse_stream(
    lines: Iterable[bytes],
    *,
    host: str | None,
    now: datetime,
    file: str | None = None,
    zone: tzinfo = UTC,
) -> Iterator[GpuFrame]:
    """Parse nvidia-smi's output: one frame with one tick for each time that it looked.

    The times it prints are local and without a zone: they are taken to be in ``zone``. A look
    without a time has that of the look before it in the same input, else ``now``. ``host`` is used
    where the output has no `hostname` column. The index is NVML's where the output tells it or
    shows as many GPUs as it counts, else -1 with the reason in ``unread``. A GPU that only `-L`
    names has ``unread["status"]``: a lost one is listed like any other. `ERR!` and the like are
    None with that reason in ``unread``; a card that answers little else has status ``error``.

    An error of the input (a truncated gzip) is raised after the frames of what came before it.
    """
    stream = _Stream(host or "unknown", now, file, zone)
    broken: Exception | None = None
    try:
        for line, cut in _with_end(_bounded(lines)):
            stream.take(line.decode("utf-8", "replace").rstrip("\r\n"), cut=cut)
            yield from stream.frames()
    except (OSError, EOFError, ValueError) as error:
        broken = error
    except Exception as error:  # noqa: BLE001 (of the input, whatever it is read from)
        broken = error
    stream.finish()
    yield from stream.frames()
    if broken is not None:
        raise broken


def _bounded(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Each line, at most 1 MiB of it; a file is read in pieces."""
    readline = getattr(lines, "readline", None)
    if readline is None:
        for line in lines:
            yield line[:_MAX_LINE]
        return
    while line := readline(_MAX_LINE):
        yield line
        while len(line) == _MAX_LINE and line[-1:] != b"\n":
            line = readline(_MAX_LINE)


def _with_end(lines: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each line, and whether the input ends in it where its other lines have ends."""
    before: bytes | None = None
    ended = False
    for line in lines:
        if before is not None:
            yield before, False
            ended = ended or before.endswith(b"\n")
        before = line
    if before is not None:
        yield before, ended and not before.endswith(b"\n")


class _Stream:
    """Gives each line to the reader of its shape; a shape goes on until another begins."""

    def __init__(self, host: str, now: datetime, file: str | None, zone: tzinfo) -> None:
        self._host = host
        self._now = now
        self._file = file
        self._at: datetime | None = None
        self._seq = 0
        self._looks = Looks(zone)
        self._text = QueryText(self._looks)
        self._xml = QueryXml(self._looks)
        self._csv = CsvRows(self._looks)
        self._table = TableRows(self._looks)
        self._list = Listing(self._looks)
        self._messages = Messages(self._looks)
        self._shape: object = None

    def take(self, line: str, *, cut: bool) -> None:
        """Take one line without its end; ``cut`` when the input ends in the middle of it."""
        if self._xml.reading or QueryXml.begins(line):
            self._xml.take(line + "\n")
            self._shape = self._xml
        elif Messages.begins(line):
            self._messages.take(line)
        elif QueryText.begins(line):
            self._shape = self._text
            self._text.take(line, cut=cut)
        elif CsvRows.begins(line):
            self._shape = self._csv
            self._csv.header(line)
        elif TableRows.begins(line):
            self._shape = self._table
            self._table.take(line)
        elif Listing.begins(line):
            self._shape = self._list
            self._list.take(line)
        elif not self._looks.announce(line):
            self._inside(line, cut=cut)

    def _inside(self, line: str, *, cut: bool) -> None:
        if self._shape is self._csv:
            self._csv.take(line, cut=cut)
        elif self._shape is self._text:
            self._text.take(line, cut=cut)
        elif self._shape is self._table:
            self._table.take(line)

    def finish(self) -> None:
        """The input is at its end."""
        self._looks.finish()

    def frames(self) -> Iterator[GpuFrame]:
        """The frames of the looks that are complete."""
        for look in self._looks.done():
            yield self._frame(look)

    def _frame(self, look: Look) -> GpuFrame:
        self._at = look.at or self._at
        tick = GpuTick(
            at=self._at or self._now,
            gpus=look.snapshots(),
            error=look.error,
            error_text=look.error_text,
        )
        self._seq += 1
        host = look.host or self._host
        content = msgspec.json.encode(tick).decode()
        return GpuFrame(
            id=digest("gpu", host, "nvidia-smi", self._file, self._seq, content),
            host=host,
            observed_at=self._now,
            seq=self._seq,
            ticks=(tick,),
            driver=look.driver,
            source="nvidia-smi",
            file=self._file,
        )
