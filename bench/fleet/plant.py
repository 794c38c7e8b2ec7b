"""The fleet as it is built: nodes of eight cards in racks, and the switches they are cabled to.

Every name is drawn from a seed, so the same seed builds the same fleet.
"""

import random
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

__all__ = ["CARDS", "Card", "Host", "Plant", "Port"]

CARDS = 8
NODES_PER_RACK = 8
NODES_PER_LEAF = 32
#: Bus numbers of the eight cards of an HGX board.
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a leaf switch, and the adapter at the other end of its cable."""

    switch: str
    switch_name: str
    number: int
    hca: str
    hca_guid: str


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU: where it sits and what it is called."""

    host: str
    index: int
    pci: str
    uuid: str
    serial: str

    @property
    def bus_id(self) -> str:
        """NCCL's spelling of the address."""
        return f"{int(self.pci.split(':')[1], 16) << 12:x}"

    @property
    def root_port(self) -> str:
        """The port above the card, without its function."""
        return f"0000:{int(self.pci.split(':')[1], 16) - 1:02x}:01"


@dataclass(frozen=True, slots=True)
class Host:
    """One node: its cards, and the switch port of each card's adapter."""

    name: str
    number: int
    rack: str
    leaf: str
    cards: tuple[Card, ...]
    ports: tuple[Port, ...]

    @property
    def address(self) -> str:
        """Its address in the network over which NCCL finds its peers."""
        return f"10.{16 + self.number // 250}.{self.number % 250 + 2}.7"


class Plant:
    """``nodes`` nodes; host names, addresses, UUIDs, serials and GUIDs follow from ``seed``."""

    def __init__(self, nodes: int, seed: int) -> None:
        self._draw = random.Random(seed)
        self._base = 0xB83F_D200_0000_0000 | self._draw.getrandbits(24) << 24
        self.hosts = tuple(self._host(number) for number in range(nodes))
        self.named = {host.name: host for host in self.hosts}

    @cached_property
    def racks(self) -> dict[str, tuple[Host, ...]]:
        """The nodes of each rack."""
        return self._by("rack")

    @cached_property
    def leaves(self) -> dict[str, tuple[Host, ...]]:
        """The nodes behind each group of leaf switches."""
        return self._by("leaf")

    def _by(self, name: str) -> dict[str, tuple[Host, ...]]:
        found: dict[str, list[Host]] = {}
        for host in self.hosts:
            found.setdefault(getattr(host, name), []).append(host)
        return {key: tuple(hosts) for key, hosts in found.items()}

    def _host(self, number: int) -> Host:
        name = f"trn{number:04d}"
        group, place = divmod(number, NODES_PER_LEAF)
        cards = tuple(self._card(name, index, bus) for index, bus in enumerate(_BUSES))
        ports = tuple(
            Port(
                switch=f"0x{self._base | 0x80_0000 | group << 4 | rail:016x}",
                switch_name=f"leaf-{group:02d}-r{rail}",
                number=place + 1,
                hca=f"mlx5_{rail}",
                hca_guid=f"0x{self._base | number << 4 | rail:016x}",
            )
            for rail in range(CARDS)
        )
        rack = f"r{number // NODES_PER_RACK:03d}"
        return Host(name, number, rack, f"leaf-{group:02d}", cards, ports)

    def _card(self, host: str, index: int, bus: int) -> Card:
        uuid = UUID(int=self._draw.getrandbits(128), version=4)
        serial = str(self._draw.randrange(1_640_000_000_000, 1_660_000_000_000))
        return Card(host, index, f"0000:{bus:02x}:00", f"GPU-{uuid}", serial)
