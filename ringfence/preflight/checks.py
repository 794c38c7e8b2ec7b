"""The checks: would the job survive the loss of a node, and lose at most a checkpoint by it?

Each check is a function of what was read; CHECKS lists them with the reason for each.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ringfence.preflight import checkpoint, elastic, timeouts
from ringfence.preflight.finding import Finding, Severity
from ringfence.preflight.launch import Launch

__all__ = ["CHECKS", "Check", "Finding", "Severity", "examine"]


class Group(StrEnum):
    """What a check is about."""

    ELASTIC = "elastic"
    CHECKPOINT = "checkpoint"
    TIMEOUTS = "timeouts"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its function, and why it matters."""

    look: Callable[[Launch, float | None], Iterable[Finding]]
    group: Group
    why: str


def _plain(look: Callable[[Launch], Iterable[Finding]]) -> Callable[..., Iterable[Finding]]:
    """A check that does not need the duration of a step."""
    return lambda launch, _step_s: look(launch)


#: Every check by its id.
CHECKS: Mapping[str, Check] = {
    "elastic-range": Check(
        _plain(elastic.nodes_range),
        Group.ELASTIC,
        "With a fixed number of nodes the job waits for the one that is gone.",
    ),
    "max-restarts": Check(
        _plain(elastic.max_restarts),
        Group.ELASTIC,
        "Each lost node costs every agent that is left one restart.",
    ),
    "rendezvous": Check(
        _plain(elastic.rendezvous),
        Group.ELASTIC,
        "The store must take nodes in and out, and must not lie on a node that may be isolated.",
    ),
    "shared-store": Check(
        _plain(elastic.shared_store),
        Group.ELASTIC,
        "A store that is kept over restarts gives workers the addresses of the last round.",
    ),
    "last-call": Check(
        _plain(elastic.last_call),
        Group.ELASTIC,
        "The rendezvous waits for late nodes at each restart, 30 s by default.",
    ),
    "slurm-node-failure": Check(
        _plain(elastic.slurm),
        Group.ELASTIC,
        "Slurm ends a whole job when one of its nodes fails, unless it is told not to.",
    ),
    "checkpoint-interval": Check(
        checkpoint.interval,
        Group.CHECKPOINT,
        "What was computed since the last checkpoint is computed again.",
    ),
    "resume": Check(
        _plain(checkpoint.resume),
        Group.CHECKPOINT,
        "A restart that begins at step 0 loses everything.",
    ),
    "shared-storage": Check(
        _plain(checkpoint.storage),
        Group.CHECKPOINT,
        "A checkpoint on an isolated node is gone with it.",
    ),
    "collective-timeout": Check(
        _plain(timeouts.collective),
        Group.TIMEOUTS,
        "A hang costs this long on every GPU before anybody notices without Ringfence.",
    ),
    "error-handling": Check(
        _plain(timeouts.error_handling),
        Group.TIMEOUTS,
        "A rank that does not end on an error keeps all others waiting.",
    ),
    "ib-timeout": Check(
        _plain(timeouts.infiniband),
        Group.TIMEOUTS,
        "NCCL_IB_TIMEOUT is an exponent: one more doubles the time.",
    ),
    "no-such-variable": Check(
        _plain(timeouts.unknown_variables),
        Group.TIMEOUTS,
        "A variable that nobody reads protects nobody.",
    ),
    "evidence": Check(
        _plain(timeouts.evidence),
        Group.TIMEOUTS,
        "Without these lines nobody can tell which rank hung.",
    ),
}


def examine(launch: Launch, *, step_s: float | None = None) -> list[Finding]:
    """All findings, the worst first; ``step_s`` is how long one training step takes.

    An empty list means that nothing was found, not that the job cannot fail.
    """
    found = list(_all(launch, step_s))
    order = list(Severity)
    return sorted(found, key=lambda one: order.index(one.severity))


def _all(launch: Launch, step_s: float | None) -> Iterator[Finding]:
    for check in CHECKS.values():
        yield from check.look(launch, step_s)
