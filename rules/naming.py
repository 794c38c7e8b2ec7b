"""One domain, many names: finds the part that a verdict or a request means.

A card is known by its place (host and PCI address) before its UUID arrives; its history follows
the UUID, so another UUID at the same place is another card.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from evidence.decisions import Domain, DomainKind

__all__ = ["containers", "has_place", "merge", "moved", "names_of", "swapped"]

_INSIDE_NODE = (DomainKind.GPU, DomainKind.MIG, DomainKind.NVLINK)


def names_of(domain: Domain) -> tuple[str, ...]:
    """Every name that means exactly this part, the one by place first where it is known."""
    if domain.kind is not DomainKind.GPU:
        return (domain.id,)
    names = []
    if domain.host and domain.pci:
        names.append(f"gpu:{domain.host}/{domain.pci}")
    if domain.uuid:
        names.append(f"uuid:{domain.uuid}")
    if domain.serial:
        names.append(f"serial:{domain.serial}")
    if not names and domain.host and domain.index is not None:
        names.append(f"gpu:{domain.host}/{domain.index}")
    return tuple(names)


def has_place(domain: Domain) -> bool:
    """Whether a domain says enough to be found by a scheduler."""
    needed: dict[DomainKind, tuple[object, ...]] = {
        DomainKind.GPU: (
            domain.host,
            domain.pci or domain.uuid or domain.index is not None,
        ),
        DomainKind.MIG: (domain.host, domain.pci, domain.mig),
        DomainKind.NVLINK: (domain.host, domain.pci),
        DomainKind.NODE: (domain.host,),
        DomainKind.LINK: (domain.switch or domain.host, domain.port is not None),
        DomainKind.SWITCH: (domain.switch,),
        DomainKind.RACK: (domain.rack,),
        DomainKind.JOB: (None,),
    }
    return all(needed[domain.kind])


def swapped(known: Domain, told: Domain) -> bool:
    """Whether another card is now where a known one was."""
    return bool(
        known.kind is told.kind is DomainKind.GPU
        and known.uuid
        and told.uuid
        and known.uuid != told.uuid
    )


def moved(known: Domain, told: Domain) -> bool:
    """Whether a known card is now in another place."""
    return bool(
        known.kind is told.kind is DomainKind.GPU
        and known.uuid
        and known.uuid == told.uuid
        and known.pci
        and told.pci
        and (known.host, known.pci) != (told.host, told.pci)
    )


def merge(known: Domain, told: Domain) -> Domain:
    """A known domain with the names that were missing; the same object when nothing is new."""
    missing = {
        name: getattr(told, name)
        for name in ("host", "pci", "uuid", "serial", "index", "rack", "mig")
        if getattr(known, name) is None and getattr(told, name) is not None
    }
    return replace(known, **missing) if missing else known


def containers(domain: Domain, rack: str | None, names: Mapping[str, str]) -> tuple[str, ...]:
    """The larger domains that hold this one, by the names under which they may be isolated."""
    found = []
    if domain.kind in _INSIDE_NODE:
        if domain.kind is not DomainKind.GPU and domain.pci:
            place = f"gpu:{domain.host}/{domain.pci}"
            found.append(names.get(place, place))
        found.append(f"node:{domain.host}")
    if domain.kind in (*_INSIDE_NODE, DomainKind.NODE) and (rack or domain.rack):
        found.append(f"rack:{rack or domain.rack}")
    if domain.kind is DomainKind.LINK and domain.switch:
        found.append(f"switch:{domain.switch}")
    return tuple(found)
