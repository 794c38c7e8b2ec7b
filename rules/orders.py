"""Commands as they are written: the id is the decision, so the same decision has the same id."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from evidence.decisions import Action, Cause, Command, Hold, Level, Recovery, Verdict
from evidence.identity import digest
from rules.desired import Part
from rules.policy import Policy
from rules.severity import is_shadow

__all__ = ["isolate", "release"]


def isolate(
    domain_id: str,
    part: Part,
    hold: Hold,
    now: datetime,
    policy: Policy,
    verdict: Verdict | None = None,
) -> Command:
    """The command that carries out a hold: a verdict's, else a person's (never a dry run).

    A dry run has an id of its own, or its real command could not be told from it.
    """
    dry_run = verdict is not None and is_shadow(policy, verdict)
    told = ("dry-run",) if dry_run else ()
    return Command(
        id=digest(domain_id, Action.ISOLATE, hold.id, part.generation, *told),
        action=Action.ISOLATE,
        domain=part.domain,
        domain_id=domain_id,
        level=hold.level,
        cause=hold.cause,
        reason=hold.reason,
        incident=hold.id,
        generation=part.generation,
        issued_at=now,
        verdict=verdict.id if verdict else None,
        confidence=verdict.confidence if verdict else None,
        recovery=verdict.recovery if verdict else Recovery.NONE,
        act_by=now + timedelta(seconds=policy.act_by_s),
        dry_run=dry_run,
        by=hold.by,
        pool=verdict.pool if verdict else None,
        evidence=tuple(ref.id for ref in verdict.evidence) if verdict else (),
    )


def release(
    domain_id: str,
    part: Part,
    lifted: Sequence[Hold],
    now: datetime,
    *,
    by: str,
    because: tuple[str, str],
    dry_run: bool,
) -> Command:
    """The command that returns a part: it begins the part's next generation and never expires.

    ``because`` is (id, reason) of what asked for it; the id is used where no hold was lifted.
    """
    cause_id, reason = because
    incident = lifted[0].id if lifted else cause_id
    generation = part.generation + 1
    return Command(
        id=digest(domain_id, Action.RELEASE, incident, generation),
        action=Action.RELEASE,
        domain=part.domain,
        domain_id=domain_id,
        level=part.level or Level.CORDON,
        cause=lifted[0].cause if lifted else Cause.UNKNOWN,
        reason=reason or f"released by {by}",
        incident=incident,
        generation=generation,
        issued_at=now,
        dry_run=dry_run,
        by=by,
    )
