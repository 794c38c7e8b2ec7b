"""Takes an NVML snapshot of the whole node a tick, and ships ticks in frames.

A GPU that is lost, needs a reset, answers with an error or not in time is a fact in the tick, with
the identity it had when it was well; the absence of a GPU is never just an absence.
"""

import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from collectors.collector import Unavailable
from collectors.deadline import Answer, Caller
from collectors.gpu import nvml
from collectors.gpu.framing import Framer
from collectors.gpu.nvml_events import EventWatch
from collectors.gpu.nvml_jobs import Jobs
from collectors.gpu.recording import RecordingCollector
from collectors.gpu.round import Crew, Round
from evidence.records import GpuEvent, GpuFrame, GpuStatus, GpuTick, MigInstance

__all__ = ["NvmlCollector", "RecordingCollector"]

_LOG = logging.getLogger(__name__)

#: Between two ticks of events alone: a storm of them comes in handfuls.
_EVENTS_S = 0.1
#: Events wait so long for a tick that is being taken, to go with it.
_FOR_TICK_S = 0.05


class NvmlCollector:
    """One NVML snapshot of the node every ``interval_s``, never blocking its caller.

    Every GPU has a thread of its own, which reads what tells its health and load every tick and
    everything else every ``slow_ticks`` ticks, or at once when its health changed or an event came.
    A GPU whose calls have not returned after ``deadline_s`` gets status ``timeout``, ``unread``
    then naming the call and ``read_us`` being how long it has been silent; until its thread returns
    it is not asked again, and no later tick waits for it. One whose readings stay slow is asked
    more rarely (collectors.gpu.pace), and ``unread`` says so under ``reading``.

    NVML's own events make a tick of their own, shipped at once; ``on_ready`` may be set to a
    function that wakes whoever reads this collector, it is called from another thread.

    ``nvmlInit`` gets ``init_deadline_s``, since without persistence mode it takes seconds a GPU.
    While NVML or every GPU refuses, NVML is initialised anew every ``frame_ticks`` intervals,
    while some GPUs do every ``lost_retry_s``.

    ``latest`` is the last tick with GPUs or an error; in it MIG instances are those last seen,
    although a tick has them only when they were read.
    """

    name = "gpu"
    topic = "gpu"

    def __init__(
        self,
        host: str,
        boot_id: str | None,
        clock: Callable[[], datetime],
        *,
        deadline_s: float = 0.8,
        frame_ticks: int = 5,
        interval_s: float = 1.0,
        slow_ticks: int = 10,
        init_deadline_s: float = 60.0,
        lost_retry_s: float = 300.0,
        event_wait_s: float = 2.0,
        proc: Path = Path("/proc"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` gives aware UTC times; ``monotonic`` gives seconds that only grow.

        ``proc`` is where the kernel shows processes.
        """
        self.latest: GpuTick | None = None
        self.driver: str | None = None
        self.absent = False
        self.on_ready: Callable[[], None] = _nobody
        self._clock = clock
        self._monotonic = monotonic
        self._deadline_s = deadline_s
        self._interval_s = interval_s
        self._slow_ticks = slow_ticks
        self._init_deadline_s = init_deadline_s
        self._lost_retry_s = lost_retry_s
        self._retry_s = interval_s * frame_ticks
        self._framer = Framer(
            host,
            boot_id,
            "nvml",
            clock,
            frame_ticks=frame_ticks,
            hold_s=2 * interval_s * frame_ticks,
        )
        self._session = nvml.Session()
        self._node: Caller[nvml.NodeReading] = Caller("nvml-node", monotonic)
        self._jobs = Jobs(proc)
        self._crew = Crew(self._jobs, deadline_s, monotonic)
        self._events = EventWatch(clock, self._wake, event_wait_s)
        self._events_at = 0.0
        self._round: Round | None = None
        self._ticks = 0
        self._slow_next = True
        self._took_s = 0.0
        self._due: float | None = None
        self._open = False
        self._reopen_at: float | None = None
        self._mig: dict[str, tuple[MigInstance, ...]] = {}

    def read(self) -> Iterable[GpuFrame]:
        """Return the frames that are due; begins and ends ticks on the way.

        Raises Unavailable when nvidia-ml-py or libnvidia-ml.so.1 is not there.
        """
        now = self._monotonic()
        if self._round is None and (self._due is None or now >= self._due):
            self._begin(now)
        tick = self._advance(now) if self._round is not None else None
        if tick is not None:
            self.latest = self._with_mig(tick)
        if self._events.pending:
            tick = self._with_events(tick, now)
        if tick is None:
            frame = self._framer.overdue(now, self.driver)
        else:
            frame = self._framer.add(tick, now, self.driver)
        return [] if frame is None else [frame]

    def next_due(self, now: float) -> float:
        """When `read` has something to do again, in monotonic seconds; reading earlier is harmless.

        An event may come before: ``on_ready`` tells.
        """
        if self._events.pending:
            return max(now, self._events_at + _EVENTS_S)
        if self._round is None:
            return now if self._due is None else max(now, self._due)
        spent = now - self._round.started_at
        expected = min(1.25 * self._took_s + 0.001, 0.1)
        return now + (expected - spent if spent < expected else min(max(spent / 2, 0.002), 0.05))

    def rest(self) -> Iterable[GpuFrame]:
        """Return the ticks that wait for a full frame, for the end of the process."""
        events = self._events.take()
        if events:
            frame = self._framer.add(self._of_events(events), self._monotonic(), self.driver)
        else:
            frame = self._framer.rest(self.driver)
        return [] if frame is None else [frame]

    def saved(self) -> None:
        """NVML keeps no position to move on."""

    def close(self) -> None:
        """Let the threads go; one that is stuck in a call ends with it or with the process."""
        self._events.stop()
        self._crew.close()
        self._jobs.close()
        if not self._node.busy and not self._crew.busy:
            self._node.start(partial(_shut, self._session, self._events))
        self._open = False
        self._node.close()

    def _wake(self) -> None:
        self.on_ready()  # looked up when there is an event: it may be set later

    # --- a tick ---------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        # Ticks keep to their grid; those that were missed are left out, not caught up.
        late = 0.0 if self._due is None else (now - self._due) % self._interval_s
        self._due = now - late + self._interval_s
        slow = self._slow_next or self._ticks % self._slow_ticks == 0
        self._round = Round(self._clock(), now, self._ticks, slow)
        self._ticks += 1
        self._slow_next = False
        self._crew.hear(self._round)
        if self._node.busy:
            return
        if self._reopen_at is not None and now >= self._reopen_at:
            self._open = False
        if not self._open:
            self._events.stop()
        anew = not self._open and self._session.is_open and not self._stuck()
        if anew:
            _LOG.info("initialising NVML anew, to see whether what failed is back")
            self._reopen_at = None
            self._crew.forget()
        self._node.start(
            partial(self._read_node, self._round, anew=anew, may_shut=not self._stuck())
        )

    def _read_node(self, this: Round, *, anew: bool, may_shut: bool) -> nvml.NodeReading:
        """On the node's thread: open NVML if need be, read the node, set the GPUs going.

        NVML is not shut down under a thread that is still in a call.
        """
        if anew:
            self._session.shut()
        self._session.open()
        try:
            node = nvml.read_node()
        except nvml.NvmlError:
            if may_shut:
                self._session.shut()
            raise
        self._crew.begin(this, node.count)
        return node

    def _advance(self, now: float) -> GpuTick | None:
        this = self._round
        assert this is not None
        if this.count is None or self._node.busy:
            answer = self._node.answer()
            if answer is None:
                return self._node_silent(this, now)
            refused = self._take_node(answer)
            if refused is not None:
                return self._refused(this, refused, now)
            if this.count is None:  # a call that was stuck before this tick is back: begin again
                self._round = None
                self._due = now
                return None
        try:
            gpus = self._crew.collect(this, now)
        except Exception:
            self._round = None
            raise
        if gpus is None:
            return None
        self._round = None
        self._took_s = max(0.0, this.ended_at - this.started_at)
        self._plan_reopen({gpu.status for gpu in gpus}, now)
        reopening = self._reopen_at is not None and now >= self._reopen_at
        if this.count and not self._events.started and not reopening:
            self._events.start(this.count)
        return GpuTick(at=this.at, gpus=gpus)

    def _take_node(self, answer: Answer[nvml.NodeReading]) -> nvml.NvmlError | None:
        if answer.value is not None:
            self._open, self.absent = True, False
            self.driver = answer.value.driver
            return None
        if isinstance(answer.error, nvml.NvmlError):
            return answer.error
        self._round = None
        if isinstance(answer.error, Unavailable):
            self.absent = True
        assert answer.error is not None
        raise answer.error

    def _node_silent(self, this: Round, now: float) -> GpuTick | None:
        limit = self._deadline_s if self._open else self._init_deadline_s
        # A call that was stuck before this tick has had its time.
        silent_s = now - self._node.started_at
        if silent_s < limit:
            return None
        words = f"NVML has not answered for {silent_s:.0f} s"
        return self._refused(this, nvml.NvmlError(nvml.TIMEOUT, words), now)

    def _refused(self, this: Round, why: nvml.NvmlError, now: float) -> GpuTick:
        """NVML as a whole does not answer: a tick without GPUs, and a fresh init later."""
        this.over = True
        self._open = False
        self._round = None
        self._events.stop()
        self._crew.forget()
        self._slow_next = True
        self._due = now + self._retry_s
        return GpuTick(at=this.at, error=why.code, error_text=why.words)

    def _stuck(self) -> bool:
        """Whether a thread may be inside NVML."""
        return self._node.busy or self._crew.busy or self._events.running

    def _plan_reopen(self, statuses: set[GpuStatus], now: float) -> None:
        """Say when NVML is to be initialised anew: it may fail only because it is stale.

        After a driver reload, and for a card that came back to the bus, an NVML from before
        answers ``lost`` or ``unknown error`` for ever. But where persistence mode is off, closing
        the last client sets volatile ECC counts to zero: so it is done seldom while some answer.
        """
        if statuses <= {GpuStatus.OK, GpuStatus.TIMEOUT}:
            self._reopen_at = None
        elif self._reopen_at is None:
            self._reopen_at = now + (
                self._lost_retry_s if GpuStatus.OK in statuses else self._retry_s
            )

    # --- events and what was seen before ----------------------------------------------------------

    def _with_events(self, tick: GpuTick | None, now: float) -> GpuTick | None:
        """Put the events into this tick, or into one of their own when it is time for it."""
        if tick is None:
            young = self._round is not None and now - self._round.started_at < _FOR_TICK_S
            if young or now - self._events_at < _EVENTS_S:
                return None
        self._events_at = now
        self._slow_next = True
        events = self._events.take()
        return self._of_events(events) if tick is None else replace(tick, events=events)

    def _of_events(self, events: tuple[GpuEvent, ...]) -> GpuTick:
        # The node's own error stands until NVML answers again: events do not end it.
        before = self.latest
        error = None if before is None else before.error
        text = None if before is None else before.error_text
        return GpuTick(at=self._clock(), events=events, error=error, error_text=text)

    def _with_mig(self, tick: GpuTick) -> GpuTick:
        for gpu in tick.gpus:
            if gpu.uuid is None or gpu.mig_enabled is None:
                continue
            if gpu.mig_enabled:
                self._mig[gpu.uuid] = gpu.mig
            else:
                self._mig.pop(gpu.uuid, None)
        if not self._mig:
            return tick
        return replace(
            tick,
            gpus=tuple(
                replace(gpu, mig_enabled=True, mig=self._mig[gpu.uuid])
                if gpu.uuid in self._mig
                else gpu
                for gpu in tick.gpus
            ),
        )


def _nobody() -> None:
    """Nobody is to be woken."""


def _shut(session: nvml.Session, events: EventWatch) -> nvml.NodeReading:
    if events.ended():
        session.shut()
    return nvml.NodeReading("", 0)
