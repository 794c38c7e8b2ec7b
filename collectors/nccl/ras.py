"""Asks the RAS service of a running NCCL job for its state: communicators, ranks, counts.

Every NCCL process since 2.24 listens for this on its node (``localhost:28028``, NCCL_RAS_ADDR) and
answers for the whole job. It is asked seldom and as little as can be: one node's agent is enough
for a job, and versions 2.26.5 to 2.27 can crash when asked after a rank died (nccl#1718, #1762,
#1996). The version is only told in the answer, but those that know the JSON form (2.28.7 and
newer) are none of them; others are asked only if the operator says so.
Protocol: nccl/src/ras/client.cc (CLIENT PROTOCOL 2).
"""

import re
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Self

from msgspec.structs import replace

from collectors.collector import CollectorError, Unavailable
from collectors.deadline import Caller
from collectors.nccl.ras_json import ReportError, read_report
from collectors.nccl.stream import parse_stream
from evidence.identity import digest
from evidence.records import NcclKind, NcclRecord

__all__ = ["MIN_INTERVAL_S", "RasCollector", "ask"]

#: A job is never asked more often, since each answer makes all its processes talk.
MIN_INTERVAL_S = 30.0
#: A longer report is cut off with a sentence: 16,384 ranks in twenty communicators are 200 MB.
_REPORT_MAX = 64 * 1024 * 1024
_LINE_MAX = 4096
_TIMEOUT_S = 5
_TIMEOUT = f"TIMEOUT {_TIMEOUT_S}"

# `NCCL version 2.27.3 compiled with CUDA 12.9`
_VERSION = re.compile(rb"NCCL version (\d{1,3})\.(\d{1,3})\.(\d{1,3})")
#: The first and the last version known to crash when asked.
_CRASHES = (2, 26, 5), (2, 27, 999)


@dataclass(frozen=True, slots=True)
class _Report:
    """An answer: its bytes, and whether they are JSON."""

    data: bytes
    json: bool


class _RefusedError(CollectorError):
    """The job must not be asked; the message says why."""


@dataclass(slots=True)
class RasCollector:
    """Records of what NCCL's RAS service says about the job on this node; a Collector.

    ``address`` is ``host:port``. Asked once every ``interval_s`` (never below `MIN_INTERVAL_S`)
    on a thread that has ``deadline_s`` for one answer. With ``old_versions`` also NCCL that speaks
    only text is asked, until it tells a version that can crash.

    Raises ValueError for an address or an interval that cannot be.
    """

    address: str
    job: str
    host: str | None
    clock: Callable[[], datetime]
    interval_s: float = field(default=60.0, kw_only=True)
    attempt: int = field(default=0, kw_only=True)
    tz: tzinfo = field(default=UTC, kw_only=True)
    deadline_s: float = field(default=20.0, kw_only=True)
    old_versions: bool = field(default=False, kw_only=True)
    name: str = field(default="nccl-ras", kw_only=True)
    topic: str = field(default="nccl", kw_only=True)
    _target: tuple[str, int] = field(init=False)
    _caller: Caller[_Report] = field(init=False)
    _asked_at: datetime | None = field(init=False, default=None)
    #: Why this job is not asked again, until nothing listens there any more.
    _refused: str | None = field(init=False, default=None)
    #: Why there was no answer the last time: said again until there is one.
    _absent: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.interval_s < MIN_INTERVAL_S:
            raise ValueError(f"RAS is asked every {MIN_INTERVAL_S:g} s at most, not more often")
        self._target = _target(self.address)
        self._caller = Caller(self.name)

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        return self._caller.busy

    def read(self) -> Iterable[NcclRecord]:
        """Return what the job answered since the last call, and ask again if it is time.

        Raises Unavailable when nothing listens there, or the job must not be asked.
        """
        now, asked_at = self.clock(), self._asked_at
        answer = self._caller.answer()
        if not self._caller.busy and self._due(now):
            self._asked_at = now
            old_versions = self.old_versions and self._refused is None
            call = partial(ask, self._target, self.deadline_s, old_versions=old_versions)
            self._caller.start(call)
        if answer is not None:
            self._absent = self._why_absent(answer.error)
        if self._absent is not None:
            raise Unavailable(self._absent)
        if answer is None:
            return []
        if answer.error is not None:
            raise answer.error
        assert answer.value is not None
        if not answer.value.json and _can_crash(answer.value.data):
            self._refused = f"{self.address}: {_why(answer.value.data)}"
        return self._records(answer.value, asked_at or now, now)

    def saved(self) -> None:
        """Nothing to keep: the next answer says it all again."""

    def close(self) -> None:
        """Let the thread end; an answer under way is forgotten."""
        self._caller.close()

    def _why_absent(self, error: Exception | None) -> str | None:
        """Why there is nobody to ask, or nobody who must be asked; None when it is otherwise."""
        if isinstance(error, _RefusedError):
            self._refused = self._refused or str(error)
            return self._refused
        self._refused = None
        return str(error) if isinstance(error, Unavailable) else None

    def _due(self, now: datetime) -> bool:
        if self._asked_at is None:
            return True
        return abs((now - self._asked_at).total_seconds()) >= self.interval_s

    def _records(self, report: _Report, asked_at: datetime, now: datetime) -> list[NcclRecord]:
        if report.json:
            found = self._of_json(report.data, now)
        else:
            lines = report.data.splitlines(keepends=True)
            found = list(
                parse_stream(lines, job=self.job, host=self.host, now=now, file=self._file)
            )
        return [
            replace(
                record,
                id=digest("ras", self.host, self.address, asked_at.isoformat(), place),
                source="ras",
                at=asked_at,
                offset=place,
                attempt=self.attempt,
            )
            for place, record in enumerate(found)
        ]

    def _of_json(self, data: bytes, now: datetime) -> list[NcclRecord]:
        try:
            told = read_report(data)
        except ReportError as error:
            told = [{"kind": NcclKind.UNREADABLE, "message": str(error)}]
        return [
            NcclRecord(
                id="",
                observed_at=now,
                raw=fields["message"],
                job=self.job or self._file,
                host=self.host,
                file=self._file,
                **fields,
            )
            for fields in told
        ]

    @property
    def _file(self) -> str:
        return f"ras:{self.address}"


def ask(target: tuple[str, int], deadline_s: float, *, old_versions: bool = False) -> _Report:
    """Ask a RAS service once; takes ``deadline_s`` at most.

    Raises CollectorError with one sentence when there is no answer.
    """
    with _Client(target, deadline_s) as client:
        client.greet()
        if client.command("SET FORMAT json") == "OK":
            return _Report(client.report("STATUS"), json=True)
        if not old_versions:
            raise _RefusedError(
                f"the NCCL at {client.where} is older than 2.28.7 and is not asked, since 2.26.5"
                " to 2.27 can crash when asked"
            )
        return _Report(client.report("VERBOSE STATUS"), json=False)


class _Client:
    """One connection to a RAS service; every step ends by the one deadline."""

    def __init__(self, target: tuple[str, int], deadline_s: float) -> None:
        self.where = f"{target[0]}:{target[1]}"
        self._end = time.monotonic() + deadline_s
        self._read = b""
        try:
            self._socket = socket.create_connection(target, timeout=deadline_s)
        except OSError as error:
            raise Unavailable(f"no NCCL job answers at {self.where}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def greet(self) -> None:
        """Exchange protocol versions, and bound what the job itself waits for its processes."""
        answer = self.command("CLIENT PROTOCOL 2")
        if not answer.startswith("SERVER PROTOCOL "):
            raise CollectorError(f"what listens at {self.where} is no RAS service of NCCL")
        if self.command(_TIMEOUT) != "OK":
            raise CollectorError(f"the RAS service at {self.where} refused {_TIMEOUT}")

    def command(self, words: str) -> str:
        """Send a command and return the line that answers it."""
        self._send(words)
        while b"\n" not in self._read:
            piece = self._receive()
            if not piece or len(self._read) > _LINE_MAX:
                raise CollectorError(f"{self.where} closed or went on without end after {words}")
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return line.decode("ascii", "replace").strip().upper()

    def report(self, words: str) -> bytes:
        """Send a command and return all that follows, to the end of the connection."""
        self._send(words)
        pieces, size = [self._read], len(self._read)
        while piece := self._receive():
            pieces.append(piece)
            size += len(piece)
            if size > _REPORT_MAX:
                raise CollectorError(f"the RAS report of {self.where} exceeds {_REPORT_MAX} bytes")
        return b"".join(pieces)

    def _send(self, words: str) -> None:
        try:
            self._socket.settimeout(self._left())
            self._socket.sendall(f"{words}\n".encode())
        except OSError as error:
            raise CollectorError(f"{self.where} does not take {words}: {error}") from error

    def _receive(self) -> bytes:
        try:
            self._socket.settimeout(self._left())
            return self._socket.recv(1 << 16)
        except OSError as error:
            raise CollectorError(f"{self.where} does not answer: {error}") from error

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("its time is up")
        return left


def _target(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is no address of a RAS service, host:port")
    return host.strip("[]"), int(port)


def _version(data: bytes) -> tuple[int, int, int] | None:
    found = _VERSION.search(data[:_LINE_MAX])
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def _can_crash(data: bytes) -> bool:
    version = _version(data)
    return version is not None and _CRASHES[0] <= version <= _CRASHES[1]


def _why(data: bytes) -> str:
    version = ".".join(map(str, _version(data) or ()))
    return f"NCCL {version} can crash when asked and is not asked again"
