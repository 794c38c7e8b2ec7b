"""Reads the logs of an incident and says what is at fault, with the steps the stream runs.

Records arrive in order of event time; a log without wall-clock times is laid out by its uptime
from an arbitrary day, so it is only compared with itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from collectors.gpu.framing import health
from evidence.decisions import Command, Verdict
from evidence.records import GpuFrame, KernelRecord
from ringfence import next_steps
from ringfence.drive import Driver, Outcome
from ringfence.logs import NEITHER, READ_ERRORS, Log, LogKind, NotReadable, Unread, find
from ringfence.reading import Record, records
from ringfence.recognise import may_be_kernel, recognise
from rules.tables import Rules

__all__ = ["Triage", "triage"]

#: Day one of a log that has no wall clock, and when that year is over.
_NO_CLOCK = datetime(1970, 1, 2, tzinfo=UTC)
_CLOCK = datetime(1971, 1, 1, tzinfo=UTC)
_ZERO = timedelta(0)
#: Looks at a host that show the same health are judged at most this often (seconds of
#: temperatures between them are no loss: what counts is that somebody looked).
_LOOKS_EVERY = timedelta(seconds=10)


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
    incident = _Incident(Driver(rules))
    for found in find(path, recognise):
        if isinstance(found, Unread):
            incident.unread.append(found)
        else:
            incident.take(found, now)
    outcome = incident.judge()
    return Triage(outcome.latest(), outcome.commands, incident.unread, incident.read)


class _Looks:
    """What somebody looked up after the incident: nvidia-smi and the tools of the fabric.

    A look without a time, or beside a kernel log without wall clock, is taken to come right
    after the last that its host's logs say.
    """

    def __init__(self) -> None:
        self._dated: list[tuple[str, str, Struct, datetime]] = []
        self._undated: list[tuple[str, str, Struct]] = []
        self._last: dict[str, datetime] = {}

    def add(self, records: "_Read") -> None:
        """Take the records of one file."""
        self._dated += records.dated
        self._undated += records.undated

    def see(self, records: "_Read") -> None:
        """Note when the logs of a host end."""
        for topic, key, _, at in records.dated:
            if topic == "kernel":
                self._last[key] = max(at, self._last.get(key, at))

    def placed(self) -> Iterator[tuple[str, str, Struct, datetime]]:
        """Every record with the time at which it is taken to arrive."""
        first = {key: at for _, key, _, at in reversed(self._dated)}
        end = max((*self._last.values(), *first.values()), default=_NO_CLOCK)
        for topic, key, record, at in self._dated:
            last = self._last.get(key, at)
            yield topic, key, record, at if last > _CLOCK else last + max(at - first[key], _ZERO)
        for topic, key, record in self._undated:
            yield topic, key, record, self._last.get(key, end)


@dataclass(slots=True)
class _Incident:
    """The records of all logs, on their way to the driver."""

    driver: Driver
    unread: list[Unread] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)
    looks: _Looks = field(default_factory=_Looks)
    undated: list[tuple[str, str, Struct]] = field(default_factory=list)
    first_dated: datetime | None = None

    def take(self, log: Log, now: datetime) -> None:
        """Read one log to its end, or to where it breaks off."""
        if log.kind is not LogKind.TEXT:
            self._keep(log, self._read(log, now))
            return
        # The first lines did not tell: a rank may train for hours before it says what matters.
        for kind in (LogKind.NCCL, LogKind.KERNEL):
            one = replace(log, kind=kind)
            if kind is LogKind.KERNEL and not may_be_kernel(one):
                break
            found = self._read(one, now)
            if found.count or self._is_unread(log.file):
                self._keep(one, found)
                return
        self.unread.append(Unread(log.file, NEITHER))

    def _read(self, log: Log, now: datetime) -> "_Read":
        found = _Read(log)
        try:
            found.take(now)
        except NotReadable as error:
            self.unread.append(Unread(log.file, str(error)))
        except READ_ERRORS as error:
            if not self._is_unread(log.file):
                words = f"broke off after {found.count} records: {error}"
                self.unread.append(Unread(log.file, words))
        return found

    def _is_unread(self, file: str) -> bool:
        return any(one.file == file for one in self.unread)

    def _keep(self, log: Log, records: "_Read") -> None:
        self.read[log.file] = self.read.get(log.file, 0) + records.count
        if log.kind in (LogKind.GPU, LogKind.FABRIC):
            self.looks.add(records)
            return
        for topic, key, record, at in records.dated:
            self.driver.add(topic, key, record, at)
        self.looks.see(records)
        self.undated += records.undated
        if records.dated and records.dated[0][0] == "nccl":
            first = records.dated[0][3]
            self.first_dated = first if self.first_dated is None else min(first, self.first_dated)

    def judge(self) -> Outcome:
        """Hand on what waited for its time, and let the driver run."""
        # A rank that fell silent may have printed nothing but undated lines: who it was must be
        # known before the others speak.
        for topic, key, record in self.undated:
            self.driver.add(topic, key, record, self.first_dated or _NO_CLOCK)
        for topic, key, record, at in self.looks.placed():
            self.driver.add(topic, key, record, at)
        return self.driver.run()


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
        self._shown: dict[str, tuple[datetime, object]] = {}

    def take(self, now: datetime) -> None:
        """Read the log to its end. Raises one of READ_ERRORS where it breaks off."""
        for topic, key, record in records(self._log, now):
            self.count += 1
            if isinstance(record, GpuFrame) and self._repeats(record):
                continue
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

    def _repeats(self, frame: GpuFrame) -> bool:
        """Whether a look says nothing new so soon: a day of them at 1 Hz is not kept in memory."""
        tick = frame.ticks[-1]
        said = health(tick)
        at, before = self._shown.get(frame.host, (None, None))
        if at is not None and said == before and timedelta(0) <= tick.at - at < _LOOKS_EVERY:
            return True
        self._shown[frame.host] = tick.at, said
        return False


def _dated(record: Record) -> datetime | None:
    if isinstance(record, GpuFrame):
        at = record.ticks[-1].at
        return None if at == record.observed_at else at
    if record.at is None and isinstance(record, KernelRecord) and record.uptime_s is not None:
        return _NO_CLOCK + timedelta(seconds=record.uptime_s)
    return record.at


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """One verdict with the names the contract gives, and everything else it carries."""
    plain: dict[str, Any] = msgspec.to_builtins(verdict)
    plain["action"] = str(verdict.recovery)
    plain["next"] = [msgspec.to_builtins(step) for step in next_steps.of(verdict)]
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
