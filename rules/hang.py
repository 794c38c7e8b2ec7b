"""A hang: who did not come to the collective that all the others wait in.

Never a majority, never across groups, and never because of a log that may simply not be here:
most hangs cannot be told from these lines, and then nobody is named.
"""

from collections import Counter

from evidence.decisions import DomainKind, Says, Status
from evidence.records import NcclKind
from rules.clues import is_dump, text_of
from rules.incident import Finding, Incident, Wait
from rules.times import said_at

__all__ = ["desynced", "lagging", "missing", "recorded", "undecided"]

_ALL = 1.0
#: What one collective witness is worth when it names one rank and everybody else reported.
_MISSING_WEIGHT = 0.7
_LAGGING_WEIGHT = 0.4
#: What mostly happens in software: a checkpoint before a barrier.
_OFTEN_WEIGHT = 0.25
#: Collectives of a group that belong to its first step: set-up, parameters, one gradient.
_FIRST_STEP = 3
#: Ranks that must wait before one that is not heard is called by name without a rank map.
_ENOUGH = 3
#: Words of a desync report for ranks that did join.
_JOINED = ("started", "not-finished")
_NAMES = 8
#: Operations that concern pairs of ranks: the others have no reason to wait.
_PAIRS = ("SEND", "RECV", "COALESCED")


def missing(incident: Incident, named: int) -> list[Finding]:
    """The ranks that wait for nobody, when all the others wait.

    ``named``: how many silent ranks of different hosts are still called by name.
    """
    silent = incident.silent - _joined(incident)
    waiting = incident.waiting
    if not silent or not waiting or len(silent) >= len(waiting):
        return []
    roster = incident.roster
    node = roster.whole_host(silent)
    hosts = {roster.host(rank) for rank in silent}
    if not node and len(silent) > named and (None in hosts or len(hosts) > 1):
        return []
    if not incident.complete:
        enough = len(silent) == 1 and len(waiting) >= _ENOUGH and not _one_to_one(incident)
        return [_perhaps_missing(incident, sorted(silent))] if enough else []
    if _first_step(incident):
        return [_perhaps_missing(incident, sorted(silent), slow=True)]
    if not node and not all(roster.gpu(rank) for rank in silent):
        return [_perhaps_missing(incident, sorted(silent))]
    return [
        _missing(incident, ranks, node, share=len(waiting) / (len(incident.expected) - len(silent)))
        for ranks in ([sorted(silent)] if node else [[rank] for rank in sorted(silent)])
    ]


def _joined(incident: Incident) -> set[int]:
    """Silent ranks whose own counters say that they did call what the others wait in."""
    target = min((w.seq for w in incident.waits if w.default and w.seq is not None), default=None)
    if target is None or not all(wait.default for wait in incident.waits):
        return set()  # the counters of a dump signal are those of the default group only
    return {
        rank
        for record in incident.of(NcclKind.DUMP_SIGNAL)
        if record.last_enqueued is not None and record.last_enqueued >= target
        for rank in incident.ranks_of(record)
    }


def _one_to_one(incident: Incident) -> bool:
    ops = [wait.op or "" for wait in incident.waits]
    return all(any(word in op for word in _PAIRS) for op in ops)


def _often(incident: Incident, ranks: list[int]) -> str:
    """What mostly makes ranks late in such a place, in words; empty where nothing stands out."""
    waits = incident.waits
    # A barrier is a reduction of one number.
    if ranks == [0] and all(w.numel[0] == 1 and "REDUCE" in (w.op or "") for w in waits):
        return "; that is a barrier, and rank 0 mostly writes a checkpoint or evaluates before it"
    return ""


def _first_step(incident: Incident) -> bool:
    """Whether all wait in the first collectives, before which ranks load and compile."""
    return all(
        w.default and w.seq is not None and 0 <= w.seq <= _FIRST_STEP for w in incident.waits
    )


def recorded(incident: Incident) -> list[Finding]:
    """Ranks that PyTorch's flight recorder analysis found missing, unless they are the majority.

    Its "culprit rank" is only the first that differs from a rank taken as innocent: not used.
    """
    for record in incident.of(NcclKind.FLIGHT_RECORDER):
        size = incident.roster.world_size or record.comm_size
        if is_dump(record) or len(record.ranks) != 1 or "missing ranks" not in text_of(record):
            continue
        if size is not None and len(record.ranks) * 2 >= size:
            continue
        (rank,) = record.ranks
        if rank in incident.waiting:
            continue
        return [
            Finding(
                kind="missing-rank",
                status=Status.INSUFFICIENT,
                weight=0.2,
                reason=f"The flight recorder's dumps show that rank {rank} did not join collective"
                f" {record.seq}; why, its own log and the kernel log of its host would tell.",
                clues=(record,),
                rank=rank,
                host=incident.roster.host(rank),
                at=said_at(record),
            )
        ]
    return []


def desynced(incident: Incident) -> list[Finding]:
    """Ranks that PyTorch's desync report found outside what the others joined, if they are few."""
    reports = incident.of(NcclKind.DESYNC)
    outside = [r for r in reports if r.phase == "not-joined" and r.ranks and r.seq is not None]
    if not outside:
        return []
    first = min(outside, key=lambda record: record.seq or 0)
    joined = set(incident.waiting)
    joined |= {rank for r in reports if r.phase in _JOINED for rank in r.ranks}
    late = sorted({rank for r in outside if r.seq == first.seq for rank in r.ranks} - joined)
    if not late or len(late) >= len(joined):
        return []
    alone = late[0] if len(late) == 1 else None
    return [
        Finding(
            kind="missing-rank",
            status=Status.INSUFFICIENT,
            weight=0.2,
            reason=f"{len(joined)} ranks joined collective {first.seq}, and rank"
            f" {', '.join(map(str, late[:_NAMES]))} finished the one before and did not, by"
            " PyTorch's desync report; why, its own log and its host's kernel log would tell.",
            clues=outside,
            rank=alone,
            host=None if alone is None else incident.roster.host(alone),
            at=incident.stalled_at or said_at(first),
        )
    ]


def _place_of_stall(incident: Incident) -> str:
    places = {(wait.group, wait.seq): wait.name for wait in incident.waits}
    if len(places) > 1:
        return f"in {len(places)} collectives of the groups they share, and only it waits for none"
    (((_, seq), group),) = places.items()
    op = next((wait.op for wait in incident.waits if wait.op), "a collective")
    return f"in {op} {'' if seq is None else f'number {seq} '}of group {group or 'default'}"


def _missing(incident: Incident, ranks: list[int], node: str | None, share: float) -> Finding:
    roster = incident.roster
    host = node or roster.host(ranks[0])
    others = len(incident.waiting)
    # The reader of that host's logs lives if another rank there was heard.
    heard = any(r in incident.waiting for r in incident.hosts.get(host or "", []))
    top = _MISSING_WEIGHT / 2 if _one_to_one(incident) else _MISSING_WEIGHT
    often = _often(incident, ranks)
    top = min(top, _OFTEN_WEIGHT) if often else top
    weight = top * min(share, _ALL) / max(1, len(incident.silent) if not node else 1)
    who = f"all ranks of {node}" if node else f"rank {ranks[0]} on {host}"
    return Finding(
        kind="missing-rank",
        status=Status.SUSPECTED,
        says=Says.ACCUSES,
        weight=round(weight if heard else weight * 0.6, 3),
        reason=f"{others} of {len(incident.expected)} ranks waited {_place_of_stall(incident)};"
        f" only {who} never did and left no word of its own why{often}.",
        clues=[wait.clue for wait in incident.waits],
        part=DomainKind.NODE if node else DomainKind.GPU,
        rank=None if node else ranks[0],
        host=host,
        at=incident.stalled_at or incident.timed_out_at,
    )


def _perhaps_missing(incident: Incident, silent: list[int], *, slow: bool = False) -> Finding:
    alone = silent[0] if len(silent) == 1 else None
    names = ", ".join(map(str, silent))
    why = (
        " is not among them; it is the first step, before which ranks load and compile for unequal"
        " times: its own log would tell."
        if slow
        else " is not among them, but nothing shows that its log was read, or which card it runs"
        " on: its log and NCCL_DEBUG=INFO from the start would settle it."
    )
    return Finding(
        kind="missing-rank",
        status=Status.INSUFFICIENT,
        weight=0.2,
        reason=f"{len(incident.waiting)} ranks waited {_place_of_stall(incident)}; rank {names}"
        + why,
        clues=[wait.clue for wait in incident.waits],
        rank=alone,
        host=None if alone is None else incident.roster.host(alone),
        at=incident.stalled_at or incident.timed_out_at,
    )


#: Operations that end on some ranks before they end on others.
_ONE_SIDED = ("BROADCAST", "REDUCE", "GATHER", "SCATTER", *_PAIRS)


def lagging(incident: Incident) -> list[Finding]:
    """All reported, and in one group one rank is stuck in a collective that the rest finished."""
    if incident.silent or not incident.complete:
        return []
    groups: dict[str, list[Wait]] = {}
    for wait in incident.waits:
        if wait.default and wait.group and wait.seq is not None:
            groups.setdefault(wait.group, []).append(wait)
    for _, waits in sorted(groups.items()):
        stuck = {wait.rank: wait for wait in sorted(waits, key=lambda w: w.seq or 0, reverse=True)}
        counts = Counter(wait.seq for wait in stuck.values())
        lowest = min(seq for seq in counts if seq is not None)
        behind = [wait for wait in stuck.values() if wait.seq == lowest]
        if len(counts) == 1 or len(behind) != 1 or len(stuck) != len(incident.expected):
            continue
        (last,) = behind
        op = last.op or ""
        if op.strip("_").upper() in _ONE_SIDED:
            continue
        ahead = [wait for wait in stuck.values() if wait is not last]
        if not all(w.completed is not None and w.completed >= lowest for w in ahead):
            continue
        if incident.roster.gpu(last.rank) is None:
            continue
        return [
            Finding(
                kind="lagging-rank",
                status=Status.SUSPECTED,
                says=Says.ACCUSES,
                weight=_LAGGING_WEIGHT,
                reason=f"Rank {last.rank} is stuck in {op} number {lowest} of group {last.name},"
                " which all the other ranks completed.",
                clues=[last.clue, *(wait.clue for wait in ahead)],
                part=DomainKind.GPU,
                rank=last.rank,
                host=incident.roster.host(last.rank),
                at=last.since or said_at(last.clue),
            )
        ]
    return []


def undecided(incident: Incident) -> list[Finding]:
    """Nobody can be named: what was looked at, and what would settle it."""
    waiting, expected = len(incident.waiting), len(incident.expected)
    if not waiting:
        what = "errors were reported that name no rank as their cause"
        settle = "the whole log of every rank"
        kind = "no-culprit"
    elif not incident.complete:
        what = f"{waiting} ranks reported a timeout, but not all ranks' logs are here"
        settle = "the logs of all ranks, with NCCL_DEBUG=INFO from the start"
        kind = "incomplete-logs"
    elif waiting == expected or not incident.silent - _joined(incident):
        what = f"all {expected} ranks joined and none completed"
        settle = "Xids and ECC counts of all their GPUs, port counters of their HCAs, or test runs"
        kind = "all-joined"
    else:
        what = f"{waiting} of {expected} ranks reported a timeout: too many are silent to name any"
        settle = "the logs of the silent ranks, or a flight recorder dump"
        kind = "majority-silent"
    clues = [wait.clue for wait in incident.waits] or list(incident.records)
    return [
        Finding(
            kind=kind,
            status=Status.INSUFFICIENT,
            weight=0.1,
            reason=f"Undecided: {what}. It would be settled by {settle}.",
            clues=clues,
            at=incident.stalled_at or said_at(clues[0]),
        )
    ]
