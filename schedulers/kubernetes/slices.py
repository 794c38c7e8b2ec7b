"""What a cluster's DRA drivers say about its devices: pure functions over ResourceSlices.

A device's name tells its place in the driver's list, not the card: only the UUID does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from evidence.decisions import Domain, DomainKind
from evidence.identity import normalise_pci
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.marks import as_time

__all__ = ["Device", "devices_of", "matching"]

Json = dict[str, Any]
_ACTIVE = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a pool; ``taints`` are its driver's own: key, when added."""

    driver: str
    pool: str
    name: str
    generation: int
    node: str | None = None
    uuid: str | None = None
    parent: str | None = None
    pci: str | None = None
    taints: tuple[tuple[str, datetime | None], ...] = ()


def devices_of(slices: Iterable[Json], settings: KubernetesConfig) -> tuple[Device, ...]:
    """All GPUs, of each pool's newest generation only: older slices are being replaced."""
    known: dict[str, Json] = {one["metadata"]["name"]: one for one in slices}
    specs = [one["spec"] for one in known.values()]
    specs = [one for one in specs if one.get("driver") in settings.gpu_drivers]
    newest: dict[tuple[str, str], int] = {}
    for spec in specs:
        pool = (spec["driver"], spec["pool"]["name"])
        newest[pool] = max(newest.get(pool, 0), int(spec["pool"].get("generation", 0)))
    found = (
        _device(spec, one)
        for spec in specs
        if int(spec["pool"].get("generation", 0)) == newest[spec["driver"], spec["pool"]["name"]]
        for one in spec.get("devices") or ()
    )
    return tuple(sorted(found, key=lambda one: (one.driver, one.pool, one.name)))


def matching(domain: Domain, devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices that are, or are slices of, a card; by place only where no UUID is known.

    Another card may be in the place by now: a UUID that no device has matches nothing.
    """
    if domain.uuid is not None:
        return tuple(one for one in devices if domain.uuid in (one.uuid, one.parent))
    if domain.kind is DomainKind.MIG or domain.pci is None:
        return ()
    return tuple(one for one in devices if one.pci == domain.pci)


def _device(spec: Json, device: Json) -> Device:
    told = device.get("basic") or device  # v1beta1 has them one level down
    plain: dict[str, str] = {}
    for name, value in (told.get("attributes") or {}).items():
        if isinstance(value.get("string"), str):
            plain[name.rpartition("/")[2].lower()] = value["string"]
    taints = (one for one in told.get("taints") or () if one.get("effect") in _ACTIVE)
    return Device(
        driver=spec["driver"],
        pool=spec["pool"]["name"],
        name=device["name"],
        generation=int(spec["pool"].get("generation", 0)),
        node=spec.get("nodeName"),
        uuid=plain.get("uuid"),
        parent=plain.get("parentuuid"),
        pci=_pci(plain.get("pcibusid") or plain.get("pciebusid") or plain.get("pciaddress")),
        taints=tuple((str(one["key"]), as_time(one.get("timeAdded"))) for one in taints),
    )


def _pci(text: str | None) -> str | None:
    try:
        return None if text is None else normalise_pci(text)[0]
    except ValueError:
        return None
