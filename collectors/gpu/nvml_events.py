"""Waits for what NVML tells by itself: Xids, ECC storms, a GPU that becomes unavailable.

It is faster than polling and nothing more: NVML delivers no event from before the registration,
none to nobody (the kernel log is the full record), and to users without root none about single MIG
instances. Whatever the wait does, hang or fail, polling goes on.
"""

import ctypes
import logging
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from collectors.gpu.nvml import TIMEOUT, UNINITIALIZED, address, nvml_words, pynvml
from evidence.identity import normalise_pci
from evidence.records import GpuEvent, GpuEventKind

__all__ = ["EventWatch"]

_LOG = logging.getLogger(__name__)

#: nvml.h, nvmlEventType*; the others (single corrected errors, clocks, P-states) are no news.
_KINDS = {
    0x2: GpuEventKind.ECC_DOUBLE_BIT,
    0x8: GpuEventKind.XID,
    0x100: GpuEventKind.MIG_CHANGE,
    0x200: GpuEventKind.ECC_SINGLE_BIT_STORM,
    0x400: GpuEventKind.DRAM_RETIREMENT,
    0x800: GpuEventKind.DRAM_RETIREMENT_FAILURE,
    0x1000: GpuEventKind.POISON,
    0x2000: GpuEventKind.FATAL_POISON,
    0x4000: GpuEventKind.UNAVAILABLE,
    0x8000: GpuEventKind.RECOVERY_ACTION,
}
_WANTED = sum(_KINDS)
_NO_INSTANCE = 0xFFFFFFFF

#: Events kept while nobody takes them; the oldest go first, and how many is logged.
_MOST_KEPT = 4096
#: After an event: a storm of them must not take a core.
_BREATH_S = 0.002
#: Between two waits that fail: doubled up to the longest.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class EventWatch:
    """One thread that waits for the events of all GPUs of an initialised NVML.

    `start` it once NVML is initialised, and `stop` it and see that it is not `running` before NVML
    is shut down: it ends when its wait returns, after ``wait_s`` at most if NVML does not hang.
    """

    def __init__(
        self, clock: Callable[[], datetime], wake: Callable[[], None], wait_s: float
    ) -> None:
        """``wake`` is called from the thread when there is an event to `take`."""
        self.dropped = 0
        self._clock = clock
        self._wake = wake
        self._wait_ms = max(1, round(wait_s * 1000))
        self._events: deque[GpuEvent] = deque()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._cards: dict[int, GpuEvent] = {}

    @property
    def running(self) -> bool:
        """Whether the thread may be inside NVML."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def started(self) -> bool:
        """Whether it was started since it was last stopped; it may have ended by itself."""
        return self._thread is not None and not self._stop.is_set()

    @property
    def pending(self) -> bool:
        """Whether there is something to take."""
        return bool(self._events)

    def start(self, count: int) -> None:
        """Register the first ``count`` GPUs and wait for them, on the thread."""
        if self.running:
            return
        self._cards = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(count, self._stop), name="nvml-events", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end when its wait returns."""
        self._stop.set()

    def ended(self) -> bool:
        """Wait as long as one wait may take; whether the thread has ended."""
        if self._thread is not None:
            self._thread.join(2 * self._wait_ms / 1000)
        return not self.running

    def take(self) -> tuple[GpuEvent, ...]:
        """Return the events since the last look, oldest first."""
        found = []
        while self._events:
            found.append(self._events.popleft())
        return tuple(found)

    def _run(self, count: int, stop: threading.Event) -> None:
        try:
            self._listen(count, stop)
        except Exception as error:  # noqa: BLE001 (polling goes on whatever happens here)
            _LOG.warning("NVML's events are not heard, GPUs are only polled", exc_info=error)

    def _listen(self, count: int, stop: threading.Event) -> None:
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            _LOG.info("NVML gives no events, GPUs are only polled: %s", error)
            return
        try:
            for index in range(count):
                self._register(index, events)
            if self._cards:
                self._wait(events, stop)
        finally:
            pynvml.nvmlEventSetFree(events)

    def _register(self, index: int, events: Any) -> None:  # noqa: ANN401 (pynvml has no types)
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            types = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _WANTED
            if types:
                pynvml.nvmlDeviceRegisterEvents(handle, types, events)
                device = address(handle)
                assert device is not None
                self._cards[device] = _card(index, handle, self._clock())
        except pynvml.NVMLError as error:
            _LOG.info("GPU %d gives no events, it is only polled: %s", index, error)

    def _wait(self, events: Any, stop: threading.Event) -> None:  # noqa: ANN401
        pause_s = _FIRST_PAUSE_S
        while not stop.is_set():
            try:
                data = pynvml.nvmlEventSetWait_v2(events, self._wait_ms)
            except pynvml.NVMLError as error:
                if error.value == UNINITIALIZED:
                    return
                if error.value != TIMEOUT:
                    if pause_s == _FIRST_PAUSE_S:
                        _LOG.warning("NVML cannot wait for events: %s", nvml_words(error.value))
                    stop.wait(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    continue
            else:
                self._keep(data)
                stop.wait(_BREATH_S)
            pause_s = _FIRST_PAUSE_S

    def _keep(self, data: Any) -> None:  # noqa: ANN401
        kind = _KINDS.get(data.eventType)
        if kind is None:
            return
        card = self._cards.get(_device(data) or 0)
        self._events.append(
            GpuEvent(
                at=self._clock(),
                kind=kind,
                index=None if card is None else card.index,
                uuid=None if card is None else card.uuid,
                pci=None if card is None else card.pci,
                data=data.eventData,
                gi=None if data.gpuInstanceId == _NO_INSTANCE else data.gpuInstanceId,
                ci=None if data.computeInstanceId == _NO_INSTANCE else data.computeInstanceId,
            )
        )
        if len(self._events) > _MOST_KEPT:
            self._events.popleft()
            self.dropped += 1
            if self.dropped == 1:
                _LOG.warning("NVML gives more events than are taken: the oldest are dropped")
        self._wake()


def _device(data: Any) -> int | None:  # noqa: ANN401
    return ctypes.cast(data.device, ctypes.c_void_p).value if data.device else None


def _card(index: int, handle: Any, at: datetime) -> GpuEvent:  # noqa: ANN401
    """Whom an event of this handle is about."""
    uuid = pci = None
    try:
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        pci = normalise_pci(pynvml.nvmlDeviceGetPciInfo_v3(handle).busId)[0]
    except (pynvml.NVMLError, ValueError):
        _LOG.debug("GPU %d has no name for its events", index)
    return GpuEvent(at=at, kind=GpuEventKind.XID, index=index, uuid=uuid, pci=pci)
