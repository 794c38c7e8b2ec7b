"""Becomes the program that follows, tied to the life of the process that started it.

Run as a file: ``tether.py PARENT PROGRAM ...``. SIGTERM comes when the parent dies, however it
does, and an elastic agent stops its workers on SIGTERM. It imports nothing of ours.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; stays over an exec


def _main(parent: int, *program: str) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM  # it died before we were tied to it
    try:
        os.execvp(program[0], program)  # noqa: S606 (no shell is the point)
    except OSError as error:
        sys.stderr.write(f"{program[0]} cannot be started: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), *sys.argv[2:]))
