"""How hard a verdict is acted upon, and on what: the policy applied to one verdict."""

from datetime import datetime, timedelta

from evidence.decisions import Cause, Domain, DomainKind, Level, Status, Verdict
from rules.age import STALE
from rules.desired import LEVELS, Part
from rules.naming import has_place
from rules.policy import IsolateAs, Mode, Policy
from rules.rulebook import Maturity

__all__ = ["is_acted_upon", "is_shadow", "level_of", "mode_of", "taken_out"]

_INSIDE_NODE = (DomainKind.GPU, DomainKind.MIG, DomainKind.NVLINK)


def mode_of(policy: Policy, pool: str | None) -> Mode:
    """The mode in force for a pool: its own, else the cluster's."""
    return policy.pool(pool).mode or policy.mode


def is_shadow(policy: Policy, verdict: Verdict) -> bool:
    """Whether a verdict's command is only shown: by its pool's mode, or by its rule's maturity."""
    young = policy.rule(verdict.rule).maturity is Maturity.SHADOW
    return young or mode_of(policy, verdict.pool) is Mode.SHADOW


def is_acted_upon(policy: Policy, verdict: Verdict) -> bool:
    """Whether a verdict is sure, about a part, nobody's victim, and of a rule that is on."""
    return (
        policy.levels.get(verdict.cause) is not None
        and verdict.status in policy.act_on
        and verdict.explained_by is None
        and verdict.victim_of is None
        and has_place(verdict.domain)
        and policy.rule(verdict.rule).enabled
        and verdict.muted != STALE
    )


def level_of(policy: Policy, verdict: Verdict, part: Part | None, now: datetime) -> Level | None:
    """How hard to act on a verdict; None: not at all.

    A part that fails again within the cool-down of its release gets the next level; the pool's
    limits and the mode have the last word. What is slow and not broken, or only suspected, is
    worth a cordon and never more.
    """
    level = policy.levels.get(verdict.cause)
    if level is None or not is_acted_upon(policy, verdict):
        return None
    pool = policy.pool(verdict.pool)
    cool_down = timedelta(seconds=policy.cool_down_s)
    again = part is not None and part.released_at and now - part.released_at < cool_down
    step = LEVELS.index(level) + bool(again)
    if step > LEVELS.index(Level.CORDON):
        step = max(step, LEVELS.index(pool.at_least))
    step = min(step, LEVELS.index(pool.at_most))
    mild = verdict.cause is Cause.GPU_DEGRADED or verdict.status is Status.SUSPECTED
    if mild or mode_of(policy, verdict.pool) is Mode.CORDON:
        return Level.CORDON
    return LEVELS[step]


def taken_out(policy: Policy, verdict: Verdict) -> Domain:
    """What is isolated for a verdict's domain: in some pools, its node."""
    as_node = policy.pool(verdict.pool).isolate_as is IsolateAs.NODE
    if as_node and verdict.domain.kind in _INSIDE_NODE:
        return Domain(kind=DomainKind.NODE, host=verdict.domain.host, rack=verdict.rack)
    return verdict.domain
