"""Adapters under a sysfs that the test writes: counters, states, hangs, and cards that go."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from collectors.collector import Unavailable
from collectors.fabric.sysfs import SysfsFabricCollector
from evidence.records import FabricPort, FabricRecord

NOW = datetime(2026, 5, 4, 8, 0, tzinfo=UTC)
COUNTERS = {
    "symbol_error": "7",
    "link_downed": "255",
    "VL15_dropped": "1",
    "local_link_integrity_errors": "14",
    "port_xmit_data": "4294967295",
    "port_rcv_data": "123456789012",
    "unicast_rcv_packets": "9",
}
HARDWARE = {"out_of_sequence": "12", "local_ack_timeout_err": "3", "lifespan": "10"}


class Node:
    """A made-up sysfs of one machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "class" / "infiniband"

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def adapter(
        self,
        device: str,
        guid: str,
        layer: str = "InfiniBand",
        counters: dict[str, str] = COUNTERS,
        hardware: dict[str, str] = HARDWARE,
    ) -> None:
        self.write(f"{device}/node_guid", guid)
        self.write(f"{device}/node_desc", f"trn-31 {device}")
        port = f"{device}/ports/1"
        ib = layer == "InfiniBand"
        for name, text in {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "lid": "0x2c" if ib else "0x0",
            "link_layer": layer,
            "gids/0": f"fe80:0000:0000:0000:{guid}",
        }.items():
            self.write(f"{port}/{name}", text)
        for name, text in counters.items():
            self.write(f"{port}/counters/{name}", text)
        for name, text in hardware.items():
            self.write(f"{port}/hw_counters/{name}", text)


class Clock:
    """The monotonic clock of a collector, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collect(node: Node, clock: Clock) -> Iterator[Callable[[], list[FabricRecord]]]:
    """Read once, and wait for all that this started."""
    collector = SysfsFabricCollector(
        "trn-31", lambda: NOW, sysfs=node.root, subnet="ib0", interval_s=10, look_s=1,
        deadline_s=5, monotonic=clock,
    )  # fmt: skip

    def read() -> list[FabricRecord]:
        found = collector.read()
        ends = time.monotonic() + 10
        while any(one._caller.busy for one in collector._adapters.values()):
            assert time.monotonic() < ends
            time.sleep(0.002)
            found += collector.read()
        return found

    yield read
    collector.close()


Collect = Callable[[], list[FabricRecord]]


def test_an_adapter_tells_its_port_its_counters_and_what_is_saturated(
    node: Node, collect: Collect
) -> None:
    node.adapter("mlx5_3", "b83f:d203:00e4:1a5c")
    (record,) = collect()
    assert (record.guid, record.kind, record.source) == ("0xb83fd20300e41a5c", "hca", "sysfs")
    assert (record.host, record.device, record.name) == ("trn-31", "mlx5_3", "trn-31 mlx5_3")
    assert (record.subnet, record.at, record.sweep, record.missing) == ("ib0", NOW, 1, False)
    assert record.sweep_ms is not None
    assert record.ports == (
        FabricPort(
            port=1, state="Active", physical_state="LinkUp", rate_gbps=400.0, width=4, lid=44,
            port_guid="0xb83fd20300e41a5c", link_layer="InfiniBand",
            counters={
                "symbol_error": 7, "link_downed": 255, "vl15_dropped": 1,
                "local_link_integrity_errors": 14, "port_xmit_data": 4294967295,
                "port_rcv_data": 123456789012, "unicast_rcv_packets": 9,
                "out_of_sequence": 12, "local_ack_timeout_err": 3,
            },
            saturated=("link_downed",),
        ),
    )  # fmt: skip


def test_data_counters_of_32_bits_are_saturated_at_their_maximum(
    node: Node, collect: Collect
) -> None:
    old = {"port_xmit_data": "4294967295", "port_rcv_data": "4294967294"}
    node.adapter("mlx4_0", "b83f:d203:00e4:1a5c", counters=old, hardware={})
    (record,) = collect()
    assert record.ports[0].saturated == ("port_xmit_data",)


def test_a_counter_that_cannot_be_read_has_its_reason_and_no_value(
    node: Node, collect: Collect
) -> None:
    counters = {"symbol_error": "N/A (no PMA)", "link_downed": "3", "port_rcv_errors": ""}
    node.adapter("mlx5_0", "b83f:d203:00e4:0001", counters=counters, hardware={"odd": "-1"})
    (record,) = collect()
    assert record.ports[0].counters == {"link_downed": 3}
    assert record.ports[0].unread == {
        "symbol_error": "N/A (no PMA)", "port_rcv_errors": "empty", "odd": "-1",
    }  # fmt: skip


def test_one_reason_for_every_counter_is_told_once(node: Node, collect: Collect) -> None:
    node.adapter("mlx5_0", "b83f:d203:00e4:0001", counters=dict.fromkeys(COUNTERS, "N/A (no PMA)"))
    node.adapter("mlx5_1", "b83f:d203:00e4:0002", counters={})
    first, second = collect()
    assert first.ports[0].unread == {"counters": "N/A (no PMA)"}
    assert second.ports[0].unread == {"counters": "No such file or directory"}
    assert first.ports[0].counters == {"out_of_sequence": 12, "local_ack_timeout_err": 3}


def test_a_counter_whose_file_gives_an_error_says_which(node: Node, collect: Collect) -> None:
    node.adapter("mlx5_0", "b83f:d203:00e4:0001")
    counter = node.folder / "mlx5_0/ports/1/counters/symbol_error"
    counter.unlink()
    counter.mkdir()
    (record,) = collect()
    assert record.ports[0].unread == {"symbol_error": "Is a directory"}
    assert record.ports[0].counters["link_downed"] == 255


def test_an_ethernet_port_is_read_and_has_neither_lid_nor_guid(
    node: Node, collect: Collect
) -> None:
    node.adapter("rocep24s0f0", "b83f:d203:00e4:0001", layer="Ethernet",
                 counters={"port_rcv_data": "5"}, hardware={"np_cnp_sent": "6"})  # fmt: skip
    (record,) = collect()
    (port,) = record.ports
    assert (record.device, port.link_layer, port.lid, port.port_guid) == (
        "rocep24s0f0", "Ethernet", None, None,
    )  # fmt: skip
    assert port.counters == {"port_rcv_data": 5, "np_cnp_sent": 6}


def test_a_port_that_is_down_has_no_rate_whatever_sysfs_prints(
    node: Node, collect: Collect
) -> None:
    node.adapter("mlx5_0", "b83f:d203:00e4:0001")
    node.write("mlx5_0/ports/1/state", "1: DOWN")
    node.write("mlx5_0/ports/1/phys_state", "2: Polling")
    node.write("mlx5_0/ports/1/rate", "10 Gb/sec (4X SDR)")
    (record,) = collect()
    (port,) = record.ports
    assert (port.state, port.physical_state) == ("Down", "Polling")
    assert (port.rate_gbps, port.width) == (None, None)
    assert port.unread == {"rate_gbps": "the port is down"}


@pytest.mark.parametrize(
    ("file", "text"),
    [("state", "1: DOWN"), ("phys_state", "6: LinkErrorRecovery"), ("rate", "100 Gb/sec (4X EDR)")],
)
def test_a_port_that_changes_is_told_at_once_and_one_that_does_not_when_it_is_due(
    node: Node, clock: Clock, collect: Collect, file: str, text: str
) -> None:
    node.adapter("mlx5_0", "b83f:d203:00e4:0001")
    node.adapter("mlx5_1", "b83f:d203:00e4:0002")
    assert [record.device for record in collect()] == ["mlx5_0", "mlx5_1"]
    clock.now += 1
    assert collect() == []
    node.write(f"mlx5_1/ports/1/{file}", text)
    clock.now += 1
    (changed,) = collect()
    assert (changed.device, changed.sweep) == ("mlx5_1", 2)
    clock.now += 7.9
    assert collect() == []
    clock.now += 0.1
    assert [record.device for record in collect()] == ["mlx5_0"]


def test_a_counter_that_fell_is_a_reset_until_the_next_sweep(
    node: Node, clock: Clock, collect: Collect
) -> None:
    node.adapter("mlx5_0", "b83f:d203:00e4:0001")
    marks = []
    for value in ("7", "8", "2", "2", "3"):
        node.write("mlx5_0/ports/1/counters/symbol_error", value)
        (record,) = collect()
        marks.append(record.ports[0].reset)
        clock.now += 10
    assert marks == [False, False, True, False, False]


class Watch:
    """A collector on the real clock, read until something is seen."""

    def __init__(self, node: Node) -> None:
        self.found: list[FabricRecord] = []
        self.collector = SysfsFabricCollector(
            "trn-31", lambda: NOW, sysfs=node.root, interval_s=0.1, look_s=0.05, deadline_s=0.2
        )

    def until(self, seen: Callable[[list[FabricRecord]], bool]) -> None:
        ends = time.monotonic() + 30
        while not seen(self.found):
            assert time.monotonic() < ends
            self.found += self.collector.read()
            time.sleep(0.002)

    def of(self, device: str) -> list[FabricRecord]:
        return [record for record in self.found if record.device == device]


def test_an_adapter_that_hangs_stops_no_other_and_is_one_fact_until_it_answers(node: Node) -> None:
    for number in range(3):
        node.adapter(f"mlx5_{number}", f"b83f:d203:00e4:000{number}")
    # Opening a pipe that nobody writes to waits, as a read does while the firmware is away.
    state = node.folder / "mlx5_1/ports/1/state"
    state.unlink()
    os.mkfifo(state)
    watch = Watch(node)
    assert watch.collector.settled
    watch.until(lambda _: bool(watch.of("mlx5_1")) and len(watch.of("mlx5_2")) > 5)
    threads = threading.active_count()
    watch.until(lambda _: len(watch.of("mlx5_0")) > 12 and len(watch.of("mlx5_2")) > 12)
    (hung,) = watch.of("mlx5_1")
    assert hung.ports == (
        FabricPort(port=1, unread={"port": "a read of sysfs has not returned for 0.2 s"}),
    )
    assert (hung.guid, hung.kind) == ("device:trn-31/mlx5_1", "hca")
    assert watch.collector.settled
    assert threading.active_count() == threads
    writer = os.open(state, os.O_RDWR)
    node.write("new", "4: ACTIVE")
    (node.folder / "new").rename(state)
    os.write(writer, b"4: ACTIVE\n")
    watch.until(lambda _: len(watch.of("mlx5_1")) > 2)
    os.close(writer)
    assert watch.of("mlx5_1")[-1].ports[0].state == "Active"
    watch.collector.close()


def test_an_adapter_that_goes_is_missing_once_and_read_again_when_it_is_back(
    node: Node, clock: Clock, collect: Collect
) -> None:
    node.adapter("mlx5_0", "b83f:d203:00e4:0001")
    node.adapter("mlx5_1", "b83f:d203:00e4:0002")
    assert len(collect()) == 2
    shutil.rmtree(node.folder / "mlx5_1")
    clock.now += 1
    (gone,) = collect()
    assert (gone.guid, gone.device, gone.missing, gone.ports) == (
        "0xb83fd20300e40002", "mlx5_1", True, (),
    )  # fmt: skip
    clock.now += 1
    assert collect() == []
    node.adapter("mlx5_1", "b83f:d203:00e4:0002")
    clock.now += 1
    (back,) = collect()
    assert (back.device, back.missing, back.ports[0].state) == ("mlx5_1", False, "Active")
    shutil.rmtree(node.folder)
    clock.now += 1
    assert [record.missing for record in collect()] == [True, True]
    clock.now += 1
    with pytest.raises(Unavailable):
        collect()


def test_without_an_adapter_it_is_unavailable(node: Node, collect: Collect) -> None:
    with pytest.raises(Unavailable, match=f"no InfiniBand adapters under {node.folder}"):
        collect()
    node.folder.mkdir(parents=True)
    with pytest.raises(Unavailable):
        collect()


def test_an_adapter_that_is_half_made_says_what_is_missing(node: Node, collect: Collect) -> None:
    node.write("mlx5_0/node_guid", "not a guid")
    (record,) = collect()
    assert record.guid == "device:trn-31/mlx5_0"
    assert "No such file" in record.ports[0].unread["port"]


def test_it_is_due_when_a_state_is_looked_at_and_soon_while_a_read_is_under_way(
    node: Node, clock: Clock
) -> None:
    collector = SysfsFabricCollector(
        "n", lambda: NOW, sysfs=node.root, interval_s=10, look_s=2, monotonic=clock
    )
    node.adapter("mlx5_0", "b83f:d203:00e4:0001")
    assert collector.read() == []
    assert clock.now < collector.next_due(clock.now) <= clock.now + 0.01
    ends = time.monotonic() + 10
    while not collector.read() and time.monotonic() < ends:
        time.sleep(0.002)
    assert collector.next_due(clock.now) == clock.now + 2
    collector.close()


def test_ids_tell_sweeps_and_adapters_apart(node: Node, clock: Clock, collect: Collect) -> None:
    node.adapter("mlx5_0", "b83f:d203:00e4:0001")
    node.adapter("mlx5_1", "b83f:d203:00e4:0001")
    found = collect()
    clock.now += 10
    found += collect()
    assert len({record.id for record in found}) == len(found) == 4
