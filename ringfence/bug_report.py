"""Takes from an nvidia-bug-report.log what the kernel and nvidia-smi said, section by section.

A section is a line of underscores, then its heading: a command, or `*** /path`. The kernel's lines
stand in it twice, with wall-clock times from the journal and with uptimes from dmesg.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

__all__ = ["begins", "gpu_lines", "host_of", "kernel_lines"]

_LINE = re.compile(rb"_{20,}\s*\Z")
_BEGINS = b"Start of NVIDIA bug report log file"
# uname: Linux gpu-c17 5.15.0-102-generic #112-Ubuntu SMP ...
_UNAME = re.compile(rb"uname: Linux (\S{1,253}) ")
_FIRST_LINES = 200
# *** /var/log/messages
_KERNEL = re.compile(
    rb"dmesg|Scanning kernel log files|journalctl(?!.*_COMM=)"
    rb"|\*\*\* /var/log/(?:messages|syslog|kern\.log|dmesg)\b"
)
# [  811.120031] NVRM: Xid (PCI:0000:9a:00): 79, pid='<unknown>', GPU has fallen off the bus.
_UPTIME = re.compile(rb"\[\s*(\d{1,12}\.\d{6})\] (.*\S)")
# Feb 03 04:05:06 gpu-c17 kernel: NVRM: Xid (PCI:0000:9a:00): 79, pid='<unknown>', ...
_STAMPED = re.compile(
    rb"\s*([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (\S+) kernel: (?:\[\s*\d+\.\d+\] )?(.*\S)"
)
#: A kernel's ring holds fewer lines; more than that are passed on as they are.
_MOST_LINES = 100_000


def begins(head: list[bytes]) -> bool:
    """Whether the first lines are those of an nvidia-bug-report.log."""
    return any(_BEGINS in line for line in head[:_FIRST_LINES])


def host_of(head: list[bytes]) -> str | None:
    """The node that the report is about, from the `uname` line of its head."""
    for line in head[:_FIRST_LINES]:
        if found := _UNAME.match(line):
            return found[1].decode("utf-8", "replace")
    return None


def gpu_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of the sections that nvidia-smi wrote."""
    for heading, line in _sections(lines):
        if b"nvidia-smi" in heading and not heading.startswith(b"Skipping"):
            yield line


def kernel_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The kernel's lines, each once, with wall-clock times where the report lets them be known.

    A line of dmesg that the journal before it has too is left out. Where such a line stands once
    in both, it ties uptime to wall clock, and the other lines of dmesg get that time. Empty lines
    stand in for all that is left out: a line keeps its number.
    """
    journal = _Journal()
    ring: list[bytes] = []
    for heading, line in _sections(lines):
        if heading.startswith(b"dmesg") and len(ring) < _MOST_LINES:
            ring.append(line)
            continue
        yield from journal.place(ring)
        ring.clear()
        if heading and _KERNEL.match(heading):
            journal.take(line)
            yield line.lstrip(b" ")
        else:
            yield b"\n"
    yield from journal.place(ring)


class _Journal:
    """What the report has of the kernel with wall-clock times."""

    def __init__(self) -> None:
        self._stamped: dict[bytes, tuple[bytes, bytes]] = {}
        self._told: Counter[bytes] = Counter()

    def take(self, line: bytes) -> None:
        """Remember one line by what it says."""
        found = _STAMPED.match(line)
        if found is not None and len(self._told) < _MOST_LINES:
            self._stamped[found[3]] = (found[1], found[2])
            self._told[found[3]] += 1

    def place(self, ring: list[bytes]) -> Iterator[bytes]:
        """The lines of dmesg that are new, with the times that the known ones tell."""
        parsed = [_UPTIME.match(line) for line in ring]
        in_ring = Counter(found[2] for found in parsed if found is not None)
        starts = [
            (start, self._stamped[found[2]][1])
            for found in parsed
            if found is not None
            and in_ring[found[2]] == self._told[found[2]] == 1
            and (start := _start(self._stamped[found[2]][0], found[1])) is not None
        ]
        # Of several boots the last: dmesg is of that one.
        start, host = max(starts, default=(None, b""))
        for line, found in zip(ring, parsed, strict=True):
            if found is None:
                yield line
            elif self._told[found[2]]:
                yield b"\n"
            else:
                yield line if start is None else _restamped(start, host, found)


def _start(stamp: bytes, uptime: bytes) -> datetime | None:
    """Second 0 of the kernel, in a year that stands for the one which syslog does not print."""
    try:
        at = datetime.strptime(f"2000 {stamp.decode()}", "%Y %b %d %H:%M:%S")  # noqa: DTZ007
        return at - timedelta(seconds=int(float(uptime)))
    except (ValueError, OverflowError):
        return None


def _restamped(start: datetime, host: bytes, found: re.Match[bytes]) -> bytes:
    at = start + timedelta(seconds=float(found[1]))
    return b"%s %s kernel: [%s] %s\n" % (
        f"{at:%b %d %H:%M:%S}".encode(),
        host,
        found[1],
        found[2],
    )


def _sections(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Each line with the heading of its section; headings and what parts them have none."""
    heading: bytes | None = b""
    for line in lines:
        if _LINE.match(line):
            heading = None
        elif heading is None and line.strip():
            heading = line.strip()
        elif heading is not None:
            yield heading, line
            continue
        yield b"", b"\n"
