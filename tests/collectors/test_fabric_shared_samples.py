"""Outputs that the real tools gave of a simulated fabric, with the values one can read in them."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from collectors.fabric.text import parse_stream, recognise
from evidence.records import FabricPort, FabricRecord

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
SHARED = Path(os.environ.get("RINGFENCE_SHARED", Path(__file__).parents[3] / "shared"))
LEAF1, LEAF2 = "0xb8599f0300010000", "0xb8599f0300010100"
SPINE1, SPINE2 = "0xb8599f0300020000", "0xb8599f0300020100"
CARD = "0x0c42a10300000061"


def records_of(name: str) -> list[FabricRecord]:
    """The records of a sample."""
    path = SHARED / "labs" / "ibsim" / "samples" / name
    if not path.exists():
        pytest.skip(f"the shared folder has no {name} here (RINGFENCE_SHARED names another folder)")
    lines = path.read_bytes().splitlines(keepends=True)
    assert recognise(lines)
    return list(parse_stream(lines, subnet="s", now=NOW, file=name))


def sample(name: str) -> dict[str, FabricRecord]:
    """The records of a sample by GUID."""
    records = records_of(name)
    found = {record.guid: record for record in records}
    assert len(found) == len(records)
    return found


def ports(record: FabricRecord) -> dict[int, FabricPort]:
    return {port.port: port for port in record.ports}


def test_the_faults_that_ibqueryerrors_showed() -> None:
    found = sample("ibqueryerrors_faults.txt")
    assert found.keys() == {CARD, LEAF1, LEAF2}
    assert (found[CARD].host, found[CARD].device) == ("gpu-r02-n02", "mlx5_0")
    assert ports(found[CARD])[1].counters == {"port_rcv_remote_physical_errors": 140}
    assert {at: (port.counters, port.saturated) for at, port in ports(found[LEAF2]).items()} == {
        0: ({"vl15_dropped": 3}, ()),
        1: ({"symbol_error": 65535, "link_downed": 255}, ("link_downed", "symbol_error")),
        3: ({"port_xmit_discards": 321, "port_xmit_wait": 98765432}, ()),
    }
    assert found[LEAF1].ports == (
        FabricPort(
            port=3,
            counters={
                "symbol_error": 4000,
                "link_error_recovery": 12,
                "link_downed": 15,
                "port_rcv_errors": 55,
            },
        ),
    )


def test_the_faults_with_details_have_no_detail_under_another_ones_name() -> None:
    found = sample("ibqueryerrors_faults--data--details-r.txt")
    assert found.keys() == {CARD, LEAF1, LEAF2}
    discards, received = ports(found[LEAF2])[3], ports(found[LEAF1])[3]
    assert discards.counters["port_xmit_discards"] == 321
    assert received.counters["port_rcv_errors"] == 55
    assert received.counters["port_xmit_data"] == 123456790308
    assert discards.unread.keys() == {"PortDLIDMappingErrors"}
    assert received.unread.keys() == {"PortInactiveDiscards"}
    assert not {"port_dlid_mapping_errors", "port_inactive_discards"} & (
        discards.counters.keys() | received.counters.keys()
    )
    assert (discards.peer_guid, discards.peer_name) == (CARD, "gpu-r02-n02 mlx5_0")
    assert ports(found[LEAF2])[0].rate_gbps == 10.0


def test_the_counters_of_every_port() -> None:
    found = sample("ibqueryerrors_faults--counters.txt")
    kinds = [record.kind for record in found.values()]
    assert (kinds.count("hca"), kinds.count("switch")) == (8, 4)
    assert sum(len(record.ports) for record in found.values()) == 44
    assert ports(found[LEAF1])[3].counters == {
        "port_xmit_data": 123456790668,
        "port_rcv_data": 4968,
        "port_xmit_packets": 69,
        "port_rcv_packets": 69,
        "unicast_xmit_packets": 0,
        "unicast_rcv_packets": 0,
        "multicast_xmit_packets": 0,
        "multicast_rcv_packets": 0,
    }


@pytest.mark.parametrize(
    ("name", "guid", "port", "some"),
    [
        ("perfquery_faulty_port.txt", "lid:2", 3, {"symbol_error": 4000, "link_downed": 15}),
        ("perfquery_clamped.txt", "lid:4", 1, {"symbol_error": 65535, "link_downed": 255}),
        ("perfquery-x_switch_lid2_p3.txt", "lid:2", 3, {"port_xmit_data": 2304}),
    ],
)
def test_a_port_that_perfquery_showed(
    name: str, guid: str, port: int, some: dict[str, int]
) -> None:
    (record,) = sample(name).values()
    assert (record.guid, [one.port for one in record.ports]) == (guid, [port])
    assert record.ports[0].counters.items() >= some.items()
    stuck = ("link_downed", "symbol_error") if "clamped" in name else ()
    assert record.ports[0].saturated == stuck


def test_the_links_that_iblinkinfo_showed() -> None:
    found = sample("iblinkinfo--line.txt")
    assert len(found) == 12
    leaf = ports(found[LEAF1])
    assert [at for at, port in leaf.items() if port.state == "Down"] == [7, 8]
    assert {port.physical_state for port in leaf.values()} == {"LinkUp", "Polling"}
    assert (leaf[5].peer_guid, leaf[5].peer_port, leaf[5].rate_gbps) == (SPINE1, 1, 200.0)
    assert (leaf[3].peer_name, leaf[3].width, leaf[3].width_max) == ("gpu-r01-n02 mlx5_0", 4, 4)
    assert found[SPINE2].kind == "switch"
    assert all(
        port.rate_gbps == port.rate_max_gbps for record in found.values() for port in record.ports
    )


def test_a_link_that_was_unplugged_is_down_and_its_adapter_is_not_there() -> None:
    found = sample("iblinkinfo_unlinked.txt")
    gone = "0x0c42a10300000021"
    assert len(found) == 11
    assert gone not in found
    assert ports(found[LEAF1])[3] == FabricPort(
        port=3, state="Down", physical_state="Polling", lid=2
    )


@pytest.mark.parametrize(
    ("name", "nodes", "peer"),
    [
        ("ibnetdiscover-p.txt", 12, "0x0c42a10300000021"),
        ("flap_down_ibnetdiscover-p.txt", 11, None),
    ],
)
def test_the_map_of_ibnetdiscover(name: str, nodes: int, peer: str | None) -> None:
    found = sample(name)
    assert len(found) == nodes
    leaf = ports(found[LEAF1])
    assert sorted(leaf) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert leaf[3].peer_guid == peer
    assert (leaf[6].peer_guid, leaf[6].peer_port, leaf[6].rate_gbps) == (SPINE2, 1, 200.0)


def test_the_errors_of_the_flap() -> None:
    (leaf,) = sample("flap_down_ibqueryerrors.txt").values()
    assert (leaf.guid, [port.port for port in leaf.ports]) == (LEAF1, [3])
    assert leaf.ports[0].counters == {"symbol_error": 4000, "link_downed": 3}


def test_a_port_that_ibportstate_slowed_down() -> None:
    before, after = records_of("ibportstate_espeed_degrade.txt")
    assert (before.guid, after.guid) == ("lid:2", "lid:2")
    (was,), (now_is,) = before.ports, after.ports
    assert (was.port, was.state, was.width, was.rate_gbps) == (4, "Active", 4, 200.0)
    assert (now_is.port, now_is.state, now_is.width, now_is.rate_gbps) == (4, "Active", 4, 100.0)
