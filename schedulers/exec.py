"""The adapter ``exec``: a program of the operator's, the command's JSON on stdin, exit 0 is done.

The program sees none of our environment but PATH, HOME, LANG and RINGFENCE_COMMAND_ID.
"""

import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from evidence.decisions import AckStatus, Command
from evidence.wire import encode
from schedulers.adapter import Outcome

__all__ = ["ExecAdapter"]

_PASSED_ON = ("PATH", "HOME", "LANG")
_TAIL = 500  # characters of the program's last output in the ack
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ExecAdapter:
    """Runs ``program`` (an argument list, no shell) once a command, at most ``timeout_s`` long.

    The exit code is the answer: 0 done, anything else failed, with the end of what the program
    wrote to stderr (to stdout where stderr is empty). The program must be idempotent.
    """

    def __init__(self, program: Sequence[str], *, timeout_s: float = 60.0) -> None:
        if not program:
            raise ValueError("exec needs a program")
        self._program = tuple(program)
        self._timeout_s = timeout_s

    def apply(self, command: Command) -> Outcome:
        """Run the program with one command; a missing program or a time-out is a failed try."""
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment["RINGFENCE_COMMAND_ID"] = command.id
        # Files, not pipes: a child that the program leaves behind must not keep us reading.
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as errors,
        ):
            given.write(encode(command))
            given.seek(0)
            try:
                process = subprocess.Popen(
                    self._program,
                    stdin=given,
                    stdout=out,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,  # a time-out ends its children too
                    preexec_fn=_die_with_us(),  # noqa: PLW1509 (one system call)
                )
            except OSError as error:
                reason = f"{self._program[0]} cannot be run: {error.strerror}"
                return Outcome(AckStatus.FAILED, reason, retry=False)
            code = self._wait(process)
            said = _tail(errors) or _tail(out)
        if code is None:
            return Outcome(
                AckStatus.FAILED, _sentence(f"no answer within {self._timeout_s:g} s", said)
            )
        if code == 0:
            return Outcome(AckStatus.DONE, said, 0)
        if code < 0:
            return Outcome(
                AckStatus.FAILED, _sentence(f"ended by {_signal_name(-code)}", said), code
            )
        return Outcome(AckStatus.FAILED, _sentence(f"exit code {code}", said), code)

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit code; None after the time limit, when the program and its group are killed."""
        try:
            return process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def _sentence(what: str, said: str) -> str:
    return f"{what}: {said}" if said else what


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(file: IO[bytes]) -> str:
    """The end of what was written, as text on one line."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 4 * _TAIL))
    text = " ".join(file.read().decode(errors="replace").split())
    return text[-_TAIL:]


def _die_with_us() -> Callable[[], None] | None:
    """What the child runs before exec so that it ends with us (Linux).

    A program that outlived a killed scheduler could finish an old `isolate` after the restarted
    one has carried out the `release`.
    """
    if not Path("/proc/self").exists():
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask
