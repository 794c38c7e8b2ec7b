"""How much may leave service in a sliding window, counted in capacity really removed.

A card may cost its whole node (most schedulers take out only nodes); a second card of the same
node, or the node after its card, then costs nothing more.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from evidence.decisions import Domain, DomainKind
from rules.policy import Budget

__all__ = ["Spent", "in_window", "objection", "spending", "took_node"]

#: Domains that cost capacity in nodes; links, switches and racks are counted by themselves.
_IN_NODES = (DomainKind.GPU, DomainKind.MIG, DomainKind.NVLINK, DomainKind.NODE)
_ROUNDING = 1e-9


class Spent(Struct, frozen=True, omit_defaults=True):
    """Capacity that one command removed: ``cost`` (1.0 is a whole node, link ...) of ``unit``.

    A ``card`` costs what the policy says. ``foreign`` is what others took out: it counts for real
    commands and for those of shadow mode.
    """

    at: datetime
    command: str
    domain_id: str
    kind: DomainKind
    unit: str
    cost: float = 1.0
    dry_run: bool = False
    card: bool = False
    foreign: bool = False


def spending(
    domain: Domain,
    domain_id: str,
    at: datetime,
    *,
    command: str,
    dry_run: bool = False,
    foreign: bool = False,
) -> Spent:
    """What isolating a domain removes: of what kind and unit, and whether all of it."""
    in_nodes = domain.kind in _IN_NODES
    return Spent(
        at=at,
        command=command,
        domain_id=domain_id,
        kind=DomainKind.NODE if in_nodes else domain.kind,
        unit=str(domain.host) if in_nodes else domain.id,
        dry_run=dry_run,
        card=in_nodes and domain.kind is not DomainKind.NODE,
        foreign=foreign,
    )


def took_node(spent: Iterable[Spent], command: str) -> tuple[Spent, ...]:
    """What a command costs when its scheduler took the whole node for a card of it."""
    return tuple(
        replace(one, card=False, cost=1.0) if one.command == command and one.card else one
        for one in spent
    )


def in_window(spent: Iterable[Spent], now: datetime, budget: Budget) -> tuple[Spent, ...]:
    """What still counts at ``now``."""
    begin = now - timedelta(seconds=budget.window_s)
    return tuple(one for one in spent if one.at > begin)


def objection(spent: Iterable[Spent], new: Spent, budget: Budget) -> str | None:
    """Why a command must be held, in one sentence; None when the budget allows it."""
    limit = {
        DomainKind.NODE: budget.nodes,
        DomainKind.LINK: budget.link_absolute,
        DomainKind.SWITCH: budget.switch_absolute,
        DomainKind.RACK: budget.rack_absolute,
    }.get(new.kind, 0.0)
    # Hundreds of parts failing at once ask this hundreds of times: it is kept quick.
    begin, card = new.at - timedelta(seconds=budget.window_s), budget.card
    kind, dry_run = new.kind, new.dry_run
    used: dict[str, float] = {}
    for one in spent:
        if one.at > begin and one.kind is kind and (one.foreign or one.dry_run == dry_run):
            used[one.unit] = used.get(one.unit, 0.0) + (card if one.card else one.cost)
    before = sum([min(1.0, cost) for cost in used.values()])
    own = used.get(new.unit, 0.0)
    after = before - min(1.0, own) + min(1.0, own + (card if new.card else new.cost))
    if after <= limit + _ROUNDING or (before > 0 and after - before < _ROUNDING):
        return None
    return (
        f"Budget: {before:g} of {limit:g} {new.kind} capacity left service in the last"
        f" {budget.window_s:g} s, and this would make it {after:g}."
    )
