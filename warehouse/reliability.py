"""How often nodes failed and how long a repair took, from the stored commands and inventories.

A failure is an incident for which a scheduler took a node, or a part inside one, out of service by
our own command; what a person asked for is none. A node was observed from its first inventory on.
"""

from dataclasses import dataclass
from pathlib import Path

from warehouse.query import query

__all__ = ["Reliability", "reliability"]

_DAY_S = 86_400.0
_SQL = """
with
span as (
    select max(appended_at) as ends_at
    from (
        select appended_at from staging.inventory
        union all select appended_at from staging.kernel
        union all select appended_at from staging.acks
    )
),
taken as (
    select incident, domain_id, coalesce(acked_at, issued_at) as out_at
    from facts.commands
    where
        action = 'isolate' and ack = 'done' and not coalesce(dry_run, false) and held is null
        and coalesce(by_whom, 'ringfence') = 'ringfence'
        and domain_kind in ('mig', 'gpu', 'nvlink', 'node')
),
returned as (
    select domain_id, coalesce(acked_at, issued_at) as back_at
    from facts.commands
    where action = 'release' and ack = 'done'
    union
    select domain_id, event_at from staging.states where not isolated
),
stays as (
    select taken.incident, taken.domain_id, taken.out_at, min(returned.back_at) as back_at
    from taken
    left join returned
        on returned.domain_id = taken.domain_id and returned.back_at > taken.out_at
    group by taken.incident, taken.domain_id, taken.out_at
),
seen as (
    select host, min(observed_at) as since from staging.inventory group by host
)
select
    (select count(distinct incident) from stays),
    (select sum(epoch(ends_at) - epoch(since)) from seen, span where ends_at > since),
    (select sum(epoch(coalesce(back_at, ends_at)) - epoch(out_at)) from stays, span),
    (select count(back_at) from stays)
"""


@dataclass(frozen=True, slots=True)
class Reliability:
    """What the history tells: failures, node-days watched, mean days out (None: nothing is back).

    Parts that are still out count with the time they have been out, so that long repairs are not
    left out of the mean.
    """

    failures: int
    node_days: float
    repair_days: float | None


def reliability(root: Path) -> Reliability:
    """Ask the warehouse at ``root``; raises WarehouseError where it cannot be read."""
    _, rows = query(root, _SQL)
    failures, watched_s, out_s, returns = rows[0]
    repair = (out_s or 0.0) / returns / _DAY_S if returns else None
    return Reliability(failures, (watched_s or 0.0) / _DAY_S, repair)
