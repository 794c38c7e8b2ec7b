"""How hard a verdict is acted upon, and on what: the policy applied to one verdict."""

from datetime import datetime, timedelta

from evidence.decisions import Domain, DomainKind, Level, Verdict
from rules.desired import LEVELS, Part
from rules.naming import has_place
from rules.policy import IsolateAs, Mode, Policy

__all__ = ["level_of", "mode_of", "taken_out"]

_INSIDE_NODE = (DomainKind.GPU, DomainKind.MIG, DomainKind.NVLINK)


def mode_of(policy: Policy, pool: str | None) -> Mode:
    """The mode in force for a pool: its own, else the cluster's."""
    return policy.pool(pool).mode or policy.mode


def level_of(policy: Policy, verdict: Verdict, part: Part | None, now: datetime) -> Level | None:
    """How hard to act on a verdict; None: not at all.

    A part that fails again within the cool-down of its release gets the next level; the pool's
    limits and the mode have the last word.
    """
    level = policy.levels.get(verdict.cause)
    if (
        level is None
        or verdict.status not in policy.act_on
        or verdict.explained_by is not None
        or verdict.victim_of is not None
        or not has_place(verdict.domain)
    ):
        return None
    pool = policy.pool(verdict.pool)
    step = LEVELS.index(level)
    cool_down = timedelta(seconds=policy.cool_down_s)
    if part is not None and part.released_at and now - part.released_at < cool_down:
        step += 1
    step = min(max(step, LEVELS.index(pool.at_least)), LEVELS.index(pool.at_most))
    return Level.CORDON if mode_of(policy, verdict.pool) is Mode.CORDON else LEVELS[step]


def taken_out(policy: Policy, verdict: Verdict) -> Domain:
    """What is isolated for a verdict's domain: in some pools, its node."""
    as_node = policy.pool(verdict.pool).isolate_as is IsolateAs.NODE
    if as_node and verdict.domain.kind in _INSIDE_NODE:
        return Domain(kind=DomainKind.NODE, host=verdict.domain.host, rack=verdict.rack)
    return verdict.domain
