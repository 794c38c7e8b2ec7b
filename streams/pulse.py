"""Notices that this process stood still: stopped, swapped out, or its machine paused.

After its session is over others have its partitions, and what it was about to write is out of date.
"""

import threading
import time
from collections.abc import Callable

from streams.config import WorkerCrashed

__all__ = ["Pulse"]

_BEAT_S = 0.1


def _uptime() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Pulse:
    """Beats in a thread of its own, so that a busy event loop is not taken for a pause.

    A pause of ``longest_s`` is never forgiven: whether the session outlived it cannot be known.
    """

    def __init__(self, longest_s: float, clock: Callable[[], float] = _uptime) -> None:
        self._longest_s = longest_s
        self._clock = clock
        self._last = clock()
        self._paused_s = 0.0

    def start(self) -> None:
        """Beat until the process ends."""
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def beat(self) -> None:
        """Note that the process lives, and how long it did not."""
        now = self._clock()
        self._paused_s = max(self._paused_s, now - self._last)
        self._last = now

    def check(self) -> None:
        """Raise WorkerCrashed if the process ever stood still for too long."""
        paused_s = max(self._paused_s, self._clock() - self._last)
        if paused_s > self._longest_s:
            raise WorkerCrashed(
                f"the process stood still for {paused_s:.1f} s, and others may have its partitions"
            )

    def _run(self) -> None:
        while True:
            time.sleep(_BEAT_S)
            self.beat()
