"""The cards of a node as Prometheus is told of them."""

from datetime import UTC, datetime

from collectors.gpu.figures import cards
from evidence.records import GpuSnapshot, GpuStatus, GpuTick

AT = datetime(2026, 6, 5, 4, 3, 2, tzinfo=UTC)


def test_a_card_tells_its_heat_its_errors_and_whether_it_is_lost() -> None:
    well = GpuSnapshot(
        index=0, uuid="GPU-a", pci="0000:0f:00", temperature_c=61, temperature_margin_c=26,
        ecc_aggregate_uncorrected=3,
    )  # fmt: skip
    lost = GpuSnapshot(index=1, pci="0000:2f:00", status=GpuStatus.LOST, error=15)
    found = {
        (sample.name, sample.labels["gpu"], sample.labels.get("status")): sample.value
        for family in cards([None, GpuTick(at=AT, gpus=(well, lost))])
        for sample in family.samples
    }
    assert found == {
        ("ringfence_gpu_temperature_celsius", "0", None): 61,
        ("ringfence_gpu_temperature_margin_celsius", "0", None): 26,
        ("ringfence_gpu_ecc_uncorrected_total", "0", None): 3,
        ("ringfence_gpu_lost", "0", None): 0,
        ("ringfence_gpu_lost", "1", None): 1,
        ("ringfence_gpu_status", "0", "ok"): 1,
        ("ringfence_gpu_status", "1", "lost"): 1,
    }


def test_a_node_without_a_tick_tells_of_no_card() -> None:
    assert [
        one for family in cards([None, GpuTick(at=AT, gpus=())]) for one in family.samples
    ] == []
