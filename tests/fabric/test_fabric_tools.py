"""What the sweeps tell against what the real infiniband-diags say of the same fabric."""

import re
from typing import Any

import pytest

from collectors.fabric.counters import BY_PMA_NAME

pytestmark = pytest.mark.integration

#: MADs are traffic themselves, so these grow while one looks.
TRAFFIC = {"port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets"}
# SymbolErrorCounter:..............4210
FIELD = re.compile(r"^(\w+):\.*(\d+)$", re.MULTILINE)
# 0x506b4b0300a10000 "  MF0;leaf-1:MQM9700/U1"  2  4[  ] ==( 4X  53.125 Gbps Active/  LinkUp)==> ...
LINE = re.compile(
    r'(0x\w{16}) "\s*.*?"\s+(\d+)\s+(\d+)\[\s*\d*\s*\] '
    r"==\(\s*(?:(\d+)X\s+([\d.]+) Gbps)?\s*(\w+)/\s*(\w+)\)==>"
    r'(?:\s+(0x\w{16})\s+\d+\s+(\d+)\[\s*\d*\s*\] "(.*?)")?'
)
LANES = {"53.125": 50.0, "25.78125": 25.0, "2.5": 2.5}


def numbers(text: str) -> dict[str, int]:
    """Counters that perfquery printed, by our names."""
    return {
        BY_PMA_NAME[name].name: int(n) for name, n in FIELD.findall(text) if name in BY_PMA_NAME
    }


def test_every_counter_of_every_port_is_what_perfquery_says(fabric: Any, sweeps: Any) -> None:
    tree = fabric.tree
    ends = [(tree.leaf(1), 2, "S"), (tree.spine(0), 1, "S"), (tree.card(0, 1, 1), 1, "H")]
    for value, (node, port, letter) in enumerate(ends, start=5):
        for name in (
            "SymbolErrorCounter",
            "LinkErrorRecoveryCounter",
            "PortRcvErrors",
            "PortXmitDiscards",
            "LocalLinkIntegrityErrors",
            "ExcessiveBufferOverrunErrors",
            "VL15Dropped",
            "PortXmitWait",
        ):
            fabric.set(node, port, f"PortCounters.{name}", value, letter)
        fabric.set(node, port, "PortCountersExtended.PortXmitData", 123456789012 + value, letter)
    seen = sweeps().sweep()
    assert len(seen) == 40
    for port in seen.values():
        plain = numbers(fabric.run("perfquery", str(port.lid), str(port.port)))
        assert len(plain) >= 16
        ours = port.counters
        assert {name: ours[name] for name in plain.keys() - TRAFFIC - {"qp1_dropped"}} == {
            name: value for name, value in plain.items() if name not in {*TRAFFIC, "qp1_dropped"}
        }
        wide = numbers(fabric.run("perfquery", "-x", str(port.lid), str(port.port)))
        assert wide.keys() >= TRAFFIC
        for name in TRAFFIC:
            assert 0 <= wide[name] - ours[name] < 100_000, name


def test_every_link_is_what_iblinkinfo_says(fabric: Any, sweeps: Any) -> None:
    fabric.unlink(fabric.tree.leaf(1), 4)
    seen = sweeps()
    seen.sweep()
    spine = (f"0x{fabric.tree.spine(1):016x}", 2)
    seen.until(lambda: seen.ports[spine].state == "Active")
    seen.sweep()
    compared = 0
    ports = {(end[0], end[1]): port for end, port in seen.ports.items()}
    by_port_guid = {port.port_guid: port for port in ports.values() if port.port_guid}
    for row in LINE.findall(fabric.run("iblinkinfo", "--line")):
        guid, lid, number, width, lane, state, physical, peer, peer_port, peer_name = row
        port = by_port_guid.get(guid) or ports[guid, int(number)]
        assert (port.lid, port.port, port.state, port.physical_state) == (
            int(lid),
            int(number),
            state,
            physical,
        )
        assert port.width == (int(width) if width else None)
        assert port.rate_gbps == (int(width) * LANES[lane] if width else None)
        if peer:
            other = by_port_guid.get(peer) or ports[peer, int(peer_port)]
            assert port.peer_guid == next(end[0] for end, one in ports.items() if one is other)
            assert (port.peer_port, port.peer_name) == (int(peer_port), peer_name.strip())
        compared += 1
    assert compared == 4 * 8 + 7
