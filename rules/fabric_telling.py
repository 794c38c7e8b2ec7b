"""What the fabric stage says, once: a suspicion to the node at a link's end, or a verdict."""

from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from evidence.decisions import (
    Cause,
    Domain,
    DomainKind,
    EvidenceRef,
    Recovery,
    Says,
    Status,
    Suspicion,
    Testimony,
    Verdict,
    Witness,
)
from evidence.identity import digest
from rules.fabric_ports import Finding
from rules.fabric_state import FabricState, Port, Said
from rules.tables import Rules

__all__ = [
    "FAULT",
    "SUSPECTED",
    "Link",
    "Output",
    "host_name",
    "switch_id",
    "take_back",
    "tell_link",
    "tell_switch",
]

Output = Suspicion | Verdict

SUSPECTED, FAULT = 1, 2
_CONFIDENCE = {SUSPECTED: 0.4, FAULT: 0.75}


@dataclass(frozen=True, slots=True)
class Link:
    """One link, by its end at a switch where it has one, with what its ports say."""

    domain: Domain
    host: str | None
    ends: tuple[Port, ...]
    finding: Finding
    refs: tuple[EvidenceRef, ...]


def host_name(name: str | None, state: FabricState) -> str | None:
    """The name of a node; that of a switch is none."""
    switches = {
        word
        for device in state.devices.values()
        if device.name and device.kind != "hca"
        for word in device.name.split()[:1]
    }
    return None if name is None or name in switches else name


def switch_id(guid: str) -> str:
    """The domain id of a switch."""
    return f"switch:{guid}"


def tell_link(said: dict[str, Said], link: Link, now: datetime) -> list[Output]:
    """Tell of one link where it is worse than what was said, or bad in another way."""
    id_, finding = link.domain.id, link.finding
    before = said.get(id_)
    if before is not None and before.level >= finding.level and before.kind == finding.kind:
        return []
    first = link.refs[0].id if link.refs else f"{now}"
    incident = before.incident if before else digest("fabric", id_, first)
    revision = before.revision + 1 if before else 1
    said[id_] = Said(
        incident=incident, level=finding.level, kind=finding.kind, revision=revision, at=now
    )
    at = max((ref.at for ref in link.refs if ref.at is not None), default=now)
    weight = {SUSPECTED: 0.3, FAULT: 0.8}[finding.level]
    if link.host is not None:
        return [
            Suspicion(
                id=digest(incident, revision),
                at=at,
                observed_at=now,
                witness=Witness.FABRIC,
                says=Says.ACCUSES,
                kind=f"ib-{finding.kind}",
                domain=link.domain,
                status=Status.LOCALIZED if finding.level == FAULT else Status.SUSPECTED,
                cause=Cause.IB_LINK,
                weight=weight,
                reason=f"{link.finding.words}.",
                host=link.host,
                evidence=link.refs,
                hcas=tuple(sorted({end.device for end in link.ends if end.device})),
            )
        ]
    verdict = _verdict(incident, revision, at, now, link.domain, Cause.IB_LINK, finding, link.refs)
    return [verdict]


def _verdict(
    incident: str,
    revision: int,
    at: datetime,
    now: datetime,
    domain: Domain,
    cause: Cause,
    finding: Finding,
    refs: tuple[EvidenceRef, ...],
) -> Verdict:
    return Verdict(
        id=digest(incident, revision),
        incident=incident,
        revision=revision,
        at=at,
        decided_at=now,
        status=Status.LOCALIZED if finding.level == FAULT else Status.SUSPECTED,
        cause=cause,
        domain=domain,
        confidence=_CONFIDENCE[finding.level],
        reason=f"{finding.words}.",
        recovery=Recovery.CHECK_LINK,
        testimony=(
            Testimony(
                witness=Witness.FABRIC,
                says=Says.ACCUSES,
                weight=_CONFIDENCE[finding.level],
                words=finding.words[:400],
            ),
        ),
        evidence=refs[:32],
        host=domain.host,
        rule="switch" if domain.kind is DomainKind.SWITCH else "fabric-errors",
    )


def tell_switch(
    said: dict[str, Said],
    state: FabricState,
    guid: str,
    links: list[Link],
    now: datetime,
    rules: Rules,
) -> list[Output]:
    """A switch whose links fail together: suspected, and sure when they still do a while later.

    A burst of errors that was over when it was first told of is not going on.
    """
    id_ = switch_id(guid)
    before = said.get(id_)
    device = state.devices[guid]
    since = before.at if before is not None and before.at is not None else now
    counted = _counted(links)
    by_errors = 2 * sum(link.finding.kind == "errors" for link in links) > len(links)
    went_on = before is None or counted > before.counted or not by_errors
    lasts = (now - since).total_seconds() >= rules.thresholds.service_wait_s and went_on
    level = FAULT if lasts else SUSPECTED
    if before is not None and before.level >= level:
        return []
    refs = tuple(ref for link in links for ref in link.refs)
    incident = before.incident if before else digest("fabric", id_, refs[0].id if refs else now)
    revision = before.revision + 1 if before else 1
    said[id_] = Said(
        incident=incident,
        level=level,
        kind="switch",
        revision=revision,
        at=since,
        counted=counted,
    )
    gone = "does not answer any more" if device.missing_since else "fails on many ports at once"
    minutes = rules.thresholds.service_wait_s / 60
    tail = f", and still does after {minutes:.0f} minutes" if lasts else ""
    words = (
        f"Switch {device.name or guid} {gone}{tail}: {len(links)} of {max(device.up, len(links))}"
        " links are bad, so the cause is the switch and not a cable"
    )
    domain = Domain(kind=DomainKind.SWITCH, switch=guid)
    at = max((ref.at for ref in refs if ref.at is not None), default=now)
    finding = Finding(level, "switch", words)
    return [_verdict(incident, revision, at, now, domain, Cause.IB_SWITCH, finding, refs)]


def _counted(links: list[Link]) -> int:
    """All errors that were counted on some links within the hour."""
    grown = (steps for link in links for end in link.ends for steps in end.growth.values())
    return sum(errors for steps in grown for _, errors in steps)


def take_back(said: dict[str, Said], id_: str, state: FabricState, now: datetime) -> list[Output]:
    """What was said and is over: it works again, and nothing was counted within the hour."""
    before = said.pop(id_)
    kind, _, rest = id_.partition(":")
    if kind == "switch":
        domain = Domain(kind=DomainKind.SWITCH, switch=rest)
        cause = Cause.IB_SWITCH
    else:
        guid, _, number = rest.rpartition("/")
        port = state.ports.get(rest)
        host = None if port is None else host_name(port.host, state)
        domain = Domain(kind=DomainKind.LINK, switch=guid, port=int(number), host=host)
        cause = Cause.IB_LINK
    words = "It works again, without an error for an hour"
    finding = Finding(SUSPECTED, before.kind, words)
    told = _verdict(before.incident, before.revision + 1, now, now, domain, cause, finding, ())
    if domain.host is None:
        return [replace(told, status=Status.RECOVERED)]
    return [
        Suspicion(
            id=told.id,
            at=now,
            observed_at=now,
            witness=Witness.FABRIC,
            says=Says.CLEARS,
            kind="ib-recovered",
            domain=domain,
            status=Status.RECOVERED,
            cause=cause,
            reason=f"{words}.",
            host=domain.host,
        )
    ]
