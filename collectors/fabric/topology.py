"""Reads the link map that ibnetdiscover and iblinkinfo print: nodes, their ports, and who is there.

Of an adapter `ibnetdiscover` names the node; `ibnetdiscover -p` and iblinkinfo name the port only.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from collectors.fabric.words import (
    guid_text,
    kind_of,
    lane_gbps,
    physical_state,
    port_state,
    rate_gbps,
)
from evidence.records import FabricPort

__all__ = ["LinkInfo", "NetDiscover", "Node", "Nodes", "parse_linkinfo", "parse_netdiscover"]


@dataclass(slots=True)
class Node:
    """One switch, adapter or router as a text describes it.

    ``guid`` is the node's, or the port's where the text has no other. ``kind`` is ``switch``,
    ``hca``, ``router`` or None (the text does not say). ``line`` is where it begins.
    """

    guid: str
    kind: str | None = None
    name: str | None = None
    lid: int | None = None
    line: int = 0
    ports: dict[int, FabricPort] = field(default_factory=dict)
    #: LID at the other end, by port, where the text does not name its GUID.
    peer_lids: dict[int, int] = field(default_factory=dict)


class Nodes:
    """The nodes of one section of text, in order of appearance, joined when it ends."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def node(self, guid: str, line: int, **known: str | int | None) -> Node:
        """Return the node of a GUID, with what is newly known of it filled in."""
        node = self._nodes.setdefault(guid, Node(guid, line=line))
        for name, value in known.items():
            if value is not None and getattr(node, name) is None:
                setattr(node, name, value)
        return node

    def seen(self, guid: str, port: int | None = None) -> bool:
        """Whether this port (None: any of the node) is already told of: a second sweep begins."""
        node = self._nodes.get(guid)
        return node is not None and bool(node.ports if port is None else port in node.ports)

    def joined(self) -> list[Node]:
        """Every node, with its kind, and the GUID of each peer named by its LID, if known."""
        by_lid = {node.lid: node.guid for node in self._nodes.values() if node.lid}
        for node in self._nodes.values():
            node.kind = node.kind or kind_of(node.name, node.ports)
            for number, lid in node.peer_lids.items():
                if (guid := by_lid.get(lid)) is not None:
                    node.ports[number] = replace(node.ports[number], peer_guid=guid)
            if node.kind == "switch":  # one GUID for all its ports, which is the node's
                node.ports = {at: replace(one, port_guid=None) for at, one in node.ports.items()}
        return list(self._nodes.values())


# CA    12  1 0x0c42a10300000071 4x HDR - SW     4  4 0xb8599f0300010100 ( 'n02 mlx5_1' - 'leaf02' )
# SW     4  8 0xb8599f0300010100 4x SDR                                    'leaf02'
_BY_PORT = re.compile(
    r"(?P<kind>CA|SW|RT)\s+(?P<lid>\d{1,6})\s+(?P<port>\d{1,3})\s+0x(?P<guid>[0-9a-f]{1,16})"
    r"\s+(?P<width>\d{1,3})x\s+(?P<speed>\S+)"
    r"(?:\s+-\s+(?:CA|SW|RT)\s+\d+\s+(?P<peer_port>\d{1,3})\s+0x(?P<peer>[0-9a-f]{1,16})"
    r"\s+\(\s+'(?P<name>.*?)'\s+-\s+'(?P<peer_name>.*)'\s+\)"
    r"|\s+'(?P<alone>[^']*)')?\s*(?P<rest>.*)\Z",
)
# Switch  8 "S-b8599f0300010100"   # "MF0;leaf02:MQM8700/U1" enhanced port 0 lid 4 lmc 0
# Ca      1 "H-0c42a10300000050"   # "gpu-r02-n01 mlx5_1"
_NODE = re.compile(
    r"(?P<kind>Switch|Ca|Rt)\s+\d+\s+\"[SHR]-(?P<guid>[0-9a-f]{1,16})\""
    r"(?:\s*#\s*\"(?P<name>.*)\"(?:.* lid (?P<lid>\d{1,6}))?)?"
)
# [1]     "H-0c42a10300000040"[1](c42a10300000041)   # "gpu-r02-n01 mlx5_0" lid 9 4xHDR
# [1](c42a10300000051)   "S-b8599f0300010100"[2]     # lid 10 lmc 0 "leaf02" lid 4 4xHDR
_EXTERNAL = r"(?:\[ext \d+\])?"
_PORT = re.compile(
    r"\[(?P<port>\d{1,3})\]" + _EXTERNAL + r"\s*(?:\((?P<guid>[0-9a-f]{1,16})\))?\s*"
    r"\"[SHR]-(?P<peer>[0-9a-f]{1,16})\"\[(?P<peer_port>\d{1,3})\]" + _EXTERNAL
    + r"(?:\s*\((?P<peer_port_guid>[0-9a-f]{1,16})\))?"
    r"(?:\s*#\s*(?:lid (?P<lid>\d{1,6}) lmc \d+ )?\"(?P<peer_name>.*)\" lid \d+"
    r"(?: (?P<width>\d{1,3})x(?P<speed>\w+))?)?"
)  # fmt: skip
_KINDS = {"CA": "hca", "Ca": "hca", "SW": "switch", "Switch": "switch", "RT": "router"}
_CUT = {"peer": "the line is cut or malformed"}


class NetDiscover:
    """Lines of `ibnetdiscover`, with or without ``-p``, taken one by one."""

    def __init__(self) -> None:
        self.nodes = Nodes()
        #: Port GUID of an adapter -> GUID of its node.
        self.node_of: dict[str, str] = {}
        self._at: Node | None = None

    def repeats(self, line: str) -> bool:
        """Whether a line begins the next sweep."""
        if found := _BY_PORT.match(line):
            return self.nodes.seen(guid_text(found["guid"]), int(found["port"]))
        if found := _NODE.match(line):
            return self.nodes.seen(guid_text(found["guid"]))
        return line.startswith("# Topology file:")

    def again(self) -> "NetDiscover":
        """A fresh one for the next sweep."""
        return NetDiscover()

    def feed(self, line: str, number: int) -> bool:
        """Take a line (``number`` is its own in the file); False when it is none of these."""
        if found := _BY_PORT.match(line):
            self._by_port(found, number)
        elif found := _NODE.match(line):
            lid = int(found["lid"] or 0) or None
            kind = _KINDS.get(found["kind"], "router")
            guid = guid_text(found["guid"])
            self._at = self.nodes.node(guid, number, kind=kind, name=found["name"], lid=lid)
        elif self._at is not None and (found := _PORT.match(line)):
            self._port(self._at, found)
        else:
            return False
        return True

    def _by_port(self, found: re.Match[str], number: int) -> None:
        guid, lid = guid_text(found["guid"]), int(found["lid"]) or None
        name = found["name"] or found["alone"]
        node = self.nodes.node(guid, number, kind=_KINDS[found["kind"]], name=name, lid=lid)
        at = int(found["port"])
        if found["peer"] is None:
            # Width and speed of a port without a peer are what it could try, not what it runs at.
            unread = {} if found["alone"] is not None and not found["rest"] else _CUT
            node.ports[at] = FabricPort(port=at, lid=lid, port_guid=guid, unread=unread)
            return
        width, lane = int(found["width"]), lane_gbps(found["speed"])
        node.ports[at] = FabricPort(
            port=at,
            lid=lid,
            port_guid=guid,
            width=width,
            rate_gbps=rate_gbps(width, lane),
            peer_guid=guid_text(found["peer"]),
            peer_port=int(found["peer_port"]),
            peer_name=found["peer_name"],
            unread=_unknown_speed(found["speed"], lane),
        )

    def _port(self, node: Node, found: re.Match[str]) -> None:
        at = int(found["port"])
        own = None if found["guid"] is None else guid_text(found["guid"])
        lid = int(found["lid"] or 0) or (node.lid if node.kind == "switch" else None)
        width = None if found["width"] is None else int(found["width"])
        lane = None if found["speed"] is None else lane_gbps(found["speed"])
        peer = guid_text(found["peer"])
        if found["peer_port_guid"] is not None:
            self.node_of[guid_text(found["peer_port_guid"])] = peer
        if own is not None:
            self.node_of[own] = node.guid
            node.lid = node.lid or lid
        node.ports[at] = FabricPort(
            port=at,
            lid=lid,
            port_guid=own,
            width=width,
            rate_gbps=rate_gbps(width, lane),
            peer_guid=peer,
            peer_port=int(found["peer_port"]),
            peer_name=found["peer_name"],
            unread=_unknown_speed(found["speed"], lane),
        )


# (the link alone)  4X        53.125 Gbps Active/  LinkUp
_LINK = re.compile(
    r"\s*(?:(?P<width>\d{1,3})X\s+(?P<speed>\S.*?)\s+)?(?P<state>\S+)/\s*(?P<phys>\S+)"
)
# (its other end)   0xb8599f0300010100      4    4[  ] "MF0;leaf02:MQM8700/U1" (Could be 12X )
_PEER = re.compile(
    r"(?:0x(?P<peer>[0-9a-f]{1,16})\s+)?(?P<lid>\d{1,6})\s+(?P<port>\d{1,3})\[[^\]]*\]\s+"
    r"\"(?P<name>.*)\" \((?P<hint>.*)\)\s*\Z"
)
# (nobody there)    [  ] "" ( )      or, amid a change:      "Port not available"
_NOBODY = re.compile(r"\[[^\]]*\]\s+\"\" \((?P<hint>.*)\)\s*\Z")
# 0x0c42a10300000071 "            gpu-r02-n02 mlx5_1"     12    1[  ] ==( ... )==>  ...
#       0x0c42a10300000071     12    1[  ] ==( ... )==>  ...
#       Link info:     11   1[  ] ==( ... )==>  ...
_NEAR = re.compile(
    r"\s*(?:Link info:\s*)?(?:0x(?P<guid>[0-9a-f]{1,16})\s+)?(?:\"(?P<name>.*?)\"\s+)?"
    r"(?P<lid>\d{1,6})\s+(?P<port>\d{1,3})\[[^\]]*\] "
    r"==\((?P<link>.*?)(?:(?P<shut>\))(?:==>\s*(?P<far>.*))?)?\Z"
)
# Switch: 0xb8599f0300010100 MF0;leaf02:MQM8700/U1:          CA: gpu-r02-n02 mlx5_1:
_TITLE = re.compile(r"(?P<kind>CA|Switch|Router|RT): (?:0x(?P<guid>[0-9a-f]{1,16}) )?(?P<name>.*):")
#: A port of today has four lanes. A chip that says it could join three ports into one of 12X
#: (old ones, and ibsim) does not say that this port has lost eight.
_LANES = 4
_COULD_WIDTH = re.compile(r"Could be (\d{1,3})X")
_COULD_SPEED = re.compile(r"Could be ([\d.]+) Gbps")
_GBPS = re.compile(r"([\d.]+) Gbps")
_TITLED = {"CA": "hca", "Switch": "switch", "Router": "router", "RT": "router"}


class LinkInfo:
    """Lines of `iblinkinfo`, with or without ``--line``, and ibqueryerrors' ``Link info:``."""

    def __init__(self, nodes: Nodes | None = None) -> None:
        self.nodes = nodes or Nodes()
        self._title: re.Match[str] | None = None
        self._at: Node | None = None

    def repeats(self, line: str) -> bool:
        """Whether a line begins the next sweep."""
        found = _NEAR.match(line)
        guid = None if found is None else found["guid"]
        if found is not None and guid is not None:
            return self.nodes.seen(guid_text(guid), int(found["port"]))
        title = _TITLE.match(line)
        guid = None if title is None else title["guid"]
        return guid is not None and self.nodes.seen(guid_text(guid))

    def again(self) -> "LinkInfo":
        """A fresh one for the next sweep, under the title that was read last."""
        fresh = LinkInfo()
        fresh._title = self._title
        return fresh

    def feed(self, line: str, number: int) -> bool:
        """Take a line (``number`` is its own in the file); False when it is none of these."""
        if title := _TITLE.match(line):
            self._title, self._at = title, None
            if title["guid"] is not None:
                self._at = self._named(guid_text(title["guid"]), number, title)
        elif found := _NEAR.match(line):
            self._near(found, number)
        else:
            return False
        return True

    def _named(self, guid: str, number: int, title: re.Match[str]) -> Node:
        kind, name = _TITLED[title["kind"]], title["name"]
        return self.nodes.node(guid, number, kind=kind, name=name or None)

    def _near(self, found: re.Match[str], number: int) -> None:
        guid = None if found["guid"] is None else guid_text(found["guid"])
        if found["name"] is not None:
            self._title = None
        if guid is not None and self._title is not None:
            # Several ports of one adapter stand under one title; the first names the node.
            self._at = self._at or self._named(guid, number, self._title)
        elif guid is not None:
            self._at = self.nodes.node(guid, number, name=(found["name"] or "").strip() or None)
        if self._at is None:  # a title without GUID whose port line has none either
            return
        put(self._at, found, guid)


def put(node: Node, found: re.Match[str], guid: str | None) -> None:
    """Add to a node the port of a line that shows a link."""
    at, lid = int(found["port"]), int(found["lid"]) or None
    node.lid = node.lid or lid
    before = node.ports.get(at, FabricPort(port=at))
    port = replace(before, lid=lid, port_guid=guid, **_state(found, before.unread))
    far = (found["far"] or "").strip()
    if there := _PEER.match(far):
        peer = None if there["peer"] is None else guid_text(there["peer"])
        name, peer_port = there["name"] or None, int(there["port"])
        port = replace(port, peer_guid=peer, peer_port=peer_port, peer_name=name)
        if peer is None and int(there["lid"]):
            node.peer_lids[at] = int(there["lid"])
        port = _could(port, there["hint"], found["link"])
    elif not _NOBODY.match(far):
        reason = far.strip('" ') if far.startswith('"Port not') else _CUT["peer"]
        port = replace(port, unread={**port.unread, "peer": reason})
    node.ports[at] = port


def near(line: str) -> re.Match[str] | None:
    """Match a line that shows a link, whatever tool printed it."""
    return _NEAR.match(line)


def _state(line: re.Match[str], unread: dict[str, str]) -> dict[str, object]:
    """What stands between the arrows: width, rate, states; reasons are added to ``unread``."""
    found = None if line["shut"] is None else _LINK.match(line["link"])
    if found is None:
        return {"unread": {**unread, "state": _CUT["peer"]}}
    known: dict[str, object] = {
        "state": port_state(found["state"]),
        "physical_state": physical_state(found["phys"]),
    }
    if found["width"] is None:
        return known
    width, speed = int(found["width"]), _GBPS.match(found["speed"])
    lane = None if speed is None else lane_gbps(speed[1])
    reasons = {**unread, **_unknown_speed(found["speed"], lane)}
    return known | {"width": width, "rate_gbps": rate_gbps(width, lane), "unread": reasons}


def _could(port: FabricPort, hint: str, link: str) -> FabricPort:
    """What the port could do: as iblinkinfo hints, else what it does (it compares both ends)."""
    if port.width is None:
        return port
    wider, faster = _COULD_WIDTH.search(hint), _COULD_SPEED.search(hint)
    speed = faster or _GBPS.search(link)
    width_max = port.width if wider is None else max(port.width, min(int(wider[1]), _LANES))
    rate_max = rate_gbps(width_max, None if speed is None else lane_gbps(speed[1]))
    return replace(port, width_max=width_max, rate_max_gbps=rate_max)


def _unknown_speed(speed: str | None, lane: float | None) -> dict[str, str]:
    if lane is not None:
        return {}
    return {"rate_gbps": _CUT["peer"] if speed is None else f"unknown speed {speed!r}"}


def parse_netdiscover(lines: Iterable[str]) -> list[Node]:
    """Every node of one output of `ibnetdiscover`, with or without ``-p``."""
    text = NetDiscover()
    for number, line in enumerate(lines, 1):
        text.feed(line.rstrip(), number)
    return text.nodes.joined()


def parse_linkinfo(lines: Iterable[str]) -> list[Node]:
    """Every node of one output of `iblinkinfo`, with or without ``--line``."""
    text = LinkInfo()
    for number, line in enumerate(lines, 1):
        text.feed(line.rstrip(), number)
    return text.nodes.joined()
