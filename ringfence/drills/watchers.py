"""What can be seen of a drill beside Kafka: programs that tell, and a file that moves on."""

import contextlib
import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["FileWatcher", "ProgramWatcher"]

_EVERY_S, _WITHIN_S = 0.5, 15.0
_MOST_BYTES = 1 << 20


class ProgramWatcher:
    """Runs a program again and again without being waited for; its last exit code is what counts.

    0 is yes and 1 no; anything else says nothing.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        self._due = 0.0
        self._began = 0.0

    def look(self) -> bool | None:
        """Yes or no where a run ended since the last look; None where none did, or it failed."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._due:
                self._start(now)
            return None
        code = self._process.poll()
        if code is None:
            if now - self._began > _WITHIN_S:
                self.stop()
                self._due = now + _EVERY_S
            return None
        self._process = None
        self._due = now + _EVERY_S
        return {0: True, 1: False}.get(code)

    def stop(self) -> None:
        """End a run that is under way."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, now: float) -> None:
        self._began = now
        try:
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self._due = now + _EVERY_S


class FileWatcher:
    """Counts how often a file's content was another one since the first look."""

    def __init__(self, path: Path, changes: int) -> None:
        self._path = path
        self._left = changes
        self._last: bytes | None = None
        self._due = 0.0

    def look(self) -> bool | None:
        """Whether it changed often enough; None between two looks."""
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = now + _EVERY_S / 5
        content = self._content()
        if content is not None and content != self._last:
            if self._last is not None:
                self._left -= 1
            self._last = content
        return self._left <= 0

    def stop(self) -> None:
        """Nothing runs."""

    def _content(self) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MOST_BYTES))
                return hashlib.blake2b(file.read(_MOST_BYTES)).digest() + size.to_bytes(8)
        except OSError:
            return None
