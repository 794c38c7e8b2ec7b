"""Follows the NCCL, PyTorch and torchrun logs of this node (or of a shared file system).

Rank, host and job come from the lines where they tell, else from the file's name; a line without
either still becomes a record.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import msgspec

from collectors.collector import Unavailable
from collectors.cursors import SavePace, load, save
from collectors.follow import Cursor, Follower, Line
from collectors.nccl.memory import Processes
from collectors.nccl.pattern import Found, find, matcher
from collectors.nccl.stream import NcclStream, parse_stream
from collectors.nccl.waits import Position
from evidence.identity import digest
from evidence.records import NcclRecord

__all__ = ["NcclCollector", "parse_stream"]

_LOG = logging.getLogger(__name__)

#: Lines read in one round at most, so that a backlog of large files leaves in pieces.
_LINES_A_ROUND = 200_000
_SIEVED_TOGETHER = 128
#: A file without a new line for this long is looked at only so often: a job of many ranks on a
#: shared file system has thousands.
_CALM_AFTER_S = 10.0
_CALM_S = 0.25
#: Where more files than this fit, none is held open between two reads, and calm ones are looked at
#: as much more rarely: a process may not open thousands, and is to stay cheap.
_MOST_OPEN = 256
#: One read, and one writing of cursors, takes little longer than this; the rest has its turn later.
_ROUND_S = 0.5


@dataclass(slots=True)
class _Log:
    """One followed file: where reading stands, and where it may begin again after a crash."""

    follower: Follower
    stream: NcclStream
    generation: int = 0
    last_line_at: datetime | None = None
    #: When a file that is calm was last looked at.
    looked_at: datetime | None = None
    #: The cursor before the first line that no returned record rests on completely.
    safe: Cursor | None = None
    saved: Cursor | None = None
    pace: SavePace = field(default_factory=SavePace)
    #: What was last kept of the stream's processes, as JSON.
    memory: bytes = b""
    gone: bool = False
    #: Why it could not be read at the last look.
    missing: str = ""


@dataclass(slots=True)
class NcclCollector:
    """Records of all files that fit ``patterns``; a Collector.

    A pattern is a glob in which ``{job}``, ``{host}`` and ``{rank}`` name what they match, e.g.
    ``/var/log/train/{job}/{host}-{rank}.log``; ``job`` and ``host`` stand in where it has none.
    With an empty ``job`` a record's job is its world communicator's id, else the file's folder.

    ``tz`` is the zone of times that print none. ``trust_host``: the given host wins over what
    NCCL prints, which inside a container is the container's name. A file that was last written
    longer than ``max_age_s`` before it is first met belongs to an old job and is left alone. What
    is held back for a second message leaves ``settle_s`` after the file's last line.

    Raises PatternError (a ValueError) for a pattern that cannot be followed.
    """

    patterns: list[str]
    job: str
    host: str | None
    cursor_dir: Path | None
    clock: Callable[[], datetime]
    tz: tzinfo = UTC
    attempt: int = 0
    trust_host: bool = False
    rescan_s: float = 5.0
    settle_s: float = 0.5
    max_age_s: float = 86400.0
    max_line: int = 65536
    name: str = "nccl"
    topic: str = "nccl"
    _matchers: list[tuple[str, re.Pattern[str]]] = field(init=False)
    _logs: dict[Path, _Log] = field(init=False, default_factory=dict)
    _scanned_at: datetime | None = field(init=False, default=None)
    _turn: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._matchers = [matcher(pattern) for pattern in self.patterns]

    def read(self) -> Iterable[NcclRecord]:
        """Return the records of lines that are new since the last call.

        Raises Unavailable when no file fits the patterns, or none that does can be read.
        """
        now = self.clock()
        self._scan(now)
        if not self._logs:
            raise Unavailable(f"no file fits {', '.join(self.patterns)}")
        records: list[NcclRecord] = []
        lines = 0
        logs = list(self._logs.items())
        began = time.monotonic()
        # Each round begins where the last one ran full, so that no file waits for ever.
        turn = self._turn % len(logs)
        for place in [*range(turn, len(logs)), *range(turn)]:
            path, log = logs[place]
            if self._calm(log, now):
                continue
            before = len(records)
            lines += self._read_log(path, log, now, records)
            log.pace.returned(records[before:])
            if len(logs) > _MOST_OPEN:
                log.follower.pause()
            if lines >= _LINES_A_ROUND or time.monotonic() - began > _ROUND_S:
                self._turn = place + 1
                break
        missing = [log.missing for log in self._logs.values() if log.missing and not log.gone]
        if not records and len(missing) == len(logs):
            raise Unavailable(missing[0])
        return records

    def rest(self) -> list[NcclRecord]:
        """Return what is still held back, and half lines, for the end of all input."""
        now = self.clock()
        records: list[NcclRecord] = []
        for log in self._logs.values():
            self._feed(log, log.follower.flush_partial(), now, records)
            records += log.stream.flush(now)
            log.safe = log.follower.cursor
        return records

    def saved(self) -> None:
        """Write each file's cursor, as far as its records are complete."""
        if self.cursor_dir is None:
            return
        began = time.monotonic()
        for path, log in self._logs.items():
            if log.safe is None or log.safe == log.saved or not log.pace.due():
                continue
            # What was learned first: a cursor must never stand behind a forgotten rank map.
            memory = msgspec.json.encode(log.stream.processes)
            if memory != log.memory:
                save(self._cursor_file(path, "processes"), log.stream.processes)
                log.memory = memory
            save(self._cursor_file(path, "cursor"), log.safe)
            log.saved = log.safe
            log.pace.saved()
            if time.monotonic() - began > _ROUND_S:
                return

    def close(self) -> None:
        """Close all files."""
        for log in self._logs.values():
            log.follower.close()
        self._logs.clear()

    def _scan(self, now: datetime) -> None:
        due = self._scanned_at
        if due is not None and abs((now - due).total_seconds()) < self.rescan_s:
            return
        self._scanned_at = now
        for path, log in list(self._logs.items()):
            if log.gone and not log.stream.pending:
                self._logs.pop(path).follower.close()
        for globbed, expression in self._matchers:
            for found in find(globbed, expression):
                if found.path not in self._logs:
                    self._meet(found, now)

    def _meet(self, found: Found, now: datetime) -> None:
        cursor, memory = None, Processes()
        if self.cursor_dir is not None:
            cursor = load(self._cursor_file(found.path, "cursor"), Cursor)
            if cursor is not None:
                memory = load(self._cursor_file(found.path, "processes"), Processes) or memory
        if cursor is None and self._too_old(found.path, now):
            return
        stream = NcclStream(
            job=found.job or self.job,
            host=found.host or self.host,
            file=str(found.path),
            rank=found.rank,
            attempt=self.attempt,
            tz=self.tz,
            trust_host=self.trust_host,
            processes=memory,
        )
        follower = Follower(found.path, cursor=cursor, max_line=self.max_line)
        generation = 0 if cursor is None else cursor.generation
        self._logs[found.path] = _Log(follower, stream, generation, saved=cursor)

    def _too_old(self, path: Path, now: datetime) -> bool:
        try:
            written = path.stat().st_mtime
        except OSError:
            return True
        return written < (now - timedelta(seconds=self.max_age_s)).timestamp()

    def _read_log(self, path: Path, log: _Log, now: datetime, records: list[NcclRecord]) -> int:
        try:
            lines = log.follower.read()
        except Unavailable as error:
            if str(error) != log.missing:
                _LOG.info("%s", error)
            log.missing = str(error)
            lines = log.follower.flush_partial()
            log.gone = not os.path.lexists(path)
        else:
            log.gone, log.missing = False, ""
        if lines or log.last_line_at is None or log.last_line_at > now:  # or the clock was set
            log.last_line_at = now
        quiet = (now - log.last_line_at).total_seconds() >= self.settle_s
        if quiet and log.follower.pending and not lines:
            # A process that dies leaves its last words without a newline.
            lines = log.follower.flush_partial() if self._long_quiet(log, now) else []
        self._feed(log, lines, now, records)
        if quiet and not lines and log.stream.pending:
            records += log.stream.flush(now)
        if not log.stream.pending:
            log.safe = log.follower.cursor
        return len(lines)

    def _calm(self, log: _Log, now: datetime) -> bool:
        """Whether a file that has said nothing for long was looked at just now."""
        if log.last_line_at is None or log.stream.pending or log.follower.pending:
            return False
        if (now - log.last_line_at).total_seconds() < _CALM_AFTER_S:
            return False
        pause_s = _CALM_S * max(1.0, len(self._logs) / _MOST_OPEN)
        if log.looked_at is not None and abs((now - log.looked_at).total_seconds()) < pause_s:
            return True
        log.looked_at = now
        return False

    def _long_quiet(self, log: _Log, now: datetime) -> bool:
        assert log.last_line_at is not None
        return (now - log.last_line_at).total_seconds() >= 10 * self.settle_s

    def _feed(self, log: _Log, lines: list[Line], now: datetime, records: list[NcclRecord]) -> None:
        for first in range(0, len(lines), _SIEVED_TOGETHER):
            batch = lines[first : first + _SIEVED_TOGETHER]
            # Nearly all that training prints says nothing; together it is thrown out sooner.
            cut = any(line.cut for line in batch)
            if cut or not log.stream.idle(b"\n".join([line.data for line in batch]), len(batch)):
                self._feed_each(log, batch, now, records)

    def _feed_each(
        self, log: _Log, lines: list[Line], now: datetime, records: list[NcclRecord]
    ) -> None:
        stream = log.stream
        for line in lines:
            if not line.cut and stream.idle(line.data):
                continue
            if line.generation > log.generation:
                log.generation = line.generation
                records += stream.begin_anew(now)
            position = Position(line.offset, line.number, f"{line.inode}.{line.generation}")
            records += stream.feed(line.data, position, now, cut=line.cut)

    def _cursor_file(self, path: Path, what: str) -> Path:
        assert self.cursor_dir is not None
        return self.cursor_dir / f"{digest(path)}.{what}.json"
