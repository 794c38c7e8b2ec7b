"""Reads the states, width and speed that ibportstate prints of a port."""

import re

from msgspec.structs import replace

from collectors.fabric.topology import Node, Nodes
from collectors.fabric.words import lane_gbps, physical_state, port_state, rate_gbps
from evidence.records import FabricPort

__all__ = ["PortState"]

# # Port info: Lid 44 port 17
_HEADING = re.compile(r"# Port info: Lid (?P<lid>\d{1,6}) port (?P<port>\d{1,3})\Z")
# # MLNX ext Port info: Lid 44 port 17
# # Port info: DR path slid 65535; dlid 65535; 0,17 port 3
_OTHER = re.compile(r"#|Peer PortInfo:")
# LinkSpeedExtActive:..............53.125 Gbps
_VALUE = re.compile(r"(?P<name>\w+):\.*(?P<value>\S.*)\Z")
# 4X
_WIDTH = re.compile(r"(\d{1,2})X\Z")
# 25.78125 Gbps
_SPEED = re.compile(r"([\d.]{3,8}) Gbps")


class PortState:
    """Lines of `ibportstate`: what it found, and, where it set something, what it then found.

    It names a port by its LID only. What the port could do is not taken from it: that depends on
    the other end of the link too. The vendor's own section and the peer, which has no LID here,
    are passed over.
    """

    def __init__(self) -> None:
        self.nodes = Nodes()
        self._at: tuple[Node, int] | None = None

    def repeats(self, line: str) -> bool:
        """Whether a line begins the next sweep."""
        found = _HEADING.match(line)
        return found is not None and self.nodes.seen(f"lid:{int(found['lid'])}", int(found["port"]))

    def again(self) -> "PortState":
        """A fresh one for the next sweep."""
        return PortState()

    def feed(self, line: str, number: int) -> bool:
        """Take a line (``number`` is its own in the file); False when it is none of these."""
        if found := _HEADING.match(line):
            lid, port = int(found["lid"]), int(found["port"])
            node = self.nodes.node(f"lid:{lid}", number, lid=lid)
            node.ports.setdefault(port, FabricPort(port=port, lid=lid))
            self._at = node, port
        elif _OTHER.match(line):
            self._at = None
        elif found := _VALUE.match(line):
            if self._at is not None:
                node, port = self._at
                node.ports[port] = _with(node.ports[port], found["name"], found["value"])
        else:
            return False
        return True


def _with(port: FabricPort, name: str, value: str) -> FabricPort:
    """The port with one more line of it."""
    if name == "LinkState":
        return replace(port, state=port_state(value))
    if name == "PhysLinkState":
        return replace(port, physical_state=physical_state(value))
    if name == "LinkWidthActive" and (width := _WIDTH.match(value)):
        return replace(port, width=int(width[1]))
    # The extended speed, printed later, is the true one where there is one.
    if name in ("LinkSpeedActive", "LinkSpeedExtActive") and (speed := _SPEED.match(value)):
        rate = rate_gbps(port.width, lane_gbps(speed[1]))
        return replace(port, rate_gbps=rate)
    return port
