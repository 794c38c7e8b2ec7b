"""The interfaces of this folder: an adapter carries out one command and says how it went.

It must be idempotent: after a crash in the middle the same command is carried out again. One that
can look also tells what its scheduler says now; the consumer publishes that, not the adapter. All
calls come from one thread, one at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from evidence.decisions import AckStatus, Command, Domain, DomainKind
from evidence.records import ContextRecord

__all__ = [
    "Adapter",
    "BatchAdapter",
    "Choosing",
    "Observing",
    "Outcome",
    "SchedulerError",
    "Sizing",
    "Standing",
    "View",
]


class SchedulerError(Exception):
    """A scheduler cannot run at all; the message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt went: ``status`` DONE or FAILED, in one sentence, with an exit code if any.

    ``retry`` False says that trying again cannot help (the program is missing); ``took`` what was
    really taken out, where that is known: a card's node, perhaps.
    """

    status: AckStatus
    detail: str = ""
    exit_code: int | None = None
    retry: bool = True
    took: DomainKind | None = None


class Adapter(Protocol):
    """One scheduler: Slurm, Kubernetes, a program."""

    def apply(self, command: Command) -> Outcome:
        """Carry out one command, within the adapter's own time limit.

        Idempotent: carrying it out twice leaves what carrying it out once leaves. A failure is an
        Outcome, not an exception.
        """


@runtime_checkable
class BatchAdapter(Protocol):
    """An adapter that is quicker with many commands at once."""

    def apply_all(self, commands: Sequence[Command]) -> Sequence[Outcome]:
        """Carry out many commands, an outcome each, in their order.

        No two of them concern the same host, and what concerns no host comes alone: they may be
        carried out at once. Idempotent, as `Adapter.apply` is.
        """


@runtime_checkable
class Choosing(Protocol):
    """An adapter that is not there for every command (one node's supervisor)."""

    def concerns(self, command: Command) -> bool:
        """Whether the command is for it; what is not is passed over without an ack."""


@runtime_checkable
class Sizing(Protocol):
    """An adapter that knows how many nodes a rack or a switch has."""

    def nodes(self, domain: Domain) -> int | None:
        """Nodes that isolating a domain without a host takes out, or None: counted as too many."""


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

    ``epoch`` tells what the scheduler's memory of a part hangs on: when its controller started, the
    record of the node. A mark that is gone when that has changed was forgotten, not taken back.
    """

    at: datetime
    standing: tuple[Standing, ...] = ()
    context: tuple[ContextRecord, ...] = ()
    epoch: Callable[[Domain], object] = field(default=lambda _domain: None, compare=False)


@runtime_checkable
class Observing(Protocol):
    """An adapter that can look."""

    def observe(self) -> View:
        """What the scheduler says now; raises SchedulerError where it does not answer."""
