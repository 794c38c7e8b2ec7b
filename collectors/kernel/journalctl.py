"""Runs journalctl as a child and hands out what it prints, without ever waiting for it.

A child and not a library: a damaged journal file, mapped into memory, can end the process that
reads it, and that must not be the agent. journalctl ends by itself when its reader is gone.
"""

import os
import subprocess
from pathlib import Path

from collectors.collector import Unavailable

__all__ = ["Journalctl"]

#: Bytes taken in one call, so that a backlog of weeks cannot keep the caller.
_CALL_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
#: The longest entry that is kept whole; journalctl leaves out fields of more than 4096 bytes.
_LINE_BYTES = 1 << 20
_PLACES = (Path("/var/log/journal"), Path("/run/log/journal"))
_STDERR_CHARS = 2000
_END_S = 1.0
_FIELDS = (
    "MESSAGE,PRIORITY,SYSLOG_FACILITY,SYSLOG_IDENTIFIER,SYSLOG_PID,_TRANSPORT,_SYSTEMD_UNIT,"
    "_BOOT_ID,_MACHINE_ID,_SOURCE_MONOTONIC_TIMESTAMP,_KERNEL_DEVICE"
)
_KERNEL = "_TRANSPORT=kernel"
#: Programs of the driver that speak past the kernel's ring.
_UNITS = (
    "SYSLOG_IDENTIFIER=nv-fabricmanager",
    "_SYSTEMD_UNIT=nvidia-fabricmanager.service",
    "_SYSTEMD_UNIT=nvidia-persistenced.service",
)


class Journalctl:
    """One run of journalctl over the kernel's entries, as JSON lines."""

    def __init__(
        self,
        directory: Path | None,
        *,
        follow: bool,
        units: bool = False,
        cursor: str | None = None,
        since_s: float | None = None,
        boot_id: str | None = None,
    ) -> None:
        """Start at ``cursor`` (that entry is the first), at ``since_s``, or at the oldest entry.

        ``boot_id`` leaves out other boots, ``units`` adds the fabric manager's and persistenced's
        own entries. ``directory`` None is this machine's journal. Raises Unavailable when there is
        no journalctl, or no journal that may be read.
        """
        _find(directory)
        # `--after-cursor` loses an entry when the cursor's own is gone (systemd before 255), and
        # `--follow` shows only this boot unless journals are merged.
        command = ["journalctl", "--output=json", "--quiet", "--no-pager", "--merge"]
        command.append(f"--output-fields={_FIELDS}")
        if follow:
            command += ["--follow", "--no-tail"]
        if directory is not None:
            command.append(f"--directory={directory}")
        if cursor is not None:
            command.append(f"--cursor={cursor}")
        if since_s is not None:
            command.append(f"--since=@{since_s:.0f}")
        boot = [] if not boot_id else [f"_BOOT_ID={boot_id.replace('-', '')}"]
        for match in (_KERNEL, *(_UNITS if units else ())):
            command += ["+", match, *boot]
        command.remove("+")
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=os.environ | {"LC_ALL": "C", "TZ": "UTC"},
            )
        except OSError as error:
            raise Unavailable(f"journalctl cannot be started: {error.strerror}") from error
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._out = self._child.stdout.fileno()
        self._err = self._child.stderr.fileno()
        os.set_blocking(self._out, False)
        os.set_blocking(self._err, False)
        self._held = b""
        self._skipping = False
        self._told = ""
        self.ended = False

    def fileno(self) -> int | None:
        """A descriptor that is readable when there is something to `read`."""
        return None if self.ended else self._out

    def read(self) -> list[bytes]:
        """Return the lines that are there; ``ended`` is set when no more will come."""
        lines: list[bytes] = []
        taken = 0
        while not self.ended and taken < _CALL_BYTES:
            piece = _read(self._out)
            if piece is None:
                break
            if not piece:
                self._end()
                break
            taken += len(piece)
            self._cut(piece, lines)
        if not self.ended:
            self._listen()
        return lines

    @property
    def failure(self) -> str:
        """Why it ended, in one sentence; empty when it came to the end of the journal."""
        if self._child.returncode == 0:
            return ""
        said = self._told.strip().splitlines()
        return f"journalctl ended: {said[-1] if said else f'exit code {self._child.returncode}'}"

    def close(self) -> None:
        """End the child."""
        if self._child.poll() is None:
            self._child.kill()
        self._end()

    def _cut(self, piece: bytes, lines: list[bytes]) -> None:
        whole, newline, rest = piece.rpartition(b"\n")
        if newline:
            found = (self._held + whole).split(b"\n")
            lines += found[1:] if self._skipping else found
            self._held, self._skipping = rest, False
        elif not self._skipping:
            self._held += rest
        if len(self._held) > _LINE_BYTES:
            lines.append(self._held)  # no JSON any more: it will be an unreadable record
            self._held, self._skipping = b"", True

    def _listen(self) -> None:
        while piece := _read(self._err):
            self._told = (self._told + piece.decode("utf-8", "replace"))[-_STDERR_CHARS:]

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._listen()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()  # one that hangs in the kernel is reaped when it comes back
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()


def _find(directory: Path | None) -> None:
    """Raise Unavailable where there is nothing to read: a follower would wait there silently."""
    places = _PLACES if directory is None else (directory,)
    # A user's own journal holds nothing of the kernel's.
    files = [
        file
        for place in places
        for pattern in ("*.journal", "*/*.journal")
        for file in place.glob(pattern)
        if not file.name.startswith("user-")
    ]
    if not files:
        where = " or ".join(map(str, places))
        raise Unavailable(f"there is no journal in {where} that this user may see")
    if not any(os.access(file, os.R_OK) for file in files):
        raise Unavailable(f"{files[0]} may not be read: it takes the group systemd-journal")


def _read(descriptor: int) -> bytes | None:
    """Some bytes, none at the end, None when there are none yet."""
    try:
        return os.read(descriptor, _PIECE_BYTES)
    except BlockingIOError:
        return None
