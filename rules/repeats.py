"""What comes again: application errors that follow one GPU, and errors of one NVLink.

Once is the application, or a link's bad moment; under other users, or again within a day, it is
the card's or the link's own.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar

from msgspec.structs import replace

from rules.catalog import Role
from rules.context import allocation
from rules.host_state import Allocation, AppError, Fact, HostState, LinkError
from rules.tables import Rules
from rules.thresholds import Thresholds
from rules.widening import is_gpu

__all__ = ["application_repeats", "link_repeats", "remember"]

_ERRORS_MAX = 64
_XID_74 = 74

_E = TypeVar("_E", AppError, LinkError)


def remember(state: HostState, ready: Sequence[Fact], rules: Rules) -> HostState:
    """The state with those of the settled facts that count when they come again."""
    facts = sorted(ready, key=lambda fact: fact.order)
    return _remember_links(_remember_applications(state, facts, rules), facts, rules)


def _remember_applications(state: HostState, facts: Iterable[Fact], rules: Rules) -> HostState:
    """Keep who was using a GPU when an application error came."""
    known = list(state.app_errors)
    for fact in facts:
        user = None
        if fact.role is Role.APPLICATION and is_gpu(fact.subject):
            user = allocation(state, fact.subject, fact.at)
        if user is None or not (user.owner or user.image):
            continue
        error = AppError(
            pci=fact.subject,
            at=fact.at,
            job=user.job,
            attempt=user.attempt,
            user=f"{user.owner or ''} {user.image or ''}",
            unit=fact.unit,
            alone=_alone(state, user),
            ref=fact.ref,
        )
        if not any(_same_run(error, other) for other in known):
            known.append(error)
    if len(known) == len(state.app_errors):
        return state
    within = timedelta(seconds=rules.thresholds.repeats_window_s)
    return replace(state, app_errors=tuple(_newest(known, within, lambda e: (e.at, e.pci))))


def _alone(state: HostState, user: Allocation) -> bool:
    """Whether a job had one GPU of the node only."""
    others = {
        known.pci
        for known in state.allocations
        if (known.job, known.attempt) == (user.job, user.attempt)
    }
    return user.pci is not None and others == {user.pci}


def _same_run(one: AppError, other: AppError) -> bool:
    return (one.pci, one.job, one.attempt, one.user) == (
        other.pci,
        other.job,
        other.attempt,
        other.user,
    )


def _remember_links(state: HostState, facts: Iterable[Fact], rules: Rules) -> HostState:
    """Keep when a link failed; what it goes on printing meanwhile is one failure."""
    known = list(state.link_errors)
    once = timedelta(seconds=rules.thresholds.peer_window_s)
    for fact in facts:
        if fact.code != _XID_74 or fact.role is not Role.LINK or fact.link is None:
            continue
        for number, error in enumerate(known):
            same = (error.pci, error.link) == (fact.subject, fact.link)
            if same and error.at - once <= fact.at <= error.last + once:
                known[number] = replace(error, last=max(error.last, fact.at))
                break
        else:
            error = LinkError(
                pci=fact.subject,
                link=fact.link,
                at=fact.at,
                last=fact.at,
                own=fact.own,
                ref=fact.ref,
            )
            known.append(error)
    if tuple(known) == state.link_errors:
        return state
    within = timedelta(seconds=rules.thresholds.nvlink_repeats_window_s)
    kept = _newest(known, within, lambda e: (e.at, e.pci, e.link))
    return replace(state, link_errors=tuple(kept))


def _newest(
    errors: list[_E], within: timedelta, order: Callable[[_E], tuple[object, ...]]
) -> list[_E]:
    oldest = max(error.at for error in errors) - within
    return sorted((e for e in errors if e.at >= oldest), key=order)[-_ERRORS_MAX:]


def application_repeats(
    subject: str, facts: Sequence[Fact], state: HostState, limits: Thresholds
) -> tuple[str, bool]:
    """Words for application errors that follow the GPU rather than the application, or none.

    And whether they all hit one unit of it (GPC and TPC) in jobs that ran on its neighbours, too: a
    program of one block runs on the same unit of any card, and fails there.
    """
    if not any(fact.role is Role.APPLICATION for fact in facts):
        return "", False
    event = max(fact.at for fact in facts)
    errors = [error for error in state.app_errors if error.at <= event]
    elsewhere = {(e.job, e.attempt, e.user) for e in errors if e.pci != subject}
    own = [
        error
        for error in errors
        if error.pci == subject and (error.job, error.attempt, error.user) not in elsewhere
    ]
    users = {error.user for error in own}
    if len(users) < limits.repeats_distinct:
        return "", False
    words = (
        f"application errors under {len(users)} different users or images on this GPU,"
        " its neighbours clean"
    )
    units = {error.unit for error in own}
    beside = not any(error.alone for error in own)
    unit = next(iter(units)) if len(units) == 1 and beside else None
    return (words, False) if unit is None else (f"{words}, all on {unit}", True)


def link_repeats(
    subject: str, facts: Sequence[Fact], state: HostState, limits: Thresholds
) -> tuple[str, bool]:
    """Words for a link that fails again and again, or none, and whether this GPU's end does it.

    That takes registers that say so each time, and no other GPU whose links failed meanwhile: both
    ends of a bad connection print the same code.
    """
    links = sorted({fact.link for fact in facts if fact.code == _XID_74 and fact.link is not None})
    for link in links:
        event = max(fact.at for fact in facts)
        since = event - timedelta(seconds=limits.nvlink_repeats_window_s)
        recent = [error for error in state.link_errors if since <= error.at <= event]
        mine = [error for error in recent if (error.pci, error.link) == (subject, link)]
        if len(mine) >= limits.nvlink_repeats:
            alone = all(error.pci == subject for error in recent)
            hours = limits.nvlink_repeats_window_s / 3600
            words = f"link {link} failed {len(mine)} times within {hours:.0f} hours"
            return words, alone and all(error.own for error in mine)
    return "", False
