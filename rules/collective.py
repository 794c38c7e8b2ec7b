"""The collective witness: one incident's lines in, suspicions about parts out.

The judges stand in the order of how well they can know: a rank's own card, its own software, who
others name, and absence last. The first that can say something speaks.
"""

from collections.abc import Sequence

from evidence.decisions import Domain, DomainKind, EvidenceRef, Says, Status, Suspicion, Witness
from evidence.identity import digest
from evidence.records import NcclRecord
from rules import culprit, ended, hang, network, recorder
from rules.incident import Finding, Incident
from rules.times import order, said_at

__all__ = ["conclude", "judge"]

#: References and victims one suspicion carries at most, to bound a message of a large job.
_EVIDENCE_KEPT = 32
_VICTIMS_KEPT = 256
_TEXT_KEPT = 300


def judge(incident: Incident, missing_ranks_named: int) -> list[Finding]:
    """What the strongest judge that can speak says; never empty."""
    return (
        ended.external_stop(incident)
        or culprit.own_error(incident)
        or culprit.software(incident)
        or culprit.mismatch(incident)
        or culprit.service(incident)
        or culprit.barrier(incident)
        or network.port_error(incident)
        or ended.failed_node(incident)
        or ended.died(incident)
        or network.access_violation(incident)
        or network.unreachable(incident)
        or recorder.waited_for(incident, missing_ranks_named)
        or hang.recorded(incident)
        or hang.missing(incident, missing_ranks_named)
        or hang.lagging(incident)
        or hang.desynced(incident)
        or ended.teardown(incident)
        or ended.reported_dead(incident)
        or network.lost_peer(incident)
        or network.lost_store(incident)
        or recorder.unrecorded(incident)
        or hang.undecided(incident)
    )


def conclude(incident: Incident, attempt: int, missing_ranks_named: int) -> list[Suspicion]:
    """Suspicions about the parts an incident concerns, each routed to its host.

    Where a part is accused, every host with other ranks of the job learns that these only suffer.
    """
    found: list[Suspicion] = []
    for finding in judge(incident, missing_ranks_named):
        suspicion = _suspicion(incident, attempt, finding)
        found.append(suspicion)
        if finding.says is Says.ACCUSES:
            found += _victims(incident, attempt, finding, suspicion)
        found += [_end(incident, attempt, finding, host) for host in finding.ends]
    return found


def _domain(incident: Incident, finding: Finding) -> Domain:
    if finding.part is DomainKind.GPU and finding.rank is not None:
        gpu = incident.roster.gpu(finding.rank)
        assert gpu is not None, "a judge names only cards that the roster knows"
        return gpu
    return Domain(
        kind=finding.part,
        host=finding.host,
        port=finding.port,
        rank=finding.rank,
        job=incident.job if finding.part is DomainKind.JOB else None,
    )


def _route(incident: Incident, domain: Domain, finding: Finding) -> str | None:
    """The host whose stage decides: the part's, else the job's first."""
    known = incident.hosts
    if domain.host and (finding.part is not DomainKind.JOB or domain.host in known):
        return domain.host
    first = next((record.host for record in finding.clues if record.host), None)
    return next(iter(known), first)


def _reference(record: NcclRecord) -> EvidenceRef:
    return EvidenceRef(
        id=record.id,
        source="nccl",
        at=record.at,
        host=record.host,
        file=record.file,
        line=record.line,
        text=record.raw[:_TEXT_KEPT],
    )


def _references(records: Sequence[NcclRecord], most: int) -> tuple[EvidenceRef, ...]:
    once = {record.id: record for record in records}
    return tuple(map(_reference, sorted(once.values(), key=order)[:most]))


def _suspicion(incident: Incident, attempt: int, finding: Finding) -> Suspicion:
    domain = _domain(incident, finding)
    victims = _other_gpus(incident, finding) if finding.says is Says.ACCUSES else ()
    reason = finding.reason
    if len(victims) > _VICTIMS_KEPT:
        reason += f" {len(victims)} other GPUs of the job suffer; {_VICTIMS_KEPT} are listed."
    return Suspicion(
        id=_id(incident, attempt, finding.kind, domain, finding.status, finding.clues[0].id),
        at=finding.at or said_at(finding.clues[0]),
        observed_at=incident.observed_at,
        witness=Witness.COLLECTIVE,
        says=finding.says,
        kind=finding.kind,
        domain=domain,
        status=finding.status,
        cause=finding.cause,
        weight=finding.weight,
        reason=reason,
        host=_route(incident, domain, finding),
        job=incident.job,
        attempt=attempt,
        evidence=_references(finding.clues, _EVIDENCE_KEPT),
        victims=victims[:_VICTIMS_KEPT],
        hcas=_adapters(finding, domain.host) if domain.kind is DomainKind.LINK else (),
    )


def _id(
    incident: Incident, attempt: int, kind: str, domain: Domain, status: Status, first: str
) -> str:
    return digest("suspicion", incident.job, attempt, kind, domain.id, domain.rank, status, first)


def _suffers(incident: Incident, finding: Finding, rank: int) -> bool:
    """Whether a rank is outside the accused part."""
    if finding.part is DomainKind.GPU:
        return rank != finding.rank
    return incident.roster.host(rank) != finding.host


def _other_gpus(incident: Incident, finding: Finding) -> tuple[Domain, ...]:
    others = (
        incident.roster.gpu(rank)
        for rank in sorted(incident.roster.places)
        if _suffers(incident, finding, rank)
    )
    return tuple(gpu for gpu in others if gpu is not None)


def _end(incident: Incident, attempt: int, finding: Finding, host: str) -> Suspicion:
    """A word to one end of a path that failed: by itself it says nothing about that end's links."""
    domain = Domain(kind=DomainKind.LINK, host=host)
    return Suspicion(
        id=_id(incident, attempt, "ib-end", domain, Status.INSUFFICIENT, finding.clues[0].id),
        at=finding.at or said_at(finding.clues[0]),
        observed_at=incident.observed_at,
        witness=Witness.COLLECTIVE,
        says=Says.BLIND,
        kind="ib-end",
        domain=domain,
        status=Status.INSUFFICIENT,
        cause=finding.cause,
        weight=finding.weight,
        reason=f"Transfers of job {incident.job} to or from {host} failed, and neither end was"
        " named.",
        host=host,
        job=incident.job,
        attempt=attempt,
        evidence=_references(finding.clues, _EVIDENCE_KEPT // 4),
        hcas=_adapters(finding, host),
    )


def _adapters(finding: Finding, host: str | None) -> tuple[str, ...]:
    """The adapters of a host on which its own ranks met the failure; none where only others did."""
    return tuple(sorted({clue.hca for clue in finding.clues if clue.hca and clue.host == host}))


def _victims(
    incident: Incident, attempt: int, finding: Finding, accused: Suspicion
) -> list[Suspicion]:
    found = []
    own: dict[str | None, list[NcclRecord]] = {}
    for record in incident.records:
        own.setdefault(record.host, []).append(record)
    for host, ranks in incident.hosts.items():
        gpus = [incident.roster.gpu(rank) for rank in ranks]
        if host == accused.host:
            continue
        clues = own.get(host) or finding.clues[:1]
        domain = Domain(kind=DomainKind.NODE, host=host)
        found.append(
            Suspicion(
                id=_id(incident, attempt, "victim", domain, Status.VICTIM, accused.id),
                at=accused.at,
                observed_at=accused.observed_at,
                witness=Witness.COLLECTIVE,
                says=Says.CLEARS,
                kind="victim",
                domain=domain,
                status=Status.VICTIM,
                weight=accused.weight,
                reason=f"The ranks on {host} suffer from {accused.domain.id} ({accused.kind}).",
                host=host,
                job=incident.job,
                attempt=attempt,
                evidence=_references(clues, _EVIDENCE_KEPT // 4),
                victims=tuple(gpu for gpu in gpus if gpu is not None),
            )
        )
    return found
