"""The job stage: keeps what the ranks of one job say, and judges it once they have all spoken.

Nothing crosses attempts, and nothing depends on the order in which lines arrive: they are sorted
by their own time before anybody is named.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from evidence.decisions import Domain, Says, Status, Suspicion, Witness
from evidence.identity import digest
from evidence.records import NcclKind, NcclRecord
from rules.clues import keeps, opens
from rules.collective import conclude
from rules.incident import Incident, last_incident
from rules.keeping import Clues
from rules.policy import GoverningRules
from rules.ranks import Roster
from rules.runs import ENDED, begun_after, counted, is_late, shows_restart
from rules.stage import Arrived
from rules.times import said_at

__all__ = ["Attempt", "JobState", "Said", "due", "step"]

ATTEMPTS_KEPT = 2
#: A job that did not fail for this long is in no loop of restarts.
_LOOP_FORGOTTEN = timedelta(hours=1)
#: Lines that tell who runs where.
_TEACHING = frozenset({NcclKind.COMM_INIT, NcclKind.RANK_MAP, NcclKind.SETUP})


class Said(Struct, frozen=True, omit_defaults=True):
    """A suspicion that stands: what must be taken back should the judgement change."""

    id: str
    kind: str
    domain: Domain
    says: Says
    at: datetime
    weight: float
    status: Status
    host: str | None = None


class Attempt(Struct, frozen=True, omit_defaults=True):
    """One attempt of a job: its ranks, its telling lines, and what was said about it.

    ``judge_at`` and ``limit_at`` are None while nothing waits for a judgement. ``heard`` are the
    ranks that spoke since the first symptom. A job may run several times under one number: ``run``
    counts that, ``began`` is the earliest time of a line of this run where it is known, ``told_to``
    the time of the last line of what was told of it, ``loop`` how often equal answers came.
    """

    roster: Roster = Roster()
    clues: Clues = Clues()
    heard: frozenset[str] = frozenset()
    judge_at: datetime | None = None
    limit_at: datetime | None = None
    said: tuple[Said, ...] = ()
    run: int = 0
    began: datetime | None = None
    told_to: datetime | None = None
    loop: dict[str, int] = {}


class JobState(Struct, frozen=True, omit_defaults=True):
    """What the job stage knows of one job: its last attempts and the offsets applied."""

    attempts: dict[int, Attempt] = {}
    offsets: dict[str, int] = {}
    forget_at: datetime | None = None


def due(state: JobState) -> datetime | None:
    """When a Tick is needed next; None when nothing is kept."""
    waiting = [a.judge_at for a in state.attempts.values() if a.judge_at is not None]
    return min(waiting, default=state.forget_at)


def step(
    state: JobState, arrived: Arrived, rules: GoverningRules
) -> tuple[JobState, list[Suspicion]]:
    """Take one line or Tick of a job; time is the broker's append time.

    Returns the state (the same object when there is nothing to write) and the suspicions that are
    new or changed, each to be sent to its ``host``. A redelivered record changes nothing.
    """
    applied = state.offsets.get(arrived.topic, -1)
    if arrived.offset is not None and arrived.offset <= applied:
        return state, []
    before = state
    state, said = _settle(state, arrived.at, rules)
    record = arrived.record
    if isinstance(record, NcclRecord):
        state, more = _take(state, record, arrived, rules)
        said += more
    elif state.forget_at is not None and arrived.at >= state.forget_at:
        state = JobState(offsets=state.offsets)
    if state is not before and arrived.offset is not None:
        state = replace(state, offsets={**state.offsets, arrived.topic: arrived.offset})
    return state, said


def _settle(
    state: JobState, now: datetime, rules: GoverningRules
) -> tuple[JobState, list[Suspicion]]:
    said: list[Suspicion] = []
    for number, attempt in sorted(state.attempts.items()):
        if attempt.judge_at is not None and attempt.judge_at <= now:
            attempt, more = _judge(number, attempt, rules)  # noqa: PLW2901 (the judged one)
            state = replace(state, attempts={**state.attempts, number: attempt})
            said += more
    return state, said


def _take(
    state: JobState, record: NcclRecord, arrived: Arrived, rules: GoverningRules
) -> tuple[JobState, list[Suspicion]]:
    known = state.attempts.get(record.attempt)
    if known is None and _too_old(state, record.attempt):
        return state, []
    attempt = known or Attempt()
    if is_late(record, attempt.began):
        return state, []
    said: list[Suspicion] = []
    if attempt.clues and shows_restart(attempt.roster, attempt.told_to, record):
        # The same attempt number with new processes: the launcher did not count this restart.
        if attempt.judge_at is not None:
            attempt, said = _judge(record.attempt, attempt, rules)
        attempt = _next_run(attempt, record.at, said_at(record))
    attempt = _learn(attempt, record, arrived, rules)
    if attempt is known or attempt == (known or Attempt()):
        return state, said
    attempts = {**state.attempts, record.attempt: attempt}
    for number in sorted(attempts)[:-ATTEMPTS_KEPT]:
        del attempts[number]
    forget_at = arrived.at + timedelta(seconds=rules.policy.job.forget_after_s)
    return replace(state, attempts=attempts, forget_at=forget_at), said


def _next_run(attempt: Attempt, began: datetime | None, now: datetime) -> Attempt:
    """The attempt as its next run begins: nothing is known of that but how often they failed."""
    calm = attempt.told_to is not None and now - attempt.told_to > _LOOP_FORGOTTEN
    return Attempt(run=attempt.run + 1, began=began, loop={} if calm else attempt.loop)


def _too_old(state: JobState, number: int) -> bool:
    newest = sorted(state.attempts)[-ATTEMPTS_KEPT:]
    return len(newest) == ATTEMPTS_KEPT and number < newest[0]


def _learn(
    attempt: Attempt, record: NcclRecord, arrived: Arrived, rules: GoverningRules
) -> Attempt:
    kept = keeps(record)
    if not kept and record.kind not in _TEACHING:
        return attempt
    roster = attempt.roster.learn(record)
    if roster is not attempt.roster:
        attempt = replace(attempt, roster=roster)
    if not kept:
        return attempt
    if record.at is None:
        record = replace(record, at=arrived.at)
    return _keep(attempt, record, arrived.at, rules)


def _keep(attempt: Attempt, record: NcclRecord, now: datetime, rules: GoverningRules) -> Attempt:
    ended = None if attempt.told_to is None else attempt.told_to + ENDED
    clues, new = attempt.clues.keep(record, ended)
    if clues is attempt.clues and not (new and attempt.judge_at):
        return attempt
    attempt = replace(attempt, clues=clues)
    if not new or not (opens(record) or attempt.said or attempt.judge_at):
        return attempt
    return _await_more(attempt, record, now, rules)


def _await_more(
    attempt: Attempt, record: NcclRecord, now: datetime, rules: GoverningRules
) -> Attempt:
    """Put the judgement off while ranks that were not heard yet go on reporting."""
    settle = timedelta(seconds=rules.policy.job.settle_across_hosts_s)
    member = f"{record.host}/{record.pid}" if record.rank is None else str(record.rank)
    if attempt.judge_at is None or attempt.limit_at is None:
        limit = now + timedelta(seconds=rules.policy.job.settle_limit_s)
        return replace(attempt, judge_at=now + settle, limit_at=limit, heard=frozenset({member}))
    if member in attempt.heard:
        return attempt
    later = min(max(attempt.judge_at, now + settle), attempt.limit_at)
    return replace(attempt, judge_at=later, heard=attempt.heard | {member})


def _judge(number: int, attempt: Attempt, rules: GoverningRules) -> tuple[Attempt, list[Suspicion]]:
    attempt, incident = _last_incident(attempt, None)
    if incident is None:  # only echoes of what was judged before
        return replace(attempt, judge_at=None, limit_at=None, heard=frozenset()), []
    if attempt.told_to is not None:
        settle = timedelta(seconds=rules.policy.job.settle_across_hosts_s)
        kinds = [said.kind for said in attempt.said]
        began = begun_after(incident, kinds, attempt.told_to, settle)
        if began is not None:
            attempt, incident = _last_incident(attempt, began)
            assert incident is not None, "what shows another run is a symptom"
    found = [
        replace(suspicion, run=attempt.run)
        for suspicion in conclude(incident, number, rules.policy.job.missing_ranks_named)
    ]
    standing = {_sense(said) for said in attempt.said}
    fresh = [suspicion for suspicion in found if _sense(suspicion) not in standing]
    taken_back = _taken_back(attempt, incident, number, found)
    loop, is_told = counted(attempt.loop, found[0]) if fresh else (attempt.loop, True)
    if attempt.run and not is_told and not taken_back:
        fresh = []
    is_news = attempt.told_to is None or fresh or taken_back
    judged = replace(
        attempt,
        judge_at=None,
        limit_at=None,
        heard=frozenset(),
        said=tuple(map(_standing, found)),
        loop=loop,
        told_to=max(map(said_at, incident.records)) if is_news else attempt.told_to,
    )
    return judged, taken_back + fresh


def _last_incident(attempt: Attempt, began: datetime | None) -> tuple[Attempt, Incident | None]:
    """The newest incident that was kept, and the attempt without what is older.

    ``began``: only what was said later counts, since another run began there.
    """
    alike = {one.clue.id: one for one in attempt.clues.alike.values()}
    lines = {line.id: line for line in attempt.clues.lines.values()}
    records = last_incident((lines | {key: one.clue for key, one in alike.items()}).values())
    if began is not None:
        records = [record for record in records if said_at(record) > began]
    clues = attempt.clues.only({record.id: record for record in records})
    if began is None:
        attempt = replace(attempt, clues=clues)
    else:
        roster = attempt.roster if attempt.roster.has_cards else _roster_of(records)
        following = _next_run(attempt, began, said_at(records[0]))
        attempt = replace(following, clues=clues, roster=roster)
    if not any(map(opens, records)):
        return attempt, None
    incident = Incident(
        job=records[0].job,
        roster=attempt.roster,
        records=records,
        lost=clues.lost,
        alike={key: one for key, one in alike.items() if key in {r.id for r in records}},
    )
    return attempt, incident


def _roster_of(records: Sequence[NcclRecord]) -> Roster:
    """What the lines of a run tell of its ranks: where those of the run before were is over."""
    roster = Roster()
    for record in records:
        roster = roster.learn(record)
    return roster


def _taken_back(
    attempt: Attempt, incident: Incident, number: int, found: Sequence[Suspicion]
) -> list[Suspicion]:
    """Words for the hosts of parts that were accused of this incident, and no longer are."""
    begin = min(*map(said_at, incident.records), *(suspicion.at for suspicion in found))
    places = {(suspicion.domain.id, suspicion.says) for suspicion in found}
    return [
        replace(_take_back(said, incident.job, number, found[0]), run=attempt.run)
        for said in attempt.said
        if said.says is Says.ACCUSES
        and said.at >= begin  # else it was another incident, and stands
        and (said.domain.id, said.says) not in places
    ]


def _standing(told: Suspicion) -> Said:
    return Said(
        id=told.id,
        kind=told.kind,
        domain=told.domain,
        says=told.says,
        at=told.at,
        weight=told.weight,
        status=told.status,
        host=told.host,
    )


def _sense(said: Said | Suspicion) -> tuple[object, ...]:
    """What a suspicion says, whichever line it rests on: said once, it need not be said again."""
    return (said.kind, said.domain.id, said.domain.rank, said.says, said.status, said.weight)


def _take_back(said: Said, job: str, number: int, instead: Suspicion) -> Suspicion:
    """Tell the host of a part that was accused before that it no longer is."""
    return Suspicion(
        id=digest("taken-back", said.id, instead.id),
        at=instead.at,
        observed_at=instead.observed_at,
        witness=Witness.COLLECTIVE,
        says=Says.CLEARS,
        kind="taken-back",
        domain=said.domain,
        status=Status.INSUFFICIENT,
        reason=f"Later lines of the job changed the answer ({said.kind}): {instead.reason}",
        host=said.host,
        job=job,
        attempt=number,
        evidence=instead.evidence,
    )
