"""The sweeps over a tiny fabric of canned MADs: what the simulator has not."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

from collectors.collector import CollectorError
from collectors.fabric.sweep import Sweeper

CARD, LEAF = 0x98039B0300700000, 0x506B4B0300D10000
FAR = 0x98039B0300700010
EVERYTHING, SECOND = 1 << 9 | 1 << 12 | 1 << 15, 1 << 1


def guid(number: int) -> str:
    return f"0x{number:016x}"


def clock() -> Any:
    times: Iterator[datetime] = (
        datetime(2026, 4, 2, 8, 0, tzinfo=UTC) + timedelta(seconds=n) for n in range(10_000)
    )
    return lambda: next(times)


class Tiny:
    """Two adapters on ports 1 and 2 of a switch of three."""

    def __init__(self, canned: ModuleType) -> None:
        self.canned = canned
        up, down = canned.port_info, canned.port_info(state=1, physical=2)
        self.card = canned.Part(CARD, 1, "hgx031 mlx5_0", 11, {1: up(lid=11)})
        self.far = canned.Part(FAR, 1, "hgx032 mlx5_7", 13, {1: up(lid=13)})
        ports = {0: up(lid=12), 1: up(), 2: up(), 3: down}
        self.leaf = canned.Part(LEAF, 2, "MF0;leaf-9:MQM9700/U1", 12, ports)
        self.card.peers[1], self.leaf.peers[1] = (self.leaf, 1), (self.card, 1)
        self.far.peers[1], self.leaf.peers[2] = (self.leaf, 2), (self.far, 1)
        self.fabric = canned.Fabric(self.card, self.leaf, self.far)
        for part in self.fabric.parts:
            part.performance[canned.CLASS_PORT_INFO, 0] = canned.class_port_info(EVERYTHING, SECOND)
            for number in part.ports:
                part.performance[canned.EXTENDED, number] = canned.extended([0] * 8)

    def count(self, part: Any, number: int, **errors: int) -> None:
        order = ("symbol", "recovery", "downed", "rcv")
        values = [errors.get(name, 0) for name in order] + [0] * 10
        part.performance[self.canned.EXTENDED, number] = self.canned.extended([0] * 8, values)


@pytest.fixture
def tiny(canned: ModuleType) -> Tiny:
    return Tiny(canned)


def ports(records: Any) -> dict[tuple[str, int], Any]:
    return {(one.guid, port.port): port for one in records for port in one.ports}


def test_an_agent_with_64_bit_error_counters_is_asked_one_attribute_a_port(tiny: Tiny) -> None:
    tiny.count(tiny.leaf, 2, symbol=0xFFFF, downed=300)
    sweeper = Sweeper("s", clock(), full_every=1)
    port = ports(sweeper.sweep(tiny.fabric))[guid(LEAF), 2]
    assert (port.counters["symbol_error"], port.counters["link_downed"]) == (0xFFFF, 300)
    assert (len(port.counters), port.saturated) == (22, ())
    tiny.fabric.asked.clear()
    sweeper.sweep(tiny.fabric)
    asked = {attribute for kind, attribute, _ in tiny.fabric.asked if kind == "performance"}
    assert asked == {tiny.canned.EXTENDED}


def test_an_agent_without_64_bits_is_believed_only_as_far_as_its_32(tiny: Tiny) -> None:
    canned = tiny.canned
    tiny.leaf.performance[canned.CLASS_PORT_INFO, 0] = canned.class_port_info(0)
    for number in range(4):
        tiny.leaf.performance[canned.COUNTERS, number] = canned.counters(
            (0,) * 9, 0, (0, 0, 0xFFFFFFFF, 7, 7, 7, 0)
        )
    port = ports(Sweeper("s", clock()).sweep(tiny.fabric))[guid(LEAF), 1]
    assert port.saturated == ("port_xmit_data",)
    assert "port_xmit_wait" not in port.counters


def test_details_that_an_agent_refuses_are_asked_once(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock())
    sweeper.sweep(tiny.fabric)
    for grown in (5, 9):
        tiny.count(tiny.leaf, 2, rcv=grown)
        tiny.fabric.asked.clear()
        port = ports(sweeper.sweep(tiny.fabric))[guid(LEAF), 2]
        assert port.counters["port_rcv_errors"] == grown
        asked = [one for one in tiny.fabric.asked if one[:2] == ("performance", 0x15)]
        assert len(asked) == (grown == 5)
        assert bool(port.unread) == (grown == 5)


def test_counters_that_do_not_come_are_unread_and_the_others_are_told(tiny: Tiny) -> None:
    tiny.leaf.performance[tiny.canned.EXTENDED, 1] = tiny.canned.SILENCE
    found = ports(Sweeper("s", clock()).sweep(tiny.fabric))
    assert found[guid(LEAF), 1].unread == {"counters": tiny.canned.SILENCE}
    assert (found[guid(LEAF), 1].counters, found[guid(LEAF), 1].state) == ({}, "Active")
    assert found[guid(LEAF), 2].counters["symbol_error"] == 0


def test_a_port_whose_counters_return_is_compared_with_what_it_had(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock(), full_every=1)
    tiny.count(tiny.leaf, 2, symbol=40)
    sweeper.sweep(tiny.fabric)
    tiny.leaf.performance[tiny.canned.EXTENDED, 2] = tiny.canned.SILENCE
    assert not ports(sweeper.sweep(tiny.fabric))[guid(LEAF), 2].reset
    tiny.count(tiny.leaf, 2, symbol=3)
    assert ports(sweeper.sweep(tiny.fabric))[guid(LEAF), 2].reset


def old_counters(tiny: Tiny, number: int, symbol: int) -> bytes:
    found: bytes = tiny.canned.counters((symbol, *[0] * 8), 0, (0,) * 7, number)
    return found


def test_errors_that_were_lost_once_are_compared_with_those_before(tiny: Tiny) -> None:
    canned = tiny.canned
    tiny.leaf.performance[canned.CLASS_PORT_INFO, 0] = canned.class_port_info(EVERYTHING)
    for number in range(4):
        tiny.leaf.performance[canned.COUNTERS, number] = old_counters(tiny, number, 50)
    sweeper = Sweeper("s", clock(), full_every=1)
    sweeper.sweep(tiny.fabric)
    tiny.leaf.performance[canned.COUNTERS, 2] = canned.SILENCE
    port = ports(sweeper.sweep(tiny.fabric))[guid(LEAF), 2]
    assert ("port_xmit_data" in port.counters, "symbol_error" in port.counters) == (True, False)
    assert port.unread == {"counters": canned.SILENCE}
    tiny.leaf.performance[canned.COUNTERS, 2] = old_counters(tiny, 2, 4)
    assert ports(sweeper.sweep(tiny.fabric))[guid(LEAF), 2].reset


def test_a_counter_that_came_back_narrower_was_not_cleared(tiny: Tiny) -> None:
    canned = tiny.canned
    tiny.count(tiny.leaf, 2, symbol=70_000)
    sweeper = Sweeper("s", clock(), full_every=1)
    sweeper.sweep(tiny.fabric)
    tiny.leaf.performance[canned.CLASS_PORT_INFO, 0] = canned.class_port_info(EVERYTHING)
    for number in range(4):
        tiny.leaf.performance[canned.COUNTERS, number] = old_counters(tiny, number, 0xFFFF)
    sweeper._walk_at = 0  # a while later
    port = ports(sweeper.sweep(tiny.fabric))[guid(LEAF), 2]
    assert (port.counters["symbol_error"], port.saturated) == (0xFFFF, ("symbol_error",))
    assert not port.reset


def test_a_node_that_is_not_at_its_lid_tells_its_state_and_no_counters(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock())
    sweeper.sweep(tiny.fabric)
    tiny.far.lid = 14  # but its port still says 13, where nobody is now
    for _ in range(2):
        records = sweeper.sweep(tiny.fabric)
        assert not any(one.missing for one in records)
    tiny.far.ports[1] = tiny.canned.port_info(lid=13, extended=(15, 15, 4))
    port = ports(sweeper.sweep(tiny.fabric))[guid(FAR), 1]
    assert (port.state, port.rate_gbps, port.counters) == ("Active", 200, {})
    assert port.unread == {"counters": f"LID 13: {tiny.canned.SILENCE}"}


def test_a_walk_that_took_too_long_makes_nobody_missing(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock(), budget_s=0.05, refresh_s=1e-9)
    sweeper.sweep(tiny.fabric)
    tiny.fabric.crawls = True
    assert [one.missing for one in sweeper.sweep(tiny.fabric)] == [False] * 3


def test_a_lid_that_moved_to_another_node_is_noticed_in_the_same_sweep(tiny: Tiny) -> None:
    canned = tiny.canned
    sweeper = Sweeper("s", clock(), full_every=1)
    tiny.count(tiny.far, 1, symbol=70)
    sweeper.sweep(tiny.fabric)
    tiny.card.lid, tiny.far.lid = 13, 11
    tiny.card.ports[1], tiny.far.ports[1] = canned.port_info(lid=13), canned.port_info(lid=11)
    found = ports(sweeper.sweep(tiny.fabric))
    assert (found[guid(FAR), 1].lid, found[guid(FAR), 1].counters["symbol_error"]) == (11, 70)
    assert (found[guid(CARD), 1].lid, found[guid(CARD), 1].counters["symbol_error"]) == (13, 0)
    assert not any(port.reset for port in found.values())


def test_a_node_that_answers_no_more_while_its_link_is_up_is_missing(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock())
    sweeper.sweep(tiny.fabric)
    tiny.far.answers = False
    records = {one.guid: one for one in sweeper.sweep(tiny.fabric)}
    assert records[guid(FAR)].missing
    assert records[guid(FAR)].host == "hgx032"
    assert not records[guid(LEAF)].missing
    tiny.far.answers = True
    sweeper._walk_at = 0  # a while later
    again = sweeper.sweep(tiny.fabric)
    assert sorted((one.guid, one.missing) for one in again) == [
        (guid(LEAF), False),
        (guid(CARD), False),
        (guid(FAR), False),
    ]


def test_when_our_own_link_is_down_nobody_else_is_called_missing(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock())
    sweeper.sweep(tiny.fabric)
    up = tiny.card.ports[1]
    tiny.card.ports[1] = tiny.canned.port_info(lid=11, state=1, physical=2)
    peers, tiny.card.peers = tiny.card.peers, {}
    tiny.leaf.lid, tiny.far.lid = 0, 0
    (record,) = sweeper.sweep(tiny.fabric)
    assert (record.guid, record.ports[0].state) == (guid(CARD), "Down")
    tiny.card.ports[1], tiny.card.peers, tiny.leaf.lid, tiny.far.lid = up, peers, 12, 13
    assert [one.missing for one in sweeper.sweep(tiny.fabric)] == [False] * 3


def test_one_lost_answer_in_the_walk_makes_nobody_missing(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock(), refresh_s=1e-9)
    sweeper.sweep(tiny.fabric)
    tiny.fabric.lose = {("subnet", tiny.canned.NODE_INFO, LEAF)}
    assert len(sweeper.sweep(tiny.fabric)) == 3
    assert tiny.fabric.lose == set()


def test_a_link_whose_other_end_is_mute_says_so_and_names_who_was_there(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock())
    sweeper.sweep(tiny.fabric)
    tiny.far.answers = False
    port = ports(sweeper.sweep(tiny.fabric))[guid(LEAF), 2]
    assert (port.state, port.peer_guid, port.peer_name) == ("Active", guid(FAR), "hgx032 mlx5_7")
    assert port.unread == {"peer": "the node at the other end does not answer"}


def test_a_missing_node_is_told_for_a_while_and_then_forgotten(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock())
    sweeper.sweep(tiny.fabric)
    tiny.far.answers = False
    told = [len(sweeper.sweep(tiny.fabric)) for _ in range(40)]
    assert (told[0], told[-1]) == (3, 2)
    assert 10 < told.count(3) < 40


def test_what_has_no_lid_yet_is_known_but_not_counted(tiny: Tiny) -> None:
    tiny.far.lid = 0
    tiny.far.ports[1] = tiny.canned.port_info(lid=0, state=2)
    port = ports(Sweeper("s", clock()).sweep(tiny.fabric))[guid(FAR), 1]
    assert (port.state, port.lid, port.counters) == ("Initialize", None, {})
    assert "no LID" in port.unread["counters"]


def test_a_sweep_without_time_says_so_and_makes_nobody_missing(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock(), budget_s=0.01)
    sweeper.sweep(tiny.fabric)
    tiny.fabric.stops = True
    found = sweeper.sweep(tiny.fabric)
    assert [one.missing for one in found] == [False] * 3
    late = tiny.canned.LATE
    port = ports(found)[guid(LEAF), 2]
    assert (port.state, port.counters) == (None, {})
    assert port.unread == {"counters": f"LID 12: {late}", "state": f"LID 12: {late}"}


def test_a_first_look_without_time_is_an_error(tiny: Tiny) -> None:
    tiny.fabric.stops = True
    with pytest.raises(CollectorError, match="no time left to look at the fabric"):
        Sweeper("s", clock(), budget_s=0.01).sweep(tiny.fabric)


def test_a_port_that_does_not_answer_itself_is_an_error(tiny: Tiny) -> None:
    tiny.card.answers = False
    with pytest.raises(CollectorError, match="does not answer its own MADs"):
        Sweeper("s", clock()).sweep(tiny.fabric)


def test_a_link_runs_at_what_both_ends_can_do_and_a_speed_that_was_switched_off_counts(
    tiny: Tiny,
) -> None:
    canned = tiny.canned
    # An HDR adapter under an NDR switch, trained at EDR; and one lane of four.
    tiny.far.ports[1] = canned.port_info(lid=13, width=(3, 3, 1), extended=(2, 7, 2))
    tiny.leaf.ports[2] = canned.port_info(width=(31, 31, 1), extended=(15, 15, 2))
    found = ports(Sweeper("s", clock()).sweep(tiny.fabric))
    for end in ((guid(LEAF), 2), (guid(FAR), 1)):
        port = found[end]
        assert (port.rate_gbps, port.rate_max_gbps, port.width, port.width_max) == (25, 200, 1, 4)
    assert (found[guid(LEAF), 1].rate_gbps, found[guid(LEAF), 1].rate_max_gbps) == (400, 400)


def test_ids_differ_between_sweeps_and_not_between_looks_at_one(tiny: Tiny) -> None:
    sweeper = Sweeper("s", clock())
    first, second = sweeper.sweep(tiny.fabric), sweeper.sweep(tiny.fabric)
    assert len({one.id for one in (*first, *second)}) == 6
    again = Sweeper("s", clock()).sweep(tiny.fabric)
    assert {one.id for one in again} == {one.id for one in first}
