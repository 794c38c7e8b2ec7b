"""The node's inventory, as ticks show it."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from collectors.node.hca import beside, read_hcas
from collectors.node.inventory import InventoryCollector, inventory_from
from collectors.node.peers import Peer, Peers
from collectors.node.place import Place
from evidence.records import (
    GpuIdentity,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    HcaIdentity,
    InventoryRecord,
    MigInstance,
)

AT = datetime(2026, 7, 4, 12, tzinfo=UTC)
A = GpuSnapshot(index=0, uuid="GPU-a", serial="S-a", pci="0000:1b:00", name="NVIDIA H200")
B = GpuSnapshot(index=1, uuid="GPU-b", serial="S-b", pci="0000:43:00", name="NVIDIA H200")


class Source:
    def __init__(self, latest: GpuTick | None = None, *, absent: bool = False) -> None:
        self.latest = latest
        self.driver: str | None = "580.65.06"
        self.absent = absent


def ticked(*gpus: GpuSnapshot, error: int | None = None) -> GpuTick:
    return GpuTick(at=AT, gpus=gpus, error=error)


class Now:
    """The monotonic clock; `later` is long enough for a look around."""

    def __init__(self) -> None:
        self.now = 500.0

    def __call__(self) -> float:
        return self.now

    def later(self) -> None:
        self.now += 60.0


def collector(source: Source | None, place: Place | None = None, **more: Any) -> InventoryCollector:
    given: dict[str, Any] = {"sysfs": Path("/nowhere")} | more
    return InventoryCollector("n1", "boot-1", source, lambda: AT, lambda: place or Place(), **given)


#: Host bridge, bridge, switch port, device: two boards with a GPU and adapters each.
DEVICES = {
    "0000:1b:00.0": "pci0000:15/0000:15:01.0/0000:17:01.0",
    "0000:1a:00.0": "pci0000:15/0000:15:01.0/0000:17:00.0",
    "0000:43:00.0": "pci0000:3c/0000:3c:01.0/0000:3f:01.0",
    "0000:42:00.0": "pci0000:3c/0000:3c:01.0/0000:3f:00.0",
    "0000:c8:00.0": "pci0000:3c/0000:3c:05.0",
}
ADAPTERS = {
    "mlx5_0": ("0000:1a:00.0", "b83f:d203:00e4:1a5c", ("1",)),
    "mlx5_1": ("0000:42:00.0", "b83f:d203:00e4:1b70", ("2", "1")),
    "mlx5_2": ("0000:c8:00.0", "0000:0000:0000:0000", ("1",)),
}


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for address, parent in DEVICES.items():
        device = tmp_path / "devices" / parent / address
        device.mkdir(parents=True)
        (tmp_path / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (tmp_path / "bus/pci/devices" / address).symlink_to(device)
    for name, (address, guid, ports) in ADAPTERS.items():
        adapter = tmp_path / "class/infiniband" / name
        for port in ports:
            (adapter / "ports" / port).mkdir(parents=True)
        (adapter / "node_guid").write_text(f"{guid}\n")
        (adapter / "device").symlink_to(tmp_path / "bus/pci/devices" / address)
    return tmp_path


def test_adapters_are_named_as_the_fabric_names_them(sysfs: Path) -> None:
    assert read_hcas(sysfs) == (
        HcaIdentity(name="mlx5_0", port=1, guid="0xb83fd20300e41a5c", pci="0000:1a:00"),
        HcaIdentity(name="mlx5_1", port=1, guid="0xb83fd20300e41b70", pci="0000:42:00"),
        HcaIdentity(name="mlx5_1", port=2, guid="0xb83fd20300e41b70", pci="0000:42:00"),
        HcaIdentity(name="mlx5_2", port=1, guid=None, pci="0000:c8:00"),
    )
    assert read_hcas(sysfs / "nothing here") == ()


def test_an_adapter_is_beside_the_gpu_under_the_same_bridge(sysfs: Path) -> None:
    hcas = read_hcas(sysfs)
    assert beside("0000:1b:00", hcas, sysfs) == ("mlx5_0",)
    assert beside("0000:43:00", hcas, sysfs) == ("mlx5_1",)
    assert beside("0000:43:00", hcas[:1], sysfs) == ()
    assert beside("0000:43:00", hcas[3:], sysfs) == ()
    assert beside("0000:ff:00", hcas, sysfs) == ()


def test_an_inventory_ties_cards_to_adapters(sysfs: Path) -> None:
    record = inventory_from("n1", None, ticked(A, B), observed_at=AT, sysfs=sysfs)
    assert [gpu.hcas for gpu in record.gpus] == [("mlx5_0",), ("mlx5_1",)]
    assert record.hcas == read_hcas(sysfs)


def test_an_inventory_names_cards_and_place() -> None:
    place = Place(rack="r7", leaf="leaf-3", pool="train", nvlink_domain="nvl-2")
    (record,) = collector(Source(ticked(B, A)), place).read()
    assert record == InventoryRecord(
        id=record.id,
        host="n1",
        observed_at=AT,
        boot_id="boot-1",
        driver="580.65.06",
        gpus=(
            GpuIdentity(index=0, pci="0000:1b:00", uuid="GPU-a", serial="S-a", name="NVIDIA H200"),
            GpuIdentity(index=1, pci="0000:43:00", uuid="GPU-b", serial="S-b", name="NVIDIA H200"),
        ),
        rack="r7",
        leaf="leaf-3",
        pool="train",
        nvlink_domain="nvl-2",
    )


def test_it_is_said_at_start_and_on_change_only() -> None:
    source = Source()
    inventory = collector(source)
    assert list(inventory.read()) == []
    source.latest = ticked(A)
    (first,) = inventory.read()
    assert list(inventory.read()) == []
    source.latest = ticked(GpuSnapshot(**{**_fields(A), "status": GpuStatus.LOST}))
    assert list(inventory.read()) == []
    source.latest = ticked(A, B)
    (second,) = inventory.read()
    assert (len(second.gpus), second.id == first.id) == (2, False)
    source.latest = ticked(error=9)
    assert list(inventory.read()) == []


def test_the_same_node_has_the_same_id_after_a_restart() -> None:
    first = inventory_from("n1", "boot-1", ticked(A), observed_at=AT)
    later = inventory_from("n1", "boot-1", ticked(A), observed_at=AT.replace(hour=13))
    rebooted = inventory_from("n1", "boot-2", ticked(A), observed_at=AT)
    assert first.id == later.id
    assert first.id != rebooted.id


def test_a_card_without_an_address_cannot_be_named() -> None:
    record = inventory_from("n1", None, ticked(A, GpuSnapshot(index=1)), observed_at=AT)
    assert [gpu.uuid for gpu in record.gpus] == ["GPU-a"]


def test_a_node_without_gpus_still_has_a_place() -> None:
    for source in (None, Source(absent=True)):
        (record,) = collector(source, Place(rack="r1")).read()
        assert (record.gpus, record.rack) == ((), "r1")


def test_a_swapped_card_is_a_change() -> None:
    source = Source(ticked(A, B))
    inventory = collector(source)
    (first,) = inventory.read()
    swapped = GpuSnapshot(**{**_fields(A), "uuid": "GPU-new", "serial": "S-new"})
    source.latest = ticked(swapped, B)
    (second,) = inventory.read()
    assert [(gpu.index, gpu.pci, gpu.uuid) for gpu in second.gpus] == [
        (0, "0000:1b:00", "GPU-new"),
        (1, "0000:43:00", "GPU-b"),
    ]
    assert second.id != first.id


def test_mig_instances_are_named_and_a_card_that_is_lost_keeps_its() -> None:
    split = (MigInstance(gi=1, ci=0, uuid="MIG-1", profile="3g.40gb"),)
    source = Source(ticked(A, B))
    inventory = collector(source)
    list(inventory.read())
    source.latest = ticked(GpuSnapshot(**{**_fields(A), "mig": split}), B)
    (found,) = inventory.read()
    assert [gpu.mig for gpu in found.gpus] == [split, ()]
    source.latest = ticked(GpuSnapshot(**{**_fields(A), "status": GpuStatus.LOST}), B)
    assert list(inventory.read()) == []
    source.latest = ticked(A, B)
    (found,) = inventory.read()
    assert [gpu.mig for gpu in found.gpus] == [(), ()]


def test_nvml_down_is_no_change_and_what_else_changes_is_still_told() -> None:
    now, place = Now(), [Place(rack="r1")]
    source = Source(ticked(A))
    inventory = InventoryCollector(
        "n1", None, source, lambda: AT, lambda: place[0], Path("/nowhere"), monotonic=now
    )
    list(inventory.read())
    source.latest = ticked(error=9)
    place[0] = Place(rack="r2")
    assert list(inventory.read()) == []
    now.later()
    (found,) = inventory.read()
    assert ([gpu.uuid for gpu in found.gpus], found.rack) == (["GPU-a"], "r2")


def test_a_clock_that_is_wrong_by_a_second_is_told_and_small_moves_are_not() -> None:
    now, skew = Now(), [0.4]
    inventory = collector(None, skew_s=lambda: skew[0], monotonic=now)
    told = []
    for skew[0] in (0.4, 0.9, -1.2, -1.5, -1.8, -0.7, -0.4, 0.9):
        told += [one.clock_skew_ms for one in inventory.read()]
        now.later()
    assert told == [None, -1200, -1800, -700, None]


def test_a_peer_is_told_when_it_becomes_known(sysfs: Path) -> None:
    (sysfs / "class/infiniband/mlx5_0/ports/1/link_layer").write_text("InfiniBand\n")
    answer, ready = threading.Event(), threading.Event()

    def ask(_device: str, _port: int) -> Peer:
        answer.wait(60)
        return ("0x98039b0300c1d2e0", 21, "leaf-r1")

    inventory = collector(None, sysfs=sysfs, peers=Peers(ask, sysfs))
    inventory.on_ready = ready.set
    (first,) = inventory.read()
    assert first.hcas[0].switch_guid is None
    answer.set()
    assert ready.wait(20)
    (second,) = inventory.read()
    hca = second.hcas[0]
    assert (hca.switch_guid, hca.switch_port, hca.switch_name) == (
        "0x98039b0300c1d2e0",
        21,
        "leaf-r1",
    )
    inventory.close()


def test_it_is_due_at_once_when_there_is_a_tick_it_has_not_seen() -> None:
    now, source = Now(), Source()
    inventory = collector(source, monotonic=now)
    assert inventory.next_due(now()) > now()
    source.latest = ticked(A)
    assert inventory.next_due(now()) <= now()
    list(inventory.read())
    assert inventory.next_due(now()) > now()
    source.absent, source.latest = True, None
    assert inventory.next_due(now()) <= now()


def _fields(gpu: GpuSnapshot) -> dict[str, object]:
    return {name: getattr(gpu, name) for name in gpu.__struct_fields__}
