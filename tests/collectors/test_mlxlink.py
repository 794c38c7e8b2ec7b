"""What mlxlink prints, from files an operator's timer writes and from a program that is run."""

import json
import os
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from collectors.collector import CollectorError, Unavailable
from collectors.fabric.mlxlink import MlxlinkCollector
from collectors.fabric.text import parse_stream
from evidence.records import FabricRecord, Optics

NOW = datetime(2026, 5, 4, 8, 0, tzinfo=UTC)
OPTICAL: dict[str, dict[str, Any]] = {
    "Operational Info": {
        "State": "Active",
        "Physical state": "LinkUp",
        "Speed": "IB-NDR",
        "Width": "4x",
    },
    "Physical Counters and BER Info": {
        "Time Since Last Clear [Min]": "171.3",
        "Symbol Errors": "12",
        "Symbol BER": "15E-255",
        "Effective Physical Errors": "3",
        "Effective Physical BER": "2E-15",
        "Raw Physical Errors Per Lane": {"values": ["11", "0", "7", "N/A"]},
        "Raw Physical BER": "4E-10",
        "Link Down Counter": "2",
        "Link Error Recovery Counter": "N/A",
    },
    "Module Info": {
        "Temperature [C]": "54 [-5..75]",
        "Voltage [mV]": "3261.2 [2970..3630]",
        "Bias Current [mA]": "8.380,8.381,0.5,8.383 [2..15]",
        "Rx Power Current [dBm]": "1.886,-inf,2.281,1.976 [-10.41..6]",
        "Tx Power Current [dBm]": "1.562,1.427,1.559,1.761 [-8.508..5]",
        "Cable Type": "Optical Module (separated)",
        "Vendor Name": "ACME OPTICS",
        "Vendor Part Number": "AC-OSFP-400",
        "Vendor Serial Number": "AC55D0117",
    },
}
COPPER = {
    "Temperature [C]": "0 [0..0]",
    "Voltage [mV]": "0 [0..0]",
    "Bias Current [mA]": "0,0,0,0 [0..0]",
    "Rx Power Current [dBm]": "N/A",
    "Tx Power Current [dBm]": "0,0,0,0 [0..0]",
    "Cable Type": "Passive copper cable",
    "Vendor Name": "ACME",
    "Vendor Part Number": "AC-DAC-1",
    "Vendor Serial Number": "AC77",
    "Rx LOS [per lane]": "1,0,1,1",
}


def as_json(sections: dict[str, dict[str, Any]], code: int = 0, message: str = "success") -> str:
    found = {"result": {"output": sections}, "status": {"code": code, "message": message}}
    return json.dumps(found, indent=4)


def as_text(sections: dict[str, dict[str, Any]]) -> str:
    lines = []
    for title, fields in sections.items():
        lines += ["", title, "-" * len(title)]
        for name, value in fields.items():
            text = ",".join(value["values"]) if isinstance(value, dict) else value
            lines.append(f"{name:<35}: \x1b[32m{text}\x1b[0m")
    return "\n".join(lines) + "\n"


def parsed(text: str, file: str | None = "mlx5_6.json") -> list[FabricRecord]:
    return list(parse_stream(text.encode().splitlines(), subnet="ib0", now=NOW, file=file))


@pytest.mark.parametrize("shape", [as_json, as_text], ids=["json", "text"])
def test_a_module_tells_its_light_its_errors_and_its_limits(
    shape: Callable[[dict[str, dict[str, Any]]], str],
) -> None:
    (record,) = parsed(shape(OPTICAL))
    assert (record.source, record.kind, record.device) == ("mlxlink", "hca", "mlx5_6")
    (port,) = record.ports
    assert (port.port, port.state, port.physical_state) == (1, "Active", "LinkUp")
    assert (port.rate_gbps, port.width) == (400.0, 4)
    assert port.counters == {
        "phy_symbol_errors": 12, "phy_effective_errors": 3, "phy_link_downed": 2,
        "phy_raw_errors_lane0": 11, "phy_raw_errors_lane1": 0, "phy_raw_errors_lane2": 7,
    }  # fmt: skip
    assert port.optics == Optics(
        vendor="ACME OPTICS", part="AC-OSFP-400", serial="AC55D0117",
        temperature_c=54.0, temperature_high_c=75.0, voltage_v=3.2612,
        bias_ma=(8.38, 8.381, 0.5, 8.383),
        rx_dbm=(1.886, -40.0, 2.281, 1.976), rx_low_dbm=-10.41, rx_high_dbm=6.0,
        tx_dbm=(1.562, 1.427, 1.559, 1.761), tx_low_dbm=-8.508, tx_high_dbm=5.0,
        raw_ber=4e-10, effective_ber=2e-15, symbol_ber=None,
    )  # fmt: skip
    assert port.unread == {
        "phy_link_error_recovery": "N/A", "phy_raw_errors_lane3": "N/A", "symbol_ber": "15E-255",
    }  # fmt: skip


@pytest.mark.parametrize("shape", [as_json, as_text], ids=["json", "text"])
def test_zeros_of_copper_are_no_values(
    shape: Callable[[dict[str, dict[str, Any]]], str],
) -> None:
    (record,) = parsed(shape({"Operational Info": {"State": "Active"}, "Module Info": COPPER}))
    assert record.ports[0].optics == Optics(vendor="ACME", part="AC-DAC-1", serial="AC77")
    assert record.ports[0].unread == {"optics": "Passive copper cable"}


def test_zeros_without_limits_are_no_values_whatever_the_cable() -> None:
    (record,) = parsed(as_json({"Module Info": COPPER | {"Cable Type": "Active cable"}}))
    optics, unread = record.ports[0].optics, record.ports[0].unread
    assert optics == Optics(vendor="ACME", part="AC-DAC-1", serial="AC77")
    assert unread.keys() == {"temperature_c", "voltage_v", "bias_ma", "rx_dbm", "tx_dbm"}
    assert unread["rx_dbm"] == "N/A"


def test_a_lane_that_is_not_told_is_named_and_the_others_are_kept() -> None:
    module = {"Rx Power Current [dBm]": "1.5,N/A,1.7,1.8 [-10..6]", "Cable Type": "AOC"}
    (record,) = parsed(as_json({"Module Info": module}))
    optics = record.ports[0].optics
    assert optics is not None
    assert optics.rx_dbm == (1.5, 1.7, 1.8)
    assert record.ports[0].unread == {"rx_dbm": "lane 1: N/A"}


@pytest.mark.parametrize(
    ("speed", "width", "gbps"),
    [
        ("IB-HDR", "4x", 200.0),
        ("IB-NDR", "2x", 200.0),
        ("400G", "4x", 400.0),
        ("100GbE", "4x", 100.0),
    ],
)
def test_speeds_are_data_rates(speed: str, width: str, gbps: float) -> None:
    (record,) = parsed(as_json({"Operational Info": {"Speed": speed, "Width": width}}))
    assert record.ports[0].rate_gbps == gbps


def test_a_port_that_is_down_has_no_rate() -> None:
    down = {
        "State": "Polling",
        "Physical state": "ETH_AN_FSM_ENABLE",
        "Speed": "N/A",
        "Width": "N/A",
    }
    (record,) = parsed(as_json({"Operational Info": down}))
    port = record.ports[0]
    assert (port.state, port.rate_gbps, port.width) == ("Polling", None, None)
    assert port.unread == {"rate_gbps": "N/A"}


def test_outputs_after_their_commands_are_told_apart() -> None:
    text = f"$ mlxlink -d mlx5_0 -m -c\n{as_text(OPTICAL)}\n$ sudo mlxlink -d lid-44 -p 12 -m\n"
    text += as_text({"Operational Info": {"State": "Active"}, "Module Info": COPPER})
    text += f"root@n1:~# /usr/bin/mlxlink -d mlx5_2 -m --json\n{as_json(OPTICAL)}\n"
    records = parsed(text, None)
    assert [(r.guid, r.kind, r.device, r.ports[0].port) for r in records] == [
        ("device:mlx5_0", "hca", "mlx5_0", 1),
        ("lid:44", "switch", None, 12),
        ("device:mlx5_2", "hca", "mlx5_2", 1),
    ]
    assert [r.ports[0].optics is not None for r in records] == [True, True, True]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (as_json(OPTICAL)[:400], "broken JSON"),
        (as_json({}, 1, "Device mlx5_6 is not supported"), "mlxlink says: Device mlx5_6"),
        ('{"result": 3}', "no output"),
        ("{" + '"a":{' * 9000, "broken JSON"),
    ],
)
def test_a_broken_output_is_a_reason_and_the_next_one_is_read(text: str, said: str) -> None:
    broken, whole = parsed(f"{text}\n{as_json(OPTICAL)}")
    assert said in broken.ports[0].unread["mlxlink"]
    assert (broken.ports[0].optics, broken.ports[0].state) == (None, None)
    assert whole.ports[0].state == "Active"


class Clock:
    """The monotonic clock of a collector, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, text: str, age_s: float = 60.0) -> None:
    path.write_text(text)
    os.utime(path, (time.time() - age_s,) * 2)


def adapter(sysfs: Path, device: str, guid: str) -> None:
    folder = sysfs / "class" / "infiniband" / device
    (folder / "ports" / "1").mkdir(parents=True)
    (folder / "node_guid").write_text(f"{guid}\n")


def waited(collector: MlxlinkCollector) -> list[FabricRecord]:
    ends = time.monotonic() + 20
    found = collector.read()
    while not found and time.monotonic() < ends and collector._caller.busy:
        time.sleep(0.005)
        found = collector.read()
    return found


def test_files_of_the_operators_timer_are_read_when_they_change(tmp_path: Path) -> None:
    adapter(tmp_path / "sys", "mlx5_0", "b83f:d203:00e4:1a5c")
    write(tmp_path / "mlx5_0.json", as_json(OPTICAL))
    write(tmp_path / "lid-44-p12.json", as_json({"Module Info": COPPER}))
    write(tmp_path / "mlx5_9.json", as_json(OPTICAL), age_s=0)  # still being written
    clock = Clock()
    collector = MlxlinkCollector(
        "trn-31", lambda: NOW, patterns=[str(tmp_path / "*.json")], sysfs=tmp_path / "sys",
        subnet="ib0", interval_s=300, monotonic=clock,
    )  # fmt: skip
    switch, card = waited(collector)
    assert (switch.guid, switch.kind, switch.host, switch.ports[0].port) == (
        "lid:44", "switch", None, 12,
    )  # fmt: skip
    assert (card.guid, card.host, card.device) == ("0xb83fd20300e41a5c", "trn-31", "mlx5_0")
    assert card.at is not None
    assert abs(card.at.timestamp() - (tmp_path / "mlx5_0.json").stat().st_mtime) < 1e-3
    assert (card.subnet, card.file) == ("ib0", str(tmp_path / "mlx5_0.json"))
    clock.now += 299
    assert waited(collector) == []
    clock.now += 2
    assert waited(collector) == []  # nothing has changed
    write(tmp_path / "mlx5_0.json", as_json({"Module Info": COPPER}), age_s=30)
    clock.now += 301
    (card,) = waited(collector)
    assert card.ports[0].unread == {"optics": "Passive copper cable"}
    collector.close()


def test_without_a_file_it_is_unavailable(tmp_path: Path) -> None:
    collector = MlxlinkCollector("n", lambda: NOW, patterns=[str(tmp_path / "*.json")])
    with pytest.raises(Unavailable, match="no output of mlxlink at"):
        waited(collector)
    collector.close()


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_program_is_run_for_every_adapter_and_one_that_fails_says_why(tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    for number in range(3):
        adapter(sysfs, f"mlx5_{number}", f"b83f:d203:00e4:000{number + 1}")
    (tmp_path / "good.json").write_text(as_json(OPTICAL))
    runs = program(
        tmp_path / "mlxlink",
        f"case $2 in mlx5_0) cat {tmp_path}/good.json;; mlx5_1) echo no access >&2; exit 7;; "
        "*) exec sleep 30;; esac",
    )
    collector = MlxlinkCollector(
        "trn-31", lambda: NOW, program=runs, sysfs=sysfs, timeout_s=0.5, interval_s=300
    )
    good, refused, slow = waited(collector)
    assert (good.guid, good.host, good.at) == ("0xb83fd20300e40001", "trn-31", NOW)
    assert good.ports[0].optics is not None
    assert refused.ports[0].unread == {"mlxlink": "mlxlink ended with 7: no access"}
    assert "timed out" in slow.ports[0].unread["mlxlink"]
    collector.close()


def test_a_program_that_is_not_there_is_unavailable_and_a_hang_an_error(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0", "b83f:d203:00e4:0001")
    absent = MlxlinkCollector("n", lambda: NOW, program=str(tmp_path / "none"), sysfs=tmp_path)
    with pytest.raises(Unavailable, match="is not installed"):
        waited(absent)
    absent.close()
    clock = Clock()
    slow = MlxlinkCollector(
        "n", lambda: NOW, program=program(tmp_path / "slow", "exec sleep 2"), sysfs=tmp_path,
        interval_s=60, monotonic=clock,
    )  # fmt: skip
    assert slow.read() == []
    clock.now += 61
    with pytest.raises(CollectorError, match="has not answered for 60 s"):
        slow.read()
    slow.close()


def test_a_program_that_is_not_there_costs_no_file(tmp_path: Path) -> None:
    adapter(tmp_path / "sys", "mlx5_0", "b83f:d203:00e4:0001")
    write(tmp_path / "mlx5_0.json", as_json(OPTICAL))
    collector = MlxlinkCollector(
        "n", lambda: NOW, patterns=[str(tmp_path / "*.json")], program=str(tmp_path / "none"),
        sysfs=tmp_path / "sys",
    )  # fmt: skip
    (record,) = waited(collector)
    assert record.guid == "0xb83fd20300e40001"
    collector.close()


def test_with_nothing_to_read_it_is_refused() -> None:
    with pytest.raises(ValueError, match="neither files to read nor a program"):
        MlxlinkCollector("n", lambda: NOW)
