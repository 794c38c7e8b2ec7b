"""The one interface of this folder: an adapter carries out one command and says how it went.

It must be idempotent: after a crash in the middle the same command is carried out again.
"""

from dataclasses import dataclass
from typing import Protocol

from evidence.decisions import AckStatus, Command

__all__ = ["Adapter", "Outcome", "SchedulerError"]


class SchedulerError(Exception):
    """A scheduler cannot run at all; the message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt went: ``status`` DONE or FAILED, in one sentence, with an exit code if any.

    ``retry`` False says that trying again cannot help (the program is missing).
    """

    status: AckStatus
    detail: str = ""
    exit_code: int | None = None
    retry: bool = True


class Adapter(Protocol):
    """One scheduler: Slurm, Kubernetes, a program."""

    def apply(self, command: Command) -> Outcome:
        """Carry out one command, within the adapter's own time limit.

        Idempotent: carrying it out twice leaves what carrying it out once leaves. A failure is an
        Outcome, not an exception.
        """
