"""Running jobs of nodes, and what becomes of them: signalled, requeued, cancelled, or left."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from schedulers.slurm.config import SlurmConfig
from schedulers.slurm.tools import Tools, ToolsError, moment

__all__ = ["Job", "Jobs"]

#: Fields by which nobody else's free text can be taken for a value; the comment comes last.
_FIELDS = (
    *("JobID", "UserName", "RestartCnt", "StartTime", "Container", "NodeList", "State"),
    "Comment",
)
_RUNNING = "running,suspended,completing"


@dataclass(frozen=True, slots=True)
class Job:
    """One job that runs; ``attempt`` counts its restarts, ``nodes`` are names.

    ``ending``: it has been requeued or cancelled, and its processes have time to end.
    """

    id: str
    user: str
    attempt: int
    began_at: datetime | None
    image: str | None
    nodes: tuple[str, ...]
    comment: str = ""
    ending: bool = False


class Jobs:
    """Reads and moves jobs."""

    def __init__(self, tools: Tools, config: SlurmConfig) -> None:
        self._tools = tools
        self._config = config
        #: Jobs that we requeued and that have not ended yet; forgotten in a restart, which costs
        #: them Slurm's delay.
        self._requeued: set[str] = set()

    def running(self, nodes: Iterable[str] = ()) -> list[Job]:
        """Jobs that run, on these nodes or on all; raises ToolsError."""
        wanted = ",".join(sorted(set(nodes)))
        fields = ",".join(f"{name}:|" for name in _FIELDS)
        text = self._tools.run(
            "squeue",
            "--noheader",
            "--all",
            f"--states={_RUNNING}",
            f"--Format={fields}",
            *([f"--nodelist={wanted}"] if wanted else []),
        )
        return [job for line in text.splitlines() if (job := self._job(line)) is not None]

    def _job(self, line: str) -> Job | None:
        words = line.split("|", len(_FIELDS) - 1)
        if len(words) < len(_FIELDS):
            return None
        words = [word.strip() for word in words]
        ident, user, restarts, began, image, nodes, state, comment = words
        return Job(
            id=ident,
            user=user,
            attempt=int(restarts) if restarts.isdecimal() else 0,
            began_at=moment(began),
            image=None if image in {"", "N/A", "(null)"} else image,
            nodes=self._tools.hosts(nodes),
            comment=comment.rstrip("|"),
            ending=state == "COMPLETING",
        )

    def is_left(self, job: Job) -> bool:
        """Whether a job is its own supervisor's matter."""
        return bool(self._config.leave_jobs_with) and self._config.leave_jobs_with in job.comment

    def ask(self, jobs: Iterable[Job]) -> None:
        """Send the signal by which jobs write a checkpoint, if there is one."""
        if self._config.checkpoint_signal:
            for job in jobs:
                self._try(
                    "scancel", f"--signal={self._config.checkpoint_signal}", "--batch", job.id
                )

    def requeue(self, jobs: Iterable[Job], *, cancel: bool) -> str:
        """Requeue jobs, or cancel those that cannot be; returns what became of each, in words."""
        words = []
        for job in jobs:
            if job.ending:  # a second requeue is refused, and to cancel it would lose the first
                words.append(f"job {job.id} is ending already")
            elif (refused := self._try("scontrol", "requeue", job.id)) is None:
                words.append(f"job {job.id} requeued")
                self._requeued.add(job.id)
            elif cancel:
                refused = self._try("scancel", job.id)
                words.append(f"job {job.id} {'cancelled' if refused is None else refused}")
            else:
                words.append(f"job {job.id} cannot be requeued and runs on")
        return ", ".join(words)

    def hasten(self) -> None:
        """Let requeued jobs that have ended begin now, if that is wanted; raises ToolsError.

        Slurm has them wait for ``cred_expire`` (AuthInfo of slurm.conf), 120 s unless it is set:
        longer than a job may be out of training.
        """
        if not self._config.hasten_requeued:
            self._requeued.clear()
        if not self._requeued:
            return
        text = self._tools.run("squeue", "--noheader", "--all", "--Format=JobID:|,State:|")
        states = dict(line.replace(" ", "").split("|")[:2] for line in text.splitlines() if line)
        for ident in sorted(self._requeued):
            state = states.get(ident, "")
            if state == "PENDING":
                self._try("scontrol", "update", f"jobid={ident}", "StartTime=now")
            if state not in {"COMPLETING", "RUNNING"}:
                self._requeued.discard(ident)

    def _try(self, program: str, *arguments: str) -> str | None:
        """Run it; returns why not, a job that has ended meanwhile included in success.

        Raises ToolsError where it may work later: a slow controller has refused nothing.
        """
        try:
            self._tools.run(program, *arguments)
        except ToolsError as error:
            if error.retry:
                raise
            gone = "already" in str(error).lower() or "invalid job id" in str(error).lower()
            return None if gone else str(error)
        return None
