"""Old kernel logs into records whose ids are functions of host, time and line alone.

So the same line out of another file, or out of a file cut elsewhere, is the same record. Equal
lines of one time are told apart by how often they stood there, and no storm is counted together:
where a file is cut would change the count.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec.structs import replace

from collectors.kernel.stream import KernelStream
from evidence.identity import digest
from evidence.records import KernelKind, KernelRecord
from ringfence import sieve
from ringfence.backfill.order import Order, Unreadable
from ringfence.logs import READ_ERRORS, Log

__all__ = ["records"]

# Apr  7 03:12:09 trn17 kernel: ...   /   <3>Apr  7 03:12:09 ...
_NO_YEAR = re.compile(r"(?:<\d{1,4}>)?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? ")
_ANY_YEAR = 2000
#: Hosts of one file whose last time is remembered.
_HOSTS = 4096


def records(log: Log, order: Order, bad: Unreadable) -> Iterator[KernelRecord]:
    """The records of a kernel log that have a time; what has none is named in ``bad``.

    A line without a year needs the order's year, a line with seconds since boot its boot time. An
    error of the file is raised after the records of what came before it.
    """
    stream = KernelStream(
        host=order.host or log.host,
        clock=lambda: order.now,
        file=log.file,
        zone=order.zone,
        year=order.year or _ANY_YEAR,
        keep_other=False,
    )
    once = _Occurrences()
    broken: Exception | None = None
    try:
        for lines in sieve.candidates(log.blocks(), sieve.KERNEL):
            stream.lines(lines)
            for record in stream.take():
                yield from _dated(record, log, order, once, bad)
    except READ_ERRORS as error:
        broken = error
    for record in stream.settle():
        yield from _dated(record, log, order, once, bad)
    if broken is not None:
        raise broken


def _dated(
    record: KernelRecord, log: Log, order: Order, once: "_Occurrences", bad: Unreadable
) -> Iterator[KernelRecord]:
    if record.kind is KernelKind.OTHER:
        return
    when, why = _when(record, order)
    if record.kind is KernelKind.UNREADABLE:
        bad.add(log.file, record.line, record.message or "the line cannot be read")
    if when is None:
        bad.add(log.file, record.line, why)
        return
    if not order.wants(when):
        return
    host = record.host or order.host or log.host
    count = once.of(host, when, record.raw)
    yield replace(
        record,
        id=digest("import", "kernel", host, when.isoformat(), record.raw, count),
        at=when,
        host=host,
    )


def _when(record: KernelRecord, order: Order) -> tuple[datetime | None, str]:
    """When it happened; None and why where that cannot be told."""
    if order.year is None and _NO_YEAR.match(record.raw):
        return None, "the time has no year: give --year"
    if record.clock_clamped:
        return None, "the time lies in the future: are --year and --timezone right?"
    if record.at is not None:
        return record.at, ""
    if record.uptime_s is None:
        return None, "the line has no time"
    if order.boot_time is None:
        return None, "the line has only the seconds since boot: give --boot-time"
    return order.boot_time + timedelta(seconds=record.uptime_s), ""


class _Occurrences:
    """How often a line has stood at its time already, in one run of lines of that time."""

    def __init__(self) -> None:
        self._hosts: OrderedDict[str, tuple[datetime, Counter[str]]] = OrderedDict()

    def of(self, host: str, when: datetime, raw: str) -> int:
        """0 for the first of equal lines."""
        at, seen = self._hosts.pop(host, (None, Counter()))
        if at != when:
            seen = Counter()
        self._hosts[host] = when, seen
        if len(self._hosts) > _HOSTS:
            self._hosts.popitem(last=False)
        seen[raw] += 1
        return seen[raw] - 1
