"""Turns the lines of one training log into records: joins, remembers, drops what is said twice.

A watchdog timeout is printed as several messages; they leave as one record, at most 64 lines late
or at the next `flush`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from msgspec.structs import replace

from collectors.nccl.blocks import open_block
from collectors.nccl.grammar import classify, relevant
from collectors.nccl.memory import Processes
from collectors.nccl.prefix import Prefixed, begins_anew, read_prefix
from collectors.nccl.record import RecordMaker
from collectors.nccl.shape import Block, Fields, Take
from collectors.nccl.traceback import Tracebacks
from collectors.nccl.waits import Held, Position, Waits, names_work
from collectors.nccl.watchdog import result_code
from evidence.records import NcclKind, NcclRecord

__all__ = ["NcclStream", "Position", "parse_stream"]

#: Characters of a line that are looked at.
_LINE_CHARS = 16384
#: Physical lines that one hard-wrapped line may take.
_WRAPPED_MAX = 4
#: Distinct things remembered as said, against a file that says something new for ever.
_SAID_MAX = 20000
#: A storm of one process's equal lines is shipped this often, then at every doubling, counted.
_STORM = 8

#: Where ranks are told to have ended, whoever speaks this much later may be of new ones.
_ENDED = timedelta(seconds=10)

#: Kinds that one fault prints several times over: as a log line, an exception and its text.
_SAID_ONCE = frozenset(
    {
        NcclKind.ABORTED,
        NcclKind.BARRIER_MISSING,
        NcclKind.CUDA_ERROR,
        NcclKind.DUMP_SIGNAL,
        NcclKind.FINISHED,
        NcclKind.MISMATCH,
        NcclKind.NVLS,
        NcclKind.OUT_OF_MEMORY,
        NcclKind.PYTHON_ERROR,
        NcclKind.REMOTE_ERROR,
        NcclKind.STORE_CLIENTS,
        NcclKind.STORE_LOST,
        NcclKind.WATCHDOG_STUCK,
    }
)


#: Of these, the group and the layer that print it make no difference.
_OF_THE_CARD = (NcclKind.CUDA_ERROR, NcclKind.NVLS, NcclKind.OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A message of several lines that is not over."""

    block: Block
    line: Prefixed
    position: Position
    raw: list[str]


@dataclass(slots=True)
class NcclStream:
    """The state of one log file: `feed` it lines, `flush` it where the input pauses or ends.

    ``rank`` and ``host`` are hints from the file's name, used where a line names none;
    ``trust_host`` makes the hint win over the host that NCCL prints (a container's name).
    """

    job: str
    host: str | None = None
    file: str | None = None
    rank: int | None = None
    attempt: int = 0
    tz: tzinfo = UTC
    keep_other: bool = False
    trust_host: bool = False
    processes: Processes = field(default_factory=Processes)
    #: Open messages of several lines, by the launcher's label of their process.
    _blocks: dict[str | None, _Opened] = field(default_factory=dict)
    _source: str | None = None
    _maker: RecordMaker = field(init=False)
    _wrapped: Held | None = None
    _waits: Waits = field(default_factory=Waits)
    _said: dict[tuple[Any, ...], int] = field(default_factory=dict)
    #: When ranks of this file were last told to have ended, since `_said` was emptied.
    _ended_at: datetime | None = None
    _tracebacks: Tracebacks = field(default_factory=Tracebacks)
    _fed: int = 0

    def __post_init__(self) -> None:
        self._maker = RecordMaker(
            self.job,
            self.host,
            self.file,
            self.rank,
            self.attempt,
            self.tz,
            self.trust_host,
            self.processes,
        )

    @property
    def pending(self) -> bool:
        """Whether a record waits for more lines."""
        return bool(self._waits.waiting or self._blocks or self._wrapped or self._tracebacks.open)

    def feed(
        self, data: bytes, position: Position, now: datetime, *, cut: bool = False
    ) -> list[NcclRecord]:
        """Read one line; returns the records that are complete now. Never raises."""
        self._fed += 1
        text = data.decode("latin-1")
        if not self.pending and not relevant(text):
            return self._ignored(data, position, now, cut=cut)
        if not text.isascii():
            text = data.decode("utf-8", "backslashreplace")
        line = read_prefix(text[:_LINE_CHARS].rstrip())
        records = self._read(line, position, now)
        if self._waits.waiting:
            records += self._records(self._waits.aged(), now)
        if cut and not records and not self.pending:
            return self._ignored(data, position, now, cut=True)
        return records

    def idle(self, data: bytes, lines: int = 1) -> bool:
        """Whether lines can be passed over: they are irrelevant, and nothing waits for them."""
        if self.keep_other or self.pending or relevant(data.decode("latin-1")):
            return False
        self._fed += lines
        return True

    def flush(self, now: datetime) -> list[NcclRecord]:
        """Return what was held back: the input pauses or ends here."""
        records = self._close_wrapped(now)
        for source in list(self._blocks):
            records += self._close_block(source, now)
        return records + self._records(self._waits.flush(), now)

    def begin_anew(self, now: datetime) -> list[NcclRecord]:
        """The file was rotated or truncated: what was said before may be said again."""
        records = self.flush(now)
        self._said.clear()
        self._waits.clear()
        return records

    def _ignored(
        self, data: bytes, position: Position, now: datetime, *, cut: bool
    ) -> list[NcclRecord]:
        if not cut and not self.keep_other:
            return []
        text = data[:_LINE_CHARS].decode("utf-8", "backslashreplace").rstrip()
        if not text:
            return []
        fields: Fields = {"kind": NcclKind.OTHER}
        if cut:
            fields = {"kind": NcclKind.UNREADABLE, "message": "line too long, its end left out"}
        return self._emit(Held(fields, read_prefix(text), position, text), now)

    def _read(self, line: Prefixed, position: Position, now: datetime) -> list[NcclRecord]:
        records: list[NcclRecord] = []
        self._source = None if line.label is None else self._maker.labels.source(line)
        if self._wrapped is not None:
            joined = self._join(line)
            if joined is not None:
                return self._classified(joined, now)
            records += self._close_wrapped(now)
        # A label that is known only now stands before a message that began without it.
        source = None if None in self._blocks else self._source
        opened = self._blocks.get(source)
        if opened is not None:
            take = opened.block.take(line)
            if take in (Take.TAKEN, Take.LAST):
                opened.raw.append(line.text)
                return records + (self._close_block(source, now) if take is Take.LAST else [])
            if take is Take.CLOSED:
                records += self._close_block(source, now)
        if source not in self._blocks and (block := open_block(line)) is not None:
            self._blocks[self._source] = _Opened(block, line, position, [line.text])
            return records
        fields = classify(line)
        held = Held(fields or {}, line, position, line.text)
        return records + self._classified(held, now)

    def _classified(self, held: Held, now: datetime) -> list[NcclRecord]:
        fields, line = held.fields, held.line
        ending = self._tracebacks.follow(line, self._fed, self._source)
        if fields.get("_traceback") and ending is None:
            fields = {}  # text about an exception, or one that was caught
        elif not fields and ending is not None:
            held = Held(ending, line, held.position, held.raw)
            fields = ending
        # c10d's own lines are the long ones; at a terminal's width they go on in the next line.
        unfinished = fields.get("_open") or (line.c10d and not fields)
        if unfinished and held.lines < _WRAPPED_MAX and len(held.raw) < _LINE_CHARS:
            self._wrapped = held
            return []
        if not fields:
            if self.keep_other and line.text:
                return self._emit(
                    Held({"kind": NcclKind.OTHER}, line, held.position, held.raw), now
                )
            return []
        if fields["kind"] is NcclKind.TIMEOUT and names_work(fields):
            return self._records(self._waits.offer(held), now)
        return self._emit(held, now)

    def _join(self, line: Prefixed) -> Held | None:
        held = self._wrapped
        assert held is not None
        if held.fields.get("_result"):
            code = result_code(line.message)
            if code is None:
                return None
            self._wrapped = None
            fields = held.fields | {"status": code, "_open": False}
            raw = f"{held.raw}\n{line.text}"
            return Held(fields, held.line, held.position, raw, lines=_WRAPPED_MAX)
        if not line.text.strip() or begins_anew(line.text):
            return None
        self._wrapped = None
        whole = read_prefix(held.line.text + line.text)
        fields = classify(whole) or {}
        if not fields and classify(line):
            self._wrapped = held
            return None
        raw = f"{held.raw}\n{line.text}"
        return Held(fields, whole, held.position, raw, lines=held.lines + 1)

    def _close_wrapped(self, now: datetime) -> list[NcclRecord]:
        held, self._wrapped = self._wrapped, None
        if held is None:
            return []
        held.lines = _WRAPPED_MAX
        return self._classified(held, now)

    def _close_block(self, source: str | None, now: datetime) -> list[NcclRecord]:
        opened = self._blocks.pop(source)
        raw = "\n".join(opened.raw)
        records = []
        for part, fields in enumerate(opened.block.fields()):
            if fields.get("_restart_count") is not None:
                records += self._restarted(fields["_restart_count"], now)
            self.processes.local_ranks.update(
                zip(fields.get("_local_ranks", ()), fields.get("ranks", ()), strict=False)
            )
            held = Held(fields, opened.line, opened.position, raw, part=part)
            records += self._emit(held, now)
        return records

    def _restarted(self, count: int, now: datetime) -> list[NcclRecord]:
        """A new attempt: ranks may have moved, and what was said before may be said again."""
        if count == self.processes.restarts:
            return []
        records = self.begin_anew(now)
        self.processes = self._maker.processes = Processes(restarts=count)
        return records

    def _records(self, helds: list[Held], now: datetime) -> list[NcclRecord]:
        return [self._record(held, now) for held in helds]

    def _emit(self, held: Held, now: datetime) -> list[NcclRecord]:
        """Make the record, unless the same was said before; a storm leaves at its doublings."""
        record = self._record(held, now)
        kind = record.kind
        if kind in (NcclKind.COMM_INIT, NcclKind.SETUP, NcclKind.OTHER):
            return [record]
        self._look_for_end(record, now)
        if held.fields.get("_restart"):
            return [record, *self._restarted(self.processes.restarts + 1, now)]
        who: Any = record.rank
        if who is None:
            who = (record.host, record.pid, record.comm_rank)
        place = None if kind in _OF_THE_CARD else (record.group, record.seq, record.phase)
        key = (kind, who, place, record.message, record.ranks)
        said = self._said.get(key, 0) + 1
        if said == 1 and len(self._said) >= _SAID_MAX:
            self._said.clear()
        self._said[key] = said
        alone = 1 if kind in _SAID_ONCE or record.phase == "return" else _STORM
        if said <= alone:
            return [record]
        if said < 2 * _STORM or said & (said - 1):
            return []
        return [replace(record, count=max(record.count, said // 2))]

    def _look_for_end(self, record: NcclRecord, now: datetime) -> None:
        """Once ranks have ended, new ones may say what was said before: no line need tell of them.

        A job that is requeued writes on into the same file, mostly without a word about that.
        """
        at = record.at or now
        if self._ended_at is not None and at - self._ended_at > _ENDED:
            self._said.clear()
            self._ended_at = None
        if record.kind is NcclKind.EXTERNAL_STOP or (
            record.kind is NcclKind.WORKER_EXIT and record.phase == "failed"
        ):
            self._ended_at = at

    def _record(self, held: Held, now: datetime) -> NcclRecord:
        record = self._maker.record(held, now)
        if self._maker.new_process:
            self._said.clear()
        return record


def parse_stream(
    lines: Iterable[bytes],
    *,
    job: str,
    host: str | None,
    now: datetime,
    file: str | None = None,
    rank: int | None = None,
    attempt: int = 0,
    tz: tzinfo = UTC,
    keep_other: bool = False,
    max_line: int = 65536,
) -> Iterator[NcclRecord]:
    """Parse a whole log: lines with or without their newline, oldest first.

    ``now`` becomes ``observed_at`` and bounds all times; ``tz`` is the zone of times that print
    none. Unmatched lines are dropped unless ``keep_other``; never raises on any bytes.
    """
    stream = NcclStream(
        job=job, host=host, file=file, rank=rank, attempt=attempt, tz=tz, keep_other=keep_other
    )
    offset = 0
    for number, line in enumerate(lines, 1):
        size = len(line)
        if size > max_line or not stream.idle(line):
            start = offset
            for piece in line.removesuffix(b"\n").removesuffix(b"\r").split(b"\r"):
                at = Position(start, number)
                yield from stream.feed(piece[:max_line], at, now, cut=len(piece) > max_line)
                start += len(piece) + 1
        offset += size + (line[-1:] != b"\n")
    yield from stream.flush(now)
