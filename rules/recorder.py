"""What PyTorch's flight recorder dumps tell: who did not come to what the others wait in.

Only ranks of one process group are compared, and of a rank that waits elsewhere itself the way
leads on to whom it waits for. A rank without a dump is silent, which proves nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from evidence.decisions import DomainKind, Says, Status
from evidence.ranks import to_ranges
from evidence.records import NcclRecord
from rules.clues import is_dump, opens
from rules.incident import Finding, Incident
from rules.times import begun_at, said_at

__all__ = ["Stand", "operations", "unrecorded", "waited_for"]

_WEIGHT = 0.4
#: Before the first symptom a dump may lie this long: the watchdog dumps, then it speaks.
_LEAD = timedelta(seconds=60)
#: Ranks that must have gone on before one that did not is called the exception.
_ENOUGH = 2
#: Operations that end on some ranks before they end on others.
_ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter", "send", "recv", "coalesced"})


class Stand(NamedTuple):
    """Where one rank stands in one group, by its newest dump."""

    enqueued: int
    completed: int
    until: datetime
    waits: bool
    seq: int | None
    op: str | None
    numel: int | None
    state: str | None
    clue: NcclRecord

    @property
    def counted(self) -> bool:
        """Whether the dump has counters at all: old ones, and groups without a name, have none."""
        return self.clue.last_enqueued is not None

    @property
    def progress(self) -> tuple[int, int, datetime, str]:
        """Counters of a process only grow, so the larger ones are the newer."""
        return (self.enqueued, self.completed, self.until, self.clue.id)


@dataclass(frozen=True, slots=True)
class _Group:
    """The dumps of one process group, at the first collective that is not completed."""

    name: str
    stands: Mapping[int, Stand]
    members: frozenset[int] | None
    target: int | None

    @property
    def waiting(self) -> list[int]:
        """Ranks that wait in that collective."""
        return [rank for rank, one in self.stands.items() if one.waits and one.seq == self.target]

    @property
    def behind(self) -> list[int]:
        """Ranks whose dump shows that they did not come to it yet."""
        return [
            rank
            for rank, one in self.stands.items()
            if self.target is not None and one.counted and one.enqueued < self.target
        ]

    @property
    def unheard(self) -> frozenset[int]:
        """Ranks of the group of which no dump is here, as far as its members are known."""
        return frozenset() if self.members is None else self.members - self.stands.keys()

    @property
    def whole(self) -> bool:
        """Whether the dumps of all its ranks are here, each with its counters."""
        counted = all(one.counted for one in self.stands.values())
        return self.members is not None and not self.unheard and counted


def _groups(incident: Incident) -> list[_Group]:
    """The groups of which dumps of this stall are here, by name and members."""
    begin = _begin(incident)
    stands: dict[tuple[str, str], dict[int, Stand]] = defaultdict(dict)
    for record in incident.records:
        alike = incident.alike.get(record.id)
        if not is_dump(record) or alike is None or alike.until < begin:
            continue
        own = stands[record.group or "", record.members or ""]
        for rank in alike.ranks:
            stand = _stand(record, alike.until)
            if rank not in own or own[rank].progress < stand.progress:
                own[rank] = stand
    found = []
    for (name, text), own in sorted(stands.items()):
        members = incident.members_by_text.get(text)
        inside = {r: own[r] for r in sorted(own) if members is None or r in members}
        waited = [one.seq for one in inside.values() if one.waits and one.seq is not None]
        found.append(_Group(name, inside, members, min(waited, default=None)))
    return found


def _begin(incident: Incident) -> datetime:
    """Older dumps were made of a job that ran."""
    if incident.stalled_at is not None:
        return incident.stalled_at
    symptoms = [begun_at(one) or said_at(one) for one in incident.records if opens(one)]
    return min(symptoms) - _LEAD


def _stand(record: NcclRecord, until: datetime) -> Stand:
    return Stand(
        enqueued=-1 if record.last_enqueued is None else record.last_enqueued,
        completed=-1 if record.last_completed is None else record.last_completed,
        until=until,
        waits=bool(record.incomplete) and record.state != "completed",
        seq=record.seq,
        op=record.op,
        numel=record.numel_in,
        state=record.state,
        clue=record,
    )


def operations(incident: Incident) -> list[tuple[list[NcclRecord], dict[int, Stand]]]:
    """What the ranks of each group call at the first place that is not completed."""
    return [
        ([group.stands[rank].clue for rank in waiting], {r: group.stands[r] for r in waiting})
        for group in _groups(incident)
        if (waiting := group.waiting)
    ]


def waited_for(incident: Incident, named: int) -> list[Finding]:
    """The rank that others wait for and that waits for nobody, by the dumps of all of them.

    ``named``: how many such ranks of different hosts are still called by name.
    """
    groups = _groups(incident)
    busy = {r for group in groups for r, one in group.stands.items() if one.waits}
    awaited = [group for group in groups if group.waiting and group.behind]
    roots = sorted({rank for group in awaited for rank in group.behind} - busy)
    if not awaited:
        return _not_started(incident, groups) or _not_completed(incident, groups)
    if not roots or len(roots) >= len(busy):
        return []
    node = incident.roster.whole_host(roots)
    if node is None and len(roots) > named:
        return []
    own = [group for group in awaited if set(group.behind) & set(roots)]
    sure = all(group.whole for group in awaited) and not incident.lost
    group = own[0]
    if len(own) > 1:
        place = f"in {len(own)} groups"
    else:
        op = group.stands[group.waiting[0]].op or "a collective"
        place = f"in {op} number {group.target} of group {group.name}"
    reached = max(group.stands[rank].enqueued for rank in set(group.behind) & set(roots))
    words = (
        f"The flight recorder's dumps show {len(busy)} ranks waiting {place}, which"
        f" {_ranks(roots)} did not call: it came as far as number {reached} and waits for nobody."
        " Its program did not get there, which is mostly software; its stack would tell why."
    )
    if not sure:
        words += " Dumps of other ranks are missing, so that it need not be the first."
    clues = [one.stands[rank].clue for one in own for rank in one.stands if rank in roots]
    clues += [one.stands[rank].clue for one in own for rank in one.waiting]
    sure = sure and all(incident.roster.gpu(rank) for rank in roots)
    parts = [[rank] for rank in roots] if sure and node is None else [roots]
    return [_finding(incident, ranks, node, words, clues, sure=sure) for ranks in parts]


def _not_started(incident: Incident, groups: Iterable[_Group]) -> list[Finding]:
    """All called it, and on one rank alone it did not start: its stream is blocked before it."""
    for group in groups:
        states = {rank: group.stands[rank].state for rank in group.waiting}
        held = [rank for rank, state in states.items() if state == "scheduled"]
        started = [rank for rank, state in states.items() if state == "started"]
        if len(held) != 1 or len(started) < _ENOUGH or not group.whole:
            continue
        elsewhere = any(
            other.stands[held[0]].waits
            for other in groups
            if other is not group and held[0] in other.stands
        )
        if elsewhere:
            continue
        words = (
            f"The flight recorder's dumps show that collective number {group.target} of group"
            f" {group.name} started on {len(started)} ranks and is only enqueued on rank {held[0]}:"
            " an earlier kernel blocks its stream."
        )
        clues = [group.stands[rank].clue for rank in (*held, *started)]
        return [_finding(incident, held, None, words, clues, sure=True)]
    return []


def _not_completed(incident: Incident, groups: Iterable[_Group]) -> list[Finding]:
    """One rank alone is still in a collective that all the others of its group completed."""
    for group in groups:
        waiting, target = group.waiting, group.target
        ahead = [r for r, one in group.stands.items() if target is not None and r not in waiting]
        if len(waiting) != 1 or len(ahead) < _ENOUGH or not group.whole:
            continue
        op = group.stands[waiting[0]].op or ""
        one_sided = op.partition(" ")[0].strip("_") in _ONE_SIDED
        if one_sided or any(group.stands[r].completed < (target or 0) for r in ahead):
            continue
        words = (
            f"The flight recorder's dumps show rank {waiting[0]} alone in {op or 'a collective'}"
            f" number {target} of group {group.name}, which the other {len(ahead)} completed."
        )
        clues = [group.stands[rank].clue for rank in (*waiting, *ahead)]
        return [_finding(incident, waiting, None, words, clues, sure=True)]
    return []


def unrecorded(incident: Incident) -> list[Finding]:
    """All whose dumps are here joined, and others' dumps are missing: silence, and no more."""
    groups = [group for group in _groups(incident) if group.waiting]
    silent = sorted({rank for group in groups for rank in group.unheard})
    heard = {rank for group in groups for rank in group.waiting}
    if not silent or len(silent) >= len(heard) or any(group.behind for group in groups):
        return []
    alone = silent[0] if len(silent) == 1 else None
    return [
        Finding(
            kind="missing-rank",
            status=Status.INSUFFICIENT,
            weight=0.2,
            reason=f"The flight recorder's dumps show {len(heard)} ranks waiting; of"
            f" {_ranks(silent)} none is here: its process may have ended, or its dump was not"
            " read. Its own log would tell.",
            clues=[group.stands[rank].clue for group in groups for rank in group.waiting],
            rank=alone,
            host=None if alone is None else incident.roster.host(alone),
        )
    ]


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {to_ranges(ranks)[:200]}"


def _finding(
    incident: Incident,
    ranks: list[int],
    node: str | None,
    words: str,
    clues: list[NcclRecord],
    *,
    sure: bool,
) -> Finding:
    roster = incident.roster
    known = node is not None or roster.gpu(ranks[0]) is not None
    named = sure and known
    alone = ranks[0] if len(ranks) == 1 else None
    part = DomainKind.NODE if node else DomainKind.GPU
    return Finding(
        kind="lagging-rank",
        status=Status.SUSPECTED if named else Status.INSUFFICIENT,
        says=Says.ACCUSES if named else Says.BLIND,
        weight=_WEIGHT if named else _WEIGHT / 2,
        reason=words,
        clues=list({clue.id: clue for clue in clues}.values()),
        part=part if named else DomainKind.JOB,
        rank=alone,
        host=node or (None if alone is None else roster.host(alone)),
        at=incident.stalled_at,
    )
