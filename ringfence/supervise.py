"""Runs the parts as separate processes: starts them, restarts one that dies and says so, stops all.

Each part's output goes to its own log file, so that the screen belongs to what was found.
"""

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from ringfence.embedded import die_with_parent

__all__ = ["Part", "Supervisor"]

_LOG = logging.getLogger(__name__)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0
#: A part that ran this long is healthy again: its next restart waits the shortest time.
_HEALTHY_AFTER_S = 30.0
_LAST_WORDS = 4096


@dataclass(slots=True)
class Part:
    """One process: its name, its command line, and how often it was restarted."""

    name: str
    argv: Sequence[str]
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    wait_s: float = _FIRST_WAIT_S
    due: float = 0.0
    log: IO[bytes] | None = field(default=None, repr=False)


class Supervisor:
    """Keeps parts running until `stop`; used as a context manager.

    ``say`` is told in one sentence when a part dies or is restarted. ``environ`` None passes on
    our own environment.
    """

    def __init__(
        self,
        logs: Path,
        say: Callable[[str], None] = _LOG.warning,
        stop_within_s: float = 10.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._logs = logs
        self._say = say
        self._stop_within_s = stop_within_s
        self._environ = os.environ if environ is None else environ
        self._parts: list[Part] = []
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def parts(self) -> Sequence[Part]:
        """The parts, in the order they were started."""
        return tuple(self._parts)

    def start(self, name: str, argv: Sequence[str]) -> Part:
        """Start one part; it is restarted when it ends by itself."""
        part = Part(name, tuple(argv))
        with self._lock:
            self._spawn(part)
            self._parts.append(part)
        return part

    def log_file(self, part: Part) -> Path:
        """Where a part's output goes."""
        return self._logs / f"{part.name}.log"

    def stop(self) -> None:
        """Ask every part to end (last started first), and kill what does not in time.

        The watching thread outlives the parts: the kernel kills a part when the thread that
        started it ends.
        """
        with self._lock:
            self._stopping.set()
        running = [part for part in reversed(self._parts) if part.process is not None]
        for part in running:
            _signal(part, signal.SIGTERM)
        deadline = time.monotonic() + self._stop_within_s
        for part in running:
            assert part.process is not None
            try:
                part.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._say(
                    f"{part.name} did not stop within {self._stop_within_s:g} s and was killed"
                )
                _signal(part, signal.SIGKILL)
                part.process.wait()
            if part.log is not None:
                part.log.close()
        self._stopped.set()
        self._watcher.join()

    def _spawn(self, part: Part) -> None:
        if part.log is None:
            part.log = self.log_file(part).open("ab")
        # A session of its own: Ctrl-C reaches us alone, and we stop the parts in order.
        part.process = subprocess.Popen(
            part.argv,
            stdin=subprocess.DEVNULL,
            stdout=part.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 (one system call, bound before the fork)
            env={**self._environ, "PYTHONUNBUFFERED": "1"},
        )
        part.started = time.monotonic()

    def _watch(self) -> None:
        while not self._stopped.wait(0.1):
            with self._lock:
                if not self._stopping.is_set():
                    for part in self._parts:
                        self._look_after(part)

    def _look_after(self, part: Part) -> None:
        if part.process is None:
            if time.monotonic() >= part.due:
                self._spawn(part)
                part.restarts += 1
                self._say(f"{part.name} was restarted ({part.restarts})")
        elif (code := part.process.poll()) is not None:
            self._died(part, code)

    def _died(self, part: Part, code: int) -> None:
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with {code}: {self._last_words(part)}"
        self._say(f"{part.name} {how}; its log: {self.log_file(part)}")
        if time.monotonic() - part.started > _HEALTHY_AFTER_S:
            part.wait_s = _FIRST_WAIT_S
        part.process = None
        part.due = time.monotonic() + part.wait_s
        part.wait_s = min(part.wait_s * 2, _LONGEST_WAIT_S)

    def _last_words(self, part: Part) -> str:
        """The last line of a part's log: mostly the one sentence that says why it ended."""
        with self.log_file(part).open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _LAST_WORDS))
            lines = log.read().decode("utf-8", "replace").splitlines()
        return lines[-1] if lines else "it said nothing"


def _signal(part: Part, number: int) -> None:
    assert part.process is not None
    try:
        os.killpg(part.process.pid, number)
    except ProcessLookupError:
        return
