"""Remembers which card sat where, so that a GPU that falls silent still has its name.

After NVML is initialised anew without a lost GPU the indexes behind it move down by one: cards are
told apart by UUID, and by PCI address where that is missing, never by index alone.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from evidence.records import GpuSnapshot, GpuStatus

__all__ = ["Roster"]

_IDENTITY = ("uuid", "serial", "pci", "name")


class Roster:
    """The cards seen so far on this node, by PCI address."""

    def __init__(self) -> None:
        self._cards: dict[str, GpuSnapshot] = {}
        #: The slot that answered last at each index; a card that left the count has none.
        self._slot_at: dict[int, str] = {}

    def call(self, gpus: Iterable[GpuSnapshot]) -> tuple[GpuSnapshot, ...]:
        """Return one tick's snapshots with every known card among them.

        A snapshot without identity gets the one of its index, unless that card answers elsewhere;
        a known card that no snapshot is about is added as ``lost``, with no error code, since
        NVML does not count it any more. A card found in another's slot replaces it.
        """
        present = list(gpus)
        named = {gpu.pci for gpu in present if gpu.pci is not None}
        named |= self._slots_of({gpu.uuid for gpu in present if gpu.uuid is not None})
        called = [self._name(gpu, named) for gpu in present]
        missing = [
            GpuSnapshot(index=card.index, status=GpuStatus.LOST, **_identity(card))
            for slot, card in self._cards.items()
            if slot not in named
        ]
        for gpu in called:
            if gpu.pci is not None and gpu.uuid is not None:
                self._learn(gpu, gpu.pci)
        return (*called, *missing)

    def _slots_of(self, uuids: set[str]) -> set[str]:
        return {slot for slot, card in self._cards.items() if card.uuid in uuids}

    def _name(self, gpu: GpuSnapshot, named: set[str]) -> GpuSnapshot:
        """Fill what the snapshot lacks from the card that is known by its address or index."""
        card = self._cards.get(gpu.pci) if gpu.pci is not None else self._by_uuid(gpu.uuid)
        if card is None and gpu.pci is None and gpu.uuid is None:
            card = self._at(gpu.index, named)
            if card is not None and card.pci is not None:
                named.add(card.pci)
        if card is None or (gpu.uuid is not None and gpu.uuid != card.uuid):
            return gpu
        lacking = {
            name: value for name, value in _identity(card).items() if getattr(gpu, name) is None
        }
        return msgspec.structs.replace(gpu, **lacking) if lacking else gpu

    def _by_uuid(self, uuid: str | None) -> GpuSnapshot | None:
        if uuid is None:
            return None
        return next((card for card in self._cards.values() if card.uuid == uuid), None)

    def _at(self, index: int, named: set[str]) -> GpuSnapshot | None:
        """The card last seen at an index, when nothing else in this tick claims it."""
        slot = self._slot_at.get(index)
        return None if slot is None or slot in named else self._cards.get(slot)

    def _learn(self, gpu: GpuSnapshot, slot: str) -> None:
        moved = [at for at, card in self._cards.items() if card.uuid == gpu.uuid and at != slot]
        for at in moved:
            del self._cards[at]
        self._slot_at[gpu.index] = slot
        self._cards[slot] = GpuSnapshot(index=gpu.index, **_identity(gpu))


def _identity(gpu: GpuSnapshot) -> dict[str, Any]:
    return {name: getattr(gpu, name) for name in _IDENTITY}
