"""Makes calls that may never return, without waiting for them.

A thread that is stuck in a driver call cannot be stopped; it is left alone until it returns.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Answer", "Caller"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What a call gave: its value, or the exception it raised."""

    value: T | None = None
    error: Exception | None = None


class Caller(Generic[T]):
    """One daemon thread that makes one caller's calls, one at a time.

    `start` a call, then ask `answer`; while the call has not returned the thread is `busy` and
    takes no other one. The thread begins with the first call.
    """

    def __init__(self, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.busy = False
        self.started_at = 0.0
        self._monotonic = monotonic
        self._calls: queue.SimpleQueue[Callable[[], T] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer[T]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, call: Callable[[], T]) -> None:
        """Begin a call; raises RuntimeError while another one has not returned."""
        if self.busy:
            raise RuntimeError(f"{self.name} is still in a call")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        self.busy = True
        self.started_at = self._monotonic()
        self._calls.put(call)

    def answer(self, wait_s: float = 0.0) -> Answer[T] | None:
        """Return what the call gave, once, and be idle again; None while there is nothing.

        It is waited for at most ``wait_s``.
        """
        try:
            answer = self._answers.get(block=wait_s > 0, timeout=wait_s or None)
        except queue.Empty:
            return None
        self.busy = False
        return answer

    def close(self) -> None:
        """Let the thread end when its call returns; does not wait."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                answer = Answer(call())
            except Exception as error:  # noqa: BLE001 (handed to the one who asked)
                answer = Answer(error=error)
            self._answers.put(answer)
