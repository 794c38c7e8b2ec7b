"""Holds an elastic agent and all that it starts: none of it outlives the agent, nor us.

Run as a file: ``tether.py PARENT SECONDS PROGRAM ...``. What loses its parent below us becomes our
child, whatever session it made for itself, so that it is found. When told to end, or when our own
parent dies, the agent is told so and has SECONDS; then everything is killed. The exit code is the
agent's, or 128 and the signal that it died of. It imports nothing of ours.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_KILL_S = 5.0


def _below() -> list[int]:
    """All processes below us."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            text = path.read_text(errors="replace")
            parents[int(path.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found: list[int] = []
    layer = {os.getpid()}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found += layer
    return found


def _kill() -> None:
    """Kill all below us; what hangs in the kernel is left after a while."""
    deadline = time.monotonic() + _KILL_S
    while (left := _below()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _become(program: tuple[str, ...], parent: int) -> None:
    """The agent's side of the fork; SIGTERM comes when we are killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        if os.getppid() == parent:
            os.execvp(program[0], program)  # noqa: S606 (no shell is the point)
    except OSError as error:
        sys.stderr.write(f"{program[0]} cannot be started: {error.strerror}\n")
        sys.stderr.flush()
    os._exit(127)


def _main(parent: int, within_s: float, program: tuple[str, ...]) -> int:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals = {*_ENDING, *_PASSED_ON, signal.SIGALRM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # none is lost before it can be passed on
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM  # it died before we were tied to it
    ours = os.getpid()
    agent = os.fork()
    if agent == 0:
        _become(program, ours)

    def pass_on(number: int, _frame: object) -> None:
        if number in _ENDING and not signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, within_s)
        with contextlib.suppress(OSError):
            os.kill(agent, number)

    for number in (*_ENDING, *_PASSED_ON):
        signal.signal(number, pass_on)
    signal.signal(signal.SIGALRM, lambda _number, _frame: os.kill(agent, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    ended = status = 0
    while ended != agent:
        ended, status = os.waitpid(-1, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    _kill()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), float(sys.argv[2]), tuple(sys.argv[3:])))
