"""Whether a drill may run here and now; pure: all it knows is given."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from evidence.decisions import DomainKind
from evidence.records import ContextKind, DrillOutcome
from ringfence.drills.config import DrillConfig
from ringfence.drills.plan import DrillError, Expected, Plan
from ringfence.drills.scene import Scene
from rules.policy import Policy
from rules.severity import mode_of

__all__ = ["Asked", "place"]

_HOUR = timedelta(hours=1)
_INSIDE_NODE = (DomainKind.GPU, DomainKind.MIG, DomainKind.NVLINK)
_EXPLAINING = (
    ContextKind.MAINTENANCE,
    ContextKind.DRAIN,
    ContextKind.REBOOT,
    ContextKind.DRIVER_UPGRADE,
    ContextKind.GPU_RESET,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for: where, whose jobs may be hit, and whether somebody said yes to acting."""

    pool: str | None = None
    host: str | None = None
    owners: tuple[str, ...] = ()
    yes: bool = False


def place(
    plan: Plan, config: DrillConfig, scene: Scene, policy: Policy, asked: Asked, now: datetime
) -> tuple[str, str]:
    """The host and its pool where the drill runs; of a pool the first host that nothing refuses.

    Raises DrillError with every reason why not.
    """
    if asked.host is None and asked.pool is None:
        raise DrillError("A drill needs --pool or --host.")
    if asked.host is not None:
        pool = scene.pool(asked.host)
        if pool is None:
            raise DrillError(f"No agent told which pool {asked.host} belongs to.")
        if asked.pool is not None and asked.pool != pool:
            raise DrillError(f"{asked.host} belongs to pool {pool}, not {asked.pool}.")
        hosts = [asked.host]
    else:
        pool = asked.pool or ""
        hosts = scene.hosts(pool)
        if not hosts:
            raise DrillError(f"No agent told that its host belongs to pool {pool}.")
    shared = list(_about_pool(plan, config, scene, policy, pool, asked, now))
    if shared:
        raise DrillError(_sentence(pool, shared))
    found: list[str] = []
    for host in hosts:
        found = list(_about_host(plan, config, scene, host, asked, now))
        if not found:
            return host, pool
    where = hosts[0] if len(hosts) == 1 else f"any of the {len(hosts)} hosts of pool {pool}"
    raise DrillError(_sentence(where, found))


def _sentence(where: str, found: list[str]) -> str:
    return f"No drill on {where}: {'; '.join(found)}."


def _about_pool(
    plan: Plan,
    config: DrillConfig,
    scene: Scene,
    policy: Policy,
    pool: str,
    asked: Asked,
    now: datetime,
) -> Iterator[str]:
    if pool not in config.pools:
        yield f"[drill] pools does not name {pool}"
    if not config.allows(now):
        yield f"it is {now:%a %H:%M} UTC, outside the allowed days and hours"
    mode = mode_of(policy, pool)
    if mode != "shadow" and not asked.yes:
        yield f"the mode of the pool is {mode}: what follows is carried out, say --yes"
    yield from _earlier(config, scene, now)
    since = now - timedelta(seconds=policy.budget.window_s)
    for state in scene.isolated(pool)[:1]:
        yield f"{state.domain_id} is isolated already"
    for command in scene.held(pool, since)[:1]:
        yield f"{command.domain_id} waits for a person: {command.held}"
    if mode != "shadow" and plan.expect.command is Expected.ISOLATE:
        yield from _over_budget(plan, scene, policy, since)


def _earlier(config: DrillConfig, scene: Scene, now: datetime) -> Iterator[str]:
    """Other drills: one that runs, and too many within the hour."""
    for one in scene.drills.values():
        if one.outcome is DrillOutcome.RUNNING and now - one.at < _HOUR:
            yield f"the drill {one.drill} ({one.id}) runs on {one.host}, or was killed there"
    recent = sum(one.injected_at is not None and now - one.at < _HOUR
                 for one in scene.drills.values())  # fmt: skip
    if recent >= config.most_an_hour:
        yield f"{recent} within this hour, [drill] most_an_hour allows {config.most_an_hour}"


def _over_budget(plan: Plan, scene: Scene, policy: Policy, since: datetime) -> Iterator[str]:
    """A drill's own isolation must fit the budget, or it would be held."""

    def cost(kinds: tuple[DomainKind, ...]) -> float:
        return policy.budget.card if kinds and set(kinds) <= set(_INSIDE_NODE) else 1.0

    inside = (*_INSIDE_NODE, DomainKind.NODE)
    spent = sum(
        cost((one.domain.kind,)) for one in scene.taken_out(since) if one.domain.kind in inside
    )
    if spent + cost(plan.expect.domain) > policy.budget.nodes:
        yield (
            f"{spent:g} of {policy.budget.nodes:g} nodes were isolated within "
            f"{policy.budget.window_s:g} s: the budget would hold the drill's command"
        )


def _about_host(
    plan: Plan, config: DrillConfig, scene: Scene, host: str, asked: Asked, now: datetime
) -> Iterator[str]:
    if not scene.is_told_of_jobs and not config.blind:
        yield "no scheduler told which jobs run where ([drill] blind = true goes on without)"
    for kind in _EXPLAINING:
        for one in scene.standing(host, kind, now)[:1]:
            yield f"{kind} by {one.by or 'somebody'} would explain the fault away"
    owners = {*config.owners, *plan.guard.owners, *asked.owners}
    for job in scene.standing(host, ContextKind.ALLOCATION, now):
        if job.owner not in owners and job.job not in plan.guard.jobs:
            yield f"job {job.job} of {job.owner or 'nobody known'} runs there, not the drill's own"
