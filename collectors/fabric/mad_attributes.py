"""Reads the attributes of management datagrams (MADs): bytes in, values out, no device.

Each function takes the 64 (subnet management) or 192 (performance management) data bytes of an
answer, big endian, and raises struct.error when they are too few.
Source: InfiniBand Architecture, volume 1: 14.2.5 (NodeInfo, PortInfo) and 16.1.3 and 16.1.4.
"""

import struct
from dataclasses import dataclass

__all__ = [
    "DATA",
    "RCV_DETAILS",
    "XMIT_DETAILS",
    "ClassPortInfo",
    "NodeInfo",
    "PortInfo",
    "class_port_info",
    "node_description",
    "node_info",
    "port_counters",
    "port_counters_extended",
    "port_info",
    "rcv_error_details",
    "xmit_discard_details",
]

_WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
#: Data rate of a lane by bit, as the kernel counts it (signalling rates are a little more).
_SPEEDS = {1: 2.5, 2: 5.0, 4: 10.0}
_EXTENDED_SPEEDS = {1: 14.0, 2: 25.0, 4: 50.0, 8: 100.0}
#: The second set of extended speeds has one rate so far.
_XDR = 200.0

_NODE_INFO = struct.Struct(">4B3Q2HIB")
_CLASS_PORT_INFO = struct.Struct(">2xHI")
# LID at 16, SM LID; widths at 29; then nibbles of speed and state.
_PORT_INFO = struct.Struct(">16xH11x3B4B20xB5xBB")
_PORT_COUNTERS = struct.Struct(">4xHBBHHHHBBxBHHIIIII")
_EXTENDED = struct.Struct(">8x8Q")
_EXTENDED_ERRORS = struct.Struct(">72x14Q")
_RCV = struct.Struct(">4x6H")
_XMIT = struct.Struct(">4x4H")

#: The counters of traffic that both attributes have.
DATA = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets")
_CASTS = (
    "unicast_xmit_packets",
    "unicast_rcv_packets",
    "multicast_xmit_packets",
    "multicast_rcv_packets",
)
_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
)
_EXTENDED_NAMES = (
    *_ERRORS,
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "vl15_dropped",
    "port_xmit_wait",
    "qp1_dropped",
)
#: What the details of receive errors and of discards are called.
RCV_DETAILS = (
    "port_local_physical_errors",
    "port_malformed_packet_errors",
    "port_buffer_overrun_errors",
    "port_dlid_mapping_errors",
    "port_vl_mapping_errors",
    "port_looping_errors",
)
XMIT_DETAILS = (
    "port_inactive_discards",
    "port_neighbor_mtu_discards",
    "port_sw_lifetime_limit_discards",
    "port_sw_hoq_lifetime_limit_discards",
)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node is, and by which of its ports the question came in."""

    kind: int
    ports: int
    guid: int
    port_guid: int
    local_port: int

    @property
    def is_switch(self) -> bool:
        """Whether it is a switch; else it is a channel adapter or a router."""
        return self.kind == 2  # noqa: PLR2004 (IBA 14.2.5.3: 1 adapter, 2 switch, 3 router)


@dataclass(frozen=True, slots=True)
class PortInfo:
    """Link state of one port; sets are of lanes (``widths``) or Gb/s of one lane (``speeds``).

    ``state`` and ``physical_state`` are IBA's numbers (4 Active, 5 LinkUp). ``width`` and
    ``speed`` are None while the link is down.
    """

    lid: int
    state: int
    physical_state: int
    width: int | None
    widths_enabled: frozenset[int]
    widths_supported: frozenset[int]
    speed: float | None
    speeds_enabled: frozenset[float]
    speeds_supported: frozenset[float]

    @property
    def is_up(self) -> bool:
        """Whether a peer can be asked through this port: Initialize or better."""
        return self.state > 1


@dataclass(frozen=True, slots=True)
class ClassPortInfo:
    """What a performance management agent can do; without it, only 32-bit counters are sure."""

    wide_data: bool = False
    casts: bool = False
    wide_errors: bool = False
    xmit_wait: bool = False
    qp1_dropped: bool = False


def node_info(data: bytes) -> NodeInfo:
    """Read NodeInfo."""
    _, _, kind, ports, _, guid, port_guid, _, _, _, local = _NODE_INFO.unpack_from(data)
    return NodeInfo(kind, ports, guid, port_guid, local)


def node_description(data: bytes) -> str:
    """Read NodeDescription; bytes that are not UTF-8 are replaced, control characters too."""
    text = data[:64].split(b"\0", 1)[0].decode("utf-8", "replace").strip()
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def port_info(data: bytes) -> PortInfo:
    """Read PortInfo."""
    (lid, width_on, width_can, width, can_state, phys, _, now_on, second, now_can, ext_on) = (
        _PORT_INFO.unpack_from(data)
    )
    state, physical = can_state & 15, phys >> 4
    up = state > 1
    return PortInfo(
        lid=lid,
        state=state,
        physical_state=physical,
        width=_WIDTHS.get(width) if up else None,
        widths_enabled=frozenset(_bits(width_on, _WIDTHS)),
        widths_supported=frozenset(_bits(width_can, _WIDTHS)),
        speed=_active(second >> 5, now_can >> 4, now_on >> 4) if up else None,
        speeds_enabled=_speeds(second & 7, ext_on & 31, now_on & 15),
        speeds_supported=_speeds(second >> 3 & 3, now_can & 15, can_state >> 4),
    )


def class_port_info(data: bytes) -> ClassPortInfo:
    """Read ClassPortInfo of performance management: CapabilityMask, then 27 bits of the second."""
    mask, second = _CLASS_PORT_INFO.unpack_from(data)
    second >>= 5
    return ClassPortInfo(
        wide_data=bool(mask & (1 << 9 | 1 << 10)),
        casts=bool(mask & 1 << 9),
        wide_errors=bool(second & 1 << 1),
        xmit_wait=bool(mask & 1 << 12),
        qp1_dropped=bool(mask & 1 << 15),
    )


def port_counters(data: bytes, able: ClassPortInfo) -> dict[str, int]:
    """Read PortCounters by sysfs name; what the agent does not claim to count is left out."""
    (*errors, both, qp1, vl15, xmit_data, rcv_data, xmit, rcv, wait) = _PORT_COUNTERS.unpack_from(
        data
    )
    found = dict(zip(_ERRORS, errors, strict=True))
    found["local_link_integrity_errors"] = both >> 4
    found["excessive_buffer_overrun_errors"] = both & 15
    found["vl15_dropped"] = vl15
    found |= zip(DATA, (xmit_data, rcv_data, xmit, rcv), strict=True)
    if able.xmit_wait:
        found["port_xmit_wait"] = wait
    if able.qp1_dropped:
        found["qp1_dropped"] = qp1
    return found


def port_counters_extended(data: bytes, able: ClassPortInfo) -> dict[str, int]:
    """Read PortCountersExtended, all 64 bits wide; error counters only where there are any."""
    values = _EXTENDED.unpack_from(data)
    found = dict(zip(DATA, values[:4], strict=True))
    if able.casts:
        found |= zip(_CASTS, values[4:], strict=True)
    if able.wide_errors:
        found |= zip(_EXTENDED_NAMES, _EXTENDED_ERRORS.unpack_from(data), strict=True)
    return found


def rcv_error_details(data: bytes) -> dict[str, int]:
    """Read PortRcvErrorDetails: what PortRcvErrors is made of."""
    return dict(zip(RCV_DETAILS, _RCV.unpack_from(data), strict=True))


def xmit_discard_details(data: bytes) -> dict[str, int]:
    """Read PortXmitDiscardDetails: what PortXmitDiscards is made of."""
    return dict(zip(XMIT_DETAILS, _XMIT.unpack_from(data), strict=True))


def _bits(mask: int, meaning: dict[int, int]) -> list[int]:
    return [value for bit, value in meaning.items() if mask & bit]


def _speeds(second: int, extended: int, plain: int) -> frozenset[float]:
    found = [value for bit, value in _SPEEDS.items() if plain & bit]
    found += [value for bit, value in _EXTENDED_SPEEDS.items() if extended & bit]
    return frozenset([*found, _XDR] if second else found)


def _active(second: int, extended: int, plain: int) -> float | None:
    if second:
        return _XDR
    return _EXTENDED_SPEEDS.get(extended) or _SPEEDS.get(plain)
