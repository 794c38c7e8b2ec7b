"""Reads the logs of an incident and says what is at fault, with the steps the stream runs.

Records arrive in order of event time; a log without wall-clock times is laid out by its uptime
from an arbitrary day, so it is only compared with itself.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from collectors import kernel, nccl
from evidence.decisions import Command, Verdict
from evidence.records import KernelKind, KernelRecord, NcclRecord
from ringfence.drive import Driver
from ringfence.logs import READ_ERRORS, Log, LogKind, Unread, find
from rules.tables import Rules

__all__ = ["Triage", "triage"]

#: Day one of a log that has no wall clock.
_NO_CLOCK = datetime(1970, 1, 2, tzinfo=UTC)


@dataclass(slots=True)
class Triage:
    """Verdicts (last revision each), commands, and what was not read; ``read`` counts records."""

    verdicts: list[Verdict]
    commands: list[Command]
    unread: list[Unread] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)

    @property
    def faulty(self) -> bool:
        """Whether any verdict was found."""
        return bool(self.verdicts)

    def as_json(self) -> dict[str, Any]:
        """Plain data in the shape of the command line's contract."""
        return {
            "verdicts": [_verdict(verdict) for verdict in self.verdicts],
            "commands": [_command(command) for command in self.commands],
            "unread": [{"file": one.file, "reason": one.reason} for one in self.unread],
            "read": self.read,
        }


def triage(path: Path, rules: Rules, now: datetime) -> Triage:
    """Read everything under ``path`` and judge it; ``now`` gives logs without a year their year.

    Raises FileNotFoundError when there is no such path.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    driver, unread, read = Driver(rules), [], {}
    undated: list[tuple[str, str, Struct]] = []
    first_dated: datetime | None = None
    for found in find(path, _recognise):
        if isinstance(found, Unread):
            unread.append(found)
            continue
        records = _Read(found)
        try:
            records.take(now)
        except READ_ERRORS as error:
            unread.append(Unread(found.file, f"broke off after {records.count} records: {error}"))
        read[found.file] = records.count
        for topic, key, record, at in records.dated:
            driver.add(topic, key, record, at)
        undated += records.undated
        if found.kind is LogKind.NCCL and records.dated:
            first = records.dated[0][3]
            first_dated = first if first_dated is None else min(first, first_dated)
    # A rank that fell silent may have printed nothing but undated lines: who it was must be
    # known before the others speak.
    for topic, key, record in undated:
        driver.add(topic, key, record, first_dated or _NO_CLOCK)
    outcome = driver.run()
    return Triage(outcome.latest(), outcome.commands, unread, read)


# kern  :warn  : 2026-02-03T04:05:06,789012+00:00 nvidia-peermem ...
# [  811.120031] pcieport ... / Feb  3 04:05:06 n1 kernel: ... / <4>nvme nvme0: ...
# [Tue Feb  3 04:05:06 2026] pcieport ...
_KERNEL_SHAPE = re.compile(
    rb"^(?:kern\s*:\w+\s*:|\[\s*\d+\.\d{6}\]|<\d+>|\d{4}-\d\d-\d\dT[\d:]+[,.]\d+[+-]\d\d:?\d\d )"
    rb"|^\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] |\bkernel: "
)


def _recognise(head: list[bytes]) -> LogKind | None:
    """What a file is, by asking both parsers what they make of its first lines.

    A kernel log may begin with pages of noise: then the shape of its lines tells.
    """
    now = datetime.now(UTC)
    made = {
        LogKind.KERNEL: sum(
            record.kind is not KernelKind.OTHER
            for record in kernel.parse_stream(head, host=None, now=now, coalesce=False)
        ),
        LogKind.NCCL: sum(1 for _ in nccl.parse_stream(head, job="", host=None, now=now)),
    }
    kind = max(made, key=made.__getitem__)
    if made[kind]:
        return kind
    return LogKind.KERNEL if any(map(_KERNEL_SHAPE.search, head)) else None


class _Read:
    """The records of one log with the time at which each is taken to arrive.

    An undated record arrives with the dated one before it, those in front of a log's first dated
    one with that; ``undated`` are those of a log that has no dates at all.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.count = 0
        self.dated: list[tuple[str, str, Struct, datetime]] = []
        self.undated: list[tuple[str, str, Struct]] = []

    def take(self, now: datetime) -> None:
        """Read the log to its end. Raises one of READ_ERRORS where it breaks off."""
        for topic, key, record in _records(self._log, now):
            self.count += 1
            at = _dated(record)
            if at is not None:
                self.dated += [(*one, at) for one in self.undated]
                self.undated.clear()
            elif self.dated:
                at = self.dated[-1][3]
            if at is None:
                self.undated.append((topic, key, record))
            else:
                self.dated.append((topic, key, record, at))


def _records(log: Log, now: datetime) -> Iterator[tuple[str, str, KernelRecord | NcclRecord]]:
    """Each record with its topic and key."""
    if log.kind is LogKind.NCCL:
        for said in nccl.parse_stream(
            log.lines(), job=log.job, host=log.host, now=now, file=log.file
        ):
            yield "nccl", said.job, said
        return
    for record in kernel.parse_stream(
        log.lines(), host=log.host, now=now, file=log.file, coalesce=True, keep_other=False
    ):
        if record.kind is not KernelKind.OTHER:
            yield "kernel", record.host or log.host, record


def _dated(record: KernelRecord | NcclRecord) -> datetime | None:
    if record.at is None and isinstance(record, KernelRecord) and record.uptime_s is not None:
        return _NO_CLOCK + timedelta(seconds=record.uptime_s)
    return record.at


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """One verdict with the names the contract gives, and everything else it carries."""
    plain: dict[str, Any] = msgspec.to_builtins(verdict)
    plain["action"] = str(verdict.recovery)
    names = ("kind", "host", "pci", "uuid", "index", "rank", "link", "switch", "port", "rack")
    domain = plain["domain"]
    plain["domain"] = {name: domain.get(name) for name in names} | domain
    lines = ("source", "file", "line", "at", "text")
    plain["evidence"] = [
        {name: one.get(name) for name in lines} | one for one in plain.get("evidence", ())
    ]
    return plain


def _command(command: Command) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(command)
    return {"dry_run": command.dry_run, "held": command.held} | plain
