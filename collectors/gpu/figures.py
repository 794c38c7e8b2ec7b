"""The cards of a node for Prometheus: the few values that alerts are made of.

Everything else about a card is in Kafka and in the history, where it is judged.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric

from evidence.records import GpuSnapshot, GpuStatus, GpuTick
from vitals.families import counter, gauge

__all__ = ["cards"]

_LABELS = ("gpu", "uuid", "pci")


def cards(ticks: Iterable[GpuTick | None]) -> Iterator[Metric]:
    """Figures of every card in the last tick of each collector; a value not read is left out."""
    found = {_labels(gpu): gpu for tick in ticks if tick is not None for gpu in tick.gpus}
    yield gauge(
        "ringfence_gpu_temperature_celsius",
        "Temperature of the card",
        _LABELS,
        {labels: gpu.temperature_c for labels, gpu in found.items()},
    )
    yield gauge(
        "ringfence_gpu_temperature_margin_celsius",
        "Degrees left to the limit that the card itself names (T.Limit)",
        _LABELS,
        {labels: gpu.temperature_margin_c for labels, gpu in found.items()},
    )
    yield counter(
        "ringfence_gpu_ecc_uncorrected",
        "Uncorrectable ECC errors over the card's life, as NVML counts them",
        _LABELS,
        {labels: gpu.ecc_aggregate_uncorrected for labels, gpu in found.items()},
    )
    yield gauge(
        "ringfence_gpu_lost",
        "1 while NVML says that the card is lost (code 15)",
        _LABELS,
        {labels: float(gpu.status is GpuStatus.LOST) for labels, gpu in found.items()},
    )
    yield gauge(
        "ringfence_gpu_status",
        "1 with how the card answered NVML last",
        (*_LABELS, "status"),
        {(*labels, gpu.status.value): 1 for labels, gpu in found.items()},
    )


def _labels(gpu: GpuSnapshot) -> tuple[str, str, str]:
    return str(gpu.index), gpu.uuid or "", gpu.pci or ""
