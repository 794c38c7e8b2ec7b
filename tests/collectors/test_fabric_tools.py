"""The real fabric tools on a simulated fabric: what one says of a port, the others say too."""

import importlib.util
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from collectors.fabric.text import parse_stream, recognise
from collectors.fabric.topology import parse_linkinfo, parse_netdiscover
from collectors.fabric.words import guid_text
from evidence.records import FabricPort, FabricRecord

NOW = datetime(2026, 5, 4, 8, 0, tzinfo=UTC)
_SIMULATOR = Path(__file__).parents[1] / "fabric" / "simulator.py"


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Eight adapters at two leaves; at leaf 0 port 2 has a bad cable, port 3 a dead one."""
    spec = importlib.util.spec_from_file_location("fabric_simulator", _SIMULATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    gone = module.missing()
    if gone:
        if os.environ.get("RINGFENCE_REQUIRE_PARTS") == "1":
            pytest.fail(gone)
        pytest.skip(gone)
    tree = module.Tree(spines=2, leaves=2, hosts=2, cards=2, ports=8)
    with module.Simulator(tree, tmp_path_factory.mktemp("fabric")) as simulator:
        leaf = tree.leaf(0)
        simulator.set(leaf, 2, "PortCounters.SymbolErrorCounter", 70000)
        simulator.set(leaf, 2, "PortCounters.LinkDownedCounter", 9)
        simulator.set(leaf, 2, "PortCounters.PortXmitDiscards", 12)
        simulator.set(leaf, 2, "PortXmitDiscardDetails.PortSwHOQLifetimeLimitDiscards", 12)
        simulator.set(leaf, 2, "PortCountersExtended.PortXmitData", 123456789012)
        simulator.set(tree.card(1, 1, 0), 1, "PortCounters.PortRcvErrors", 5, "H")
        simulator.unlink(leaf, 3)
        yield simulator


def read(fabric: Any, *command: str) -> dict[str, FabricRecord]:
    """What a tool prints of the fabric, by GUID."""
    lines = fabric.run(*command).encode().splitlines(keepends=True)
    assert recognise(lines)
    records = list(parse_stream(lines, subnet="s", now=NOW))
    found = {record.guid: record for record in records}
    assert len(found) == len(records)
    return found


def ports(record: FabricRecord) -> dict[int, FabricPort]:
    return {port.port: port for port in record.ports}


def moving(counters: dict[str, int]) -> dict[str, int]:
    """Without those that the questions themselves move."""
    return {name: n for name, n in counters.items() if not name.endswith(("_data", "_packets"))}


def test_ibqueryerrors_and_perfquery_agree_on_every_port_with_errors(fabric: Any) -> None:
    leaf, card = guid_text(fabric.tree.leaf(0)), guid_text(fabric.tree.card(1, 1, 0) + 1)
    found = read(fabric, "ibqueryerrors")
    assert found.keys() == {leaf, card}
    assert (found[card].host, found[card].device) == ("hgx004", "mlx5_0")
    assert ports(found[leaf])[2].saturated == ("symbol_error",)
    lids = {leaf: fabric.lid(fabric.tree.leaf(0)), card: fabric.lid(fabric.tree.card(1, 1, 0) + 1)}
    compared = 0
    for guid, record in found.items():
        for at, port in ports(record).items():
            (alone,) = read(fabric, "perfquery", str(lids[guid]), str(at)).values()
            (same,) = alone.ports
            errors = {name: n for name, n in moving(same.counters).items() if n}
            assert (same.port, errors, same.saturated) == (at, port.counters, port.saturated)
            compared += 1
    assert compared >= 2


def test_perfquery_of_several_ports_and_with_64_bits(fabric: Any) -> None:
    lid = str(fabric.lid(fabric.tree.leaf(0)))
    (several,) = read(fabric, "perfquery", "-l", lid, "1-4").values()
    assert [port.port for port in several.ports] == [1, 2, 3, 4]
    assert several.kind == "switch"
    assert ports(several)[2].counters["link_downed"] == 9
    (wide,) = read(fabric, "perfquery", "-x", lid, "2").values()
    assert wide.ports[0].counters["port_xmit_data"] >= 123456789012
    (details,) = read(fabric, "perfquery", "--xmtdisc", lid, "2").values()
    assert details.ports[0].counters["port_sw_hoq_lifetime_limit_discards"] == 12


def test_what_ibqueryerrors_mixes_up_stays_a_reason(fabric: Any) -> None:
    leaf = guid_text(fabric.tree.leaf(0))
    port = ports(read(fabric, "ibqueryerrors", "--details", "--data", "-r")[leaf])[2]
    assert port.counters["port_xmit_discards"] == 12
    assert port.counters["port_xmit_data"] >= 123456789012
    assert port.unread.keys() == {"PortDLIDMappingErrors"}
    assert port.peer_name == fabric.tree.name(0, 0, 1)


def test_every_tool_that_shows_links_shows_the_same_ones(fabric: Any) -> None:
    by_line = read(fabric, "iblinkinfo", "--line")
    by_title = read(fabric, "iblinkinfo")
    by_port = read(fabric, "ibnetdiscover", "-p")
    assert len(by_line) == 11  # the adapter behind the dead port is not found
    assert {guid: (r.kind, r.name, r.ports) for guid, r in by_title.items()} == {
        guid: (r.kind, r.name, r.ports) for guid, r in by_line.items()
    }
    assert _links(by_port.values()) == _links(by_line.values())
    assert len(_links(by_line.values())) == 7 * 2 + 4 * 2
    assert all(
        port.rate_gbps == port.rate_max_gbps for record in by_line.values() for port in record.ports
    )
    dead = ports(by_line[guid_text(fabric.tree.leaf(0))])[3]
    assert (dead.state, dead.physical_state, dead.peer_guid) == ("Down", "Polling", None)


def test_the_whole_map_names_nodes_where_the_others_name_ports(fabric: Any) -> None:
    nodes = parse_netdiscover(fabric.run("ibnetdiscover").splitlines())
    port_of = {
        node.guid: node.ports[1].port_guid for node in nodes if node.kind == "hca" and node.ports
    }
    assert len(port_of) == 7
    found = {
        (port_of.get(node.guid, node.guid), at, port_of.get(port.peer_guid or "", port.peer_guid),
         port.peer_port, port.rate_gbps)
        for node in nodes
        for at, port in node.ports.items()
    }  # fmt: skip
    lines = parse_linkinfo(fabric.run("iblinkinfo", "--line").splitlines())
    assert found == {
        (node.guid, at, port.peer_guid, port.peer_port, port.rate_gbps)
        for node in lines
        for at, port in node.ports.items()
        if port.peer_guid is not None
    }


def test_a_port_that_runs_slower_than_it_could_says_so_at_both_ends(fabric: Any) -> None:
    leaf, card = fabric.tree.leaf(1), fabric.tree.card(1, 0, 0) + 1
    with fabric.manager_held():  # it would set the speed back when it sweeps
        fabric.run("ibportstate", str(fabric.lid(leaf)), "1", "espeed", "2")
        found = read(fabric, "iblinkinfo", "--line")
    slow = {
        (guid, port.port): (port.rate_gbps, port.rate_max_gbps)
        for guid, record in found.items()
        for port in record.ports
        if port.rate_gbps != port.rate_max_gbps
    }
    assert slow == {(guid_text(leaf), 1): (100.0, 200.0), (guid_text(card), 1): (100.0, 200.0)}


def _links(records: Any) -> set[tuple[object, ...]]:
    return {
        (r.guid, p.port, p.peer_guid, p.peer_port, p.peer_name, p.width, p.rate_gbps)
        for r in records
        for p in r.ports
        if p.peer_guid is not None
    }
