"""Says which cards this node has: the tie between a PCI address, a UUID and an index.

It is published at start and on change. A card that is lost or silent stays in it under the name it
had; NVML being down changes nothing, since the cards did not move.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from collectors.node.hca import beside, read_hcas
from collectors.node.peers import Peer, Peers
from collectors.node.place import Place
from evidence.identity import digest
from evidence.records import (
    GpuIdentity,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    HcaIdentity,
    InventoryRecord,
    MigInstance,
)

__all__ = ["InventoryCollector", "TickSource", "inventory_from"]

#: Between two looks at what no tick tells: the place, the clock, new adapters, their cables.
_LOOK_S = 10.0
#: A clock is told to be wrong from here on (rules order records of one host within two seconds),
#: until it is right again to half of that, and anew when it has moved by as much.
_SKEW_MS = 1000
_SKEW_STEP_MS = 500


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
    hcas: tuple[HcaIdentity, ...] | None = None,
    clock_skew_ms: int | None = None,
) -> InventoryRecord:
    """Return the node's identity as one tick shows it (None: a node without GPUs).

    Host channel adapters (``hcas`` None: read them), and which of them sit beside which GPU, come
    from ``sysfs``. A card whose PCI address is not known yet cannot be named and is left out.
    """
    gpus = () if tick is None else tick.gpus
    hcas = read_hcas(sysfs) if hcas is None else hcas
    named = sorted(
        (
            GpuIdentity(
                index=gpu.index,
                pci=gpu.pci,
                uuid=gpu.uuid,
                serial=gpu.serial,
                name=gpu.name,
                hcas=beside(gpu.pci, hcas, sysfs),
                mig=gpu.mig,
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
        clock_skew_ms=clock_skew_ms,
    )
    return msgspec.structs.replace(record, id=digest("inventory", _content(record)))


class InventoryCollector:
    """Watches a GPU collector's latest tick and returns an inventory when its content changes.

    Without a source (``source`` None) the node has no GPUs and its place is still worth saying.
    What no tick tells is looked at every ten seconds.
    """

    name = "inventory"
    topic = "inventory"

    def __init__(
        self,
        host: str,
        boot_id: str | None,
        source: TickSource | None,
        clock: Callable[[], datetime],
        place: Callable[[], Place] = Place,
        sysfs: Path = Path("/sys"),
        *,
        peers: Peers | None = None,
        skew_s: Callable[[], float | None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` gives aware UTC times; ``sysfs`` is where the kernel shows its devices.

        ``skew_s`` says how far this clock is ahead of Kafka's, None while that is not known.
        """
        self._host = host
        self._boot_id = boot_id
        self._source = source
        self._clock = clock
        self._place = place
        self._sysfs = sysfs
        #: Called from any thread when there is something to read before it is due.
        self.on_ready: Callable[[], None] = lambda: None
        self._peers = peers
        if peers is not None:
            peers.on_change = self._peers_changed
        self._skew_s = skew_s
        self._monotonic = monotonic
        self._seen: GpuTick | None = None
        self._cards: tuple[object, ...] | None = None
        #: The newest tick in which NVML as a whole answered.
        self._tick: GpuTick | None = None
        self._mig: dict[str, tuple[MigInstance, ...]] = {}
        self._look_at = 0.0
        self._around: tuple[Place, tuple[HcaIdentity, ...], int | None] = (Place(), (), None)
        self._published: str | None = None

    def next_due(self, now: float) -> float:
        """At once when there is a tick not looked at, else at the next look around."""
        source = self._source
        unseen = source is not None and (source.latest is not self._seen)
        if unseen or (self._published is None and (source is None or source.absent)):
            return now
        return self._look_at if self._published is not None else now + _LOOK_S

    def read(self) -> Iterable[InventoryRecord]:
        """Return the inventory at start and when it differs from the last one returned."""
        source = self._source
        if source is not None and not self._ticked(source):
            return []
        changed = self._published is None or self._cards_changed(source)
        if self._looked_around() or changed:
            place, hcas, skew_ms = self._around
            record = inventory_from(
                self._host,
                self._boot_id,
                self._tick,
                observed_at=self._clock(),
                driver=None if source is None else source.driver,
                place=place,
                sysfs=self._sysfs,
                hcas=hcas,
                clock_skew_ms=skew_ms,
            )
            if record.id != self._published:
                self._published = record.id
                return [record]
        return []

    def saved(self) -> None:
        """The inventory keeps no position: it is said again at the next start."""

    def close(self) -> None:
        """End the look-out for peers; the GPU collector is closed by its owner."""
        if self._peers is not None:
            self._peers.close()

    def _peers_changed(self) -> None:
        self._look_at = 0.0
        self.on_ready()

    def _ticked(self, source: TickSource) -> bool:
        """Take the newest tick; whether it is known by now which cards there are, if any."""
        tick = source.latest
        if tick is not self._seen:
            self._seen = tick
            if tick is not None and tick.error is None:
                self._tick = self._with_mig(tick)
        return self._tick is not None or (tick is None and source.absent)

    def _with_mig(self, tick: GpuTick) -> GpuTick:
        """The tick, with the MIG instances last read of each card that does not answer now."""
        if not self._mig and not any(gpu.mig for gpu in tick.gpus):
            return tick
        gpus = []
        for gpu in tick.gpus:
            card = gpu.uuid or ""
            if gpu.status is GpuStatus.OK:
                self._mig[card] = gpu.mig
                gpus.append(gpu)
            else:
                gpus.append(msgspec.structs.replace(gpu, mig=self._mig.get(card, ())))
        return msgspec.structs.replace(tick, gpus=tuple(gpus))

    def _cards_changed(self, source: TickSource | None) -> bool:
        if source is None or self._tick is None:
            return False
        before, self._cards = self._cards, (source.driver, *map(_card, self._tick.gpus))
        return before != self._cards

    def _looked_around(self) -> bool:
        """Look at what no tick tells, if it is time; whether anything of it has changed."""
        now = self._monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_S
        before = self._around
        hcas = read_hcas(self._sysfs)
        if self._peers is not None:
            hcas = _joined(hcas, self._peers.of(hcas))
        self._around = (self._place(), hcas, _told_skew(self._skew_s(), before[2]))
        return self._around != before


def _joined(
    hcas: tuple[HcaIdentity, ...], peers: Mapping[tuple[str, int], Peer]
) -> tuple[HcaIdentity, ...]:
    """The adapters' ports with the switch ports they are cabled to."""
    return tuple(
        hca
        if (peer := peers.get((hca.name, hca.port))) is None
        else msgspec.structs.replace(
            hca, switch_guid=peer[0], switch_port=peer[1], switch_name=peer[2]
        )
        for hca in hcas
    )


def _told_skew(skew_s: float | None, told_ms: int | None) -> int | None:
    """What to say of a clock's skew after ``told_ms``; small moves are not worth an inventory."""
    if skew_s is None:
        return told_ms
    skew_ms = round(skew_s * 1000)
    if abs(skew_ms) < (_SKEW_MS if told_ms is None else _SKEW_STEP_MS):
        return None
    if told_ms is not None and abs(skew_ms - told_ms) < _SKEW_STEP_MS:
        return told_ms
    return skew_ms


def _card(gpu: GpuSnapshot) -> tuple[object, ...]:
    """What of a card the inventory shows; looked at every tick, so kept cheap."""
    return (gpu.index, gpu.pci, gpu.uuid, gpu.serial, gpu.name, gpu.mig)


def _content(record: InventoryRecord) -> str:
    """The record without its id and time: the same cards give the same id."""
    fields = msgspec.structs.asdict(record)
    del fields["id"], fields["observed_at"]
    return msgspec.json.encode(fields).decode()
