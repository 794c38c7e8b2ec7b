"""Says which job a process on a GPU belongs to, from its cgroup or its environment.

Reading the environment of a process waits for a lock of its memory, which a process that is stuck
in the driver may hold for ever: that is done on a thread of its own, and not waited for long.
"""

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from collectors.deadline import Caller

__all__ = ["Jobs", "Owner"]

# `0::/system.slice/slurmstepd.scope/job_48213/step_0/user/task_3`
# `8:memory:/slurm/uid_2004/job_48213/step_batch`
_SLURM = re.compile(r"slurm.*/job_(\d{1,12})(?:/|$)", re.MULTILINE)
# `0::/kubepods.slice/kubepods-pod7c0d2f3e_5f0a_4f6b_9d1c_2b6f0b7a9e11.slice/cri-containerd-...`
# `11:devices:/kubepods/burstable/pod7c0d2f3e-5f0a-4f6b-9d1c-2b6f0b7a9e11/6a1f...`
_POD = re.compile(r"kubepods.*pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")

#: Variables that name a job, the scheduler's before the launcher's.
_VARIABLES = (b"SLURM_JOB_ID", b"PBS_JOBID", b"LSB_JOBID", b"TORCHELASTIC_RUN_ID")
#: What torchrun sets where nobody named the run.
_UNNAMED = (b"", b"none")
_ENVIRONMENT_BYTES = 1 << 20
_FILE_BYTES = 1 << 16
_KEPT = 256


@dataclass(frozen=True, slots=True)
class Owner:
    """A process's name and job, as far as they can be seen."""

    name: str | None = None
    job: str | None = None


class Jobs:
    """Names the owners of processes; may be asked from several threads.

    A Slurm job is its number, a Kubernetes pod ``pod/`` and its UID. Without root the environment
    of other users' processes is closed: what their cgroup does not tell is None then.
    """

    def __init__(self, proc: Path = Path("/proc"), wait_s: float = 0.1) -> None:
        self._proc = proc
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._reader: Caller[bytes] = Caller("gpu-jobs")
        self._known: OrderedDict[tuple[int, bytes], Owner] = OrderedDict()

    def of(self, pid: int) -> Owner:
        """Return what is known of a process; waits at most a moment."""
        folder = self._proc / str(pid)
        # Numbers are used again: a process is its number and when it began.
        key = (pid, _began(_read(folder / "stat", _FILE_BYTES)))
        known = self._known.get(key)
        if known is not None:
            return known
        name = _read(folder / "comm", _FILE_BYTES).decode("utf-8", "replace").strip() or None
        job = self._job(folder)
        owner = Owner(name, job)
        if job is not None and key[1]:
            self._known[key] = owner
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return owner

    def close(self) -> None:
        """Let the thread end."""
        self._reader.close()

    def _job(self, folder: Path) -> str | None:
        cgroup = _read(folder / "cgroup", _FILE_BYTES).decode("utf-8", "replace")
        if slurm := _SLURM.search(cgroup):
            return slurm[1]
        if named := _named(self._environment(folder)):
            return named
        pod = _POD.search(cgroup)
        return f"pod/{pod[1].replace('_', '-')}" if pod else None

    def _environment(self, folder: Path) -> bytes:
        if not self._lock.acquire(timeout=self._wait_s):
            return b""
        try:
            self._reader.answer()  # one that came too late
            if self._reader.busy:
                return b""
            self._reader.start(partial(_read, folder / "environ", _ENVIRONMENT_BYTES))
            answer = self._reader.answer(self._wait_s)
            return b"" if answer is None or answer.value is None else answer.value
        finally:
            self._lock.release()


def _read(path: Path, limit: int) -> bytes:
    """The beginning of a file; nothing where it is gone or closed to us."""
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def _began(stat: bytes) -> bytes:
    """When a process began, in ticks since boot: field 22 of proc(5)'s stat, 20th after the name.

    The name may hold blanks and brackets: the last bracket ends it.
    """
    fields = stat.rpartition(b")")[2].split()
    return fields[19] if len(fields) > 19 else b""  # noqa: PLR2004 (the field above)


def _named(environment: bytes) -> str | None:
    values = dict(part.partition(b"=")[::2] for part in environment.split(b"\0"))
    for variable in _VARIABLES:
        value = values.get(variable, b"")
        if value not in _UNNAMED:
            return value.decode("utf-8", "replace")
    return None
