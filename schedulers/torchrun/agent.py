"""One running elastic agent and all that it started."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from schedulers.torchrun.launch import Launch
from schedulers.torchrun.processes import MARK, Process, below, end, listens, of_agent, running

__all__ = ["Agent"]

_TETHER = Path(__file__).with_name("tether.py")
#: What its tether takes to kill everything, beyond the time that the agent has.
_BEYOND_S = 7.0
_LAST_S = 1.0


class Agent:
    """An agent on its tether, which ends it when we die; made by the main thread.

    The kernel takes the thread that starts it for the parent: that one must live as long as we do.
    It has ``within_s`` to end when told to. ``left_out`` are UUIDs of cards that it is started
    without.
    """

    def __init__(
        self,
        launch: Launch,
        environ: Mapping[str, str],
        token: str,
        left_out: frozenset[str],
        within_s: float,
    ) -> None:
        self.launch = launch
        self.left_out = left_out
        self.began_at = datetime.now(UTC)
        self._token = token
        self._within_s = within_s
        tether = [sys.executable, "-I", str(_TETHER), str(os.getpid()), str(within_s)]
        self._process = subprocess.Popen(
            [*tether, *launch.argv], env=dict(environ) | {MARK: token}, start_new_session=True
        )

    @property
    def pid(self) -> int:
        """Of its tether."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code as a shell tells it, or None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Send the agent a signal; the agent passes it on to its workers."""
        with contextlib.suppress(OSError):
            self._process.send_signal(number)

    def workers(self) -> list[Process]:
        """Its worker processes."""
        found = below(self.pid, running())
        agents = {one.pid for one in found if one.parent == self.pid}
        return [one for one in found if one.parent in agents]

    def holds_store(self) -> bool:
        """Whether it listens where the rendezvous store is said to be."""
        _, port = self.launch.endpoint
        return listens([one.pid for one in below(self.pid, running())], port)

    def stop(self) -> list[Process]:
        """Have it and its workers end or be killed; returns those that do not even die then."""
        self.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._within_s + _BEYOND_S)
        left = self.sweep()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_S)
        return left

    def sweep(self) -> list[Process]:
        """Kill whatever is left of it; returns what does not die: it hangs in the kernel."""
        return end(of_agent(self._token, self.pid), _LAST_S)
