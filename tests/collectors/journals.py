"""Real journal files for tests: systemd-journal-remote writes them from the export format."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

#: Debian's systemd-journal-remote; it is not in the PATH.
_WRITER = Path("/lib/systemd/systemd-journal-remote")
MACHINE = "5e0c0a7f1b2d4c3e8f9a0b1c2d3e4f50"


def require() -> None:
    """Skip (or, where the parts are required, fail) without systemd's own programs."""
    if _WRITER.exists() and shutil.which("journalctl"):
        return
    why = "journalctl or systemd-journal-remote (Debian packages of these names) is not here"
    if os.environ.get("RINGFENCE_REQUIRE_PARTS") == "1":
        pytest.fail(why)
    pytest.skip(why)


def entry(
    boot: str, received_us: int, said_us: int, message: str | bytes | None, **fields: str
) -> bytes:
    """One entry in journald's export format; ``received_us`` counts from 1970.

    journald took it 5 ms after the kernel said it, ``said_us`` after its start. ``fields`` are
    added or take the place of those of a kernel message; an empty one is left out.
    """
    told = {
        "_MACHINE_ID": MACHINE,
        "_HOSTNAME": "n7",
        "_TRANSPORT": "kernel",
        "PRIORITY": "4",
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "_SOURCE_MONOTONIC_TIMESTAMP": str(said_us),
    } | fields
    lines = [
        f"__REALTIME_TIMESTAMP={received_us}",
        f"__MONOTONIC_TIMESTAMP={said_us + 5000}",
        f"_BOOT_ID={boot.replace('-', '')}",
        *(f"{name}={value}" for name, value in told.items() if value),
    ]
    text = "\n".join(lines).encode() + b"\n"
    if message is not None:
        data = message.encode() if isinstance(message, str) else message
        text += b"MESSAGE\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return text + b"\n"


class Journal:
    """One journal file; what is `write`-n is there at once, for those who follow it too."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file = file
        self._writer = subprocess.Popen(
            [_WRITER, "-o", file, "-"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def write(self, *entries: bytes) -> None:
        """Append entries, as `entry` makes them."""
        assert self._writer.stdin is not None
        self._writer.stdin.write(b"".join(entries))
        self._writer.stdin.flush()
        until(self.file.exists)

    def close(self) -> None:
        """End the writer: everything is in the file."""
        assert self._writer.stdin is not None
        self._writer.stdin.close()
        assert self._writer.wait(20) == 0


def written(file: Path, *entries: bytes) -> Path:
    """A finished journal file."""
    journal = Journal(file)
    journal.write(*entries)
    journal.close()
    return file


def until(condition, seconds: float = 20.0) -> None:  # noqa: ANN001 (any call without arguments)
    """Wait until ``condition()`` holds."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)
