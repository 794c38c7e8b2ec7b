"""Processes that ended: stopped from outside, killed, crashed, or dead in the eyes of RAS.

An end alone accuses no card. A process killed by SIGKILL is told to its host as a matter of that
host, where the kernel's own record says whether memory ran out.
"""

from collections.abc import Iterable
from datetime import datetime

from evidence.decisions import Cause, DomainKind, Says, Status
from evidence.records import NcclKind, NcclRecord
from rules.clues import echoes, opens
from rules.incident import Finding, Incident
from rules.ranks import peer_name
from rules.times import said_at

__all__ = [
    "died",
    "external_stop",
    "failed_node",
    "killed_itself",
    "reported_dead",
    "teardown",
    "who",
]

_SIGNALS = {-9: "SIGKILL", 137: "SIGKILL", -11: "SIGSEGV", 139: "SIGSEGV", -7: "SIGBUS"}
#: What agents do to workers of a job that failed already.
_BY_THE_AGENT = ("stopped-by-agent", "stuck")
#: Where torchrun lists at the end, minutes later sometimes, what had ended.
_SUMMARY = "failure"
#: What ranks say about others that are gone.
_PARTING = frozenset(
    {NcclKind.STORE_LOST, NcclKind.PEER_CLOSED, NcclKind.REMOTE_ERROR, NcclKind.ABORTED}
)
_NAMES = 8


def who(incident: Incident, record: NcclRecord) -> str:
    """The process that said a line, in words."""
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


def failed_node(incident: Incident) -> list[Finding]:
    """A node that the scheduler lost while the job ran, before any rank gave up waiting."""
    for record in incident.of(NcclKind.WORKER_EXIT):
        if record.phase == "node-fail" and record.host and incident.causal(record):
            return [
                Finding(
                    kind="node-failure",
                    status=Status.SUSPECTED,
                    says=Says.ACCUSES,
                    cause=Cause.NODE,
                    weight=0.5,
                    reason=f"The scheduler ended the job since {record.host} failed: the node did"
                    " not answer it any more. Its console and its power would tell why.",
                    clues=(record,),
                    part=DomainKind.NODE,
                    host=record.host,
                    at=said_at(record),
                )
            ]
    return []


def died(incident: Incident) -> list[Finding]:
    """A worker that died by a signal of its own, before its peers gave up waiting."""
    ended = incident.of(NcclKind.WORKER_EXIT, NcclKind.ROOT_CAUSE)
    stopped = _stopped(ended)
    for record in ended:
        if _after_its_stop(record, stopped):
            continue
        signal = _SIGNALS.get(record.exit_code or 0)
        if signal is None and record.exit_code is None and not echoes(record):
            signal = "an error that its line does not tell"
        if signal is None or record.phase in _BY_THE_AGENT or not incident.causal(record):
            continue
        return [_died(incident, record, signal)]
    return []


def killed_itself(incident: Incident, record: NcclRecord) -> bool:
    """Whether a line tells, as it happens, that a signal ended a process, and not its agent."""
    if record.kind is not NcclKind.WORKER_EXIT or record.exit_code not in _SIGNALS:
        return False
    if record.phase in (*_BY_THE_AGENT, _SUMMARY):
        return False
    ended = incident.of(NcclKind.WORKER_EXIT, NcclKind.ROOT_CAUSE)
    return not _after_its_stop(record, _stopped(ended))


_Stopped = dict[tuple[str | None, int | None], datetime]


def _stopped(ended: Iterable[NcclRecord]) -> _Stopped:
    """When agents first ended which processes."""
    stopped: _Stopped = {}
    for record in ended:
        if record.phase in _BY_THE_AGENT:
            stopped.setdefault((record.host, record.pid), said_at(record))
    return stopped


def _after_its_stop(record: NcclRecord, stopped: _Stopped) -> bool:
    by_agent = stopped.get((record.host, record.pid)) if record.pid is not None else None
    return by_agent is not None and by_agent <= said_at(record)


def _died(incident: Incident, record: NcclRecord, signal: str) -> Finding:
    crashed, killed = signal == "SIGSEGV", signal == "SIGKILL"
    likely = "; its core dump or the host's kernel log would tell why"
    if killed:
        likely = "; mostly the host ran out of memory, which its kernel log tells"
    elif crashed:
        likely = ": a crash of its own program, whose core dump would tell why"
    # Only the host can say that it was short of memory.
    asked = killed and record.host is not None
    process = "" if record.pid is None else f" ({record.pid})"
    return Finding(
        kind="process-death",
        status=Status.SOFTWARE if crashed else Status.INSUFFICIENT,
        says=Says.CLEARS if crashed else Says.BLIND,
        cause=Cause.SOFTWARE if crashed else Cause.UNKNOWN,
        weight=0.3,
        reason=f"The process{process} of {who(incident, record)} ended by {signal} and the others"
        f" lost it{likely}. That alone accuses no card.",
        clues=(record,),
        part=DomainKind.NODE if asked else DomainKind.JOB,
        rank=incident.rank_of(record),
        host=record.host,
        at=said_at(record),
    )


def teardown(incident: Incident) -> list[Finding]:
    """Ranks that complain about one another after the first of them had finished its work."""
    world = incident.roster.world_size
    left = [
        record
        for record in incident.of(NcclKind.FINISHED, NcclKind.COMM_DESTROY)
        if record.comm_size in (None, world)
    ]
    symptoms = [record for record in incident.records if opens(record)]
    if not left or any(record.kind not in _PARTING for record in symptoms):
        return []
    if said_at(symptoms[0]) < said_at(left[0]):
        return []
    return [
        Finding(
            kind="teardown",
            status=Status.SOFTWARE,
            says=Says.CLEARS,
            cause=Cause.SOFTWARE,
            weight=0.6,
            reason=f"The ranks lost one another while they left: {who(incident, left[0])} had"
            " finished before the first complaint.",
            clues=(left[0], *symptoms),
            at=said_at(symptoms[0]),
        )
    ]


def reported_dead(incident: Incident) -> list[Finding]:
    """Processes that NCCL's RAS calls dead, or that did not answer it while others did."""
    reports = incident.of(NcclKind.RAS)
    records = [r for r in reports if r.phase in ("dead", "peer-dead")]
    sure = bool(records)
    records = records or [r for r in reports if r.phase == "incomplete" and r.comm is None]
    if not records:
        return []
    known = incident.hosts
    hosts = sorted(
        {
            incident.roster.host_at(name, known) or peer_name(name) or name
            for record in records
            for name in record.hosts
        }
    )
    names = ", ".join(hosts[:_NAMES]) + (
        f" and {len(hosts) - _NAMES} more" if hosts[_NAMES:] else ""
    )
    told = "called dead" if sure else "not heard"
    return [
        Finding(
            kind="process-missing",
            status=Status.INSUFFICIENT,
            weight=0.3 if sure else 0.15,
            reason=f"NCCL's RAS has processes {told} on {names or 'a node that it does not name'}:"
            " they are missing, and why their own logs or their host's kernel log would tell.",
            clues=records,
            host=hosts[0] if len(hosts) == 1 else None,
            at=said_at(records[0]),
        )
    ]
