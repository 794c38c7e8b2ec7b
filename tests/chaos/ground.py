"""What a disturbance needs of this machine: a network of two ends, a small disk, a clock to step.

Each of them is made for one round and gone with it. What is not permitted here (no root, no
compiler) skips the round with the reason; ``RINGFENCE_REQUIRE_PARTS`` makes that a failure.
"""

import itertools
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["Clock", "Disk", "NotHereError", "Wire", "leave_out"]

_REQUIRED = bool(os.environ.get("RINGFENCE_REQUIRE_PARTS"))
_NUMBERS = itertools.count()


class NotHereError(Exception):
    """This machine does not let a test have it; the message says why."""


def leave_out(reason: str) -> NoReturn:
    """Skip the test, or fail it where every part is required."""
    if _REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


def _ip(*arguments: str) -> None:
    command = ["ip", *arguments]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
    except FileNotFoundError as error:
        raise NotHereError("the program ip (iproute2) is missing") from error
    except subprocess.CalledProcessError as error:
        raise NotHereError(f"{' '.join(command)}: {error.stderr.strip()}") from error


class Wire:
    """A network namespace that reaches this one over one pair of interfaces, and nothing else.

    ``here`` is this end's address. Addresses are of the range for tests of devices (RFC 2544).
    Raises NotHereError where namespaces are not permitted.
    """

    def __init__(self) -> None:
        # Two test runs at once must not meet: process ids differ.
        self._name = f"rf{os.getpid()}n{next(_NUMBERS)}"
        self._ends = [f"{self._name}{side}" for side in "ab"]
        block = f"198.{18 + os.getpid() % 2}.{os.getpid() // 2 % 256}"
        self.here, there = f"{block}.1", f"{block}.2"
        _ip("netns", "add", self._name)
        ours, theirs = self._ends
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", self._name)
        _ip("address", "add", f"{self.here}/30", "dev", ours)
        _ip("-n", self._name, "address", "add", f"{there}/30", "dev", theirs)
        _ip("link", "set", ours, "up")
        _ip("-n", self._name, "link", "set", theirs, "up")
        _ip("-n", self._name, "link", "set", "lo", "up")

    def inside(self) -> tuple[str, ...]:
        """What to put before a command line to run it in the namespace."""
        return ("ip", "netns", "exec", self._name)

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told: packets are dropped."""
        _ip("link", "set", self._ends[0], "down")

    def mend(self) -> None:
        """Let everything pass again."""
        _ip("link", "set", self._ends[0], "up")

    def close(self) -> None:
        """Remove the namespace; its interfaces go with it."""
        subprocess.run(["ip", "netns", "delete", self._name], check=False, capture_output=True)


class Disk:
    """A folder on a disk of a few MB."""

    def __init__(self, folder: Path, megabytes: int = 24) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        size = f"size={megabytes}m"
        command = ["mount", "-t", "tmpfs", "-o", size, "ringfence-chaos", str(folder)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
        if done.returncode:
            leave_out(f"a full disk left out: {done.stderr.strip()}")

    def fill(self) -> None:
        """Leave no byte free; what is deleted meanwhile is taken at the next call."""
        with (self.folder / "ballast").open("ab", buffering=0) as ballast:
            size = 1 << 20
            while size:
                try:
                    ballast.write(b"\0" * size)
                except OSError:
                    size //= 2

    def free(self) -> None:
        """Give the room back."""
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it, lazily: who has files open keeps them until it ends."""
        subprocess.run(["umount", "--lazy", self.folder], check=False, capture_output=True)


class Clock:
    """The wall clock of the processes that are started with ``environ``."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            leave_out("a stepped clock left out: no C compiler here")
        self._file = folder / "step-clock"
        self._file.write_bytes(struct.pack("=q", 0))
        library = folder / "step_clock.so"
        source = Path(__file__).with_name("step_clock.c")
        flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        built = [str(compiler), *flags, "-o", str(library), str(source), "-ldl"]
        subprocess.run(built, check=True, capture_output=True, text=True)
        self._environ = (f"LD_PRELOAD={library}", f"STEP_CLOCK={self._file}")

    def inside(self) -> tuple[str, ...]:
        """What to put before a command line to run it by this clock."""
        return ("env", *self._environ)

    def step(self, seconds: float) -> None:
        """Move it: from now on it is so many seconds off."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", int(seconds * 1e9)))

    def close(self) -> None:
        """Nothing to remove."""
