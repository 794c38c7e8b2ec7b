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
    for found in find(path, _recognise):
        if isinstance(found, Unread):
            unread.append(found)
            continue
        count = 0
        try:
            for topic, key, record, at in _records(found, now):
                driver.add(topic, key, record, at)
                count += 1
        except READ_ERRORS as error:
            unread.append(Unread(found.file, f"broke off after {count} records: {error}"))
        read[found.file] = count
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


def _records(log: Log, now: datetime) -> Iterator[tuple[str, str, Struct, datetime]]:
    """Each record with its topic, key and the time at which it is taken to arrive."""
    last = _NO_CLOCK
    records: Iterator[KernelRecord] | Iterator[NcclRecord]
    if log.kind is LogKind.KERNEL:
        records = kernel.parse_stream(
            log.lines(),
            host=log.host,
            now=now,
            file=log.file,
            coalesce=True,
            keep_other=False,
        )
    else:
        records = nccl.parse_stream(log.lines(), job=log.job, host=log.host, now=now, file=log.file)
    for record in records:
        last = _arrival(record, last)
        if isinstance(record, KernelRecord):
            if record.kind is not KernelKind.OTHER:
                yield "kernel", record.host or log.host, record, last
        else:
            yield "nccl", record.job, record, last


def _arrival(record: KernelRecord | NcclRecord, last: datetime) -> datetime:
    if record.at is not None:
        return record.at
    if isinstance(record, KernelRecord) and record.uptime_s is not None:
        return _NO_CLOCK + timedelta(seconds=record.uptime_s)
    return last


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
