"""What Slurm says at one moment, as standings and context records."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from evidence.decisions import Domain, DomainKind
from evidence.identity import digest
from evidence.records import ContextKind, ContextRecord, Mig
from schedulers.adapter import Standing, View
from schedulers.slurm.jobs import Job
from schedulers.slurm.marks import Mark
from schedulers.slurm.nodes import Node

__all__ = ["domain_of", "view"]

_REBOOTS = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT"})


def view(now: datetime, nodes: Mapping[str, Node], jobs: Iterable[Job]) -> View:
    """Standings of ours and of others; drains, reboots, maintenance and allocations."""
    standing: list[Standing] = []
    context: list[ContextRecord] = []
    for node in nodes.values():
        standing += [_ours(node, mark) for mark in node.marks]
        if node.foreign:
            standing.append(
                Standing(
                    Domain(kind=DomainKind.NODE, host=node.name),
                    by=node.by,
                    reason=node.reason,
                    since=node.since,
                )
            )
        context += _planned(now, node)
    for job in jobs:
        context += _allocation(now, job)
    return View(now, tuple(standing), tuple(context))


def _ours(node: Node, mark: Mark) -> Standing:
    return Standing(
        domain_of(mark.domain_id, node.name),
        command=mark.command,
        by=node.by,
        reason=node.reason,
        since=node.since,
    )


def domain_of(domain_id: str, node: str) -> Domain:
    """The domain that an id by place names; the node where it cannot be told.

    ``gpu:host/0000:3b:00``, ``nvlink:host/0000:3b:00/4``, ``node:host``, ``rack:r12``
    """
    kind, _, rest = domain_id.partition(":")
    host, _, place = rest.partition("/")
    pci, _, link = place.partition("/")
    domain = Domain(kind=DomainKind.NODE, host=node)
    match kind:
        case DomainKind.RACK:
            domain = Domain(kind=DomainKind.RACK, rack=rest)
        case DomainKind.NODE if rest:
            domain = Domain(kind=DomainKind.NODE, host=rest)
        case DomainKind.GPU if place.isdecimal():
            domain = Domain(kind=DomainKind.GPU, host=host, index=int(place))
        case DomainKind.GPU if place.startswith("GPU-"):
            domain = Domain(kind=DomainKind.GPU, host=host, uuid=place)
        case DomainKind.GPU if place:
            domain = Domain(kind=DomainKind.GPU, host=host, pci=place)
        case DomainKind.NVLINK if link.isdecimal():
            domain = Domain(kind=DomainKind.NVLINK, host=host, pci=pci, link=int(link))
        case DomainKind.MIG if link.isdecimal():
            domain = Domain(kind=DomainKind.MIG, host=host, pci=pci, mig=Mig(gi=int(link)))
    return domain


def _planned(now: datetime, node: Node) -> Iterator[ContextRecord]:
    def record(kind: ContextKind, at: datetime | None) -> ContextRecord:
        return ContextRecord(
            id=digest("slurm", kind, node.name, at and at.isoformat(), node.reason),
            host=node.name,
            observed_at=now,
            kind=kind,
            at=at or now,
            by=node.by or "slurm",
            reason=node.reason or None,
        )

    if node.foreign:
        yield record(ContextKind.DRAIN, node.since)
    if _REBOOTS & set(node.flags):
        yield record(ContextKind.REBOOT, node.since)
    if {"MAINT", "MAINTENANCE"} & set(node.flags):
        yield record(ContextKind.MAINTENANCE, None)


def _allocation(now: datetime, job: Job) -> Iterator[ContextRecord]:
    for host in job.nodes:
        yield ContextRecord(
            id=digest("slurm", "allocation", job.id, job.attempt, host),
            host=host,
            observed_at=now,
            kind=ContextKind.ALLOCATION,
            at=job.began_at or now,
            job=job.id,
            attempt=job.attempt,
            hosts=job.nodes,
            image=job.image,
            owner=job.user,
            by="slurm",
        )
