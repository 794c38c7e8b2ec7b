"""One running elastic agent and all that it started."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from schedulers.torchrun.launch import Launch
from schedulers.torchrun.processes import MARK, Process, below, end, listens, of_agent, running

__all__ = ["Agent"]

_TETHER = Path(__file__).with_name("tether.py")
_SEE_S = 2.0
_KILL_S = 5.0


class Agent:
    """An agent in a session of its own, which gets SIGTERM when we die; made by the main thread.

    The kernel takes the thread that starts it for the parent: that one must live as long as we do.
    ``left_out`` are UUIDs of cards that it was started without.
    """

    def __init__(
        self, launch: Launch, environ: Mapping[str, str], token: str, left_out: frozenset[str]
    ) -> None:
        self.launch = launch
        self.left_out = left_out
        self.began_at = datetime.now(UTC)
        self._token = token
        self._seen: list[Process] = []
        self._see_at = 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_TETHER), str(os.getpid()), *launch.argv],
            env=dict(environ) | {MARK: token},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the agent itself."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code as a shell tells it, or None while it runs."""
        code = self._process.poll()
        if code is None:
            self._look()
            return None
        return code if code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Send the agent a signal; the agent passes it on to its workers."""
        with contextlib.suppress(OSError):
            self._process.send_signal(number)

    def workers(self) -> list[Process]:
        """Its worker processes."""
        return [one for one in below(self.pid, running()) if one.parent == self.pid]

    def holds_store(self) -> bool:
        """Whether it listens where the rendezvous store is said to be."""
        _, port = self.launch.endpoint
        return listens([self.pid, *(one.pid for one in below(self.pid, running()))], port)

    def stop(self, within_s: float) -> list[Process]:
        """Ask it to end, then kill it and its workers; returns those that do not even die then."""
        self._look(at_once=True)
        self.send(signal.SIGTERM)
        deadline = time.monotonic() + within_s
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        left = self.sweep()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_S)
        return left

    def sweep(self) -> list[Process]:
        """Kill whatever is left of it; returns what does not die: it hangs in the kernel."""
        return end(of_agent(self._token, self.pid, self._seen), _KILL_S)

    def _look(self, *, at_once: bool = False) -> None:
        """Keep in mind what it has started by now."""
        if at_once or time.monotonic() >= self._see_at:
            self._seen = below(self.pid, running())
            self._see_at = time.monotonic() + _SEE_S
