"""Evidence that names its rank: own CUDA errors, software faults, deaths, mismatches, barriers.

Each judge looks at one incident and returns what it can say; software is said only where a line
proves it, and a rank that waited itself is never the one that was missing.
"""

from collections import Counter
from datetime import timedelta

from evidence.decisions import Cause, DomainKind, Says, Status
from evidence.records import NcclKind, NcclRecord
from rules.clues import Fault, echoes, fault_of, opens, text_of
from rules.incident import Finding, Incident, Wait, said_at

__all__ = ["barrier", "died", "external_stop", "mismatch", "own_error", "service", "software"]

#: CUDA errors of one cause reach the ranks of a node or NVLink domain within this time.
_TOGETHER = timedelta(seconds=10)

_SIGNALS = {-9: "SIGKILL", 137: "SIGKILL", -11: "SIGSEGV", 139: "SIGSEGV", -7: "SIGBUS"}


def _who(incident: Incident, record: NcclRecord) -> str:
    rank = incident.rank_of(record)
    host = record.host or (incident.roster.host(rank) if rank is not None else None)
    if rank is not None:
        name = f"rank {rank}"
    elif record.local_rank is not None:
        name = f"local rank {record.local_rank}"
    elif record.pid is not None:
        name = f"process {record.pid}"
    else:
        name = "a rank that its line does not name"
    return f"{name} on {host}" if host else name


def external_stop(incident: Incident) -> list[Finding]:
    """A stop from outside before any fault: nobody is to blame."""
    stops = incident.of(NcclKind.EXTERNAL_STOP)
    if not stops:
        return []
    faults = [
        record
        for record in incident.records
        if opens(record) and record.kind is not NcclKind.EXTERNAL_STOP
    ]
    if any(said_at(record) < said_at(stops[0]) for record in faults):
        return []
    return [
        Finding(
            kind="external-stop",
            status=Status.SOFTWARE,
            cause=Cause.SOFTWARE,
            says=Says.CLEARS,
            weight=0.8,
            reason="The job was stopped from outside (a signal, a cancel or a time limit) before"
            " any rank reported a fault.",
            clues=stops[:1],
        )
    ]


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
        reason=f"{words} {_who(incident, records[0])}; a CUDA error is about the process's own"
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
        f" {_TOGETHER.seconds} s, {_who(incident, first)} first: the NVLink domain of that host"
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
    Fault.PYTHON: ("exception", "the program raised an exception of its own"),
}


def software(incident: Incident) -> list[Finding]:
    """The first rank whose own lines prove a software fault, if it did not wait itself."""
    for record in incident.records:
        fault = fault_of(record)
        if fault in _SOFTWARE_WORDS and incident.causal(record):
            kind, words = _SOFTWARE_WORDS[fault]
            return [_software(incident, record, kind, words)]
    if incident.waits:
        for record in incident.of(NcclKind.FINISHED, NcclKind.COMM_DESTROY):
            rank = incident.rank_of(record)
            if rank in incident.silent and incident.causal(record):
                words = "it had finished and left while others still called a collective"
                return [_software(incident, record, "left-the-collective", words)]
    return []


def _software(incident: Incident, record: NcclRecord, kind: str, words: str) -> Finding:
    rank = incident.rank_of(record)
    known = rank is not None and incident.roster.gpu(rank) is not None
    return Finding(
        kind=kind,
        status=Status.SOFTWARE,
        says=Says.CLEARS,
        cause=Cause.SOFTWARE,
        weight=0.8,
        reason=f"Software: {words}, said by {_who(incident, record)}.",
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
        return _operation_vote(incident) or _recorded_mismatch(incident)
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
_UNEVEN = ("SEND", "RECV", "COALESCED", "ALLTOALL", "GATHER", "SCATTER", "_V", "UNKNOWN")
#: PyTorch's NumelIn and NumelOut when they are unknown (2^64 - 1).
_UNKNOWN_NUMEL = 18446744073709551615


def _operation_vote(incident: Incident) -> list[Finding]:
    """At one place of one group, different operations or sizes are a mismatch."""
    places: dict[tuple[str, int], list[Wait]] = {}
    for wait in incident.waits:
        one_way = wait.op is None or any(w in wait.op for w in ("SEND", "RECV", "COALESCED"))
        if not one_way:
            places.setdefault((wait.group, -1 if wait.seq is None else wait.seq), []).append(wait)
    for _, waits in sorted(places.items()):
        shapes = {wait.rank: str(wait.op) for wait in waits}
        if len(set(shapes.values())) == 1:
            shapes = {
                wait.rank: f"{wait.op} of {wait.numel[0]}"
                for wait in waits
                if wait.numel[0] not in (None, _UNKNOWN_NUMEL)
                and not any(word in str(wait.op) for word in _UNEVEN)
            }
        counts = Counter(shapes.values())
        if len(counts) < 2:  # noqa: PLR2004 (two sides)
            continue
        ((top, most),) = counts.most_common(1)
        surely_one_place = waits[0].group and waits[0].seq is not None
        if not surely_one_place and most * 2 <= len(incident.expected):
            continue  # these may be different groups, each at its own place
        minority = [rank for rank, shape in shapes.items() if shape != top]
        named = minority[0] if len(minority) == 1 and most > 1 else None
        return [
            _mismatch(incident, [w.clue for w in waits], named, f"{most} of {len(shapes)} agree")
        ]
    return []


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


def died(incident: Incident) -> list[Finding]:
    """A worker that died by a signal of its own, before its peers gave up waiting."""
    for record in incident.of(NcclKind.WORKER_EXIT, NcclKind.ROOT_CAUSE):
        signal = _SIGNALS.get(record.exit_code or 0)
        if signal is None and record.exit_code is None and not echoes(record):
            signal = "an error that its line does not tell"
        if signal is None or not incident.causal(record):
            continue
        likely = (
            "; mostly the host ran out of memory, which its kernel log tells"
            if signal == "SIGKILL"
            else "; its core dump or the host's kernel log would tell why"
        )
        return [
            Finding(
                kind="process-death",
                status=Status.INSUFFICIENT,
                weight=0.3,
                reason=f"The process of {_who(incident, record)} ended by {signal} and the others"
                f" lost it{likely}. That alone accuses no card.",
                clues=(record,),
                rank=incident.rank_of(record),
                host=record.host,
                at=said_at(record),
            )
        ]
    return []
