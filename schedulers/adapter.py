"""The interfaces of this folder: an adapter carries out one command and says how it went.

It must be idempotent: after a crash in the middle the same command is carried out again. One that
can look also tells what its scheduler says now; the consumer publishes that, not the adapter.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from evidence.decisions import AckStatus, Command, Domain
from evidence.records import ContextRecord

__all__ = ["Adapter", "Observing", "Outcome", "SchedulerError", "Standing", "View"]


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


@dataclass(frozen=True, slots=True)
class Standing:
    """A part that the scheduler keeps out of service now.

    ``command`` is the id in the mark that we left; None where somebody else took it out.
    """

    domain: Domain
    command: str | None = None
    by: str = ""
    reason: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What a scheduler says at one moment: what is out of service, and what is planned or runs.

    ``context`` has allocations, drains by others, maintenance and reboots as records whose ids
    depend on what they tell, so that the same view gives the same records.
    """

    at: datetime
    standing: tuple[Standing, ...] = ()
    context: tuple[ContextRecord, ...] = ()


class Observing(Protocol):
    """An adapter that can look."""

    def observe(self) -> View:
        """What the scheduler says now; raises SchedulerError where it does not answer."""
