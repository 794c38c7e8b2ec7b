"""Imports files: finds out what each is, reads it, and hands its records to the history."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evidence.records import GpuFrame, KernelRecord
from ringfence import recognise as triage
from ringfence.backfill import cards, kernel, prometheus
from ringfence.backfill.order import Bad, Order, Unreadable
from ringfence.backfill.scrapes import Scrapes
from ringfence.logs import NEITHER, READ_ERRORS, Log, LogKind, Unread, find

__all__ = ["Read", "read"]

_ONLY = "not imported: only kernel logs, what nvidia-smi printed, and exports of DCGM metrics are"
_NO_EXPORT = NEITHER + ", nor an export of DCGM metrics"


@dataclass(slots=True)
class Read:
    """What an import read: files of which anything was read, and what could not be."""

    files: int = 0
    hosts: set[str] = field(default_factory=set)
    bad: Unreadable = field(default_factory=Unreadable)

    def told(self) -> list[Bad]:
        """What could not be read, in order of appearance."""
        return self.bad.told()


def read(
    paths: Sequence[Path],
    order: Order,
    take: Callable[[KernelRecord | GpuFrame], None],
    spool: Callable[[], Any],
) -> Read:
    """Read all logs under these paths and give each record to ``take``.

    Exports are put together last: a file may hold one metric alone, and the sample has all.
    ``spool`` makes a `warehouse.backfill.spool.Spool`, when the first export is met. What ``take``
    raises ends it.
    """
    done = Read()
    with ExitStack() as held:
        scrapes: Scrapes | None = None

        def joined() -> Scrapes:
            nonlocal scrapes
            if scrapes is None:
                scrapes = Scrapes(held.enter_context(spool()))
            return scrapes

        for path in paths:
            for log in find(path, _recognise):
                if isinstance(log, Unread):
                    done.bad.add(log.file, None, log.reason.replace(NEITHER, _NO_EXPORT))
                else:
                    _one(log, order, take, joined, done)
        for record in scrapes.frames(order) if scrapes is not None else ():
            done.hosts.add(record.host)
            take(record)
    return done


def _recognise(head: list[bytes]) -> tuple[LogKind, ...]:
    """As `ringfence.recognise`, which knows no exports: those are told apart when read."""
    return (LogKind.TEXT,) if prometheus.recognise(head) else triage.recognise(head)


def _one(
    log: Log,
    order: Order,
    take: Callable[[KernelRecord | GpuFrame], None],
    joined: Callable[[], Scrapes],
    done: Read,
) -> None:
    count = 0
    try:
        if log.kind is LogKind.TEXT and _is_export(log):
            for found in prometheus.series(log, order, done.bad):
                joined().add(found)
                count += len(found.values)
        elif log.kind is LogKind.TEXT and not triage.may_be_kernel(log):
            done.bad.add(log.file, None, _NO_EXPORT)
            return
        elif log.kind in (LogKind.KERNEL, LogKind.TEXT, LogKind.GPU):
            for record in _records(log, order, done.bad):
                done.hosts.add(record.host or "")
                take(record)
                count += 1
        else:
            done.bad.add(log.file, None, _ONLY)
            return
    except READ_ERRORS as error:
        # What the disk refuses is no fault of the file that is read.
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            raise
        done.bad.add(log.file, None, f"broke off after {count} records: {error}")
    done.files += 1


def _records(log: Log, order: Order, bad: Unreadable) -> Iterator[KernelRecord | GpuFrame]:
    if log.kind is LogKind.GPU:
        yield from cards.frames(log, order, bad)
    else:
        yield from kernel.records(log, order, bad)


def _is_export(log: Log) -> bool:
    head: list[bytes] = []
    for chunk in log.chunks():
        head.append(chunk)
        if sum(map(len, head)) > 1 << 18:
            break
    return prometheus.recognise(b"".join(head).splitlines(keepends=True))
