"""Says which cards this node has: the tie between a PCI address, a UUID and an index.

It is published at start and on change. A card that is lost or silent stays in it under the name it
had; NVML being down changes nothing, since the cards did not move.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from collectors.hca import beside, read_hcas
from evidence.identity import digest
from evidence.records import GpuIdentity, GpuTick, InventoryRecord

__all__ = ["InventoryCollector", "Place", "TickSource", "inventory_from"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the node stands, from its configuration: what a fault domain may widen to."""

    rack: str | None = None
    leaf: str | None = None
    pool: str | None = None
    nvlink_domain: str | None = None


class TickSource(Protocol):
    """A GPU collector, as far as the inventory is concerned."""

    #: The newest tick; None before the first.
    latest: GpuTick | None
    driver: str | None
    #: True where there is no NVML to ask, so that no tick will come.
    absent: bool


def inventory_from(
    host: str,
    boot_id: str | None,
    tick: GpuTick | None,
    *,
    observed_at: datetime,
    driver: str | None = None,
    place: Place | None = None,
    sysfs: Path = Path("/sys"),
) -> InventoryRecord:
    """Return the node's identity as one tick shows it (None: a node without GPUs).

    Host channel adapters, and which of them sit beside which GPU, come from ``sysfs``. A card
    whose PCI address is not known yet cannot be named and is left out.
    """
    gpus = () if tick is None else tick.gpus
    hcas = read_hcas(sysfs)
    named = sorted(
        (
            GpuIdentity(
                index=gpu.index,
                pci=gpu.pci,
                uuid=gpu.uuid,
                serial=gpu.serial,
                name=gpu.name,
                hcas=beside(gpu.pci, hcas, sysfs),
            )
            for gpu in gpus
            if gpu.pci is not None
        ),
        key=lambda gpu: (gpu.index, gpu.pci),
    )
    place = place or Place()
    record = InventoryRecord(
        id="",
        host=host,
        observed_at=observed_at,
        boot_id=boot_id,
        driver=driver,
        gpus=tuple(named),
        hcas=hcas,
        rack=place.rack,
        leaf=place.leaf,
        pool=place.pool,
        nvlink_domain=place.nvlink_domain,
    )
    return msgspec.structs.replace(record, id=digest("inventory", _content(record)))


class InventoryCollector:
    """Watches a GPU collector's latest tick and returns an inventory when its content changes.

    Without a source (``source`` None) the node has no GPUs and its place is still worth saying.
    """

    name = "inventory"
    topic = "inventory"

    def __init__(
        self,
        host: str,
        boot_id: str | None,
        source: TickSource | None,
        clock: Callable[[], datetime],
        place: Place | None = None,
        sysfs: Path = Path("/sys"),
    ) -> None:
        """``clock`` gives aware UTC times; ``sysfs`` is where the kernel shows its devices."""
        self._host = host
        self._boot_id = boot_id
        self._source = source
        self._clock = clock
        self._place = place
        self._sysfs = sysfs
        self._seen: GpuTick | None = None
        self._cards: tuple[object, ...] | None = None
        self._published: str | None = None

    def read(self) -> Iterable[InventoryRecord]:
        """Return the inventory at start and when it differs from the last one returned."""
        source = self._source
        tick = None if source is None else source.latest
        if source is not None and tick is None and not source.absent:
            return []  # NVML is still starting
        if self._published is not None and tick is self._seen:
            return []
        self._seen = tick
        if tick is not None:
            cards = (None if source is None else source.driver, *_cards(tick))
            if tick.error is not None or cards == self._cards:
                return []
            self._cards = cards
        record = inventory_from(
            self._host,
            self._boot_id,
            tick,
            observed_at=self._clock(),
            driver=None if source is None else source.driver,
            place=self._place,
            sysfs=self._sysfs,
        )
        if record.id == self._published:
            return []
        self._published = record.id
        return [record]

    def saved(self) -> None:
        """The inventory keeps no position: it is said again at the next start."""

    def close(self) -> None:
        """Nothing to release: the GPU collector is closed by its owner."""


def _cards(tick: GpuTick) -> tuple[object, ...]:
    """What of a tick the inventory shows; looked at every tick, so kept cheap."""
    return tuple((gpu.index, gpu.pci, gpu.uuid, gpu.serial, gpu.name) for gpu in tick.gpus)


def _content(record: InventoryRecord) -> str:
    """The record without its id and time: the same cards give the same id."""
    fields = msgspec.structs.asdict(record)
    del fields["id"], fields["observed_at"]
    return msgspec.json.encode(fields).decode()
