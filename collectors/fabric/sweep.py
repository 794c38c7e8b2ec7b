"""One sweep after the other over a subnet: what every port says, and what changed since.

Every node has a record in every sweep. To keep the volume sane (a port is a kilobyte), a record
lists only the ports on which anything but the data counters changed since they were last listed,
and is marked ``partial``; every ``full_every`` sweeps, in its turn, a node lists all of them.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from msgspec import structs

from collectors.fabric.counters import COUNTERS, saturated
from collectors.fabric.discovery import Asker, Node, Port, Topology, discover
from collectors.fabric.mad import NODE_INFO, PORT_INFO, subnet
from collectors.fabric.mad_attributes import (
    RCV_DETAILS,
    XMIT_DETAILS,
    ClassPortInfo,
    PortInfo,
    node_info,
    port_info,
)
from collectors.fabric.reading import Reading, read_counters
from collectors.fabric.words import (
    PHYSICAL_STATES,
    PORT_STATES,
    described,
    guid_text,
    rate_gbps,
)
from evidence.identity import digest
from evidence.records import FabricPort, FabricRecord

__all__ = ["Sweeper"]

_LOG = logging.getLogger(__name__)

_End = tuple[int, int]
#: Where a subnet management question goes: a LID or a directed route.
_Way = int | tuple[int, ...]

#: A walk after which ends of links remained unknown is repeated so much sooner.
_SOON_S = 60.0
#: How many sweeps a node that vanished is told as missing.
_MISSING_SWEEPS = 30
#: Counters of which a change alone is no news: those that grow on a healthy port, and those that
#: are only asked when another one grew.
_PASSING = frozenset(
    name for name in COUNTERS if name.endswith(("_data", "_packets", "_wait"))
) | frozenset((*RCV_DETAILS, *XMIT_DETAILS))


@dataclass(slots=True)
class _Known:
    """What is remembered of a port from sweep to sweep."""

    counters: Reading | None = None
    told: FabricPort | None = None
    peer: _End | None = None


class Sweeper:
    """The memory of all sweeps over one subnet; `sweep` makes one.

    ``clock`` gives UTC times. The topology is walked anew every ``refresh_s``, and at once when a
    link came up or went down or a node stopped answering at its LID; a sweep takes at most
    ``budget_s``, and what was not read by then has that as its reason. A record that was told and
    did not arrive is made good when it is the node's turn to tell everything.
    """

    def __init__(
        self,
        subnet_name: str,
        clock: Callable[[], datetime],
        *,
        full_every: int = 30,
        refresh_s: float = 300.0,
        budget_s: float = 10.0,
    ) -> None:
        self._subnet = subnet_name
        self._clock = clock
        self._full_every = full_every
        self._refresh_s = refresh_s
        self._budget_s = budget_s
        self._number = 0
        self._topology = Topology()
        self._walk_at = 0.0
        self._up: set[_End] = set()
        self._silent: dict[_End, str] | None = None
        self._known: dict[_End, _Known] = {}
        self._names: dict[int, str] = {}
        self._missing: dict[int, tuple[Node, int]] = {}
        #: What each performance agent can do, by the node and the LID at which it answers.
        self._able: dict[_End, ClassPortInfo] = {}
        self._refused: set[tuple[int, int]] = set()

    def sweep(self, mads: Asker) -> list[FabricRecord]:
        """Read every port once and return a record of every node.

        Raises CollectorError when this machine's own port does not answer.
        """
        began, at = time.monotonic(), self._clock()
        until = began + self._budget_s
        self._number += 1
        if not self._topology.nodes or began >= self._walk_at:
            self._walk(mads, until)
        if self._ask_states(mads, until) and time.monotonic() < until:
            self._walk(mads, until)
            self._ask_states(mads, until)
        readings = self._read(mads, until)
        took_ms = round((time.monotonic() - began) * 1000)
        return list(self._records(readings, at, took_ms))

    def _walk(self, mads: Asker, until: float) -> None:
        """Look at the whole subnet; what was there and is not any more is missing from now on."""
        found = discover(mads, until)
        alone = len(found.nodes) == 1
        unsure = alone or found.mute or not found.complete
        self._walk_at = time.monotonic() + (_SOON_S if unsure else self._refresh_s)
        if not found.complete and self._topology.nodes:
            return
        if alone:
            _LOG.warning("the InfiniBand port of this machine has no link: nothing else is seen")
        for guid, node in self._topology.nodes.items():
            # Behind a dead link of our own all others are out of sight, not missing.
            if guid not in found.nodes and not alone:
                self._missing[guid] = (node, _MISSING_SWEEPS)
        for guid, node in found.nodes.items():
            self._missing.pop(guid, None)
            node.name = node.name or self._names.get(guid, "")
        self._topology = found
        self._silent = None
        # A device that restarted may have other firmware.
        self._able.clear()
        self._refused.clear()
        self._names |= {guid: node.name for guid, node in found.nodes.items()}
        self._up = {(node.guid, port.number) for node, port in found.ports() if port.is_up}
        for node, port in found.ports():
            known = self._known.setdefault((node.guid, port.number), _Known())
            known.peer = port.peer or known.peer

    def _ask_states(self, mads: Asker, until: float) -> bool:
        """Ask every node who it is and every port how it is; whether the walk is out of date."""
        ways, silent = self._reach(mads, until)
        ports = []
        for node, port in self._topology.ports():
            way = ways.get((node.guid, port.lid))
            if way is None:
                port.info = silent[node.guid, port.lid]
            else:
                ports.append((node, port, way))
        infos = mads.ask([subnet(PORT_INFO, port.number, to=way) for _, port, way in ports], until)
        up = set(self._up)
        for (node, port, _), answer in zip(ports, infos, strict=True):
            port.info = port_info(answer) if isinstance(answer, bytes) else answer
            if isinstance(port.info, PortInfo):
                (up.add if port.info.is_up else up.discard)((node.guid, port.number))
        stale = up != self._up or (
            self._silent is not None and self._silent.keys() != silent.keys()
        )
        self._silent = silent
        return stale

    def _reach(self, mads: Asker, until: float) -> tuple[dict[_End, _Way], dict[_End, str]]:
        """How each node (GUID, LID) can be asked for its ports, and why not at its LID.

        A LID may belong to another node since the subnet manager moved it, or lead nowhere until
        it has found another way: a directed route is tried then.
        """
        ways: dict[_End, _Way] = {}
        silent: dict[_End, str] = {}
        nodes = {(node.guid, port.lid): port for node, port in self._topology.ports()}
        direct = {end: port.lid or port.path for end, port in nodes.items()}
        for end, why in _strangers(mads, direct, until).items():
            if why is None:
                ways[end] = direct[end]
            else:
                silent[end] = f"LID {end[1]}: {why}"
        around = {end: nodes[end].path for end in silent if end[1]}
        for end, why in _strangers(mads, around, until).items():
            if why is None:
                ways[end] = around[end]
        return ways, silent

    def _read(self, mads: Asker, until: float) -> dict[_End, Reading]:
        silent = self._silent or {}
        ports = []
        readings: dict[_End, Reading] = {}
        for node, port in self._topology.ports():
            end = (node.guid, port.number)
            why = silent.get((node.guid, port.lid))
            if why is None and not port.lid:
                why = "it has no LID: the subnet manager has not configured it"
            if why is None:
                ports.append((end, port.lid))
            else:
                readings[end] = Reading(unread={"counters": why})
        before = {end: known.counters for end, known in self._known.items() if known.counters}
        return readings | read_counters(mads, ports, self._able, before, self._refused, until)

    def _records(
        self, readings: dict[_End, Reading], at: datetime, took_ms: int
    ) -> Iterator[FabricRecord]:
        now = self._clock()
        for node in self._topology.nodes.values():
            full, ports = self._turn(node), []
            for port in node.ports.values():
                known = self._known.get((node.guid, port.number))
                if known is None:  # a switch's own port 0
                    continue
                told, news = self._port(node, port, known, readings[node.guid, port.number])
                if full or news:
                    ports.append(told)
            yield self._record(node, at, now, took_ms, partial=not full, ports=tuple(ports))
        for guid, (node, left) in list(self._missing.items()):
            yield self._record(node, at, now, took_ms, missing=True)
            self._missing[guid] = (node, left - 1)
            if left <= 1:
                del self._missing[guid]

    def _turn(self, node: Node) -> bool:
        """Whether it is this node's turn to be told in full: the first time, then spread out."""
        first = all(self._known[node.guid, number].told is None for number in node.ports if number)
        return first or (self._number + node.guid * 40503 // 256) % self._full_every == 0

    def _port(
        self, node: Node, port: Port, known: _Known, reading: Reading
    ) -> tuple[FabricPort, bool]:
        """The port as it goes into a record, and whether anything about it is news."""
        info = port.info if isinstance(port.info, PortInfo) else None
        unread = dict(reading.unread)
        if info is None:
            unread["state"] = str(port.info)
        if (node.guid, port.number) in self._topology.mute:
            unread["peer"] = "the node at the other end does not answer"
        other = self._topology.at(known.peer)
        width_max, lane_max = _most(info, other.info if other else None)
        told = FabricPort(
            port=port.number,
            state=PORT_STATES.get(info.state) if info else None,
            physical_state=PHYSICAL_STATES.get(info.physical_state) if info else None,
            rate_gbps=rate_gbps(info.width, info.speed) if info else None,
            rate_max_gbps=rate_gbps(width_max, lane_max),
            width=info.width if info else None,
            width_max=width_max,
            lid=port.lid or None,
            port_guid=guid_text(port.guid) if port.guid else None,
            peer_guid=guid_text(known.peer[0]) if known.peer else None,
            peer_port=known.peer[1] if known.peer else None,
            peer_name=self._names.get(known.peer[0]) or None if known.peer else None,
            counters=reading.counters,
            saturated=saturated(reading.counters, reading.wide),
            reset=reading.fell(known.counters),
            unread=unread,
        )
        if reading.counters:
            known.counters = reading.after(known.counters)
        news = known.told is None or _lasting(told) != _lasting(known.told)
        known.told = told
        return told, news

    def _record(
        self, node: Node, at: datetime, now: datetime, took_ms: int, **given: object
    ) -> FabricRecord:
        guid = guid_text(node.guid)
        return FabricRecord(
            id=digest("fabric", self._subnet, guid, at.isoformat(), self._number),
            observed_at=now,
            at=at,
            subnet=self._subnet,
            guid=guid,
            name=node.name or None,
            kind=node.kind,
            host=node.host,
            device=described(node.name)[1] if node.kind == "hca" else None,
            sweep=self._number,
            sweep_ms=took_ms,
            **given,  # type: ignore[arg-type]
        )


def _strangers(mads: Asker, ways: Mapping[_End, _Way], until: float) -> dict[_End, str | None]:
    """Why the node at the end of each way is not the one expected there; None where it is."""
    answers = mads.ask([subnet(NODE_INFO, to=way) for way in ways.values()], until)
    found: dict[_End, str | None] = {}
    for end, answer in zip(ways, answers, strict=True):
        if isinstance(answer, str):
            found[end] = answer
        else:
            guid = node_info(answer).guid
            found[end] = None if guid == end[0] else f"{guid_text(guid)} has it now"
    return found


def _most(here: PortInfo | None, there: PortInfo | str | None) -> tuple[int | None, float | None]:
    """Lanes and Gb/s of a lane that both ends of a link could do.

    Widths count when enabled, for a link only ever trains to those (switches claim to support
    what two of their ports could do together). Speeds count when supported, as iblinkinfo has it:
    one that was switched off is a link that is slower than it could be.
    """
    if here is None:
        return None, None
    widths, speeds = here.widths_enabled & here.widths_supported, here.speeds_supported
    if isinstance(there, PortInfo):
        widths = widths & there.widths_enabled & there.widths_supported or widths
        speeds = speeds & there.speeds_supported or speeds
    return max(widths, default=None), max(speeds, default=None)


def _lasting(port: FabricPort) -> FabricPort:
    """A port without what changes all the time on a healthy one."""
    errors = {name: value for name, value in port.counters.items() if name not in _PASSING}
    return structs.replace(port, counters=errors)
