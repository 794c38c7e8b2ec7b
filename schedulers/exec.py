"""The adapter ``exec``: a program of the operator's, the command's JSON on stdin, exit 0 is done.

The program sees none of our environment but PATH, HOME, LANG, RINGFENCE_COMMAND_ID and
RINGFENCE_RUN, by which what it leaves behind is found when its time is up.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from evidence.decisions import AckStatus, Command
from evidence.wire import encode
from schedulers.adapter import Outcome, View
from schedulers.exec_look import look
from schedulers.exec_output import Outputs

__all__ = ["ExecAdapter", "ObservingExec"]

_PASSED_ON = ("PATH", "HOME", "LANG")
_TAIL = 500  # characters of the program's last output in the ack
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: A stream that grows beyond is cut to nothing while the program runs: it must not fill the disk.
_LARGEST_BYTES = 32 * 1024 * 1024
_LOOK_S = 0.2
#: Where the program runs, for an ack that is read elsewhere.
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Run:
    """One run's files and how it ended; ``code`` None is a time-out."""

    out: IO[bytes]
    errors: IO[bytes]
    cut: list[str]
    code: int | None = None


class ExecAdapter:
    """Runs ``program`` (an argument list, no shell) once a command, at most ``timeout_s`` long.

    The exit code is the answer: 0 done, anything else failed, with the end of what the program
    wrote to stderr (to stdout where stderr is empty). The program must be idempotent. All that the
    last ``keep`` runs wrote is kept in files in ``outputs``. When its time is up the program, its
    process group and whatever it started are killed; what it leaves behind before is left alone.
    """

    def __init__(
        self,
        program: Sequence[str],
        *,
        timeout_s: float = 60.0,
        outputs: Path | None = None,
        keep: int = 100,
    ) -> None:
        if not program:
            raise ValueError("exec needs a program")
        self._program = tuple(program)
        self._timeout_s = timeout_s
        self._outputs = None if outputs is None else Outputs(outputs, keep)

    def apply(self, command: Command) -> Outcome:
        """Run the program with one command; a missing program or a time-out is a failed try."""
        with ExitStack() as held:
            # Files, not pipes: a child that the program leaves behind must not keep us reading.
            given, out, errors = (
                held.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(3)
            )
            for file in (out, errors):  # what is cut while it grows must go on at its new end
                fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
            given.write(encode(command))
            given.seek(0)
            began = datetime.now(UTC)
            try:
                run = self._run(command, given, out, errors)
            except OSError as error:
                reason = f"{self._program[0]} cannot be run: {error.strerror}"
                return Outcome(AckStatus.FAILED, reason, retry=False)
            outcome = self._outcome(run)
            if self._outputs is not None:
                self._outputs.keep(command.id, began, outcome, out, errors, run.cut)
            return outcome

    def _run(self, command: Command, given: IO[bytes], out: IO[bytes], errors: IO[bytes]) -> _Run:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        mark = uuid.uuid4().hex
        environment |= {"RINGFENCE_COMMAND_ID": command.id, "RINGFENCE_RUN": mark}
        process = subprocess.Popen(
            self._program,
            stdin=given,
            stdout=out,
            stderr=errors,
            env=environment,
            start_new_session=True,  # a time-out ends its children too
            preexec_fn=_die_with_us(),  # noqa: PLW1509 (one system call)
        )
        cut: list[str] = []
        deadline = time.monotonic() + self._timeout_s
        while (left := deadline - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                return _Run(out, errors, cut, process.wait(min(left, _LOOK_S)))
            for name, file in (("stdout", out), ("stderr", errors)):
                if os.fstat(file.fileno()).st_size > _LARGEST_BYTES:
                    os.ftruncate(file.fileno(), 0)  # it is appended to: what comes is still kept
                    cut.append(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _kill_marked(mark)
        return _Run(out, errors, cut)

    def _outcome(self, run: _Run) -> Outcome:
        code, said = run.code, _tail(run.errors) or _tail(run.out)
        if code is None:
            what = f"no answer within {self._timeout_s:g} s"
            return Outcome(AckStatus.FAILED, _sentence(what, said))
        if code == 0:
            return Outcome(AckStatus.DONE, said, 0)
        what = f"ended by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        return Outcome(AckStatus.FAILED, _sentence(what, said), code)


class ObservingExec:
    """An ExecAdapter that can look: ``observe`` is a program that prints what stands, as JSON."""

    def __init__(
        self, adapter: ExecAdapter, observe: Sequence[str], *, timeout_s: float = 60.0
    ) -> None:
        self._adapter = adapter
        self._program = tuple(observe)
        self._timeout_s = timeout_s

    def apply(self, command: Command) -> Outcome:
        """Carry out one command."""
        return self._adapter.apply(command)

    def observe(self) -> View:
        """Run the program; raises SchedulerError where it fails or prints something else."""
        return look(self._program, self._timeout_s)


def _kill_marked(mark: str) -> None:
    """Kill what a run started and what has left its process group, found by its environment.

    A program that outlived its time could finish an old `isolate` after the `release`.
    """
    wanted = f"RINGFENCE_RUN={mark}".encode()
    for _ in range(3):  # what is being forked meanwhile is found in the next round
        found = [
            int(folder.name)
            for folder in _PROC.glob("[0-9]*")
            if wanted in _environment(folder).split(b"\0")
        ]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.01)


def _environment(folder: Path) -> bytes:
    try:
        return (folder / "environ").read_bytes()
    except OSError:
        return b""


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
