"""Faults of a fabric, made in the simulator, as they come out of the sweeps."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration


def guid(number: int) -> str:
    return f"0x{number:016x}"


def test_the_first_sweep_tells_every_port_and_its_peer(fabric: Any, sweeps: Any) -> None:
    told = sweeps().sweep()
    tree = fabric.tree
    leaf, card = tree.leaf(1), tree.card(1, 0, 1)
    assert len(told) == 8 + 4 * 8
    port = told[guid(leaf), 2]
    assert (port.state, port.physical_state) == ("Active", "LinkUp")
    assert (port.width, port.width_max, port.rate_gbps, port.rate_max_gbps) == (4, 4, 200, 200)
    assert (port.peer_guid, port.peer_port, port.peer_name) == (guid(card), 1, "hgx003 mlx5_1")
    assert (port.saturated, port.reset, port.unread) == ((), False, {})
    back = told[guid(card), 1]
    assert (back.peer_guid, back.peer_port) == (guid(leaf), 2)
    assert back.peer_name == "MF0;leaf-2:MQM9700/U1"
    assert back.port_guid == guid(card + 1)
    up = told[guid(leaf), 6]
    assert (up.peer_guid, up.peer_port) == (guid(tree.spine(1)), 2)
    empty = told[guid(leaf), 8]
    assert (empty.state, empty.physical_state) == ("Down", "Polling")
    assert (empty.rate_gbps, empty.peer_guid) == (None, None)


def test_a_node_is_told_as_what_it_is_and_where_it_sits(fabric: Any, sweeps: Any) -> None:
    seen = sweeps()
    seen.sweep()
    card = seen.nodes[guid(fabric.tree.card(0, 1, 0))]
    assert (card.kind, card.host, card.device, card.name) == (
        "hca",
        "hgx002",
        "mlx5_0",
        "hgx002 mlx5_0",
    )
    spine = seen.nodes[guid(fabric.tree.spine(0))]
    assert (spine.kind, spine.host, spine.device) == ("switch", None, None)
    assert (spine.subnet, spine.source, spine.sweep) == ("ib-a", "mad", 1)
    assert len({one.id for one in seen.nodes.values()}) == len(seen.nodes) == 12


def test_a_quiet_sweep_tells_every_node_and_no_port(sweeps: Any) -> None:
    seen = sweeps(sweeper={"full_every": 1_000_000})
    seen.sweep()
    assert seen.sweep() == {}
    assert {one.sweep for one in seen.nodes.values()} == {2}
    assert all(one.partial and not one.missing for one in seen.nodes.values())
    assert len(seen.nodes) == 12


def test_every_node_tells_all_its_ports_in_its_turn(sweeps: Any) -> None:
    seen = sweeps(sweeper={"full_every": 3})
    first = seen.sweep()
    again: dict[Any, Any] = {}
    for _ in range(3):
        again |= seen.sweep()
    assert again.keys() == first.keys()


def test_a_bad_cable_is_told_at_the_receiving_port(fabric: Any, sweeps: Any) -> None:
    seen, leaf = sweeps(sweeper={"full_every": 1_000_000}), fabric.tree.leaf(0)
    seen.sweep()
    fabric.set(leaf, 3, "PortCounters.SymbolErrorCounter", 4210)
    fabric.set(leaf, 3, "PortCounters.PortRcvErrors", 17)
    fabric.set(leaf, 3, "PortRcvErrorDetails.PortLocalPhysicalErrors", 15)
    told = seen.sweep()
    assert told.keys() == {(guid(leaf), 3)}
    port = told[guid(leaf), 3]
    assert port.counters["symbol_error"] == 4210
    assert port.counters["port_rcv_errors"] == 17
    assert port.counters["port_local_physical_errors"] == 15
    assert port.counters["port_malformed_packet_errors"] == 0
    assert "port_inactive_discards" not in port.counters
    assert (port.peer_guid, port.peer_port) == (guid(fabric.tree.card(0, 1, 0)), 1)
    assert seen.sweep() == {}


def test_discards_are_told_with_what_they_are_made_of(fabric: Any, sweeps: Any) -> None:
    seen, spine = sweeps(), fabric.tree.spine(1)
    fabric.set(spine, 2, "PortCounters.PortXmitDiscards", 400)
    fabric.set(spine, 2, "PortXmitDiscardDetails.PortSwHOQLifetimeLimitDiscards", 321)
    port = seen.sweep()[guid(spine), 2]
    assert port.counters["port_xmit_discards"] == 400
    assert port.counters["port_sw_hoq_lifetime_limit_discards"] == 321
    assert "port_local_physical_errors" not in port.counters


def test_congestion_alone_is_no_news_until_the_nodes_turn(fabric: Any, sweeps: Any) -> None:
    seen, leaf = sweeps(sweeper={"full_every": 1_000_000}), fabric.tree.leaf(0)
    seen.sweep()
    fabric.set(leaf, 5, "PortCounters.PortXmitWait", 98765432)
    assert seen.sweep() == {}
    fabric.set(leaf, 5, "PortCounters.PortXmitWait", 0xFFFFFFFF)
    assert seen.sweep()[guid(leaf), 5].saturated == ("port_xmit_wait",)


def test_a_counter_at_its_maximum_is_marked_and_stays_so(fabric: Any, sweeps: Any) -> None:
    seen, leaf = sweeps(sweeper={"full_every": 1}), fabric.tree.leaf(0)
    # The simulator keeps the widths of the architecture: more than fits becomes the maximum.
    fabric.set(leaf, 4, "PortCounters.SymbolErrorCounter", 70000)
    fabric.set(leaf, 4, "PortCounters.LinkDownedCounter", 300)
    fabric.set(leaf, 4, "PortCounters.LocalLinkIntegrityErrors", 15)
    fabric.set(leaf, 4, "PortCounters.PortRcvErrors", 65534)
    marked = ("link_downed", "local_link_integrity_errors", "symbol_error")
    for _ in range(2):
        port = seen.sweep()[guid(leaf), 4]
        assert port.saturated == marked
        assert (port.counters["symbol_error"], port.counters["link_downed"]) == (65535, 255)
        assert not port.reset


def test_a_port_whose_counters_were_cleared_says_so_once(fabric: Any, sweeps: Any) -> None:
    seen, leaf = sweeps(sweeper={"full_every": 1}), fabric.tree.leaf(1)
    fabric.set(leaf, 1, "PortCounters.SymbolErrorCounter", 900)
    assert seen.sweep()[guid(leaf), 1].counters["symbol_error"] == 900
    fabric.run("perfquery", "-R", str(fabric.lid(leaf)), "1", "0x0fff")
    told = seen.sweep()
    assert told[guid(leaf), 1].reset
    assert told[guid(leaf), 1].counters["symbol_error"] == 0
    assert [end for end, port in told.items() if port.reset] == [(guid(leaf), 1)]
    assert not seen.sweep()[guid(leaf), 1].reset


def test_sweeping_clears_nothing(fabric: Any, sweeps: Any) -> None:
    seen, leaf = sweeps(), fabric.tree.leaf(0)
    fabric.set(leaf, 2, "PortCounters.SymbolErrorCounter", 77)
    for _ in range(3):
        seen.sweep()
    lid = str(fabric.lid(leaf))
    assert "SymbolErrorCounter:..............77" in fabric.run("perfquery", lid, "2")


def test_a_flapping_link_is_told_at_both_ends_and_its_peer_is_not_forgotten(
    fabric: Any, sweeps: Any
) -> None:
    seen = sweeps()
    seen.sweep()
    tree = fabric.tree
    leaf, spine = (guid(tree.leaf(1)), 5), (guid(tree.spine(0)), 2)
    fabric.unlink(tree.leaf(1), 5)
    for node, port in ((tree.leaf(1), 5), (tree.spine(0), 2)):
        fabric.set(node, port, "PortCounters.LinkDownedCounter", 1)
    told = seen.sweep()
    assert {leaf, spine} <= told.keys()
    for end, other in ((leaf, spine), (spine, leaf)):
        assert (told[end].state, told[end].physical_state) == ("Down", "Polling")
        assert told[end].counters["link_downed"] == 1
        assert (told[end].peer_guid, told[end].peer_port) == other
        assert told[end].rate_gbps is None
        assert told[end].rate_max_gbps == 200
    fabric.relink(tree.leaf(1), 5)
    seen.until(lambda: seen.ports[leaf].state == seen.ports[spine].state == "Active")
    assert (seen.ports[leaf].peer_guid, seen.ports[leaf].peer_port) == spine
    assert seen.ports[leaf].counters["link_downed"] == 1


def test_a_degraded_speed_is_told_beside_what_it_could_be(fabric: Any, sweeps: Any) -> None:
    seen, tree = sweeps(), fabric.tree
    seen.sweep()
    leaf, card = (guid(tree.leaf(0)), 4), (guid(tree.card(0, 1, 1)), 1)
    lid = str(fabric.lid(tree.leaf(0)))
    with fabric.manager_held():
        fabric.run("ibportstate", lid, "4", "espeed", "2")
        told = seen.sweep()
    assert told.keys() >= {leaf, card}
    for end, other in ((leaf, card), (card, leaf)):
        port = told[end]
        assert (port.state, port.rate_gbps, port.rate_max_gbps) == ("Active", 100, 200)
        assert (port.width, port.width_max) == (4, 4)
        assert (port.peer_guid, port.peer_port) == other
    others = [one for end, one in seen.ports.items() if end not in (leaf, card) and one.width]
    assert {one.rate_gbps for one in others} == {200}


def test_an_adapter_behind_a_dead_port_is_missing_until_it_comes_back(
    fabric: Any, sweeps: Any
) -> None:
    seen, tree = sweeps(), fabric.tree
    seen.sweep()
    lost = guid(tree.card(1, 1, 0))
    fabric.unlink(tree.leaf(1), 3)
    told = seen.sweep()
    record = seen.nodes[lost]
    assert (record.missing, record.ports) == (True, ())
    assert (record.host, record.device, record.name) == ("hgx004", "mlx5_0", "hgx004 mlx5_0")
    port = told[guid(tree.leaf(1)), 3]
    assert (port.state, port.peer_guid, port.peer_port) == ("Down", lost, 1)
    seen.sweep()
    assert seen.nodes[lost].missing
    fabric.relink(tree.leaf(1), 3)
    seen.until(lambda: not seen.nodes[lost].missing)
    seen.until(lambda: seen.ports[guid(tree.leaf(1)), 3].state == "Active")


def test_a_dead_switch_takes_nothing_else_with_it(fabric: Any, sweeps: Any) -> None:
    seen, tree = sweeps(), fabric.tree
    seen.sweep()
    for leaf in range(2):
        fabric.unlink(tree.leaf(leaf), tree.up_port(1))
    seen.sweep()
    missing = {one for one, record in seen.nodes.items() if record.missing}
    assert missing == {guid(tree.spine(1))}
    for leaf in range(2):
        port = seen.ports[guid(tree.leaf(leaf)), tree.up_port(1)]
        assert (port.state, port.peer_name) == ("Down", "MF0;spine-2:MQM9700/U1")
    up = (guid(tree.leaf(0)), tree.up_port(0))
    seen.until(lambda: seen.ports[up].state == "Active")


def test_ports_that_drop_mads_are_unread_with_a_reason_and_not_healthy(
    fabric: Any, sweeps: Any
) -> None:
    seen, tree = sweeps(port={"timeout_ms": 50, "tries": 1}), fabric.tree
    seen.sweep()
    card = guid(tree.card(0, 1, 1))
    fabric.say(f'Error "H-{tree.card(0, 1, 1):016x}"[1] 100')
    reasons: Callable[[], Any] = lambda: seen.ports[card, 1].unread  # noqa: E731
    seen.until(lambda: bool(reasons()) or seen.nodes[card].missing)
    if not seen.nodes[card].missing:
        assert all("no answer" in why for why in reasons().values()), reasons()
        assert seen.ports[card, 1].counters == {}
    assert seen.ports[guid(tree.leaf(0)), 1].unread == {}
