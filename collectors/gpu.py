"""Takes an NVML snapshot of the whole node a tick, and ships ticks in frames.

A GPU that is lost, needs a reset, answers with an error or not in time is a fact in the tick, with
the identity it had when it was well; the absence of a GPU is never just an absence.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from collectors import nvml
from collectors.collector import Unavailable
from collectors.deadline import Answer, Caller
from collectors.framing import Framer
from collectors.gpu_recording import RecordingCollector
from collectors.gpu_roster import Roster
from evidence.records import GpuFrame, GpuSnapshot, GpuStatus, GpuTick

__all__ = ["NvmlCollector", "RecordingCollector"]

_LOG = logging.getLogger(__name__)

#: NVML_ERROR_TIMEOUT, our word for an NVML that does not come back at all.
_TIMEOUT = 10


@dataclass(slots=True)
class _Gathering:
    """A tick under way: first the node's own calls, then every GPU's at once."""

    at: datetime
    started_at: float
    node: nvml.NodeReading | None = None
    gpus_since: float = 0.0
    snapshots: dict[int, GpuSnapshot] = field(default_factory=dict)


class NvmlCollector:
    """One NVML snapshot of the node every ``interval_s``, never blocking its caller.

    Every GPU has a thread of its own. A GPU whose calls have not returned ``deadline_s`` after the
    tick began to read it gets status ``timeout``, ``read_us`` then being how long it has been
    silent; until its thread returns it is not asked again, and no later tick waits for it.
    ``nvmlInit`` gets ``init_deadline_s`` instead, since without persistence mode it takes seconds
    a GPU. While NVML or every GPU refuses, NVML is initialised anew every ``frame_ticks``
    intervals, while some GPUs do every ``lost_retry_s``.
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
        init_deadline_s: float = 60.0,
        lost_retry_s: float = 300.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` gives aware UTC times; ``monotonic`` gives seconds that only grow."""
        self.latest: GpuTick | None = None
        self.driver: str | None = None
        self.absent = False
        self._clock = clock
        self._monotonic = monotonic
        self._deadline_s = deadline_s
        self._interval_s = interval_s
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
        self._node: Caller[nvml.NodeReading] = Caller("nvml-node", monotonic)
        self._callers: dict[int, Caller[nvml.GpuReading]] = {}
        self._fixed: dict[int, nvml.Fixed] = {}
        self._roster = Roster()
        self._silent: set[int] = set()
        self._gathering: _Gathering | None = None
        self._due: float | None = None
        self._open = False
        self._reopen_at: float | None = None

    def read(self) -> Iterable[GpuFrame]:
        """Return the frames that are due; begins and ends ticks on the way.

        Raises Unavailable when nvidia-ml-py or libnvidia-ml.so.1 is not there.
        """
        now = self._monotonic()
        if self._gathering is None and self._may_begin(now):
            self._begin(now)
        tick = self._advance(now) if self._gathering is not None else None
        if tick is None:
            frame = self._framer.overdue(now, self.driver)
        else:
            self.latest = tick
            frame = self._framer.add(tick, now, self.driver)
        return [] if frame is None else [frame]

    def rest(self) -> Iterable[GpuFrame]:
        """Return the ticks that wait for a full frame, for the end of the process."""
        frame = self._framer.rest(self.driver)
        return [] if frame is None else [frame]

    def saved(self) -> None:
        """NVML keeps no position to move on."""

    def close(self) -> None:
        """Let the threads go; one that is stuck in a call ends with it or with the process."""
        for caller in self._callers.values():
            caller.close()
        if self._open and not self._stuck():
            self._node.start(_shut)
        self._open = False
        self._node.close()

    def _may_begin(self, now: float) -> bool:
        return self._due is None or now >= self._due

    def _begin(self, now: float) -> None:
        # Ticks keep to their grid; those that were missed are left out, not caught up.
        late = 0.0 if self._due is None else (now - self._due) % self._interval_s
        self._due = now - late + self._interval_s
        self._gathering = _Gathering(self._clock(), now)
        if self._node.busy:
            return
        may_shut = not self._stuck()
        reopen = may_shut and self._reopen_at is not None and now >= self._reopen_at
        if reopen:
            _LOG.info("initialising NVML anew, to see whether GPUs that failed are back")
            self._reopen_at = None
            self._open = False
            self._fixed.clear()
        self._node.start(partial(_read_node, opened=self._open, may_shut=may_shut, reopen=reopen))

    def _advance(self, now: float) -> GpuTick | None:
        gathering = self._gathering
        assert gathering is not None
        if gathering.node is None:
            answer = self._node.answer()
            if answer is None:
                return self._node_silent(gathering, now)
            node = self._take_node(answer)
            if isinstance(node, nvml.NvmlError):
                return self._refused(gathering, node, now)
            gathering.node = node
            self._ask_gpus(gathering, now)
        return self._collect(gathering, gathering.node, now)

    def _take_node(self, answer: Answer[nvml.NodeReading]) -> nvml.NodeReading | nvml.NvmlError:
        if answer.value is not None:
            self._open, self.absent = True, False
            self.driver = answer.value.driver
            return answer.value
        if isinstance(answer.error, nvml.NvmlError):
            return answer.error
        self._gathering = None
        if isinstance(answer.error, Unavailable):
            self.absent = True
        assert answer.error is not None
        raise answer.error

    def _node_silent(self, gathering: _Gathering, now: float) -> GpuTick | None:
        limit = self._deadline_s if self._open else self._init_deadline_s
        # A call that was stuck before this tick has had its time.
        if now - self._node.started_at < limit:
            return None
        silent_s = now - self._node.started_at
        words = f"NVML has not answered for {silent_s:.0f} s"
        return self._refused(gathering, nvml.NvmlError(_TIMEOUT, words), now)

    def _refused(self, gathering: _Gathering, why: nvml.NvmlError, now: float) -> GpuTick:
        """NVML as a whole does not answer: a tick without GPUs, and a fresh init later."""
        self._open = False
        self._gathering = None
        self._fixed.clear()
        self._due = now + self._retry_s
        return GpuTick(at=gathering.at, error=why.code, error_text=why.words)

    def _stuck(self) -> bool:
        return self._node.busy or any(caller.busy for caller in self._callers.values())

    def _ask_gpus(self, gathering: _Gathering, now: float) -> None:
        assert gathering.node is not None
        gathering.gpus_since = now
        for index in range(gathering.node.count):
            caller = self._callers.get(index)
            if caller is None:
                caller = self._callers[index] = Caller(f"nvml-gpu-{index}", self._monotonic)
            caller.answer()  # of a tick that did not wait for it
            if not caller.busy:
                fixed = self._fixed.get(index)
                caller.start(partial(nvml.read_gpu, index, fixed))

    def _collect(self, gathering: _Gathering, node: nvml.NodeReading, now: float) -> GpuTick | None:
        over = now - gathering.gpus_since >= self._deadline_s
        waiting = False
        for index in range(node.count):
            if index in gathering.snapshots:
                continue
            caller = self._callers[index]
            old = caller.started_at < gathering.gpus_since
            answer = None if old else caller.answer()
            if answer is not None:
                gathering.snapshots[index] = self._take_gpu(index, answer)
            elif old or over:
                gathering.snapshots[index] = self._timeout(index, now - caller.started_at)
            else:
                waiting = True
        if waiting:
            return None
        self._gathering = None
        gpus = self._roster.call([gathering.snapshots[index] for index in range(node.count)])
        self._plan_reopen({gpu.status for gpu in gpus}, now)
        return GpuTick(at=gathering.at, gpus=gpus)

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

    def _timeout(self, index: int, silent_s: float) -> GpuSnapshot:
        if index not in self._silent:
            self._silent.add(index)
            _LOG.warning("GPU %d has not answered NVML for %.1f s", index, silent_s)
        silent_us = round(silent_s * 1e6)
        return GpuSnapshot(index=index, status=GpuStatus.TIMEOUT, read_us=silent_us)

    def _take_gpu(self, index: int, answer: Answer[nvml.GpuReading]) -> GpuSnapshot:
        if answer.value is None:
            self._gathering = None
            assert answer.error is not None
            raise answer.error
        if index in self._silent:
            self._silent.discard(index)
            _LOG.info("GPU %d answers NVML again", index)
        if answer.value.fixed is None:
            self._fixed.pop(index, None)
        else:
            self._fixed[index] = answer.value.fixed
        return answer.value.snapshot


def _read_node(*, opened: bool, may_shut: bool, reopen: bool) -> nvml.NodeReading:
    """Read the node, NVML initialised before if it is not; shut it down again if it refuses.

    It is not shut down under a thread that is still in a call.
    """
    if reopen:
        nvml.close_nvml()
    if not opened:
        nvml.open_nvml()
    try:
        return nvml.read_node()
    except nvml.NvmlError:
        if may_shut:
            nvml.close_nvml()
        raise


def _shut() -> nvml.NodeReading:
    nvml.close_nvml()
    return nvml.NodeReading("", 0)
