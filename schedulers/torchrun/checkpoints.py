"""Waits for the next checkpoint beside the supervisor: a hung file system must not hang that."""

import contextlib
import glob
import logging
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schedulers.torchrun.config import TorchrunConfig
from schedulers.torchrun.processes import Process

__all__ = ["CheckpointWait"]

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.25
#: Time of the last change (ns), bytes and inode of each file that matches.
_Stamps = dict[str, tuple[int, int, int]]


@dataclass(slots=True)
class CheckpointWait:
    """One wait; ``over`` gives the words for why it is over, None while it goes on.

    Files are compared with what was there at the beginning, never with the clock: a file server
    has its own.
    """

    config: TorchrunConfig
    environ: Mapping[str, str]
    workers: Sequence[Process]
    _done: str | None = None
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.config.drain_patience_s
        if self.config.checkpoint_glob or self.config.checkpoint_hook:
            threading.Thread(target=self._watch, name="checkpoint", daemon=True).start()
        else:
            self._done = "no checkpoint_glob and no checkpoint_hook is set: not waited"

    @property
    def over(self) -> str | None:
        """Why the agent is to be stopped now, or None."""
        if self._done is None and time.monotonic() >= self._deadline:
            return f"no checkpoint within {self.config.drain_patience_s:g} s"
        return self._done

    def cancel(self) -> None:
        """Look no more."""
        self._cancelled.set()

    def _watch(self) -> None:
        try:
            before = self._stamps()
            self._ask()
            if self.config.checkpoint_glob:
                self._done = self._changed(before)
        except Exception:  # noqa: BLE001 (the agent must be stopped all the same)
            _LOG.exception("the wait for a checkpoint failed; patience alone counts")

    def _ask(self) -> None:
        number = self.config.signal
        for one in self.workers if number is not None else ():
            if one.lives:
                with contextlib.suppress(OSError):
                    os.kill(one.pid, number or 0)
        if self.config.checkpoint_hook and self._hook() and not self.config.checkpoint_glob:
            self._done = "the hook says that a checkpoint is written"

    def _hook(self) -> bool:
        words = shlex.split(self.config.checkpoint_hook)
        left_s = max(0.0, self._deadline - time.monotonic())
        try:
            with subprocess.Popen(
                words, stdin=subprocess.DEVNULL, env=dict(self.environ), start_new_session=True
            ) as process:
                try:
                    code = process.wait(left_s)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise
        except (OSError, subprocess.SubprocessError) as error:
            _LOG.warning("the checkpoint hook failed: %s", error)
            return False
        if code:
            _LOG.warning("the checkpoint hook ended with exit code %d", code)
        return code == 0

    def _changed(self, before: _Stamps) -> str | None:
        """The words for a file that is new or was written anew, and is whole."""
        seen: dict[str, tuple[tuple[int, int, int], float]] = {}
        while not self._cancelled.wait(_LOOK_S):
            now = time.monotonic()
            for path, stamp in self._stamps().items():
                if stamp == before.get(path):
                    continue
                first, since = seen.setdefault(path, (stamp, now))
                # Another file in its place: the one before was whole, whatever this one is.
                replaced = stamp[2] != first[2]
                if replaced or (stamp == first and now - since >= self.config.checkpoint_settle_s):
                    return f"checkpoint {path} is written"
                if stamp != first:
                    seen[path] = (stamp, now)
        return None

    def _stamps(self) -> _Stamps:
        found: _Stamps = {}
        for path in glob.glob(self.config.checkpoint_glob, recursive=True):  # noqa: PTH207 (absolute patterns)
            with contextlib.suppress(OSError):
                status = os.stat(path)  # noqa: PTH116
                found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
        return found
