"""Texts of fabric tools in their real shapes, with names, GUIDs and numbers of our own."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from collectors.fabric.text import parse_stream, recognise
from evidence.records import FabricPort, FabricRecord

NOW = datetime(2026, 5, 4, 8, 0, tzinfo=UTC)
LEAF, SPINE = "0x98039b0300a1c0e0", "0x98039b0300b2d140"
#: The adapter's node and port, which differ by one as on older cards.
NODE, PORT = "0x043f720300e10a40", "0x043f720300e10a41"


def parsed(text: str, file: str | None = None) -> list[FabricRecord]:
    lines = text.encode().splitlines(keepends=True)
    return list(parse_stream(lines, subnet="ib0", now=NOW, file=file))


def ports(record: FabricRecord) -> dict[int, FabricPort]:
    return {port.port: port for port in record.ports}


PORT_STATE = """\
Initial Switch PortInfo:
# Port info: Lid 44 port 17
LinkState:.......................Active
PhysLinkState:...................LinkUp
Lid:.............................0
LinkWidthSupported:..............1X or 4X
LinkWidthActive:.................4X
LinkSpeedActive:.................10.0 Gbps
LinkSpeedExtSupported:...........14.0625 Gbps or 25.78125 Gbps or 53.125 Gbps
LinkSpeedExtActive:..............53.125 Gbps
# MLNX ext Port info: Lid 44 port 17
LinkSpeedActive:.................0x00

After PortInfo set:
# Port info: Lid 44 port 17
LinkState:.......................Down
PhysLinkState:...................Polling
LinkWidthActive:.................4X
LinkSpeedActive:.................10.0 Gbps
LinkSpeedExtActive:..............No Extended Speed
Peer PortInfo:
# Port info: DR path slid 65535; dlid 65535; 0,17 port 3
LinkState:.......................Initialize
"""


def test_ibportstate_tells_a_port_before_and_after_it_was_set() -> None:
    assert recognise(PORT_STATE.encode().splitlines())
    before, after = parsed(PORT_STATE)
    assert (before.source, before.guid) == ("ibportstate", "lid:44")
    assert before.ports == (
        FabricPort(
            port=17, lid=44, state="Active", physical_state="LinkUp", width=4, rate_gbps=200.0
        ),
    )
    assert after.ports == (
        FabricPort(
            port=17, lid=44, state="Down", physical_state="Polling", width=4, rate_gbps=40.0
        ),
    )


QUERY_ERRORS = f"""\
Errors for "trn-31 mlx5_4"
   GUID {PORT.replace("0x0", "0x")} port 1: [PortRcvRemotePhysicalErrors == 77]
Errors for {LEAF} "MF0;leaf-09:MQM9700/U1"
   GUID {LEAF} port ALL: [SymbolErrorCounter == 65535] [LinkDownedCounter == 9] [VL15Dropped == 2]
   GUID {LEAF} port 0: [VL15Dropped == 2]
   GUID {LEAF} port 17: [SymbolErrorCounter == 65535] [LinkDownedCounter == 9] [PortXmitWait == 42]

## Summary: 12 nodes checked, 2 bad nodes found
##          44 ports checked, 3 ports have errors beyond threshold
## Thresholds:
## Suppressed:
"""


def test_ibqueryerrors_gives_a_record_a_node_and_never_the_sum_of_its_ports() -> None:
    card, leaf = parsed(QUERY_ERRORS, "q.txt")
    assert (card.guid, card.kind, card.host, card.device) == (PORT, "hca", "trn-31", "mlx5_4")
    assert card.source == "ibqueryerrors"
    assert card.ports == (
        FabricPort(port=1, port_guid=PORT, counters={"port_rcv_remote_physical_errors": 77}),
    )
    assert (leaf.guid, leaf.kind, leaf.host) == (LEAF, "switch", None)
    assert leaf.name == "MF0;leaf-09:MQM9700/U1"
    assert leaf.ports == (
        FabricPort(port=0, counters={"vl15_dropped": 2}),
        FabricPort(
            port=17,
            counters={"symbol_error": 65535, "link_downed": 9, "port_xmit_wait": 42},
            saturated=("symbol_error",),
        ),
    )
    assert (leaf.subnet, leaf.observed_at, leaf.file) == ("ib0", NOW, "q.txt")


def test_details_of_ibqueryerrors_are_not_believed_and_the_link_beside_them_is() -> None:
    text = f"""\
Errors for {LEAF} "MF0;leaf-09:MQM9700/U1"
   GUID {LEAF} port 5: [PortXmitDiscards == 321] [PortDLIDMappingErrors == 321] [PortXmitData == 3744 (14.625KB)]
       Link info:     44   5[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>  {PORT}     12    1[  ] "trn-31 mlx5_4" ( )
"""  # noqa: E501
    (leaf,) = parsed(text)
    (port,) = leaf.ports
    assert port.counters == {"port_xmit_discards": 321, "port_xmit_data": 3744}
    assert port.unread.keys() == {"PortDLIDMappingErrors"}
    assert (port.rate_gbps, port.width, port.state, port.lid) == (400.0, 4, "Active", 44)
    assert (port.peer_guid, port.peer_port, port.peer_name) == (PORT, 1, "trn-31 mlx5_4")


def test_counters_of_a_healthy_fabric_tell_an_adapter_from_a_switch() -> None:
    data = "[PortXmitData == 360 (1.406KB)] [PortRcvPkts == 51 (51.000)]"
    text = f"""\
Data Counters for {NODE} "trn-31 mlx5_4"
   GUID {NODE} port 1: {data}
Data Counters for {LEAF} "Quantum Mellanox Technologies"
   GUID {LEAF} port 0: {data}
   GUID {LEAF} port 1: {data}

## Summary: 2 nodes checked, 0 bad nodes found
"""
    card, leaf = parsed(text)
    assert [card.kind, leaf.kind] == ["hca", "switch"]
    assert card.ports[0].counters == {"port_xmit_data": 360, "port_rcv_packets": 51}
    assert [port.port for port in leaf.ports] == [0, 1]


def test_a_counter_above_its_old_maximum_was_read_with_64_bits_and_is_not_saturated() -> None:
    text = f"""\
Errors for {LEAF} "x"
   GUID {LEAF} port 1: [SymbolErrorCounter == 70123] [PortXmitWait == 4294967295]
   GUID {LEAF} port 2: [LocalLinkIntegrityErrors == 15] [SymbolErrorCounter == 65534]
"""
    (leaf,) = parsed(text)
    assert [port.saturated for port in leaf.ports] == [
        ("port_xmit_wait",),
        ("local_link_integrity_errors",),
    ]


def perfquery(lid: int, port: int | str, mask: str = "0x1300", **counters: int) -> str:
    values = "".join(f"{f'{name}:':.<33}{value}\n" for name, value in counters.items())
    return (
        f"# Port counters: Lid {lid} port {port} (CapMask: {mask})\n"
        f"PortSelect:......................{port}\nCounterSelect:...................0x0000\n{values}"
    )


def test_perfquery_names_a_lid_and_its_ports_are_one_record() -> None:
    text = perfquery(44, 1, SymbolErrorCounter=3, CounterSelect2=0, VL15Dropped=0)
    text += perfquery(44, 2, LinkDownedCounter=255) + perfquery(44, 255, LinkDownedCounter=255)
    (leaf,) = parsed(text)
    assert (leaf.guid, leaf.kind, leaf.source) == ("lid:44", "switch", "perfquery")
    assert leaf.ports == (
        FabricPort(port=1, lid=44, counters={"symbol_error": 3, "vl15_dropped": 0}),
        FabricPort(port=2, lid=44, counters={"link_downed": 255}, saturated=("link_downed",)),
    )


def test_perfquery_x_fills_in_its_64_bits_and_an_adapter_is_not_called_a_switch() -> None:
    text = perfquery(7, 1, "0x1200", SymbolErrorCounter=65535, PortXmitData=4294967295)
    text += """\
# Port extended counters: Lid 7 port 1 (CapMask: 0x1200 CapMask2: 0x0000002)
PortSelect:......................1
PortXmitData:....................4294967295
PortUnicastXmitPkts:.............18446744073709551615
SymbolErrorCounter:..............65535
"""
    (card,) = parsed(text)
    assert card.kind == "unknown"
    assert card.ports[0].counters == {
        "symbol_error": 65535,
        "port_xmit_data": 4294967295,
        "unicast_xmit_packets": 18446744073709551615,
    }
    assert card.ports[0].saturated == ("unicast_xmit_packets",)


def test_perfquerys_own_details_are_right_and_are_read() -> None:
    text = """\
# PortXmitDiscardDetails counters: Lid 2 port 5
PortSelect:......................5
CounterSelect:...................0x0000
PortInactiveDiscards:............0
PortSwHOQLifetimeLimitDiscards:..65535
# PortRcvErrorDetails counters: Lid 2 port 5
PortMalformedPktErrors:..........4
"""
    (record,) = parsed(text)
    assert record.ports[0].counters == {
        "port_inactive_discards": 0,
        "port_sw_hoq_lifetime_limit_discards": 65535,
        "port_malformed_packet_errors": 4,
    }
    assert record.ports[0].saturated == ("port_sw_hoq_lifetime_limit_discards",)


def link(near: str, inside: str, far: str) -> str:
    return f"{near} ==({inside})==>  {far}\n"


UP = " 4X        106.25 Gbps Active/  LinkUp"
DOWN = "                Down/ Polling"
IBLINKINFO = f"""\
CA: trn-31 mlx5_4:
      {PORT}     12    1[  ] ==({UP})==>      44   17[  ] "MF0;leaf-09:MQM9700/U1" ( )
Switch: {LEAF} MF0;leaf-09:MQM9700/U1:
          44   17[  ] ==({UP})==>      12    1[  ] "trn-31 mlx5_4" ( )
          44   18[18] ==({DOWN})==>             [  ] "" ( )
          44   19[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>      45    3[  ] "MF0;spine-2:MQM9700/U1" (Could be 106.25 Gbps)
          44   20[  ] ==( 1X        106.25 Gbps Active/  LinkUp)==>      45    4[  ] "MF0;spine-2:MQM9700/U1" (Could be 4X )
          44   21[  ] ==( 4X        53.125 Gbps  Initialize/  LinkUp)==>      "Port not available"
"""  # noqa: E501


def test_iblinkinfo_tells_states_rates_peers_and_what_a_port_could_do() -> None:
    card, leaf = parsed(IBLINKINFO)
    assert (card.guid, card.kind, card.host, card.device) == (PORT, "hca", "trn-31", "mlx5_4")
    assert card.ports == (
        FabricPort(
            port=1, state="Active", physical_state="LinkUp", rate_gbps=400.0, rate_max_gbps=400.0,
            width=4, width_max=4, lid=12, port_guid=PORT,
            peer_guid=LEAF, peer_port=17, peer_name="MF0;leaf-09:MQM9700/U1",
        ),
    )  # fmt: skip
    assert (leaf.guid, leaf.kind, leaf.name) == (LEAF, "switch", "MF0;leaf-09:MQM9700/U1")
    up, down, slow, narrow, changing = leaf.ports
    assert (up.peer_guid, up.peer_port, up.peer_name) == (PORT, 1, "trn-31 mlx5_4")
    assert down == FabricPort(port=18, state="Down", physical_state="Polling", lid=44)
    assert (slow.rate_gbps, slow.rate_max_gbps, slow.width, slow.width_max) == (100.0, 400.0, 4, 4)
    assert (slow.peer_guid, slow.peer_port) == (None, 3)  # nobody told whose LID 45 is
    assert (narrow.rate_gbps, narrow.rate_max_gbps) == (100.0, 400.0)
    assert (narrow.width, narrow.width_max) == (1, 4)
    assert (changing.state, changing.rate_gbps) == ("Initialize", 200.0)
    assert changing.unread == {"peer": "Port not available"}


@pytest.mark.parametrize(
    ("lanes", "hint", "width_max"), [(4, "12X", 4), (1, "12X", 4), (1, "2X", 2), (12, "12X", 12)]
)
def test_a_port_is_not_called_narrow_for_lanes_it_never_had(
    lanes: int, hint: str, width_max: int
) -> None:
    text = link(f'{LEAF} "  MF0;leaf-09:MQM9700/U1"     44   17[  ]',
                f" {lanes}X        53.125 Gbps Active/  LinkUp",
                f'{PORT}     12    1[  ] "trn-31 mlx5_4" (Could be {hint} )')  # fmt: skip
    (leaf,) = parsed(text)
    (port,) = leaf.ports
    assert (port.width, port.width_max, port.rate_max_gbps) == (lanes, width_max, width_max * 50.0)


def test_iblinkinfo_by_line_says_the_same_and_names_the_peers_guid() -> None:
    text = "ibwarn: [4711] sim_connect: attached as client 1\n"
    text += link(f'{LEAF} "      MF0;leaf-09:MQM9700/U1"     44   17[  ]', UP,
                 f'{PORT}     12    1[  ] "trn-31 mlx5_4" ( )')  # fmt: skip
    text += link(f'{LEAF} "      MF0;leaf-09:MQM9700/U1"     44   18[  ]', DOWN, '[  ] "" ( )')
    text += link(f'{PORT} "               trn-31 mlx5_4"     12    1[  ]', UP,
                 f'{LEAF}     44   17[  ] "MF0;leaf-09:MQM9700/U1" ( )')  # fmt: skip
    leaf, card = parsed(text)
    by_title = parsed(IBLINKINFO)
    assert (leaf.kind, leaf.name, leaf.ports) == (
        "switch", "MF0;leaf-09:MQM9700/U1", by_title[1].ports[:2],
    )  # fmt: skip
    assert (card.kind, card.host, card.ports) == ("hca", "trn-31", by_title[0].ports)


def test_a_cut_line_gives_what_it_says_and_the_next_one_everything() -> None:
    whole = f'{PORT} "               trn-31 mlx5_4"     12    1[  ]'
    text = f'{LEAF} "      MF0;leaf-09:MQM9700/U1"     44   17[  ] ==({UP})==>  0x98039b03\n'
    text += f'{LEAF} "      MF0;leaf-09:MQM9700/U1"     44   18[  ] ==( 4X        106.25 Gb\n'
    text += f'{LEAF} "      MF0;leaf-09:MQM97\n\xff\x00 garbage ==(\n'
    text += link(whole, UP, f'{LEAF}     44   17[  ] "MF0;leaf-09:MQM9700/U1" ( )')
    leaf, card = parsed(text)
    no_peer, no_state = leaf.ports
    assert (no_peer.state, no_peer.rate_gbps, no_peer.peer_guid) == ("Active", 400.0, None)
    assert no_peer.unread.keys() == {"peer"}
    assert (no_state.state, no_state.rate_gbps, no_state.width) == (None, None, None)
    assert no_state.unread.keys() == {"state", "peer"}
    assert card.ports[0].peer_guid == LEAF


def test_an_unknown_speed_is_a_reason_and_not_a_rate() -> None:
    text = link(f'{LEAF} "  MF0;leaf-09:MQM9700/U1"     44   17[  ]',
                " 4X  undefined (128) Active/  LinkUp",
                f'{PORT}     12    1[  ] "trn-31 mlx5_4" ( )')  # fmt: skip
    (leaf,) = parsed(text)
    assert (leaf.ports[0].rate_gbps, leaf.ports[0].width, leaf.ports[0].state) == (
        None, 4, "Active",
    )  # fmt: skip
    assert leaf.ports[0].unread == {"rate_gbps": "unknown speed 'undefined (128)'"}


BY_PORT = f"""\
CA    12  1 {PORT} 4x NDR - SW    44 17 {LEAF} ( 'trn-31 mlx5_4' - 'MF0;leaf-09:MQM9700/U1' )
SW    44 18 {LEAF} 4x SDR                                    'MF0;leaf-09:MQM9700/U1'
SW    44 17 {LEAF} 4x NDR - CA    12  1 {PORT} ( 'MF0;leaf-09:MQM9700/U1' - 'trn-31 mlx5_4' )
"""
NETLIST = f"""\
#
# Topology file: generated on Mon May  4 07:12:09 2026
#
# Initiated from node {NODE[2:]} port {PORT[2:]}

vendid=0x2c9
devid=0xd2f2
sysimgguid={LEAF}
switchguid={LEAF}({LEAF[2:]})
Switch\t64 "S-{LEAF[2:]}"\t\t# "MF0;leaf-09:MQM9700/U1" enhanced port 0 lid 44 lmc 0
[17][ext 9]\t"H-{NODE[2:]}"[1]({PORT[2:]}) \t\t# "trn-31 mlx5_4" lid 12 4xNDR
[19]\t"S-{SPINE[2:]}"[3]\t\t# "MF0;spine-2:MQM9700/U1" lid 45 4xHDR

vendid=0x2c9
devid=0x1021
sysimgguid={NODE}
caguid={NODE}
Ca\t1 "H-{NODE[2:]}"\t\t# "trn-31 mlx5_4"
[1]({PORT[2:]}) \t"S-{LEAF[2:]}"[17]\t\t# lid 12 lmc 0 "MF0;leaf-09:MQM9700/U1" lid 44 4xNDR
"""


def test_ibnetdiscover_by_port_has_no_rate_for_a_port_without_a_peer() -> None:
    card, leaf = parsed(BY_PORT)
    assert (card.guid, card.kind, card.host) == (PORT, "hca", "trn-31")
    assert (card.ports[0].rate_gbps, card.ports[0].peer_guid, card.ports[0].peer_port) == (
        400.0, LEAF, 17,
    )  # fmt: skip
    assert leaf.ports == (
        FabricPort(
            port=17, lid=44, width=4, rate_gbps=400.0,
            peer_guid=PORT, peer_port=1, peer_name="trn-31 mlx5_4",
        ),
        FabricPort(port=18, lid=44),
    )  # fmt: skip


def test_ibnetdiscover_names_nodes_and_when_it_ran() -> None:
    leaf, card = parsed(NETLIST)
    assert (leaf.kind, card.kind) == ("switch", "hca")
    assert leaf.at == card.at == datetime(2026, 5, 4, 7, 12, 9, tzinfo=UTC)
    assert [(p.port, p.peer_guid, p.peer_port, p.rate_gbps) for p in leaf.ports] == [
        (17, NODE, 1, 400.0),
        (19, SPINE, 3, 200.0),
    ]
    assert (card.guid, card.ports[0].port_guid, card.ports[0].lid) == (NODE, PORT, 12)
    assert (card.ports[0].peer_guid, card.ports[0].peer_port) == (LEAF, 17)


def test_what_one_output_tells_of_guids_holds_for_those_after_it() -> None:
    text = NETLIST + QUERY_ERRORS + IBLINKINFO + perfquery(44, 17, SymbolErrorCounter=1)
    records = parsed(text)
    assert [(r.source, r.guid) for r in records] == [
        ("ibnetdiscover", LEAF), ("ibnetdiscover", NODE),
        ("ibqueryerrors", NODE), ("ibqueryerrors", LEAF),
        ("iblinkinfo", NODE), ("iblinkinfo", LEAF),
        ("perfquery", LEAF),
    ]  # fmt: skip
    assert ports(records[5])[17].peer_guid == NODE
    assert (records[6].name, records[6].kind) == ("MF0;leaf-09:MQM9700/U1", "switch")


@pytest.mark.parametrize("text", [QUERY_ERRORS, IBLINKINFO, BY_PORT, NETLIST])
def test_a_second_sweep_in_one_text_gives_its_own_records(text: str) -> None:
    once, twice = parsed(text), parsed(text + text)
    assert [(r.guid, r.name, r.ports) for r in twice] == [
        (r.guid, r.name, r.ports) for r in once + once
    ]
    assert len({r.id for r in twice}) == len(twice)


def test_a_second_perfquery_of_the_same_port_is_a_second_record() -> None:
    first, second = parsed(
        perfquery(4, 1, LinkDownedCounter=1) + perfquery(4, 1, LinkDownedCounter=2)
    )
    assert (first.ports[0].counters, second.ports[0].counters) == (
        {"link_downed": 1}, {"link_downed": 2},
    )  # fmt: skip


def test_the_id_is_that_of_the_content_and_its_place_whenever_it_is_read() -> None:
    lines = QUERY_ERRORS.encode().splitlines()
    later = datetime(2027, 1, 1, tzinfo=UTC)
    one = list(parse_stream(lines, subnet="ib0", now=NOW, file="a"))
    again = list(parse_stream(lines, subnet="ib0", now=later, file="a"))
    elsewhere = list(parse_stream(lines, subnet="ib0", now=NOW, file="b"))
    assert [r.id for r in one] == [r.id for r in again]
    assert {r.id for r in one}.isdisjoint(r.id for r in elsewhere)


@pytest.mark.parametrize("value", ["-1", "0x10", "N/A", "9" * 5000, str(1 << 64)])
def test_a_value_that_is_no_counter_is_a_reason(value: str) -> None:
    text = f"# Port counters: Lid 4 port 1\nSymbolErrorCounter:..............{value}\n"
    (record,) = parsed(text + "LinkDownedCounter:...............7\n")
    assert record.ports[0].counters == {"link_downed": 7}
    assert record.ports[0].unread.keys() == {"symbol_error"}


@pytest.mark.parametrize(
    "text",
    [
        QUERY_ERRORS, IBLINKINFO, BY_PORT, NETLIST, perfquery(4, 1, SymbolErrorCounter=0),
        "## Summary: 12 nodes checked, 0 bad nodes found\n",
        "\nOperational Info\n----------------\nState : Active\n",
        '{\n"result" : {\n"output" : {\n"Module Info" : {\n',
    ],
)  # fmt: skip
def test_the_tools_are_recognised_after_a_prompt_and_a_warning(text: str) -> None:
    head = f"$ some-tool --line\nibwarn: [1] nothing\n{text}".encode().splitlines(keepends=True)
    assert recognise(head)


@pytest.mark.parametrize(
    "text",
    [
        "[ 9.1] NVRM: Xid (PCI:0000:4f:00): 79, pid=1, GPU has fallen off the bus.",
        "n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.1.2.3<0>",
        "Errors for the third time, port 3: gave up ==( ",
        '{"a": 1}',
        "index, uuid, Switch: 3",
        "",
    ],
)
def test_other_logs_are_not_taken_for_a_fabrics(text: str) -> None:
    assert not recognise([text.encode()])
    assert parsed(text + "\n")[:1] in ([], parsed('{"a": 1}\n'))


@pytest.mark.parametrize(
    "line",
    [
        f"SW    44 18 {LEAF} 4x SDR - CA 1 1 0x1 ( '" + "' - '" * 100_000,
        f'{LEAF} "a" 1 1[ ] ==( 4X 53.125 Gbps Active/ LinkUp)==> 0x1 1 1[ ] "' + '" (' * 100_000,
        '"' + " " * 200_000,
        " ==(" * 50_000,
        f"   GUID {LEAF} port 1:" + "[" * 200_000,
        "\xff" * 300_000,
    ],
)
@pytest.mark.timeout(30)  # without a bound on its length such a line takes minutes
def test_a_hostile_line_is_passed_over(line: str) -> None:
    assert {record.guid for record in parsed(f"{line}\n{QUERY_ERRORS}")} >= {PORT, LEAF}


def test_an_input_that_breaks_off_gives_its_records_before_its_error() -> None:
    def broken() -> Iterator[bytes]:
        yield from QUERY_ERRORS.encode().splitlines()[:2]
        raise EOFError("cut")

    records = parse_stream(broken(), subnet="s", now=NOW)
    assert next(records).guid == PORT
    with pytest.raises(EOFError, match="cut"):
        next(records)
