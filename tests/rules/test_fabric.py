"""The fabric stage: links are judged by what their counters grew by, from both of their ends."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence.decisions import Cause, DomainKind, Says, Status, Suspicion, Verdict
from evidence.identity import digest
from evidence.records import FabricPort, FabricRecord, Optics, Tick
from rules import fabric, tables
from rules.fabric_state import FabricState
from rules.stage import Arrived
from rules.tables import Rules

START = datetime(2026, 4, 11, 21, 0, tzinfo=UTC)
LEAF, SPINE = "0x506b4b0300aa0010", "0x506b4b0300aa0090"
NODES = 16
UPLINK = 40


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def adapter(number: int) -> str:
    return f"0x506b4b0300bb{number:04x}"


def downlink(number: int, **fields: Any) -> FabricPort:
    """A port of the leaf, cabled to the adapter of node ``number``."""
    plain: dict[str, Any] = {
        "state": "active",
        "rate_gbps": 400.0,
        "rate_max_gbps": 400.0,
        "peer_guid": adapter(number),
        "peer_port": 1,
        "peer_name": f"hgx{number:02d} mlx5_4",
    }
    return FabricPort(port=number, **(plain | fields))


def uplink(**fields: Any) -> FabricPort:
    """The leaf's port to the spine."""
    plain: dict[str, Any] = {
        "state": "active",
        "peer_guid": SPINE,
        "peer_port": 3,
        "peer_name": "spine-a",
    }
    return FabricPort(port=UPLINK, **(plain | fields))


@dataclass(slots=True)
class Subnet:
    """Feeds sweeps of one leaf and its spine, ten seconds apart, and keeps what was said."""

    rules: Rules
    state: FabricState = field(default_factory=FabricState)
    said: list[Suspicion | Verdict] = field(default_factory=list)

    def sweep(self, seconds: float, *bad: FabricPort, guid: str = LEAF, **fields: Any) -> None:
        ports = {number: downlink(number) for number in range(1, NODES + 1)}
        ports[UPLINK] = uplink()
        if guid == SPINE:
            far = {"peer_guid": LEAF, "peer_port": UPLINK, "peer_name": "leaf-a"}
            ports = {3: FabricPort(port=3, state="active", **far)}
        ports |= {port.port: port for port in bad}
        record = FabricRecord(
            id=digest(guid, seconds),
            observed_at=at(seconds),
            at=at(seconds),
            subnet="ib0",
            guid=guid,
            name="leaf-a" if guid == LEAF else "spine-a",
            ports=tuple(ports.values()) if not fields.get("missing") else (),
            **fields,
        )
        self.take(record, seconds + 0.4)

    def take(self, record: Any, seconds: float) -> None:
        self.state, said = fabric.step(
            self.state, Arrived("fabric", record, at(seconds)), self.rules
        )
        self.said += said

    def tick(self, seconds: float) -> None:
        self.take(Tick(id=f"t{seconds}", at=at(seconds)), seconds)

    def run(self, seconds: float, until: float, *bad: FabricPort) -> None:
        """Sweep every ten seconds with the same ports."""
        while seconds < until:
            self.sweep(seconds, *bad)
            self.tick(seconds + 5)
            seconds += 10

    def told(self) -> list[str]:
        return [f"{one.status} {one.cause} {one.domain.id}" for one in self.said]


@pytest.fixture(scope="module")
def rules() -> Rules:
    return tables.load()


@pytest.fixture
def subnet(rules: Rules) -> Subnet:
    return Subnet(rules)


def test_what_counters_stand_at_when_first_seen_is_where_they_begin(subnet: Subnet) -> None:
    subnet.run(0, 120, downlink(3, counters={"symbol_error": 40_000, "link_downed": 9}))
    assert subnet.said == []


def test_symbol_errors_that_grow_are_told_to_the_host_at_the_other_end(subnet: Subnet) -> None:
    subnet.sweep(0)
    for step in range(1, 8):
        subnet.sweep(step * 10, downlink(3, counters={"symbol_error": step * 400}))
        subnet.tick(step * 10 + 5)
    first, *_, last = subnet.said
    assert isinstance(last, Suspicion)
    assert (last.host, last.domain.switch, last.domain.port) == ("hgx03", LEAF, 3)
    assert (last.domain.kind, last.cause, last.says) == (
        DomainKind.LINK,
        Cause.IB_LINK,
        Says.ACCUSES,
    )
    assert last.status is Status.LOCALIZED
    assert "leaf-a port 3" in last.reason
    assert "symbol errors" in last.reason
    assert "mlx5_4" in last.reason
    assert first.domain == last.domain
    assert last.evidence


@pytest.mark.parametrize(
    "counters",
    [
        {"port_rcv_remote_physical_errors": 5_000, "port_rcv_errors": 5_000},
        {"port_xmit_wait": 4_000_000_000},
        {"port_xmit_discards": 9_000},
        {"port_rcv_switch_relay_errors": 60_000},
        {"vl15_dropped": 20_000, "port_rcv_constraint_errors": 200},
    ],
)
def test_upstream_errors_congestion_and_configuration_accuse_nobody(
    subnet: Subnet, counters: dict[str, int]
) -> None:
    subnet.sweep(0)
    subnet.run(10, 120, downlink(5, counters=counters))
    assert subnet.said == []


def test_a_counter_that_was_cleared_has_not_grown(subnet: Subnet) -> None:
    subnet.sweep(0, downlink(3, counters={"symbol_error": 50_000}))
    subnet.sweep(10, downlink(3, counters={"symbol_error": 7}, reset=True))
    subnet.run(20, 100, downlink(3, counters={"symbol_error": 7}))
    assert subnet.said == []


def test_a_port_that_could_not_be_read_at_first_begins_where_it_is_read(subnet: Subnet) -> None:
    subnet.sweep(0, downlink(3, unread={"counters": "no answer"}))
    subnet.run(10, 60, downlink(3, unread={"counters": "no answer"}))
    subnet.run(60, 200, downlink(3, counters={"symbol_error": 40_000, "link_downed": 9}))
    assert subnet.said == []
    subnet.run(200, 300, downlink(3, counters={"symbol_error": 44_000, "link_downed": 9}))
    assert subnet.said != []


def test_a_switch_that_did_not_answer_at_first_begins_where_it_answers(subnet: Subnet) -> None:
    subnet.sweep(0, missing=True)
    subnet.run(10, 100, downlink(3, counters={"symbol_error": 40_000}))
    assert subnet.said == []


def test_a_port_for_which_there_was_no_room_begins_when_there_is(
    subnet: Subnet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric, "_PORTS_MAX", 2)
    worn = [downlink(n, counters={"symbol_error": 40_000, "link_downed": 7}) for n in (1, 2, 3)]
    subnet.run(0, 60, *worn)
    cleared = [downlink(n, counters={"symbol_error": 0}, reset=True) for n in (1, 2)]
    subnet.run(60, 200, *cleared, worn[2])
    assert subnet.said == []
    subnet.run(200, 300, *cleared, downlink(3, counters={"symbol_error": 44_000, "link_downed": 7}))
    assert subnet.said != []


def test_a_counter_that_is_read_with_more_bits_has_not_grown(subnet: Subnet) -> None:
    full = downlink(3, counters={"symbol_error": 65_535}, saturated=("symbol_error",))
    subnet.run(0, 60, full)
    subnet.run(60, 120, downlink(3, counters={"symbol_error": 4_000_000}))
    assert subnet.said == []


def test_the_errors_of_a_link_that_trains_anew_are_those_of_its_training(subnet: Subnet) -> None:
    subnet.sweep(0)
    burst = {"symbol_error": 5_000, "link_error_recovery": 6, "link_downed": 1}
    subnet.run(10, 400, downlink(3, counters=burst))
    assert {one.status for one in subnet.said} == {Status.SUSPECTED}
    more = burst | {"symbol_error": 6_500}
    subnet.run(400, 500, downlink(3, counters=more))
    assert subnet.said[-1].status is Status.LOCALIZED


@pytest.mark.parametrize("known", [True, False])
def test_a_port_that_is_down_is_no_fault_while_nobody_knows_what_is_behind_it(
    subnet: Subnet, known: bool
) -> None:
    nobody: dict[str, Any] = {"peer_guid": None, "peer_port": None, "peer_name": None}
    told = {} if known else nobody
    subnet.sweep(0)
    subnet.run(10, 600, downlink(3, state="down", **told))
    assert subnet.said[-1].status is (Status.LOCALIZED if known else Status.SUSPECTED)
    assert isinstance(subnet.said[-1], Suspicion) is known


def test_a_cable_that_lights_up_at_another_port_left_its_old_one_empty(subnet: Subnet) -> None:
    subnet.sweep(0, downlink(12, state="down", peer_guid=None, peer_port=None, peer_name=None))
    gone = downlink(3, state="down")
    subnet.run(10, 60, gone, downlink(12, state="down", peer_guid=None))
    moved = {"peer_guid": adapter(3), "peer_name": "hgx03 mlx5_4"}
    subnet.run(60, 1_500, gone, downlink(12, **moved))
    assert [one.status for one in subnet.said if one.status is Status.LOCALIZED] == []
    assert subnet.state.said == {}
    subnet.run(1_500, 1_520, downlink(3), downlink(12, **moved))
    subnet.run(1_520, 2_000, downlink(3, state="down"), downlink(12, **moved))
    assert subnet.said[-1].status is Status.LOCALIZED


@pytest.mark.parametrize("name", ["", "   "])
def test_a_node_or_switch_that_calls_itself_by_blanks_has_no_name(
    subnet: Subnet, name: str
) -> None:
    blank = {"peer_name": name, "peer_guid": SPINE}
    spine = FabricRecord(
        id="s", observed_at=at(0), at=at(0), subnet="ib0", guid=SPINE, name=name, ports=()
    )
    subnet.take(spine, 0)
    subnet.sweep(1)
    subnet.run(10, 200, downlink(3, counters={"symbol_error": 5_000}, **blank))
    assert subnet.told() == [f"localized ib-link link:{LEAF}/3"]


def test_a_counter_that_reads_as_all_ones_once_was_misread(subnet: Subnet) -> None:
    subnet.sweep(0)
    subnet.run(10, 20, downlink(3, counters={"symbol_error": (1 << 32) - 1}))
    subnet.run(20, 200, downlink(3))
    assert subnet.said == []


def test_a_burst_on_all_ports_of_a_switch_is_over_when_it_is_not_counted_on(
    subnet: Subnet,
) -> None:
    for number, expected in ((1, {"suspected"}), (400, {"suspected", "localized"})):
        switch = Subnet(subnet.rules)
        switch.sweep(0)
        for seconds in range(10, 1_500, 10):
            errors = 5_000 + min(seconds // 10, number) * 100
            worn = [downlink(n, counters={"symbol_error": errors}) for n in range(1, 17)]
            switch.sweep(seconds, *worn)
            switch.tick(seconds + 5)
        assert {str(one.status) for one in switch.said} == expected


def test_a_link_that_was_narrow_when_first_seen_may_be_split_and_is_only_suspected(
    subnet: Subnet,
) -> None:
    subnet.run(0, 900, downlink(9, width=2, width_max=4))
    assert {one.status for one in subnet.said} == {Status.SUSPECTED}
    subnet.run(900, 1_500, downlink(9, width=1, width_max=4))
    assert subnet.said[-1].status is Status.LOCALIZED


@pytest.mark.parametrize("off_s", [-3_600, 3_600])
def test_a_node_whose_clock_is_an_hour_off_has_no_link_that_is_down_for_an_hour(
    subnet: Subnet, off_s: int
) -> None:
    for seconds in range(0, 700, 10):
        state = "down" if 100 <= seconds < 130 or seconds >= 300 else "active"
        record = FabricRecord(
            id=digest("hca", seconds), observed_at=at(seconds + off_s), at=at(seconds + off_s),
            subnet="ib0", guid=adapter(7), kind="hca", host="hgx07", device="mlx5_4",
            source="sysfs", ports=(FabricPort(port=1, state=state),),
        )  # fmt: skip
        subnet.take(record, seconds)
        subnet.tick(seconds + 5)
        sure = [one for one in subnet.said if one.status is Status.LOCALIZED]
        assert bool(sure) is (seconds >= 540)


def test_a_counter_that_stays_at_its_maximum_says_nothing_more(subnet: Subnet) -> None:
    stuck = downlink(3, counters={"symbol_error": 65_535}, saturated=("symbol_error",))
    subnet.sweep(0, stuck)
    subnet.run(10, 200, stuck)
    assert subnet.said == []


def test_one_that_reaches_its_maximum_has_grown_by_at_least_that(subnet: Subnet) -> None:
    subnet.sweep(0)
    subnet.run(10, 60, downlink(3, counters={"symbol_error": 65_535}, saturated=("symbol_error",)))
    assert subnet.told()[-1] == f"localized ib-link link:{LEAF}/3"


def test_a_port_that_was_never_up_is_no_fault(subnet: Subnet) -> None:
    dark = FabricPort(port=30, state="down", physical_state="polling")
    subnet.sweep(0, dark)
    subnet.run(10, 600, dark)
    assert subnet.said == []


def test_a_device_is_known_from_its_first_full_record_on(subnet: Subnet) -> None:
    dark = FabricPort(port=30, state="down", physical_state="polling")
    subnet.sweep(0, dark, partial=True)
    assert subnet.state.devices == {}
    subnet.run(10, 600, dark)
    assert subnet.said == []


def test_a_port_that_goes_down_is_watched_and_then_a_fault(subnet: Subnet) -> None:
    subnet.sweep(0)
    subnet.run(10, 420, downlink(7, state="down"))
    assert subnet.told() == [
        f"suspected ib-link link:{LEAF}/7",
        f"localized ib-link link:{LEAF}/7",
    ]
    assert {one.kind for one in subnet.said if isinstance(one, Suspicion)} == {"ib-down"}


def test_a_node_that_restarts_takes_its_port_down_once_and_that_is_no_fault(
    subnet: Subnet,
) -> None:
    subnet.sweep(0)
    subnet.run(10, 100, downlink(7, state="down"))
    subnet.run(100, 900, downlink(7, counters={"link_downed": 1}))
    assert {one.status for one in subnet.said} <= {Status.SUSPECTED, Status.RECOVERED}


def test_three_flaps_within_hours_are_a_fault(subnet: Subnet) -> None:
    subnet.sweep(0)
    for turn in range(3):
        begin = 100 + turn * 3_000
        subnet.run(begin, begin + 30, downlink(7, state="down"))
        subnet.run(begin + 30, begin + 100)
    assert subnet.told()[-1] == f"localized ib-link link:{LEAF}/7"


def test_a_link_that_runs_too_slow_is_never_more_than_suspected(subnet: Subnet) -> None:
    subnet.sweep(0)
    subnet.run(10, 2_000, downlink(9, rate_gbps=100.0))
    assert subnet.told() == [f"suspected ib-link link:{LEAF}/9"]
    assert "100 of 400 Gb/s" in subnet.said[0].reason


def test_a_link_that_lost_lanes_for_minutes_is_a_fault(subnet: Subnet) -> None:
    subnet.sweep(0)
    subnet.run(10, 400, downlink(9, width=1, width_max=4))
    assert subnet.told() == [
        f"suspected ib-link link:{LEAF}/9",
        f"localized ib-link link:{LEAF}/9",
    ]
    assert "1 of 4 lanes" in subnet.said[-1].reason


def test_a_node_whose_adapters_are_told_too_is_still_told_of_its_link(subnet: Subnet) -> None:
    subnet.sweep(0)
    record = FabricRecord(
        id="hca", observed_at=at(1), at=at(1), subnet="ib0", guid=adapter(7), kind="hca",
        name="hgx07 mlx5_4", host="hgx07", device="mlx5_4", source="sysfs",
        ports=(FabricPort(port=1, state="active", peer_guid=LEAF, peer_port=7),),
    )  # fmt: skip
    subnet.take(record, 1.5)
    subnet.run(10, 420, downlink(7, state="down"))
    assert {type(one) for one in subnet.said} == {Suspicion}
    assert {one.domain.id for one in subnet.said} == {f"link:{LEAF}/7"}


def test_a_module_outside_its_own_limits_is_suspected_and_no_more(subnet: Subnet) -> None:
    dim = Optics(rx_dbm=(-1.2, -14.7, -1.1, -1.3), rx_low_dbm=-10.4, rx_high_dbm=6.0)
    well = Optics(rx_dbm=(-1.2, -1.4, -1.1, -1.3), rx_low_dbm=-10.4, rx_high_dbm=6.0)
    subnet.sweep(0, downlink(5, optics=well))
    assert subnet.state.ports == {}
    subnet.run(10, 60, downlink(5, optics=dim))
    subnet.run(60, 120)
    assert subnet.told() == [f"suspected ib-link link:{LEAF}/5"]
    assert "receives -14.7 dBm" in subnet.said[0].reason
    subnet.run(120, 160, downlink(5, optics=well))
    assert subnet.told()[-1] == f"recovered ib-link link:{LEAF}/5"


def test_a_link_between_switches_has_no_host_and_is_a_verdict_once(subnet: Subnet) -> None:
    subnet.sweep(0)
    subnet.sweep(1, guid=SPINE)
    bad = {"symbol_error": 3_000}
    for seconds in range(10, 100, 10):
        subnet.sweep(seconds, uplink(counters=bad))
        far = {"peer_guid": LEAF, "peer_port": UPLINK, "peer_name": "leaf-a"}
        subnet.sweep(seconds + 1, FabricPort(port=3, state="active", counters=bad, **far),
                     guid=SPINE)  # fmt: skip
        subnet.tick(seconds + 5)
    (told,) = subnet.said
    assert isinstance(told, Verdict)
    assert (told.status, told.cause) == (Status.LOCALIZED, Cause.IB_LINK)
    assert told.domain.id == f"link:{LEAF}/{UPLINK}"
    assert "leaf-a port 40" in told.reason
    assert "spine-a port 3" in told.reason


def test_a_switch_that_restarts_is_one_event_and_commands_nothing(subnet: Subnet) -> None:
    subnet.sweep(0)
    down = [downlink(number, state="down") for number in range(1, NODES + 1)]
    subnet.run(10, 200, *down, uplink(state="down"))
    subnet.run(200, 5_000)
    assert subnet.told()[0] == f"suspected ib-switch switch:{LEAF}"
    assert subnet.told()[-1] == f"recovered ib-switch switch:{LEAF}"
    assert not any(one.status is Status.LOCALIZED for one in subnet.said)
    assert not any(one.domain.kind is DomainKind.LINK for one in subnet.said)


def test_a_switch_whose_links_stay_bad_is_the_part_at_fault(subnet: Subnet) -> None:
    subnet.sweep(0)
    down = [downlink(number, state="down") for number in range(1, NODES + 1)]
    subnet.run(10, 1_100, *down)
    assert subnet.told() == [
        f"suspected ib-switch switch:{LEAF}",
        f"localized ib-switch switch:{LEAF}",
    ]
    assert len({one.incident for one in subnet.said if isinstance(one, Verdict)}) == 1


def test_a_switch_that_restarts_beside_one_that_is_gone_is_forgiven_its_links(
    subnet: Subnet,
) -> None:
    down = [downlink(number, state="down") for number in range(1, NODES + 1)]
    subnet.sweep(0)
    subnet.sweep(0, guid=SPINE)
    subnet.run(10, 60, *down, uplink(state="down"))
    for seconds in range(60, 130, 20):
        subnet.run(seconds, seconds + 10, *down)
        subnet.run(seconds + 10, seconds + 20, *down, uplink(state="down"))
    subnet.sweep(140, guid=SPINE, missing=True)
    subnet.sweep(141)
    subnet.tick(160)
    assert subnet.told()[-1] == f"recovered ib-switch switch:{LEAF}"
    assert Status.LOCALIZED not in {one.status for one in subnet.said}


def test_a_few_nodes_that_go_down_together_are_no_switch(subnet: Subnet) -> None:
    subnet.sweep(0)
    down = [downlink(number, state="down") for number in range(1, 7)]
    subnet.run(10, 120, *down)
    assert {one.domain.kind for one in subnet.said} == {DomainKind.LINK}
    assert len(subnet.said) == 6


def test_an_overtaken_sweep_changes_nothing(subnet: Subnet) -> None:
    subnet.sweep(0)
    subnet.sweep(20, downlink(3, counters={"symbol_error": 5_000}))
    known = subnet.state
    subnet.sweep(10)
    assert subnet.state is known


def test_a_quiet_fabric_writes_no_state_and_leaves_none(subnet: Subnet) -> None:
    subnet.sweep(0)
    known = subnet.state
    data = downlink(3, counters={"port_xmit_data": 9_812_312_331, "port_rcv_packets": 77_123})
    subnet.sweep(10, data)
    assert subnet.state is known
    assert subnet.state.ports == {}
    assert fabric.due(subnet.state) is None


def test_the_state_of_ten_thousand_ports_fits_into_a_message(rules: Rules) -> None:
    subnet = Subnet(rules)
    for switch in range(160):
        for seconds, errors in ((0, 0), (10, 3)):
            ports = tuple(
                FabricPort(
                    port=number,
                    state="active",
                    counters={"symbol_error": errors, "port_rcv_errors": errors},
                    peer_guid=adapter(switch * 64 + number),
                    peer_port=1,
                    peer_name=f"hgx{switch * 64 + number:05d} mlx5_0",
                )
                for number in range(1, 65)
            )
            record = FabricRecord(
                id=digest(switch, seconds), observed_at=at(seconds), at=at(seconds), subnet="ib0",
                guid=f"0x506b4b0300{switch:06x}", name=f"leaf-{switch}", ports=ports,
            )  # fmt: skip
            subnet.take(record, seconds + switch / 1000)
    assert subnet.state.dropped > 0
    assert len(msgspec.json.encode(subnet.state)) < 4 << 20
    subnet.tick(60)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_order_in_which_switches_and_ports_arrive_changes_nothing(seed: int) -> None:
    loaded = tables.load()

    def told(order: random.Random) -> list[str]:
        subnet = Subnet(loaded)
        for seconds in range(0, 100, 10):
            grown = {"symbol_error": seconds * 60}
            far = {"peer_guid": LEAF, "peer_port": UPLINK, "peer_name": "leaf-a"}
            mine = [
                downlink(2, counters=grown),
                downlink(8, counters=grown),
                uplink(counters=grown),
            ]
            order.shuffle(mine)
            turns = [
                lambda s=seconds, m=mine: subnet.sweep(s, *m),
                lambda s=seconds, g=grown, f=far: subnet.sweep(
                    s, FabricPort(port=3, state="active", counters=g, **f), guid=SPINE
                ),
            ]
            order.shuffle(turns)
            for turn in turns:
                turn()
            subnet.tick(seconds + 5)
        return sorted(f"{one.status} {one.domain.id} {one.reason}" for one in subnet.said)

    assert told(random.Random(seed)) == told(random.Random(seed + 1))


def test_what_was_said_is_taken_back_when_an_hour_passed_without_an_error(subnet: Subnet) -> None:
    subnet.sweep(0)
    subnet.run(10, 60, downlink(3, counters={"symbol_error": 2_000}))
    for minutes in range(1, 80):
        subnet.tick(60 + minutes * 60)
    assert subnet.told()[-1] == f"recovered ib-link link:{LEAF}/3"
    assert subnet.said[-1].says is Says.CLEARS  # type: ignore[union-attr]
    assert fabric.due(subnet.state) is None
