"""Gathers what nvidia-smi says of one GPU, whatever the output's shape, into one snapshot."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from collectors.nvidia_smi.value import Kind, reason
from evidence.identity import normalise_pci
from evidence.records import GpuProcess, GpuSnapshot, GpuStatus, MigInstance

__all__ = ["UNKNOWN_INDEX", "Card", "Look"]

#: The index of a GPU whose output tells none: no NVML index is negative.
UNKNOWN_INDEX = -1

# NVML return codes (nvml.h, nvmlReturn_t) of the words that nvidia-smi prints.
_LOST, _RESET, _UNKNOWN, _INFOROM = 15, 16, 999, 14
#: Where the words of a refused reading are about the card, not about the reading.
_TROUBLE = {"err!": None, "unknown error": _UNKNOWN, "timeout": 10}
#: Reasons that say of a part of a reading only that this card has no such part.
_NO_PART = frozenset({"N/A", "Not Supported"})
_IDENTITY = frozenset({"uuid", "serial", "pci", "name", "index"})
_SCOPES = ("volatile", "aggregate")


@dataclass(slots=True)
class Card:
    """One GPU of one look, under construction.

    A name like ``remap_banks.max`` is a part of a reading, ``clocks_event_reasons#4`` a bit of
    one, ``power_limit_w?`` what stands in for one that is missing.
    """

    values: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    mig: list[dict[str, Any]] = field(default_factory=list)
    processes: list[dict[str, Any]] | None = None
    listed: bool = False
    answered: int = 0
    troubled: Counter[int | None] = field(default_factory=Counter)
    status: GpuStatus = GpuStatus.OK
    error: int | None = None

    def take(self, name: str, kind: Kind, said: str) -> None:
        """Keep one value, or the reason why it is none; of two values of a name the first."""
        why = reason(said)
        if why is None:
            try:
                value = kind(said.strip())
            except (ValueError, OverflowError):
                why = f"unreadable: {said.strip()[:64]!r}"
            else:
                self.values.setdefault(name, value)
                self.answered += name not in _IDENTITY
                return
        self.refuse(name, why)

    def refuse(self, name: str, why: str) -> None:
        """Keep the reason why a reading has no value, and what it says about the card."""
        self.unread.setdefault(name, why)
        self.heed(why)

    def heed(self, why: str) -> None:
        """Take from the words of a refusal what they say about the card itself."""
        words = why.casefold()
        if "gpu is lost" in words:
            self.status, self.error = GpuStatus.LOST, _LOST
        elif "requires reset" in words or "reset required" in words:
            if self.status is not GpuStatus.LOST:
                self.status, self.error = GpuStatus.RESET_REQUIRED, _RESET
        elif words in _TROUBLE:
            self.troubled[_TROUBLE[words]] += 1

    def told_before(self, other: "Card") -> None:
        """Take over what a message has said of this card."""
        if other.status is not GpuStatus.OK:
            self.status, self.error = other.status, other.error
        self.troubled.update(other.troubled)
        self.unread = other.unread | self.unread

    def bus(self, said: str) -> None:
        """Take the PCI address."""
        self.take("pci", lambda text: normalise_pci(text)[0], said)

    @property
    def key(self) -> object | None:
        """What tells this card from others in one look; None where nothing does."""
        values = self.values
        return values.get("pci") or values.get("uuid") or values.get("index")

    def same(self, other: "Card") -> bool:
        """Whether both are the same card, by the first name that both have."""
        for name in ("pci", "uuid", "index"):
            if name in self.values and name in other.values:
                return bool(self.values[name] == other.values[name])
        return False

    def snapshot(self, index: int | None) -> GpuSnapshot:
        """The snapshot; ``index`` where the card itself tells none."""
        values = dict(self.values)
        unread = {name: why for name, why in self.unread.items() if name not in values}
        known = values.pop("index", index)
        if known is None:
            unread["index"] = "not in the output"
        _fold_bits(values, unread)
        _fold_parts(values, unread)
        _fold_totals(values, unread)
        _fold_fallbacks(values, unread)
        self._judge(values, unread)
        if self.listed and not self.answered:
            unread["status"] = "not in a listing"
        return GpuSnapshot(
            index=UNKNOWN_INDEX if known is None else known,
            unread=unread,
            mig=tuple(MigInstance(**one) for one in self.mig if "gi" in one),
            processes=None
            if self.processes is None
            else tuple(GpuProcess(**one) for one in self.processes if "pid" in one),
            **values,
        )

    def _judge(self, values: dict[str, Any], unread: Mapping[str, str]) -> None:
        """Say how the card answered: by its worst word, else by whether it failed more often."""
        status, error = self.status, self.error
        if status is GpuStatus.OK and self.troubled.total() > self.answered:
            status, error = GpuStatus.ERROR, self.troubled.most_common(1)[0][0]
        elif status is GpuStatus.OK and "inforom" in unread and not self.answered:
            status, error = GpuStatus.ERROR, _INFOROM
        values["status"], values["error"] = status, error


_BIT = re.compile(r"(\w+)#(\d+)\Z")


def _fold_bits(values: dict[str, Any], unread: dict[str, str]) -> None:
    """Active reasons become one number, unless the output has that number itself."""
    bits: dict[str, int] = {}
    for name in [name for name in values if "#" in name]:
        found = _BIT.match(name)
        assert found is not None
        bits[found[1]] = bits.get(found[1], 0) | (int(found[2]) if values.pop(name) else 0)
    for name in [name for name in unread if "#" in name]:
        why = unread.pop(name)
        unread.setdefault(name.split("#")[0], why)
    for name, number in bits.items():
        values.setdefault(name, number)
        unread.pop(name, None)


def _fold_parts(values: dict[str, Any], unread: dict[str, str]) -> None:
    """Parts become one dict; that a card has no such part is said only where it has none."""
    for name in [name for name in values if "." in name]:
        whole, part = name.split(".", 1)
        values.setdefault(whole, {})[part] = values.pop(name)
    for name in [name for name in unread if "." in name]:
        whole = name.split(".", 1)[0]
        why = unread[name]
        if whole not in values:
            unread.setdefault(whole, why)
        if whole not in values or why in _NO_PART:
            del unread[name]


def _fold_totals(values: dict[str, Any], unread: dict[str, str]) -> None:
    """Sum what the outputs without totals have by place; a part that is missing leaves none.

    NVML's total is the sum over all memories, and from Ampere on only SRAM and DRAM count.
    """
    places: dict[str, int] = values.get("ecc_locations") or {}
    for scope in _SCOPES:
        for kind in ("corrected", "uncorrected"):
            name = f"ecc_{scope}_{kind}"
            sram, dram = places.get(f"{scope}_{kind}_sram"), places.get(f"{scope}_{kind}_dram")
            if sram is None and kind == "uncorrected":
                parity, secded = (values.get(f"sram_{scope}_{one}") for one in ("parity", "secded"))
                sram = None if parity is None or secded is None else parity + secded
            if name in values:
                continue
            if sram is not None and dram is not None:
                values[name] = sram + dram
                unread.pop(name, None)
            elif "ecc_locations" in unread:
                unread.setdefault(name, unread["ecc_locations"])
            elif sram is not None or dram is not None:
                unread.setdefault(name, "not all memories could be read")
    pages = [values.get("retired_pages_sbe"), values.get("retired_pages_dbe")]
    if None not in pages:
        values["retired_pages"] = sum(pages)
    elif why := unread.get("retired_pages_sbe") or unread.get("retired_pages_dbe"):
        unread.setdefault("retired_pages", why)


def _fold_fallbacks(values: dict[str, Any], unread: dict[str, str]) -> None:
    for name in [name for name in values if name.endswith("?")]:
        value = values.pop(name)
        values.setdefault(name[:-1], value)
        unread.pop(name[:-1], None)
    for name in [name for name in unread if name.endswith("?")]:
        why = unread.pop(name)
        if name[:-1] not in values:
            unread.setdefault(name[:-1], why)
    # `Reset Required: Yes` of drivers before NVML's field 230; `No` does not say `none`.
    for name, action in (("reset_recommended", 4), ("reset_required", 1)):
        unread.pop(name, None)
        if values.pop(name, False):
            values["recovery_action"] = values.get("recovery_action") or action


@dataclass(slots=True)
class Look:
    """All GPUs of a node at one time, under construction.

    ``attached`` is how many GPUs the output counts; where as many are shown, their order is their
    index. ``error`` and ``error_text`` are NVML's when it does not answer at all.
    """

    at: datetime | None = None
    driver: str | None = None
    host: str | None = None
    attached: int | None = None
    cards: list[Card] = field(default_factory=list)
    error: int | None = None
    error_text: str | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it to tell."""
        return not self.cards and self.error is None

    def card(self, other: Card) -> Card | None:
        """The card of this look that ``other`` is, if there is one."""
        return next((card for card in self.cards if card.same(other)), None)

    def snapshots(self) -> tuple[GpuSnapshot, ...]:
        """The cards' snapshots, by index where the output tells it."""
        told = any("index" in card.values for card in self.cards)
        ordered = not told and self.attached == len(self.cards)
        return tuple(
            card.snapshot(place if ordered else None) for place, card in enumerate(self.cards)
        )
