"""Walks a subnet by directed routes: its nodes, their ports, and what is at the other end of each.

Directed routes need no LIDs and no tables, so the walk also works while the subnet manager is
away; every switch on the way handles each question itself, so it is not for every sweep.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from collectors.collector import CollectorError
from collectors.fabric.mad import NODE_DESCRIPTION, NODE_INFO, PORT_INFO, Query, subnet
from collectors.fabric.mad_attributes import (
    NodeInfo,
    PortInfo,
    node_description,
    node_info,
    port_info,
)
from collectors.fabric.words import described

__all__ = ["Asker", "Node", "Port", "Topology", "discover"]

#: One end of a link: node GUID and port number.
_End = tuple[int, int]
#: A directed route and the end through which its last hop leaves; None where the walk starts.
_Way = tuple[tuple[int, ...], _End | None]


#: IBA 14.2.5.3, NodeInfo.NodeType.
_KINDS = {1: "hca", 2: "switch", 3: "router"}


class Asker(Protocol):
    """Whoever answers MADs: `collectors.fabric.mad.MadPort`."""

    def ask(self, queries: Sequence[Query], until: float | None = None) -> list[bytes | str]:
        """Return the data of each answer, or the reason why there is none."""


@dataclass(slots=True)
class Port:
    """One port; ``lid`` is where its counters are asked, ``path`` a directed route to its node."""

    number: int
    lid: int
    path: tuple[int, ...]
    info: PortInfo | str
    guid: int | None = None
    peer: _End | None = None

    @property
    def is_up(self) -> bool:
        """Whether its link is known to be up."""
        return isinstance(self.info, PortInfo) and self.info.is_up


@dataclass(slots=True)
class Node:
    """A switch, adapter or router; of an adapter only the ports in this subnet are known."""

    guid: int
    kind: str
    name: str
    ports: dict[int, Port] = field(default_factory=dict)

    @property
    def is_switch(self) -> bool:
        """Whether one agent answers for all its ports, which pass traffic on."""
        return self.kind == "switch"

    @property
    def host(self) -> str | None:
        """The machine an adapter sits in, if its description says so."""
        return described(self.name)[0] if self.kind == "hca" else None


@dataclass(slots=True)
class Topology:
    """What a walk found, by node GUID.

    ``mute`` are the ends of links that are up but whose other end did not answer; ``complete``
    is False when the walk ran out of time, and what is not in it may still be there.
    """

    nodes: dict[int, Node] = field(default_factory=dict)
    mute: set[_End] = field(default_factory=set)
    complete: bool = True

    def ports(self) -> Iterator[tuple[Node, Port]]:
        """Every port, a switch's own (port 0) left out; neighbours in the order are far apart."""
        found = [
            (number, node, port)
            for node in self.nodes.values()
            for number, port in node.ports.items()
            if number
        ]
        found.sort(key=lambda one: one[0])
        return ((node, port) for _, node, port in found)

    def at(self, end: _End | None) -> Port | None:
        """The port at an end of a link."""
        node = None if end is None else self.nodes.get(end[0])
        return None if node is None or end is None else node.ports.get(end[1])


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A node met on the way: how it was reached and through which port of whom."""

    path: tuple[int, ...]
    by: _End | None
    info: NodeInfo


def discover(mads: Asker, until: float | None = None) -> Topology:
    """Walk the whole subnet from the port that ``mads`` has open.

    ``until`` is in monotonic seconds. Nodes are asked level by level, all of one level at once.
    Raises CollectorError when even the nearest node, this machine's adapter, does not answer.
    """
    walk = _Walk(mads, until)
    walk.along([((), None)])
    # One lost MAD must not make a whole branch missing: who was silent is asked once more, apart.
    walk.along(walk.again())
    if not walk.topology.nodes:
        raise CollectorError(
            "the InfiniBand port of this machine does not answer its own MADs"
            if walk.topology.complete
            else "there was no time left to look at the fabric"
        )
    return walk.topology


class _Walk:
    def __init__(self, mads: Asker, until: float | None) -> None:
        self.topology = Topology()
        self._mads = mads
        self._until = until
        self._unanswered: list[_Way] = []

    def along(self, ways: Sequence[_Way]) -> None:
        """Go on from some ends until nothing new is found."""
        while ways:
            ways = list(self._level(ways))

    def again(self) -> list[_Way]:
        """Return the ways at whose end nobody answered."""
        ways, self._unanswered = self._unanswered, []
        self.topology.mute.clear()
        return ways

    def _level(self, ways: Sequence[_Way]) -> Iterator[_Way]:
        """Ask who is at the end of each way; return the ways on from there."""
        arrivals = list(self._arrivals(ways))
        new = [one for one in arrivals if self._meet(one)]
        self._describe(new)
        for one in arrivals:
            self._link(one)
        for one in new:
            yield from self._onward(one)

    def _onward(self, one: _Arrival) -> Iterator[_Way]:
        """The ways out of a node that was reached; an adapter's was the way in."""
        node = self.topology.nodes[one.info.guid]
        for number, port in node.ports.items():
            if number and port.is_up and port.peer is None:
                yield (*one.path, number), (node.guid, number)

    def _arrivals(self, ways: Sequence[_Way]) -> Iterator[_Arrival]:
        answers = self._ask(subnet(NODE_INFO, to=path) for path, _ in ways)
        for (path, by), answer in zip(ways, answers, strict=True):
            if isinstance(answer, bytes):
                yield _Arrival(path, by, node_info(answer))
                continue
            self._unanswered.append((path, by))
            if by is not None:
                self.topology.mute.add(by)

    def _meet(self, one: _Arrival) -> bool:
        """Enter a node; whether this end of it had not been reached before."""
        node = self.topology.nodes.get(one.info.guid)
        if node is None:
            node = Node(one.info.guid, _KINDS.get(one.info.kind, "hca"), "")
            self.topology.nodes[node.guid] = node
            numbers = range(one.info.ports + 1) if node.is_switch else (one.info.local_port,)
        elif node.is_switch or one.info.local_port in node.ports:
            return False
        else:
            numbers = (one.info.local_port,)
        guid = None if node.is_switch else one.info.port_guid
        for number in numbers:
            node.ports[number] = Port(number, 0, one.path, "not asked", guid)
        return True

    def _describe(self, new: Sequence[_Arrival]) -> None:
        """Ask the new nodes for their descriptions and all their ports."""
        names = self._ask(subnet(NODE_DESCRIPTION, to=one.path) for one in new)
        for one, name in zip(new, names, strict=True):
            node = self.topology.nodes[one.info.guid]
            node.name = node_description(name) if isinstance(name, bytes) else node.name
        ends = [
            (node, port)
            for one in new
            for node in (self.topology.nodes[one.info.guid],)
            for port in node.ports.values()
            if port.path == one.path
        ]
        ends.sort(key=lambda end: end[1].number)
        infos = self._ask(subnet(PORT_INFO, port.number, to=port.path) for _, port in ends)
        for (_, port), answer in zip(ends, infos, strict=True):
            port.info = port_info(answer) if isinstance(answer, bytes) else answer
        for node, port in ends:
            own = node.ports[0] if node.is_switch else port
            port.lid = own.info.lid if isinstance(own.info, PortInfo) else 0

    def _link(self, one: _Arrival) -> None:
        """Note both directions of the cable a node was reached by."""
        if one.by is None:
            return
        here = (one.info.guid, one.info.local_port)
        for end, other in ((here, one.by), (one.by, here)):
            port = self.topology.at(end)
            if port is not None:
                port.peer = other

    def _ask(self, queries: Iterable[Query]) -> list[bytes | str]:
        asked = list(queries)
        if not asked:
            return []
        answers = self._mads.ask(asked, self._until)
        if self._until is not None and time.monotonic() >= self._until:
            self.topology.complete = False
        return answers
