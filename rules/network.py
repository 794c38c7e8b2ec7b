"""Evidence about the path between ranks: HCA events, completion errors, lost peers and stores.

A completion error is symmetric (own port, path, far port or far process): it names an end only
when several hosts name the same one, and a lost peer is a process that ended, not a bad card.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable

from evidence.decisions import Cause, DomainKind, Says, Status
from evidence.records import NcclKind, NcclRecord
from rules.clues import opens, text_of
from rules.incident import Finding, Incident
from rules.ranks import peer_name
from rules.times import said_at

__all__ = ["access_violation", "lost_peer", "lost_store", "port_error", "unreachable"]

# NET/IB : mlx5_0:1 Got async event : port error
_PORT = re.compile(r"port err|port_err|local catastrophic|device fatal|link.?down", re.IGNORECASE)
# NET/IB : mlx5_0:1 Got async event : local access violation work queue error
_VIOLATION = re.compile(r"access violation|invalid request", re.IGNORECASE)
# NET/IB : mlx5_0:1 Got async event : port active
_ACTIVE = re.compile(r"port active", re.IGNORECASE)

_RETRY_EXCEEDED, _RECEIVER_NOT_READY = 12, 13
_FLUSHED = 5  # the queue pair was in error already
_REFUSED = (9, 10, 11)  # the far HCA refused
#: Hosts that are asked for their links when transfers between them got no answer.
_ENDS_TOLD = 16


def _hosts(incident: Incident) -> list[str]:
    told = {record.host for record in incident.records if record.host}
    return sorted(told | set(incident.hosts))


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def port_error(incident: Incident) -> list[Finding]:
    """An HCA that says its own port failed: a local fact, unless many say it at once."""
    own: dict[str, list[NcclRecord]] = defaultdict(list)
    active = set()
    for record in incident.of(NcclKind.IB_ASYNC):
        if record.host is None:
            continue
        if _PORT.search(text_of(record)) and opens(record):
            own[record.host].append(record)
        elif _ACTIVE.search(text_of(record)):
            active.add(record.host)
    if not own:
        return []
    records = [record for reports in own.values() for record in reports]
    if len(own) > 1:
        return [
            Finding(
                kind="ib-link",
                status=Status.INSUFFICIENT,
                cause=Cause.IB_SWITCH,
                weight=0.2,
                reason=f"Ports failed on several hosts at once ({_names(own)}): what they share,"
                " a switch or a cable tray, is suspect, and none of them; switch counters would"
                " settle it.",
                clues=records,
                at=said_at(records[0]),
            )
        ]
    ((host, reports),) = own.items()
    back = host in active
    if not _felt(incident, reports):
        return [
            Finding(
                kind="ib-link",
                status=Status.INSUFFICIENT,
                cause=Cause.IB_LINK,
                weight=0.2,
                reason=f"One process on {host} saw an InfiniBand port fail, and nothing came of it:"
                " a flap of a port or of the switch behind it. The port's counters would tell.",
                clues=reports,
                host=host,
                at=said_at(reports[0]),
            )
        ]
    devices = _names({r.hca for r in reports if r.hca}) or "a port whose name is not printed"
    return [
        Finding(
            kind="ib-link",
            status=Status.SUSPECTED,
            says=Says.ACCUSES,
            cause=Cause.IB_LINK,
            weight=0.3 if back else 0.6,
            reason=f"{host} reported a failure of its own InfiniBand port ({devices})"
            + ("; it came back by itself." if back else ".")
            + " The port counters of both ends would settle it.",
            clues=reports,
            part=DomainKind.LINK,
            host=host,
            port=reports[0].port,
            at=said_at(reports[0]),
        )
    ]


def _felt(incident: Incident, reports: list[NcclRecord]) -> bool:
    """Whether a port's failure was seen by more than one process, or anybody suffered from it."""
    if len({(record.pid, record.rank) for record in reports}) > 1:
        return True
    suffered = (NcclKind.TIMEOUT, NcclKind.IB_COMPLETION, NcclKind.REMOTE_ERROR)
    return bool(incident.of(*suffered, NcclKind.PEER_CLOSED))


def access_violation(incident: Incident) -> list[Finding]:
    """An HCA that refused an access to its own memory: that host's software or set-up."""
    records = [r for r in incident.of(NcclKind.IB_ASYNC) if _VIOLATION.search(text_of(r))]
    hosts = sorted({record.host for record in records if record.host})
    if not records:
        return []
    return [
        Finding(
            kind="ib-access",
            status=Status.INSUFFICIENT,
            weight=0.2,
            reason=f"The HCA of {_names(hosts) or 'a host'} reported an access violation of a work"
            " queue: mostly software or set-up of that host, and what its peers report follows"
            " from it; its kernel log and a run on other hosts would settle it.",
            clues=records,
            host=hosts[0] if len(hosts) == 1 else None,
            at=said_at(records[0]),
        )
    ]


def unreachable(incident: Incident) -> list[Finding]:
    """Completion errors, counted by the far end: it takes two hosts to name one."""
    records = [
        record
        for record in incident.of(NcclKind.IB_COMPLETION, NcclKind.IB_CONNECT)
        if record.status != _FLUSHED
    ]
    if not records:
        return []
    far_end = _far_ends(incident, records)
    votes: dict[str, set[str]] = defaultdict(set)
    for record in records:
        if record.host is not None and record.status not in _REFUSED:
            peer = far_end(record)
            if peer is not None and peer != record.host:
                votes[peer].add(record.host)
    first = records[0]
    most = max((len(reporters) for reporters in votes.values()), default=0)
    named = [peer for peer, reporters in votes.items() if len(reporters) == most]
    if most > 1 and len(named) == 1 and first.kind is NcclKind.IB_COMPLETION:
        return [
            Finding(
                kind="ib-link",
                status=Status.SUSPECTED,
                says=Says.ACCUSES,
                cause=Cause.IB_LINK,
                weight=0.5,
                reason=f"{most} hosts ({_names(votes[named[0]])}) could not reach {named[0]}; its"
                " port, its switch port or the host itself is suspect, and the port counters of"
                " both ends would settle it.",
                clues=records,
                part=DomainKind.LINK,
                host=named[0],
                at=said_at(first),
            )
        ]
    ends = {record.host for record in records if record.host}
    ends |= {far_end(r) or peer_name(r.peer) or "itself" for r in records if r.peer}
    kind = {
        _RETRY_EXCEEDED: "the far end did not answer",
        _RECEIVER_NOT_READY: "the receiving process was not ready",
        4: "a local protection error, mostly configuration",
    }.get(first.status or 0, "the far end refused or failed")
    return [
        Finding(
            kind="ib-link",
            status=Status.INSUFFICIENT,
            cause=Cause.IB_LINK,
            weight=0.2,
            reason=f"InfiniBand completion or connection errors between {_names(ends)}: {kind}."
            " That is symmetric and no end was named by two others; the port counters of all"
            " ends would settle it.",
            clues=records,
            at=said_at(first),
            ends=_ends(records, far_end),
        )
    ]


def _far_ends(incident: Incident, records: list[NcclRecord]) -> Callable[[NcclRecord], str | None]:
    """How to tell the host at the far end of a transfer: by its name, its address or its GID."""
    hosts = _hosts(incident)
    gids: dict[str, str] = {}
    for record in records:
        if record.local_gid is not None and record.host is not None:
            same = gids.setdefault(record.local_gid, record.host) == record.host
            gids[record.local_gid] = record.host if same else ""

    def far_end(record: NcclRecord) -> str | None:
        named = incident.roster.host_at(record.peer, hosts)
        return named or gids.get(record.remote_gid or "") or None

    return far_end


def _ends(
    records: list[NcclRecord], far_end: Callable[[NcclRecord], str | None]
) -> tuple[str, ...]:
    """The hosts at both ends of transfers that got no answer: their links may tell why."""
    ends: set[str | None] = set()
    for record in records:
        if record.kind is NcclKind.IB_CONNECT or record.status == _RETRY_EXCEEDED:
            ends |= {record.host, far_end(record)}
    return tuple(sorted(filter(None, ends))[:_ENDS_TOLD])


def lost_peer(incident: Incident) -> list[Finding]:
    """Closed connections: the process that is accused and accuses nobody ended first."""
    records = incident.of(NcclKind.PEER_CLOSED)
    if not records:
        return []
    hosts = _hosts(incident)
    accused: dict[str, set[str]] = defaultdict(set)
    for record in records:
        if record.peer is not None:
            peer = incident.roster.host_at(record.peer, hosts) or peer_name(record.peer)
            if peer is not None and peer != record.host:  # the own host is a neighbour's proxy
                accused[peer].add(f"{record.host}/{record.pid}")
    accusers = {record.host for record in records}
    roots = [peer for peer in accused if peer not in accusers]
    first = records[0]
    if len(roots) == 1:
        (root,) = roots
        reason = (
            f"{len(accused[root])} process(es) lost the connection to {root}, which reported none"
            " itself: a process there ended first. Why, its own log or kernel log would tell."
        )
    else:
        reason = (
            "Connections between ranks were closed, and no single end is named by all: which"
            " process ended first cannot be told; the exit codes of all workers would."
        )
    return [
        Finding(
            kind="peer-death",
            status=Status.INSUFFICIENT,
            weight=0.3 if len(roots) == 1 else 0.1,
            reason=reason,
            clues=records,
            host=roots[0] if len(roots) == 1 else None,
            at=said_at(first),
        )
    ]


def lost_store(incident: Incident) -> list[Finding]:
    """The store went away: its process (rank 0 or the first agent) ended before the others."""
    records = incident.of(NcclKind.STORE_LOST)
    if not records or 0 in incident.waiting:
        return []
    hosts = _hosts(incident)
    roster = incident.roster
    peers = {roster.host_at(r.peer, hosts) or peer_name(r.peer) for r in records if r.peer}
    host = peers.pop() if len(peers) == 1 else None
    return [
        Finding(
            kind="store-lost",
            status=Status.INSUFFICIENT,
            weight=0.2,
            reason="The ranks lost the store"
            + (f" on {host}" if host else "")
            + ": the process that served it, rank 0 or the first agent, ended before them. Its own"
            " log would tell why.",
            clues=records,
            host=host,
            at=said_at(records[0]),
        )
    ]
