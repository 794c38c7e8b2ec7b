"""Reads the counters that ibqueryerrors and perfquery print.

Names of ``ibqueryerrors --details`` are not believed: rdma-core prints the details of discards
under the names of those of receive errors, and the other way round.
"""

import re
from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from collectors.fabric.counters import BY_PMA_NAME, COUNTERS, saturated
from collectors.fabric.topology import Node, Nodes, near, put
from collectors.fabric.words import guid_text
from evidence.records import FabricPort

__all__ = ["PerfQuery", "QueryErrors", "Section", "whole"]


class Section(Protocol):
    """The text of one tool, taken line by line; its nodes are whole when it has ended."""

    nodes: Nodes

    def repeats(self, line: str) -> bool:
        """Whether a line begins the next sweep of the same tool."""

    def again(self) -> "Section":
        """A fresh one for the next sweep."""

    def feed(self, line: str, number: int) -> bool:
        """Take a line (``number`` is its own in the file); False when it is none of these."""


# Errors for 0xb8599f0300010100 "MF0;leaf02:MQM8700/U1"
# Errors for "gpu-r02-n02 mlx5_0"
# Data Counters for 0xc42a10300000070 "gpu-r02-n02 mlx5_1"
_FOR = re.compile(
    r"(?P<what>Errors|Data Counters) for (?:0x(?P<guid>[0-9a-f]{1,16}) )?\"(?P<name>.*)\""
)
#    GUID 0xb8599f0300010100 port 3: [SymbolErrorCounter == 4000] [PortXmitData == 3744 (14.625KB)]
_GUID = re.compile(
    r"\s+GUID 0x(?P<guid>[0-9a-f]{1,16}) port (?P<port>\d{1,3}|ALL):(?P<counters>.*)", re.DOTALL
)
_COUNTER = re.compile(r"\[(\w+) == (\d+)(?: \([^)]*\))?\]")
_SUMMARY = re.compile(r"## Summary: |##\s+\d+ ports checked|## Thresholds:|## Suppressed:")

#: PortXmitDiscardDetails and PortRcvErrorDetails, as the tools name what is in them.
_DETAILS = {
    "PortInactiveDiscards": "port_inactive_discards",
    "PortNeighborMTUDiscards": "port_neighbor_mtu_discards",
    "PortSwLifetimeLimitDiscards": "port_sw_lifetime_limit_discards",
    "PortSwHOQLifetimeLimitDiscards": "port_sw_hoq_lifetime_limit_discards",
    "PortLocalPhysicalErrors": "port_local_physical_errors",
    "PortMalformedPktErrors": "port_malformed_packet_errors",
    "PortBufferOverrunErrors": "port_buffer_overrun_errors",
    "PortDLIDMappingErrors": "port_dlid_mapping_errors",
    "PortVLMappingErrors": "port_vl_mapping_errors",
    "PortLoopingErrors": "port_looping_errors",
}
#: Of 64 bits, and as much of a broken value as a reason shows.
_DIGITS, _SHOWN = 20, 40
_MIXED_UP = "ibqueryerrors prints details under each other's names"


class QueryErrors:
    """Lines of `ibqueryerrors`: plain, ``--counters``, ``--data``, ``--details``, ``-r``.

    The sum that it prints as ``port ALL`` is passed over: each port says it itself.
    """

    def __init__(self) -> None:
        self.nodes = Nodes()
        self._title: re.Match[str] | None = None
        self._at: Node | None = None
        self._of: tuple[str, str] | None = None

    def repeats(self, line: str) -> bool:
        """Whether a line begins the next sweep."""
        found = _GUID.match(line)
        if found is None or found["port"] == "ALL":
            return False
        return self.nodes.seen(guid_text(found["guid"]), int(found["port"]))

    def again(self) -> "QueryErrors":
        """A fresh one for the next sweep, under the title that was read last."""
        fresh = QueryErrors()
        fresh._title = self._title
        return fresh

    def feed(self, line: str, number: int) -> bool:
        """Take a line (``number`` is its own in the file); False when it is none of these."""
        if title := _FOR.match(line):
            self._title, self._at = title, None
        elif found := _GUID.match(line):
            self._ports(found, number)
        elif "Link info:" in line and (link := near(line)) is not None:
            if self._at is not None and int(link["port"]) in self._at.ports:
                put(self._at, link, self._at.ports[int(link["port"])].port_guid)
        elif not _SUMMARY.match(line):
            return False
        return True

    def _ports(self, found: re.Match[str], number: int) -> None:
        title, guid = self._title, guid_text(found["guid"])
        if title is None:  # the text begins in the middle
            self._at = self.nodes.node(guid, number)
        elif self._at is None:
            # Of an adapter with errors only the port's GUID is told, of any other node its own.
            own = guid if title["guid"] is None else guid_text(title["guid"])
            kind = {"Errors": "hca" if title["guid"] is None else "switch"}.get(title["what"])
            self._at = self.nodes.node(own, number, kind=kind, name=title["name"])
        if found["port"] == "ALL":
            self._at.kind = self._at.kind or "switch"
            return
        port = int(found["port"])
        counters, unread = _named(_COUNTER.findall(found["counters"]))
        if found["counters"].count("[") > len(counters) + len(unread):
            unread["counters"] = "the line is cut or malformed"
        self._at.ports[port] = FabricPort(
            port=port,
            port_guid=guid,
            counters=counters,
            saturated=saturated(counters, _wide(counters)),
            unread=unread,
        )


def _named(found: Iterable[tuple[str, str]]) -> tuple[dict[str, int], dict[str, str]]:
    counters: dict[str, int] = {}
    unread: dict[str, str] = {}
    for name, value in found:
        if name in _DETAILS:
            unread[name] = _MIXED_UP
        elif (number := whole(value)) is None:
            unread[_ours(name)] = f"not a counter: {value[:_SHOWN]}"
        else:
            counters[_ours(name)] = number
    return counters, unread


def whole(text: str) -> int | None:
    """A counter's value; None for what is none, or does not fit in 64 bits."""
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        return None
    value = int(text)
    return value if value < 1 << 64 else None


def _ours(pma_name: str) -> str:
    """Our name of a counter; of an unknown one the tool's, spelt as the kernel would."""
    known = BY_PMA_NAME.get(pma_name)
    if known is not None:
        return known.name
    return _DETAILS.get(pma_name) or _WORD.sub("_", pma_name).lower()


_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def _wide(counters: dict[str, int]) -> frozenset[str]:
    """Those that must have been read with 64 bits, since they do not fit in fewer."""
    return frozenset(
        name
        for name, value in counters.items()
        if (known := COUNTERS.get(name)) is not None and value >> known.bits
    )


# # Port counters: Lid 2 port 3 (CapMask: 0x1300)
# # Port extended counters: Lid 2 port 3 (CapMask: 0x1300 CapMask2: 0x0000000)
# # PortXmitDiscardDetails counters: Lid 2 port 5
_HEADING = re.compile(
    r"# (?P<what>Port|Port extended|\w+) counters: Lid (?P<lid>\d{1,6}) port (?P<port>\d{1,3}|ALL)"
    r"(?: \(CapMask: 0x(?P<mask>[0-9a-fA-F]{1,16}))?"
)
# SymbolErrorCounter:..............4000
_VALUE = re.compile(r"(?P<name>\w+):\.*(?P<value>\S+)\Z")
_NOT_COUNTERS = frozenset({"PortSelect", "CounterSelect", "CounterSelect2"})
#: ClassPortInfo.CapabilityMask: AllPortSelect, which only a node of many ports needs.
_ALL_PORTS = 0x0100
#: What perfquery calls the sum over all ports.
_EVERY_PORT = ("ALL", "255")


class PerfQuery:
    """Lines of `perfquery`: plain, ``-x``, ``--xmtdisc``, ``--rcverr``, of one port or several.

    It names a port by its LID only, so a node's GUID is ``lid:44`` here. The sum over all ports is
    passed over.
    """

    def __init__(self) -> None:
        self.nodes = Nodes()
        self._told: set[tuple[str, str, str]] = set()
        self._what = ""
        self._at: tuple[Node, int] | None = None

    def repeats(self, line: str) -> bool:
        """Whether a line begins the next sweep."""
        found = _HEADING.match(line)
        return found is not None and (found["what"], found["lid"], found["port"]) in self._told

    def again(self) -> "PerfQuery":
        """A fresh one for the next sweep."""
        return PerfQuery()

    def feed(self, line: str, number: int) -> bool:
        """Take a line (``number`` is its own in the file); False when it is none of these."""
        if found := _HEADING.match(line):
            self._begin(found, number)
        elif self._what and (found := _VALUE.match(line)):
            if self._at is not None and found["name"] not in _NOT_COUNTERS:
                self._add(*self._at, found["name"], found["value"])
        else:
            return False
        return True

    def _begin(self, found: re.Match[str], number: int) -> None:
        self._what, self._at = found["what"], None
        self._told.add((found["what"], found["lid"], found["port"]))
        if found["port"] in _EVERY_PORT:
            return
        lid, port = int(found["lid"]), int(found["port"])
        many = found["mask"] is not None and int(found["mask"], 16) & _ALL_PORTS
        node = self.nodes.node(f"lid:{lid}", number, lid=lid, kind="switch" if many else None)
        node.ports.setdefault(port, FabricPort(port=port, lid=lid))
        self._at = node, port

    def _add(self, node: Node, at: int, name: str, value: str) -> None:
        port, ours = node.ports[at], _ours(name)
        number, stuck = whole(value), set(port.saturated) - {ours}
        if number is None:
            reason = f"not a counter: {value[:_SHOWN]}"
            node.ports[at] = replace(port, unread={**port.unread, ours: reason})
            return
        wide = frozenset({ours}) if self._what == "Port extended" else frozenset[str]()
        if ours in port.counters and not wide:
            return  # already known with 64 bits
        stuck |= set(saturated({ours: number}, wide))
        counters = {**port.counters, ours: number}
        node.ports[at] = replace(port, counters=counters, saturated=tuple(sorted(stuck)))
