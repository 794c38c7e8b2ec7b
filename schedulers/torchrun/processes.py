"""Finds the processes of an agent, and ends those that its tether left."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MARK", "Process", "below", "end", "listens", "of_agent", "running"]

#: The variable that an agent and all that it starts carry.
MARK = "RINGFENCE_TORCHRUN"
_LISTEN = "0A"
_DEAD = frozenset("ZX")


@dataclass(frozen=True, slots=True)
class Process:
    """One process; with ``began`` (clock ticks since boot) a reused pid is another one."""

    pid: int
    began: int
    parent: int = 0
    session: int = 0

    @property
    def lives(self) -> bool:
        """Whether it is there, and no zombie."""
        now = _read(self.pid)
        return now is not None and now.began == self.began


def _read(pid: int) -> Process | None:
    # 4711 (python3 train.py) S 4700 4700 4700 0 -1 ...: state, parent, group, session
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        words = text.rpartition(")")[2].split()
        if words[0] in _DEAD:
            return None
        return Process(pid, int(words[19]), int(words[1]), int(words[3]))
    except (OSError, IndexError, ValueError):
        return None


def running() -> list[Process]:
    """All processes that live."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
    return [one for pid in pids if (one := _read(pid)) is not None]


def below(pid: int, processes: Iterable[Process]) -> list[Process]:
    """A process's children, and theirs, in order of depth."""
    known = list(processes)
    found: list[Process] = []
    parents = {pid}
    while parents:
        layer = [one for one in known if one.parent in parents]
        found += layer
        parents = {one.pid for one in layer} - {pid}
    return found


def of_agent(token: str, session: int = 0) -> list[Process]:
    """What is left of an agent, by its mark or its session; never ourselves."""
    return [
        one
        for one in running()
        if one.pid != os.getpid()
        and ((session and one.session == session) or _carries(one.pid, token))
    ]


def _carries(pid: int, token: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARK}={token}".encode() in environment.split(b"\0")


def end(processes: Iterable[Process], within_s: float) -> list[Process]:
    """Kill processes by SIGKILL; what still lives after so long hangs in the kernel."""
    left = list(processes)
    for one in left:
        with contextlib.suppress(OSError):
            os.kill(one.pid, signal.SIGKILL)
    deadline = time.monotonic() + within_s
    while left:
        for one in left:
            with contextlib.suppress(ChildProcessError):  # ours only where we are its init
                os.waitpid(one.pid, os.WNOHANG)
        left = [one for one in left if one.lives]
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def listens(pids: Iterable[int], port: int) -> bool:
    """Whether one of these processes listens on a TCP port."""
    wanted = {f"socket:[{inode}]" for inode in _listening(port)}
    return bool(wanted) and any(not wanted.isdisjoint(_open(pid)) for pid in pids)


def _listening(port: int) -> Iterator[str]:
    #  0: 0100007F:73D1 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 31337 ...
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                yield words[9]


def _open(pid: int) -> Iterator[str]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
