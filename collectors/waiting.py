"""Lets the agent sleep until something is to be done: a descriptor, a thread, a time, a signal."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterable
from typing import Self

__all__ = ["Waiter"]

#: A pipe holds no more.
_PIPE_BYTES = 65_536


class Waiter:
    """Waits for readable descriptors, for `wake` from any thread, and for signals.

    ``gap_s`` is the least time between two returns of `wait` that something else than the time
    ended, so that neither a flood nor a descriptor that is never quiet makes the loop spin. It is
    a context manager.
    """

    def __init__(self, gap_s: float = 0.01) -> None:
        # A pipe and no eventfd: the one byte that a signal writes is too few for that.
        self._woken, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False
        self._gap_s = gap_s
        self._woke_at = 0.0
        self._hurried = False
        self._former: int | None = None
        # A signal's handler runs, but a poll that it interrupts goes on: this ends the poll. Only
        # the main thread may ask for it; elsewhere the stop is seen at the next return.
        with contextlib.suppress(ValueError):
            self._former = signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._former is not None:
            signal.set_wakeup_fd(self._former)
        with self._lock:  # a thread that wakes us later must not write to whose number this is then
            self._closed = True
            os.close(self._woken)
            os.close(self._wakes)

    def wake(self) -> None:
        """End the wait that is under way, or the next one; from any thread, never blocks."""
        with self._lock, contextlib.suppress(BlockingIOError):  # full: it is awake anyway
            if not self._closed:
                os.write(self._wakes, b"w")

    def wait(self, timeout_s: float, descriptors: Iterable[int]) -> set[int]:
        """Wait for ``timeout_s`` at most; return the descriptors that have something to read."""
        rest = self._woke_at + self._gap_s - time.monotonic()
        # After a wait that ended by its time alone nothing is likely to be readable already.
        if rest > 0 and (self._hurried or timeout_s < rest):
            time.sleep(rest)
            timeout_s -= rest
        # Made anew each time: a collector may have closed its file and opened another one under
        # the same number, which a kept epoll would not notice.
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        found = {descriptor for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000)}
        self._hurried = bool(found)
        if self._woken in found:
            found.discard(self._woken)
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, _PIPE_BYTES)
        self._woke_at = time.monotonic()
        return found
