"""Evidence that names its rank: own CUDA errors, software faults, deaths, mismatches, barriers.

Each judge looks at one incident and returns what it can say; software is said only where a line
proves it, and a rank that waited itself is never the one that was missing.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from evidence.decisions import Cause, DomainKind, Says, Status
from evidence.records import NcclKind, NcclRecord
from rules.clues import Fault, fault_of, text_of
from rules.ended import who
from rules.incident import Finding, Incident, Wait
from rules.recorder import operations
from rules.times import said_at

__all__ = ["barrier", "mismatch", "own_error", "service", "software"]

#: CUDA errors of one cause reach the ranks of a node or NVLink domain within this time.
_TOGETHER = timedelta(seconds=10)
#: The others come to their next collective this soon after one rank began to write.
_SAVING = timedelta(seconds=60)


def own_error(incident: Incident) -> list[Finding]:
    """CUDA's own words about the card of the rank that prints them."""
    faults: dict[Fault, list[NcclRecord]] = {}
    for record in incident.records:
        if (fault := fault_of(record)) in (Fault.ECC, Fault.NVLINK, Fault.DRIVER):
            faults.setdefault(fault, []).append(record)
    if ecc := faults.get(Fault.ECC):
        return _memory_errors(incident, ecc)
    if nvlink := faults.get(Fault.NVLINK):
        return [_nvlink_error(incident, nvlink)]
    if (driver := faults.get(Fault.DRIVER)) and incident.causal(driver[0]):
        return [
            _on_own_card(
                incident,
                driver,
                cause=Cause.UNKNOWN,
                weight=0.3,
                words="CUDA's driver failed with an unknown error on",
            )
        ]
    return []


def _memory_errors(incident: Incident, records: list[NcclRecord]) -> list[Finding]:
    by_rank: dict[int | None, list[NcclRecord]] = {}
    for record in records:
        by_rank.setdefault(incident.rank_of(record), []).append(record)
    nameless = by_rank.pop(None, [])
    words = "CUDA reported an uncorrectable ECC error on"
    if not by_rank:
        by_rank = {None: nameless[:1]}
    return [
        _on_own_card(incident, own, cause=Cause.GPU_MEMORY, weight=0.9 / len(by_rank), words=words)
        for own in by_rank.values()
    ]


def _on_own_card(
    incident: Incident, records: list[NcclRecord], *, cause: Cause, weight: float, words: str
) -> Finding:
    rank = incident.rank_of(records[0])
    host = records[0].host
    known = rank is not None and incident.roster.gpu(rank) is not None
    part = DomainKind.GPU if known else DomainKind.NODE if host else DomainKind.JOB
    return Finding(
        kind="own-error",
        status=Status.SUSPECTED if part is not DomainKind.JOB else Status.INSUFFICIENT,
        says=Says.ACCUSES if part is not DomainKind.JOB else Says.BLIND,
        cause=cause,
        weight=weight if known else weight / 2,
        reason=f"{words} {who(incident, records[0])}; a CUDA error is about the process's own"
        " card, whatever call it surfaces in.",
        clues=records,
        part=part,
        rank=rank,
        host=host,
        at=said_at(records[0]),
    )


def _nvlink_error(incident: Incident, records: list[NcclRecord]) -> Finding:
    first = records[0]
    many = {(r.host, r.pid, r.rank) for r in records if said_at(r) - said_at(first) < _TOGETHER}
    return Finding(
        kind="nvlink-error",
        status=Status.SUSPECTED if first.host else Status.INSUFFICIENT,
        says=Says.ACCUSES if first.host else Says.BLIND,
        cause=Cause.NVLINK,
        weight=0.4,
        reason=f"{len(many)} process(es) reported an NVLink fault of a peer within"
        f" {_TOGETHER.seconds} s, {who(incident, first)} first: the NVLink domain of that host"
        " is suspect, not the card that reports; its NVLink counters and SXids would settle it.",
        clues=records,
        part=DomainKind.NODE if first.host else DomainKind.JOB,
        rank=incident.rank_of(first),
        host=first.host,
        at=said_at(first),
    )


def service(incident: Incident) -> list[Finding]:
    """NVLS and "system not yet initialized": the node's fabric manager, not a card."""
    records = [r for r in incident.of(NcclKind.NVLS, NcclKind.CUDA_ERROR) if not _plain_cuda(r)]
    if not records:
        return []
    sure = [r for r in records if fault_of(r) is Fault.SERVICE and r.host]
    first = (sure or records)[0]
    return [
        Finding(
            kind="fabric-manager",
            status=Status.SUSPECTED if sure else Status.INSUFFICIENT,
            says=Says.ACCUSES if sure else Says.BLIND,
            cause=Cause.NODE,
            weight=0.4 if sure else 0.1,
            reason=f"NVLink SHARP could not be set up on {first.host or 'a host'}: a matter of"
            " that node's fabric manager or NVSwitches, not of the card that prints it; the"
            " fabric manager's state and log would settle it.",
            clues=records,
            part=DomainKind.NODE if sure else DomainKind.JOB,
            host=first.host,
            at=said_at(first),
        )
    ]


def _plain_cuda(record: NcclRecord) -> bool:
    return record.kind is NcclKind.CUDA_ERROR and fault_of(record) is not Fault.SERVICE


_SOFTWARE_WORDS = {
    Fault.APPLICATION: (
        "launch-failure",
        "a kernel of the program failed (illegal access, launch failure or assert)",
    ),
    Fault.OUT_OF_MEMORY: ("out-of-memory", "the program ran out of GPU memory"),
    Fault.HOST_MEMORY: ("host-out-of-memory", "the kernel's OOM killer ended a process"),
    Fault.ADDRESS_IN_USE: (
        "address-in-use",
        "another process has the port that the job wanted to listen on",
    ),
    Fault.PYTHON: ("exception", "the program raised an exception of its own"),
}


def software(incident: Incident) -> list[Finding]:
    """The first rank whose own lines prove a software fault, if it did not wait itself."""
    for record in incident.records:
        fault = fault_of(record)
        if fault in _SOFTWARE_WORDS and incident.causal(record):
            kind, words = _SOFTWARE_WORDS[fault]
            return [_software(incident, record, kind, words)]
    return _absent(incident) if incident.waits else []


def _absent(incident: Incident) -> list[Finding]:
    """A rank that was elsewhere by its own words while others waited: it had left, or it saves."""
    for record in incident.of(NcclKind.FINISHED, NcclKind.COMM_DESTROY):
        if record.comm_size not in (None, incident.roster.world_size):
            continue  # of a smaller group, or before the job went on
        rank = incident.rank_by_file(record)
        if rank in incident.silent:
            words = "it had finished and left while others still called a collective"
            return [_software(incident, record, "left-the-collective", words, rank)]
    saving: dict[int, NcclRecord] = {}
    for record in incident.of(NcclKind.OTHER):
        # A line that names no rank is rank 0's, which writes where one rank does.
        rank = incident.rank_by_file(record) or 0
        if record.phase == "saving":
            saving[rank] = record
        else:
            saving.pop(rank, None)
    begin = incident.stalled_at
    for rank, record in saving.items():
        if begin is not None and said_at(record) < begin - _SAVING:
            continue  # mostly written long since, as not all tell when they are done
        if rank in incident.silent:
            words = "it was writing a checkpoint while others already waited in a collective"
            return [_software(incident, record, "checkpoint", words, rank)]
    return []


def _software(
    incident: Incident, record: NcclRecord, kind: str, words: str, rank: int | None = None
) -> Finding:
    rank = incident.rank_of(record) if rank is None else rank
    known = rank is not None and incident.roster.gpu(rank) is not None
    said_by = who(incident, record) if rank is None else f"rank {rank}"
    if rank is not None and (host := record.host or incident.roster.host(rank)):
        said_by += f" on {host}"
    return Finding(
        kind=kind,
        status=Status.SOFTWARE,
        says=Says.CLEARS,
        cause=Cause.SOFTWARE,
        weight=0.8,
        reason=f"Software: {words}, said by {said_by}.",
        clues=(record,),
        part=DomainKind.GPU if known else DomainKind.JOB,
        rank=rank,
        host=record.host,
        at=said_at(record),
    )


def mismatch(incident: Incident) -> list[Finding]:
    """Ranks that called different collectives: each names the first one that differs from it."""
    records = incident.of(NcclKind.MISMATCH)
    if not records:
        return _operation_vote(incident) or _recorded_vote(incident) or _recorded_mismatch(incident)
    votes: Counter[int] = Counter()
    voters = 0
    for record in records:
        reporter = incident.rank_of(record)
        if reporter is None and len(record.ranks) > 1:
            reporter = record.ranks[0]
        named = [rank for rank in record.ranks if rank != reporter]
        voters += bool(named)
        votes.update(named[:1])
    if not votes:
        return [_mismatch(incident, records, None, "")]
    ((accused, count),) = votes.most_common(1)
    alone = len(votes) == 1 and all(incident.rank_of(r) is None for r in records)
    agreed = (count > 1 and count * 2 > voters) or (alone and len(records[0].ranks) == 1)
    return [
        _mismatch(incident, records, accused if agreed else None, f"{count} of {voters} name it")
    ]


def _recorded_mismatch(incident: Incident) -> list[Finding]:
    """PyTorch's analysis compares with a rank it takes as innocent: it proves, but names nobody."""
    records = [r for r in incident.of(NcclKind.FLIGHT_RECORDER) if "TYPE_MISMATCH" in text_of(r)]
    return [_mismatch(incident, records, None, "")] if records else []


def _mismatch(
    incident: Incident, records: list[NcclRecord], rank: int | None, share: str
) -> Finding:
    known = rank is not None and incident.roster.gpu(rank) is not None
    who = (
        f"rank {rank} differs from the others ({share})"
        if rank is not None
        else "which of them is wrong cannot be told, as no majority agrees"
    )
    return Finding(
        kind="mismatch",
        status=Status.SOFTWARE,
        says=Says.CLEARS,
        cause=Cause.SOFTWARE,
        weight=0.8,
        reason=f"Software: ranks called different collectives at the same place; {who}.",
        clues=records,
        part=DomainKind.GPU if known else DomainKind.JOB,
        rank=rank,
        host=None if rank is None else incident.roster.host(rank),
        at=said_at(records[0]),
    )


#: Operations whose sizes or kinds may differ by rank.
_PAIRS = ("SEND", "RECV", "COALESCED")
_UNEVEN = (*_PAIRS, "ALL_TO_ALL", "ALLTOALL", "GATHER", "SCATTER", "_V", "UNKNOWN")
#: PyTorch's NumelIn and NumelOut when they are unknown (2^64 - 1).
_UNKNOWN_NUMEL = 18446744073709551615


def _operation_vote(incident: Incident) -> list[Finding]:
    """At one place of one group, different operations or sizes are a mismatch."""
    places: dict[tuple[str, int], list[Wait]] = {}
    for wait in incident.waits:
        one_way = wait.op is None or any(w in wait.op for w in _PAIRS)
        if not one_way:
            places.setdefault((wait.group, -1 if wait.seq is None else wait.seq), []).append(wait)
    for _, waits in sorted(places.items()):
        called = {wait.rank: (wait.op, wait.numel[0]) for wait in waits}
        surely_one_place = bool(waits[0].group) and waits[0].seq is not None
        # Else these may be different groups, each at its own place.
        enough = 0 if surely_one_place else len(incident.expected) // 2
        if found := _vote(incident, called, [wait.clue for wait in waits], enough):
            return found
    return []


def _recorded_vote(incident: Incident) -> list[Finding]:
    """The same in the dumps of the flight recorder: our own count, by groups."""
    for clues, stands in operations(incident):
        called = {rank: (one.op, one.numel) for rank, one in stands.items()}
        one_way = any(
            op is None or op.strip("_").upper().startswith(_PAIRS) for op, _ in called.values()
        )
        if not one_way and (found := _vote(incident, called, clues, 0)):
            return found
    return []


def _vote(
    incident: Incident,
    called: Mapping[int, tuple[str | None, int | None]],
    clues: list[NcclRecord],
    enough: int,
) -> list[Finding]:
    """Ranks at one place, by what they call (operation, size); more than ``enough`` must agree."""
    shapes = {rank: str(op) for rank, (op, _) in called.items()}
    if len(set(shapes.values())) == 1:
        shapes = {
            rank: f"{op} of {numel}"
            for rank, (op, numel) in called.items()
            if numel not in (None, _UNKNOWN_NUMEL)
            and not any(word in str(op).upper() for word in _UNEVEN)
        }
    counts = Counter(shapes.values())
    if len(counts) < 2:  # noqa: PLR2004 (two sides)
        return []
    ((top, most),) = counts.most_common(1)
    if most <= enough:
        return []
    minority = [rank for rank, shape in shapes.items() if shape != top]
    named = minority[0] if len(minority) == 1 and most > 1 else None
    return [_mismatch(incident, clues, named, f"{most} of {len(shapes)} agree")]


def barrier(incident: Incident) -> list[Finding]:
    """Rank 0 names who did not reach a monitored barrier; what the victims print names nobody."""
    records = [
        r for r in incident.of(NcclKind.BARRIER_MISSING) if r.ranks and "failed to pass" in r.raw
    ]
    if not records:
        return []
    missing = sorted({rank for record in records for rank in record.ranks})
    names = ", ".join(map(str, missing))
    roster = incident.roster
    node = roster.whole_host(missing)
    if node or (len(missing) == 1 and roster.gpu(missing[0])):
        return [
            Finding(
                kind="missing-rank",
                status=Status.SUSPECTED,
                says=Says.ACCUSES,
                weight=0.3,
                reason=f"Rank 0 waited in vain for rank {names} at a monitored barrier;"
                " why it was late no line tells.",
                clues=records,
                part=DomainKind.NODE if node else DomainKind.GPU,
                rank=missing[0],
                host=node or roster.host(missing[0]),
                at=said_at(records[0]),
            )
        ]
    return [
        Finding(
            kind="missing-rank",
            status=Status.INSUFFICIENT,
            weight=0.2,
            reason=f"Rank 0 waited in vain for rank {names} at a monitored barrier; why, or on"
            " which card, no line tells: the logs of that rank and of its host would.",
            clues=records,
            rank=missing[0] if len(missing) == 1 else None,
            at=said_at(records[0]),
        )
    ]
