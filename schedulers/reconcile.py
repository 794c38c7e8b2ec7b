"""Compares what should be out of service with what the scheduler says; pure, tells and acts not."""

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from evidence.decisions import DesiredState, Domain, DomainKind
from schedulers.adapter import Standing, View

__all__ = ["Difference", "Kind", "compare", "stands"]


class Kind(StrEnum):
    """How the scheduler differs from what is desired.

    ``MISSING``: we took it out, and the scheduler has it in service (a node that somebody else
    keeps out is not). ``LEFT_OVER``: it should be
    back, and carries our mark still. ``UNKNOWN``: it carries our mark, and neither the desired
    states nor our journal know of it. ``FOREIGN``: somebody else took it out.
    """

    MISSING = "missing"
    LEFT_OVER = "left-over"
    UNKNOWN = "unknown"
    FOREIGN = "foreign"


class Difference(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part that is not as desired."""

    kind: Kind
    domain_id: str
    command: str | None = None
    by: str = ""
    reason: str = ""
    since: datetime | None = None


def stands(view: View, domain_id: str, command: str) -> bool:
    """Whether the scheduler shows what a command did.

    A node with our mark stands for every card of it: a node has room for one mark, and a card may
    have been taken out with its node.
    """
    return any(
        one.command == command or one.domain.id == domain_id or _holds(one.domain, domain_id)
        for one in view.standing
        if one.command is not None
    )


def _others(view: View, domain_id: str) -> bool:
    """Whether somebody else keeps a part out of service, or the node that it is in."""
    return any(
        one.domain.id == domain_id or _holds(one.domain, domain_id)
        for one in view.standing
        if one.command is None
    )


def _holds(node: Domain, domain_id: str) -> bool:
    """Whether a domain (by id) is a part of a node."""
    if node.kind is not DomainKind.NODE:
        return False
    _, _, place = domain_id.partition(":")
    return place.partition("/")[0] == node.host


def compare(
    kept_out: Mapping[str, str],
    view: View,
    states: Mapping[str, DesiredState],
    domain_of: Callable[[str], str | None],
) -> tuple[Difference, ...]:
    """The differences, sorted by domain.

    ``kept_out`` has the command by which we took each domain out; ``domain_of`` a command's domain
    by our journal.
    """
    found = [
        Difference(kind=Kind.MISSING, domain_id=domain_id, command=command)
        for domain_id, command in kept_out.items()
        if not stands(view, domain_id, command) and not _others(view, domain_id)
    ]
    for one in view.standing:
        kind = _kind(one, kept_out, states, domain_of)
        if kind is not None:
            found.append(
                Difference(
                    kind=kind,
                    domain_id=one.domain.id,
                    command=one.command,
                    by=one.by,
                    reason=one.reason,
                    since=one.since,
                )
            )
    return tuple(sorted(found, key=lambda one: (one.domain_id, one.kind)))


def _kind(
    one: Standing,
    kept_out: Mapping[str, str],
    states: Mapping[str, DesiredState],
    domain_of: Callable[[str], str | None],
) -> Kind | None:
    if one.command is None:
        return Kind.FOREIGN
    domain_id = domain_of(one.command) or one.domain.id
    if domain_id in kept_out:
        return None
    state = states.get(domain_id)
    if state is None:
        return Kind.UNKNOWN
    return None if state.isolated else Kind.LEFT_OVER
