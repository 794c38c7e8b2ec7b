"""Watches for the dumps that PyTorch's flight recorder writes when a collective times out.

Each rank writes one file (``/tmp/nccl_trace_rank_7``); the job and the rank stand in its name only.
Looking, reading and parsing happen on a thread of their own, so that neither a large dump nor a
file system that hangs stops the agent.
"""

import hashlib
import heapq
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from pathlib import Path

from msgspec import Struct

from collectors.cursors import load, save
from collectors.deadline import Caller
from collectors.nccl.flight_recorder_dump import DumpError, IncompleteError, read_dump
from collectors.nccl.flight_recorder_records import Origin, records_of, unreadable
from collectors.nccl.pattern import Found, find, matcher
from evidence.identity import digest
from evidence.records import NcclRecord

__all__ = ["FlightRecorderCollector", "rank_in_name", "read_file"]

_LOG = logging.getLogger(__name__)

#: A larger dump is refused with a sentence; 2,000 operations are about 2 MB. With the bounds on
#: what may be in it, reading one stays within the memory that the agent's unit has.
MAX_BYTES = 24 * 1024 * 1024
#: Dumps read in one round at most, so that their records leave in pieces.
_DUMPS_A_ROUND = 8
#: Files remembered as read, and how many of those that fit, the newest, are looked at: fewer, or
#: what was forgotten would be read and told again for ever.
_SEEN_MAX = 4096
_LOOKED_AT = 2048
_STATE_FILE = "flight_recorder.json"

# `nccl_trace_rank_7`, `rank7.pkl`, `nccl_trace_rank_7.json`
_TRAILING_RANK = re.compile(r"(\d{1,7})(?:\.\w{1,8})?\Z")


class _Seen(Struct, frozen=True):
    """A file as it was when it was read; ``content`` is a hash of its bytes."""

    size: int
    mtime_ns: int
    inode: int
    content: str = ""


@dataclass(frozen=True, slots=True)
class _Read:
    """One file read: what it gave, and how it looked."""

    key: str
    seen: _Seen
    records: list[NcclRecord]


@dataclass(slots=True)
class FlightRecorderCollector:
    """Records of all dumps that fit ``patterns``; a Collector.

    Patterns are as in NcclCollector; without ``{rank}`` the number at the end of a file's name is
    the rank. ``host`` None and an empty ``job`` are left open, as there. A dump is read when its
    size and time have not changed for ``settle_s``, once for each content (kept in ``state_dir``);
    one that has no end is waited for until it is ``give_up_s`` old. A dump that was last written
    longer than ``max_age_s`` before it is first met is an old job's and left alone. No dump at all
    is the normal state, never Unavailable.

    Raises PatternError (a ValueError) for a pattern that cannot be followed.
    """

    patterns: Iterable[str]
    job: str
    host: str | None
    state_dir: Path | None
    clock: Callable[[], datetime]
    attempt: int = field(default=0, kw_only=True)
    rescan_s: float = field(default=5.0, kw_only=True)
    settle_s: float = field(default=1.0, kw_only=True)
    give_up_s: float = field(default=60.0, kw_only=True)
    max_age_s: float = field(default=86400.0, kw_only=True)
    max_bytes: int = field(default=MAX_BYTES, kw_only=True)
    name: str = field(default="flight-recorder", kw_only=True)
    topic: str = field(default="nccl", kw_only=True)
    _matchers: list[tuple[str, re.Pattern[str]]] = field(init=False)
    _caller: Caller[list[_Read]] = field(init=False)
    _seen: dict[str, _Seen] = field(init=False)
    _changed: bool = field(init=False, default=False)
    _looked_at: datetime | None = field(init=False, default=None)
    #: Files that are not read yet, as they were last seen and since when. The thread's own.
    _settling: dict[str, tuple[_Seen, datetime]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._matchers = [matcher(pattern) for pattern in self.patterns]
        self._caller = Caller(self.name)
        self._seen = self._load()

    def read(self) -> Iterable[NcclRecord]:
        """Return the records of dumps that were read meanwhile, and look for more; never blocks."""
        now = self.clock()
        records: list[NcclRecord] = []
        answer = self._caller.answer()
        if answer is not None:
            if answer.error is not None:
                raise answer.error
            for one in answer.value or ():
                self._remember(one)
                records += one.records
        if not self._caller.busy and self._due(now, more=bool(records)):
            self._looked_at = now
            self._caller.start(partial(self._round, now, dict(self._seen)))
        return records

    @property
    def busy(self) -> bool:
        """Whether the thread is at work: what it finds is returned by a later `read`."""
        return self._caller.busy

    @property
    def settled(self) -> bool:
        """Whether every dump that is there was read, or is none."""
        return self._looked_at is not None and not self._caller.busy and not self._settling

    def saved(self) -> None:
        """Write down which dumps were read."""
        if self.state_dir is not None and self._changed:
            save(self.state_dir / _STATE_FILE, self._seen)
            self._changed = False

    def close(self) -> None:
        """Let the thread end; a reading under way is forgotten."""
        self._caller.close()

    def _due(self, now: datetime, *, more: bool) -> bool:
        if self._looked_at is None or more:
            return True
        pause = min(self.rescan_s, self.settle_s) if self._settling else self.rescan_s
        return abs((now - self._looked_at).total_seconds()) >= pause

    def _remember(self, one: _Read) -> None:
        self._seen.pop(one.key, None)
        self._seen[one.key] = one.seen
        self._changed = True
        while len(self._seen) > _SEEN_MAX:
            self._seen.pop(next(iter(self._seen)))

    def _load(self) -> dict[str, _Seen]:
        file = None if self.state_dir is None else self.state_dir / _STATE_FILE
        return load(file, dict[str, _Seen]) or {}

    def _round(self, now: datetime, seen: dict[str, _Seen]) -> list[_Read]:
        """Look at all files and read what is ready; runs on the thread."""
        read: list[_Read] = []
        settling: dict[str, tuple[_Seen, datetime]] = {}
        for globbed, expression in self._matchers:
            for found in _newest(find(globbed, expression)):
                key = digest(found.path)
                if key in settling or any(one.key == key for one in read):
                    continue
                look = _look(found.path)
                known = seen.get(key)
                if look is None or (known is not None and _same(known, look)):
                    continue
                if known is None and self._too_old(look, now):
                    continue
                earlier = self._settling.get(key)
                since = earlier[1] if earlier is not None and earlier[0] == look else now
                since = min(since, now)  # the clock may have been set back
                settling[key] = (look, since)
                still = (now - since).total_seconds()
                if still < self.settle_s or len(read) >= _DUMPS_A_ROUND:
                    continue
                one = self._read_one(found, key, known, now, last=still >= self.give_up_s)
                if one is not None:
                    read.append(one)
                    del settling[key]
        self._settling = settling
        return read

    def _too_old(self, look: _Seen, now: datetime) -> bool:
        return look.mtime_ns / 1e9 < (now - timedelta(seconds=self.max_age_s)).timestamp()

    def _read_one(
        self, found: Found, key: str, known: _Seen | None, now: datetime, *, last: bool
    ) -> _Read | None:
        """Read one settled file; None when it is still being written."""
        try:
            content, seen = _content(found.path, self.max_bytes)
        except OSError as error:
            if not last:
                return None
            look = _look(found.path) or _Seen(0, 0, 0)
            why = f"{found.path} cannot be read: {error.strerror}"
            return _Read(key, look, [unreadable(self._origin(found, look), why, now)])
        if known is not None and known.content == seen.content:
            return _Read(key, seen, [])  # touched or copied, and said already
        origin = self._origin(found, seen)
        try:
            return _Read(key, seen, _parse(content, origin, now, self.max_bytes))
        except IncompleteError as error:
            if not last:
                return None
            why = f"{found.path} is not a whole flight recorder dump: {error}"
            return _Read(key, seen, [unreadable(origin, why, now)])

    def _origin(self, found: Found, seen: _Seen) -> Origin:
        return Origin(
            job=found.job or self.job,
            host=found.host or self.host,
            file=str(found.path),
            rank=found.rank if found.rank is not None else rank_in_name(found.path),
            attempt=self.attempt,
            content=seen.content,
            written_at=_time(seen.mtime_ns),
        )


def read_file(
    path: Path, *, job: str, host: str | None, now: datetime, rank: int | None = None
) -> list[NcclRecord]:
    """Read one dump by hand; a dump that cannot be read gives one `unreadable` record.

    Raises OSError when the file cannot be opened.
    """
    content, seen = _content(path, MAX_BYTES)
    origin = Origin(
        job=job,
        host=host,
        file=str(path),
        rank=rank_in_name(path) if rank is None else rank,
        attempt=0,
        content=seen.content,
        written_at=_time(seen.mtime_ns),
    )
    try:
        return _parse(content, origin, now, MAX_BYTES)
    except IncompleteError as error:
        return [unreadable(origin, f"{path} is not a whole flight recorder dump: {error}", now)]


def rank_in_name(path: Path) -> int | None:
    """The rank that PyTorch appends to the file's name, if there is one."""
    found = _TRAILING_RANK.search(path.name)
    return None if found is None else int(found[1])


def _parse(
    content: bytes | None, origin: Origin, now: datetime, max_bytes: int
) -> list[NcclRecord]:
    if content is None:
        why = f"{origin.file} is larger than {max_bytes} bytes and was not read"
        return [unreadable(origin, why, now)]
    try:
        return records_of(read_dump(content), origin, now)
    except IncompleteError:
        raise
    except DumpError as error:
        why = f"{origin.file} is not a flight recorder dump: {error}"
        return [unreadable(origin, why, now)]


def _newest(found: list[Found]) -> list[Found]:
    """The files to look at: all, or those written last."""
    if len(found) <= _LOOKED_AT:
        return found
    looks = [(look.mtime_ns, one) for one in found if (look := _look(one.path)) is not None]
    return [one for _, one in heapq.nlargest(_LOOKED_AT, looks, key=itemgetter(0))]


def _look(path: Path) -> _Seen | None:
    """How a plain file looks now; None for anything else (the pipe that asks for a dump)."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return _seen(found) if stat.S_ISREG(found.st_mode) else None


def _seen(found: os.stat_result, content: str = "") -> _Seen:
    return _Seen(found.st_size, found.st_mtime_ns, found.st_ino, content)


def _same(known: _Seen, look: _Seen) -> bool:
    return (known.size, known.mtime_ns, known.inode) == (look.size, look.mtime_ns, look.inode)


def _content(path: Path, max_bytes: int) -> tuple[bytes | None, _Seen]:
    """The bytes of a plain file (None: too many) and how it looked; follows no link.

    Raises OSError, also for what is no plain file.
    """
    # The folder is often one where anybody may put a link or a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "it is no plain file")
        if found.st_size > max_bytes:
            large = f"{found.st_size} bytes of {found.st_mtime_ns}"
            return None, _seen(found, digest(large))
        content = file.read(max_bytes)
    return content, _seen(found, hashlib.blake2b(content, digest_size=16).hexdigest())


def _time(mtime_ns: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(mtime_ns / 1e9, UTC)
    except (OverflowError, OSError, ValueError):
        return None
