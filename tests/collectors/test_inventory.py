"""The node's inventory, as ticks show it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from collectors.hca import beside, read_hcas
from collectors.inventory import InventoryCollector, Place, inventory_from
from evidence.records import (
    GpuIdentity,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    HcaIdentity,
    InventoryRecord,
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


def collector(source: Source | None, place: Place | None = None) -> InventoryCollector:
    return InventoryCollector("n1", "boot-1", source, lambda: AT, place, sysfs=Path("/nowhere"))


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


def _fields(gpu: GpuSnapshot) -> dict[str, object]:
    return {name: getattr(gpu, name) for name in gpu.__struct_fields__}
