"""How much may leave service in a sliding window, counted in capacity really removed.

A card may cost its whole node (most schedulers take out only nodes); a second card of the same
node then costs nothing more.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct

from evidence.decisions import Domain, DomainKind
from rules.policy import Budget, CardCosts

__all__ = ["Spent", "cost_of", "in_window", "objection"]

#: Domains that cost capacity in nodes; links, switches and racks are counted by themselves.
_IN_NODES = (DomainKind.GPU, DomainKind.MIG, DomainKind.NVLINK, DomainKind.NODE)
_ROUNDING = 1e-9


class Spent(Struct, frozen=True, omit_defaults=True):
    """Capacity that one command removed: ``cost`` (1.0 is a whole node, link ...) of ``unit``."""

    at: datetime
    command: str
    domain_id: str
    kind: DomainKind
    unit: str
    cost: float
    dry_run: bool = False


def cost_of(domain: Domain, budget: Budget) -> tuple[DomainKind, str, float]:
    """What isolating a domain removes: the kind it is counted under, of what, and how much."""
    if domain.kind not in _IN_NODES:
        return domain.kind, domain.id, 1.0
    whole = domain.kind is DomainKind.NODE or budget.card_costs is CardCosts.NODE
    return DomainKind.NODE, str(domain.host), 1.0 if whole else 1.0 / budget.gpus_per_node


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
    used: dict[str, float] = defaultdict(float)
    for one in in_window(spent, new.at, budget):
        if one.kind is new.kind and one.dry_run == new.dry_run:
            used[one.unit] += one.cost
    before = sum(min(1.0, cost) for cost in used.values())
    used[new.unit] += new.cost
    after = sum(min(1.0, cost) for cost in used.values())
    if after <= limit + _ROUNDING or (before > 0 and after == before):
        return None
    return (
        f"Budget: {before:g} of {limit:g} {new.kind} capacity left service in the last"
        f" {budget.window_s:g} s, and this would make it {after:g}."
    )
