"""The counters of a port: one name each, how wide they are, and where the tools keep them.

Names are those of the kernel in ``/sys/class/infiniband/*/ports/*/counters``. None of the counters
of the mandatory attribute wraps: each sticks at its maximum and then tells nothing.
Source: InfiniBand Architecture 16.1.3.5 (PortCounters) and 16.1.4.11 (PortCountersExtended).
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BY_PMA_NAME", "COUNTERS", "Counter", "saturated"]


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter: its name here, the tools' name, and its bits in both attributes.

    ``extended_bits`` is 0 where PortCountersExtended does not have it at all; error counters are
    in it only when ClassPortInfo.CapMask2 says so.
    """

    name: str
    pma_name: str
    bits: int
    extended_bits: int = 64


_ALL = (
    Counter("symbol_error", "SymbolErrorCounter", 16),
    Counter("link_error_recovery", "LinkErrorRecoveryCounter", 8),
    Counter("link_downed", "LinkDownedCounter", 8),
    Counter("port_rcv_errors", "PortRcvErrors", 16),
    Counter("port_rcv_remote_physical_errors", "PortRcvRemotePhysicalErrors", 16),
    Counter("port_rcv_switch_relay_errors", "PortRcvSwitchRelayErrors", 16),
    Counter("port_xmit_discards", "PortXmitDiscards", 16),
    Counter("port_xmit_constraint_errors", "PortXmitConstraintErrors", 8),
    Counter("port_rcv_constraint_errors", "PortRcvConstraintErrors", 8),
    Counter("local_link_integrity_errors", "LocalLinkIntegrityErrors", 4),
    Counter("excessive_buffer_overrun_errors", "ExcessiveBufferOverrunErrors", 4),
    Counter("qp1_dropped", "QP1Dropped", 16),
    Counter("vl15_dropped", "VL15Dropped", 16),
    Counter("port_xmit_wait", "PortXmitWait", 32),
    Counter("port_xmit_data", "PortXmitData", 32),
    Counter("port_rcv_data", "PortRcvData", 32),
    Counter("port_xmit_packets", "PortXmitPkts", 32),
    Counter("port_rcv_packets", "PortRcvPkts", 32),
    Counter("unicast_xmit_packets", "PortUnicastXmitPkts", 0),
    Counter("unicast_rcv_packets", "PortUnicastRcvPkts", 0),
    Counter("multicast_xmit_packets", "PortMulticastXmitPkts", 0),
    Counter("multicast_rcv_packets", "PortMulticastRcvPkts", 0),
    # What PortRcvErrors and PortXmitDiscards are made of: attributes of their own.
    Counter("port_local_physical_errors", "PortLocalPhysicalErrors", 16, 0),
    Counter("port_malformed_packet_errors", "PortMalformedPacketErrors", 16, 0),
    Counter("port_buffer_overrun_errors", "PortBufferOverrunErrors", 16, 0),
    Counter("port_dlid_mapping_errors", "PortDLIDMappingErrors", 16, 0),
    Counter("port_vl_mapping_errors", "PortVLMappingErrors", 16, 0),
    Counter("port_looping_errors", "PortLoopingErrors", 16, 0),
    Counter("port_inactive_discards", "PortInactiveDiscards", 16, 0),
    Counter("port_neighbor_mtu_discards", "PortNeighborMTUDiscards", 16, 0),
    Counter("port_sw_lifetime_limit_discards", "PortSwLifetimeLimitDiscards", 16, 0),
    Counter("port_sw_hoq_lifetime_limit_discards", "PortSwHOQLifetimeLimitDiscards", 16, 0),
)

#: Every counter by its name here, and by the one that infiniband-diags prints.
COUNTERS: dict[str, Counter] = {counter.name: counter for counter in _ALL}
BY_PMA_NAME: dict[str, Counter] = {counter.pma_name: counter for counter in _ALL}


def saturated(counters: Mapping[str, int], wide: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Names of the counters that stand at their maximum, in order of name.

    ``wide`` names those that were read with 64 bits from PortCountersExtended; a counter that is
    not in `COUNTERS` (a driver's own) is taken for 64 bits wide.
    """
    return tuple(
        sorted(name for name, value in counters.items() if value >= _most(name, name in wide))
    )


def _most(name: str, wide: bool) -> int:
    counter = COUNTERS.get(name)
    bits = 64 if counter is None or wide or not counter.bits else counter.bits
    return (1 << bits) - 1
