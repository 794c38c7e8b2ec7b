"""One tick under way, and the threads that read the GPUs for it, each its own.

The threads run one after the other as long as they are quick, each setting the next one going: so
few as possible want the interpreter at the same time, which would cost more than the readings do. A
thread that is not back after a moment is not waited for: all that are left are then set going.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from collectors.deadline import Answer, Caller
from collectors.gpu.nvml_gpu import Card, read_gpu
from collectors.gpu.nvml_jobs import Jobs
from collectors.gpu.pace import Pace
from collectors.gpu.roster import Roster
from evidence.records import GpuSnapshot, GpuStatus

__all__ = ["Crew", "Round"]

_LOG = logging.getLogger(__name__)

#: So long the next GPU waits for the one before it.
_PATIENCE_S = 0.02
#: A reading that came too late for its tick stands for the next one if it was no slower than this.
_FRESH_S = 5.0
#: Of a tick's deadline: a reading that takes more of it is a slow one.
_SLOW_PART = 0.5


@dataclass(slots=True)
class Round:
    """A tick under way; ``count`` is None until the node has been read, ``over`` when given up."""

    at: datetime
    started_at: float
    number: int
    slow: bool
    count: int | None = None
    over: bool = False
    moved_at: float = 0.0
    #: When the last reading so far was done, whenever that is looked at.
    ended_at: float = 0.0
    waiting: deque[int] = field(default_factory=deque)
    asked: set[int] = field(default_factory=set)
    snapshots: dict[int, GpuSnapshot] = field(default_factory=dict)
    late: dict[int, GpuSnapshot] = field(default_factory=dict)


class Crew:
    """The readers of a node's GPUs, by NVML index."""

    def __init__(self, jobs: Jobs, deadline_s: float, monotonic: Callable[[], float]) -> None:
        self._jobs = jobs
        self._deadline_s = deadline_s
        self._monotonic = monotonic
        self._callers: dict[int, Caller[GpuSnapshot]] = {}
        self._cards: dict[int, Card] = {}
        self._paces: dict[int, Pace] = {}
        self._silent: set[int] = set()
        self._said: dict[int, str] = {}
        self._roster = Roster()

    @property
    def busy(self) -> bool:
        """Whether a thread may be in a call."""
        return any(caller.busy for caller in self._callers.values())

    def forget(self) -> None:
        """NVML is initialised anew: handles and what cards decline are to be found out again."""
        self._cards = {}

    def close(self) -> None:
        """Let the threads go."""
        for caller in self._callers.values():
            caller.close()

    def hear(self, this: Round) -> None:
        """Take the readings that came too late for the ticks before this one."""
        for index, caller in list(self._callers.items()):
            answer = caller.answer()
            if answer is None:
                continue
            snapshot = self._taken(index, answer, this.number)
            if (snapshot.read_us or 0) <= _FRESH_S * 1e6:
                this.late[index] = snapshot

    def begin(self, this: Round, count: int) -> None:
        """Set the GPUs going; on the node's thread, while nobody else looks at the round."""
        if this.over:
            return
        for index in range(count):
            if index not in self._callers:
                self._callers[index] = Caller(f"nvml-gpu-{index}", self._monotonic)
                self._paces[index] = Pace(_SLOW_PART * self._deadline_s)
            if self._callers[index].busy or self._paces[index].rests_for(this.number):
                continue
            this.asked.add(index)
            this.waiting.append(index)
        this.moved_at = self._monotonic()
        this.count = count
        self._pass_on(this)

    def collect(self, this: Round, now: float) -> tuple[GpuSnapshot, ...] | None:
        """Return all GPUs once each has answered or had its time; None before."""
        if this.count is None:
            return None
        if this.waiting and now - this.moved_at >= _PATIENCE_S:
            while this.waiting:
                self._pass_on(this)
        missing = False
        for index in range(this.count):
            if index in this.snapshots:
                continue
            snapshot = self._look(this, index, now)
            if snapshot is None:
                missing = True
            else:
                this.snapshots[index] = snapshot
        if missing:
            return None
        this.over = True
        return self._roster.call([this.snapshots[index] for index in range(this.count)])

    def _pass_on(self, this: Round) -> None:
        """Set the next GPU going, if one is left and the round still is."""
        if this.over:
            return
        try:
            index = this.waiting.popleft()
        except IndexError:
            return
        this.moved_at = self._monotonic()
        card = self._cards.get(index)
        if card is None:
            card = self._cards[index] = Card(index)
        self._callers[index].start(partial(self._read, this, card))

    def _read(self, this: Round, card: Card) -> GpuSnapshot:
        """On a GPU's thread."""
        try:
            return read_gpu(card, self._jobs, slow=this.slow)
        finally:
            this.ended_at = self._monotonic()
            self._pass_on(this)

    def _look(self, this: Round, index: int, now: float) -> GpuSnapshot | None:
        caller = self._callers[index]
        if index not in this.asked:
            return this.late.get(index) or self._unasked(this, index, now)
        if index in this.waiting:
            return None
        answer = caller.answer()
        if answer is not None:
            return self._taken(index, answer, this.number + 1)
        silent_s = now - caller.started_at
        # Between the two looks above a thread may have taken it up only just now.
        if silent_s < self._deadline_s or not caller.busy:
            return None
        return this.late.get(index) or self._timeout(index, silent_s, begun=True)

    def _unasked(self, this: Round, index: int, now: float) -> GpuSnapshot:
        caller = self._callers[index]
        if caller.busy:
            return self._timeout(index, now - caller.started_at, begun=False)
        pace = self._paces[index]
        why = (
            f"not asked: its calls took {pace.took_s:.1f} s,"
            f" asked again in {pace.rests_for(this.number)} ticks"
        )
        return GpuSnapshot(index=index, status=GpuStatus.TIMEOUT, unread={"reading": why})

    def _timeout(self, index: int, silent_s: float, *, begun: bool) -> GpuSnapshot:
        """A GPU in whose call time has run out; what it said before that is in its first one."""
        card = self._cards.get(index)
        reading = None if card is None else card.reading
        call = None if reading is None else reading.asking
        if index not in self._silent:
            self._silent.add(index)
            _LOG.warning(
                "GPU %d has not answered NVML for %.1f s (%s)", index, silent_s, call or "unknown"
            )
        partial_snapshot = GpuSnapshot(index=index)
        if begun and reading is not None:
            partial_snapshot = reading.snapshot()
        unread = dict(partial_snapshot.unread) if begun else {}
        unread[call or "reading"] = f"no answer after {silent_s:.1f} s"
        return replace(
            partial_snapshot,
            status=GpuStatus.TIMEOUT,
            error=None,
            unread=unread,
            read_us=round(silent_s * 1e6),
        )

    def _broken(self, index: int, error: Exception | None) -> GpuSnapshot:
        """A reading that failed in a way nobody thought of: a fact of that GPU and of no other."""
        why = f"{type(error).__name__}: {error}"
        if why != self._said.get(index):
            self._said[index] = why
            _LOG.warning("GPU %d cannot be read: %s", index, why, exc_info=error)
        return GpuSnapshot(index=index, status=GpuStatus.ERROR, unread={"reading": why})

    def _taken(self, index: int, answer: Answer[GpuSnapshot], next_tick: int) -> GpuSnapshot:
        if answer.value is None:
            return self._broken(index, answer.error)
        if index in self._silent:
            self._silent.discard(index)
            _LOG.info("GPU %d answers NVML again", index)
        self._paces[index].took((answer.value.read_us or 0) / 1e6, next_tick)
        return answer.value
