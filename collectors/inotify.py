"""Hears from Linux that a followed file gained something, so that nobody waits for the next look.

Not every file system tells (NFS is silent about what others write), and the kernel may refuse
(``fs.inotify.max_user_watches``): who listens keeps looking, only less often while it is told.
"""

import contextlib
import ctypes
import logging
import os
import struct
import time

__all__ = ["Ear"]

_LOG = logging.getLogger(__name__)

#: linux/inotify.h: written, its owner or links changed (an unlink does that), renamed.
_CHANGED = 0x2 | 0x4 | 0x800  # IN_MODIFY, IN_ATTRIB, IN_MOVE_SELF
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 65_536
#: Between two wakeups. One line is heard of at once; where lines keep coming the pause doubles up
#: to what looking costs, so that a chatty file wakes nobody more often than looks did.
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.01, 0.2
#: After so long without a line the next one is heard of at once again.
_CALM_S = 1.0


class Ear:
    """Watches of files, and a descriptor that is readable when one of them changed.

    It works, deaf, where there is no inotify: nothing is ever heard then.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int | None = None
        self._heard: set[int] = set()
        self._pause_s = _LEAST_PAUSE_S
        self._found_at = 0.0
        #: No wakeup is wanted before this (monotonic seconds); 0.0 while listening.
        self.rests_until = 0.0
        try:
            fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError:  # another system's libc
            return
        if fd >= 0:
            self._fd = fd
        else:
            _LOG.info("no inotify (%s), files are looked at", os.strerror(ctypes.get_errno()))

    def fileno(self) -> int | None:
        """What to wait for; None while it rests, and where there is nothing to hear."""
        return None if self.rests_until else self._fd

    def watch(self, descriptor: int) -> int | None:
        """Listen to an open file, wherever it is renamed to.

        Returns the watch's number; None where the kernel refuses.
        """
        if self._fd is None:
            return None
        path = f"/proc/self/fd/{descriptor}".encode()  # a path might be another file's by now
        number = int(self._libc.inotify_add_watch(self._fd, path, _CHANGED))
        return number if number >= 0 else None

    def forget(self, watch: int | None) -> None:
        """Listen to a file no longer; one that is gone has been forgotten already."""
        if self._fd is not None and watch is not None:
            self._libc.inotify_rm_watch(self._fd, watch)

    def listen(self) -> None:
        """Take what the kernel has told; to be called before the files are read, never after.

        So a change that a reading just misses makes the descriptor readable again.
        """
        self._heard.clear()
        if self._fd is None:
            return
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, _BUFFER_BYTES)
        at = 0
        while at + _EVENT.size <= len(data):
            watch, mask, _cookie, name_bytes = _EVENT.unpack_from(data, at)
            at += _EVENT.size + name_bytes
            if mask & _CHANGED:  # else the kernel's own word: it forgot a watch, or dropped events
                self._heard.add(watch)

    def heard(self, watch: int | None) -> bool:
        """Whether the last `listen` heard of a change of this watch's file."""
        return watch in self._heard

    def rest(self, *, found: bool) -> None:
        """Told after each read whether a line came: the pause until the next wakeup."""
        now = time.monotonic()
        if not found:
            self.rests_until = 0.0
            return
        calm = now - self._found_at > _CALM_S
        self._pause_s = _LEAST_PAUSE_S if calm else min(2 * self._pause_s, _MOST_PAUSE_S)
        self._found_at = now
        self.rests_until = now + self._pause_s

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
