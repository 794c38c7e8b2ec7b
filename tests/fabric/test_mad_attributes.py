"""The decoders on MADs built by the layouts of the architecture."""

import struct
from types import ModuleType

import pytest

from collectors.fabric.counters import saturated
from collectors.fabric.mad_attributes import (
    ClassPortInfo,
    NodeInfo,
    PortInfo,
    class_port_info,
    node_description,
    node_info,
    port_counters,
    port_counters_extended,
    port_info,
    rcv_error_details,
    xmit_discard_details,
)

OLD = ClassPortInfo()
NEW = ClassPortInfo(True, True, True, True, True)


def test_a_switch_says_who_it_is_and_where_the_question_came_in(canned: ModuleType) -> None:
    data = canned.node_info(2, 65, 0x506B4B0300A10000, 0x506B4B0300A10000, 17)
    found = node_info(data)
    assert found == NodeInfo(2, 65, 0x506B4B0300A10000, 0x506B4B0300A10000, 17)
    assert found.is_switch
    assert not node_info(canned.node_info(1, 1, 5, 6, 1)).is_switch


def test_an_ndr_port_tells_its_lanes_and_speeds(canned: ModuleType) -> None:
    found = port_info(canned.port_info(lid=0xBFFF, width=(2, 3, 2), extended=(14, 15, 8)))
    assert found == PortInfo(
        lid=0xBFFF,
        state=4,
        physical_state=5,
        width=4,
        widths_enabled=frozenset({4}),
        widths_supported=frozenset({1, 4}),
        speed=100.0,
        speeds_enabled=frozenset({2.5, 5.0, 10.0, 25.0, 50.0, 100.0}),
        speeds_supported=frozenset({2.5, 5.0, 10.0, 14.0, 25.0, 50.0, 100.0}),
    )


@pytest.mark.parametrize(
    ("speed", "extended", "second", "lane"),
    [
        ((7, 7, 1), (0, 0, 0), (0, 0, 0), 2.5),
        ((7, 7, 4), (0, 0, 0), (0, 0, 0), 10.0),
        ((7, 7, 4), (3, 3, 1), (0, 0, 0), 14.0),
        ((7, 7, 4), (7, 7, 2), (0, 0, 0), 25.0),
        ((7, 7, 4), (15, 15, 4), (0, 0, 0), 50.0),
        ((7, 7, 4), (15, 15, 0), (2, 2, 2), 200.0),
        ((7, 7, 0), (0, 0, 0), (0, 0, 0), None),
    ],
)
def test_a_lane_has_the_speed_of_the_newest_field_that_tells_one(
    canned: ModuleType,
    speed: tuple[int, int, int],
    extended: tuple[int, int, int],
    second: tuple[int, int, int],
    lane: float | None,
) -> None:
    data = canned.port_info(speed=speed, extended=extended, second=second)
    assert port_info(data).speed == lane


@pytest.mark.parametrize(("bit", "lanes"), [(1, 1), (2, 4), (4, 8), (8, 12), (16, 2), (32, None)])
def test_a_width_is_told_in_lanes(canned: ModuleType, bit: int, lanes: int | None) -> None:
    assert port_info(canned.port_info(width=(31, 31, bit))).width == lanes


def test_a_port_that_is_down_has_no_rate_whatever_stands_in_the_fields(canned: ModuleType) -> None:
    found = port_info(canned.port_info(state=1, physical=2))
    assert (found.is_up, found.width, found.speed) == (False, None, None)


def test_a_description_ends_at_the_first_zero_and_holds_nothing_unprintable() -> None:
    assert node_description(b"hgx014 mlx5_3\0rest".ljust(64, b"\0")) == "hgx014 mlx5_3"
    assert node_description(b"a\xff\x1b[2Jb".ljust(64, b"\0")) == "a\ufffd\ufffd[2Jb"


def test_an_agent_says_what_it_counts(canned: ModuleType) -> None:
    assert class_port_info(canned.class_port_info(0)) == OLD
    assert class_port_info(canned.class_port_info(1 << 10)) == ClassPortInfo(wide_data=True)
    everything = 1 << 9 | 1 << 12 | 1 << 15
    assert class_port_info(canned.class_port_info(everything, 1 << 1)) == NEW


def test_the_mandatory_counters_each_have_their_own_bits(canned: ModuleType) -> None:
    data = canned.counters(
        (101, 2, 3, 104, 105, 106, 107, 8, 9), 0xA5, (110, 111, 112, 113, 114, 115, 116)
    )
    found = port_counters(data, NEW)
    assert found == {
        "symbol_error": 101,
        "link_error_recovery": 2,
        "link_downed": 3,
        "port_rcv_errors": 104,
        "port_rcv_remote_physical_errors": 105,
        "port_rcv_switch_relay_errors": 106,
        "port_xmit_discards": 107,
        "port_xmit_constraint_errors": 8,
        "port_rcv_constraint_errors": 9,
        "local_link_integrity_errors": 10,
        "excessive_buffer_overrun_errors": 5,
        "qp1_dropped": 110,
        "vl15_dropped": 111,
        "port_xmit_data": 112,
        "port_rcv_data": 113,
        "port_xmit_packets": 114,
        "port_rcv_packets": 115,
        "port_xmit_wait": 116,
    }
    assert found.keys() - port_counters(data, OLD).keys() == {"qp1_dropped", "port_xmit_wait"}


def test_counters_that_stick_at_their_maximum_are_saturated(canned: ModuleType) -> None:
    full = (0xFFFF, 0xFF, 0xFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFF, 0xFF)
    data = canned.counters(full, 0xFF, (0xFFFF, 0xFFFF, *(0xFFFFFFFF,) * 5))
    found = port_counters(data, NEW)
    assert set(saturated(found)) == set(found)
    less = canned.counters([one - 1 for one in full], 0xEE, (0,) * 7)
    assert saturated(port_counters(less, NEW)) == ()


def test_the_64_bit_error_counters_are_read_where_the_agent_has_them(canned: ModuleType) -> None:
    errors = [0x1_0000_0000 + number for number in range(14)]
    data = canned.extended([1 << 40, 2, 3, 4, 5, 6, 7, 8], errors)
    found = port_counters_extended(data, NEW)
    assert found == {
        "port_xmit_data": 1 << 40,
        "port_rcv_data": 2,
        "port_xmit_packets": 3,
        "port_rcv_packets": 4,
        "unicast_xmit_packets": 5,
        "unicast_rcv_packets": 6,
        "multicast_xmit_packets": 7,
        "multicast_rcv_packets": 8,
        "symbol_error": errors[0],
        "link_error_recovery": errors[1],
        "link_downed": errors[2],
        "port_rcv_errors": errors[3],
        "port_rcv_remote_physical_errors": errors[4],
        "port_rcv_switch_relay_errors": errors[5],
        "port_xmit_discards": errors[6],
        "port_xmit_constraint_errors": errors[7],
        "port_rcv_constraint_errors": errors[8],
        "local_link_integrity_errors": errors[9],
        "excessive_buffer_overrun_errors": errors[10],
        "vl15_dropped": errors[11],
        "port_xmit_wait": errors[12],
        "qp1_dropped": errors[13],
    }
    assert saturated(found, frozenset(found)) == ()
    data_alone = port_counters_extended(data, ClassPortInfo(wide_data=True))
    assert list(data_alone.values()) == [1 << 40, 2, 3, 4]


def test_details_of_errors_and_discards_are_not_mixed_up(canned: ModuleType) -> None:
    assert rcv_error_details(canned.details(50, 0, 0, 4, 0, 6)) == {
        "port_local_physical_errors": 50,
        "port_malformed_packet_errors": 0,
        "port_buffer_overrun_errors": 0,
        "port_dlid_mapping_errors": 4,
        "port_vl_mapping_errors": 0,
        "port_looping_errors": 6,
    }
    assert xmit_discard_details(canned.details(1, 2, 3, 321)) == {
        "port_inactive_discards": 1,
        "port_neighbor_mtu_discards": 2,
        "port_sw_lifetime_limit_discards": 3,
        "port_sw_hoq_lifetime_limit_discards": 321,
    }


def test_an_answer_that_is_too_short_is_misuse() -> None:
    with pytest.raises(struct.error):
        port_info(b"\0" * 63)
