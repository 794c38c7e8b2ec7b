"""Which card sits in which slot: what was found about one card never speaks of its successor.

A GPU is named by its PCI address here, its history by its UUID: another UUID at the same address
is another card, and whatever stood against the old one leaves with it.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from rules.host_state import GpuHealth, GpuName, HostState

__all__ = ["find_slot", "is_other_card", "known_card", "moved_card", "put_cards"]


def is_other_card(known: str | None, told: str | None) -> bool:
    """Whether two UUIDs of one slot are those of two cards; one that nobody told is no other."""
    return known is not None and told is not None and known != told


def known_card(state: HostState, pci: str) -> str | None:
    """The UUID of the card that was last seen in a slot; None when nobody told."""
    name, health = state.names.get(pci), state.health.get(pci)
    return (name.uuid if name else None) or (health.uuid if health else None)


def find_slot(state: HostState, uuid: str | None, index: int | None) -> str | None:
    """The PCI address of a card by its UUID, else by its index; None when nobody told."""
    for pci, name in state.names.items():
        if (uuid is not None and name.uuid == uuid) or (
            uuid is None and index is not None and name.index == index
        ):
            return pci
    for pci, health in state.health.items():
        if uuid is not None and health.uuid == uuid:
            return pci
    return uuid or (None if index is None else f"index-{index}")


def moved_card(state: HostState, uuid: str | None) -> GpuHealth | None:
    """The health of a card that sat in another slot: history follows the UUID."""
    if uuid is None:
        return None
    return next((known for known in state.health.values() if known.uuid == uuid), None)


def put_cards(state: HostState, told: Mapping[str, GpuName]) -> HostState:
    """Name the cards in some slots; the same state back when nothing is new.

    A name that was not told stays, unless it was another card's.
    """
    swapped = {
        pci for pci, name in told.items() if is_other_card(known_card(state, pci), name.uuid)
    }
    names = dict(state.names)
    for pci, name in told.items():
        known = GpuName() if pci in swapped else names.get(pci) or GpuName()
        names[pci] = GpuName(
            uuid=name.uuid or known.uuid,
            serial=name.serial or known.serial,
            index=known.index if name.index is None else name.index,
        )
    if swapped:
        state = _without(state, swapped)
    return state if names == state.names else replace(state, names=names)


def _without(state: HostState, slots: set[str]) -> HostState:
    """The state without what is known against the cards that were in these slots."""
    slots = slots | {f"growth:{pci}" for pci in slots}
    return replace(
        state,
        health={pci: health for pci, health in state.health.items() if pci not in slots},
        pending=tuple(fact for fact in state.pending if fact.subject not in slots),
        incidents=tuple(one for one in state.incidents if one.subject not in slots),
        app_errors=tuple(error for error in state.app_errors if error.pci not in slots),
        link_errors=tuple(error for error in state.link_errors if error.pci not in slots),
    )
