"""The texts of a fleet in the shapes in which its programs write them.

A kernel log is that of ``dmesg --time-format iso``; a rank's log is what NCCL and PyTorch print;
cards are as ``nvidia-smi --query-gpu`` tells them.
"""

from collections.abc import Callable, Mapping
from datetime import datetime

from evidence.records import GpuSnapshot
from fleet.plant import Card

__all__ = ["CSV_HEADER", "csv_line", "kernel_line", "rank_line"]


def kernel_line(at: datetime, message: str) -> str:
    """A line of a kernel log."""
    return f"{at:%Y-%m-%dT%H:%M:%S},{at.microsecond:06d}+00:00 {message}"


def rank_line(at: datetime, text: str, names: Mapping[str, object]) -> str:
    """A line of a rank's log, with everything in braces filled in.

    Raises KeyError for a name that nobody has.
    """
    rank, size, seq = (_number(names, name) for name in ("rank", "size", "seq"))
    micro = f"{at.microsecond:06d}"
    stamps = {
        "c10d": f"[rank{rank}]:[E{at:%m%d %H:%M:%S}.{micro}{rank % 1000:03d}",
        "elastic": f"{at:%m%d %H:%M:%S}.{micro[:3]}000 {names['rank_pid']}",
        "clock": f"{at:%Y-%m-%d %H:%M:%S}",
        "iso": f"{at:%Y-%m-%dT%H:%M:%S}",
        "waited": 600_000 + rank % 90,
        "before": seq - 1,
        "other_rank": (rank + 1) % size if size else 0,
    }
    return text.format_map({**names, **stamps})


def _number(names: Mapping[str, object], name: str) -> int:
    value = names[name]
    assert isinstance(value, int)
    return value


_NA = "[N/A]"
_COLUMNS: dict[str, Callable[[GpuSnapshot], object]] = {
    "index": lambda gpu: gpu.index,
    "name": lambda gpu: gpu.name,
    "uuid": lambda gpu: gpu.uuid,
    "serial": lambda gpu: gpu.serial,
    "pci.bus_id": lambda gpu: None if gpu.pci is None else f"0000{gpu.pci.upper()}.0",
    "temperature.gpu": lambda gpu: gpu.temperature_c,
    "ecc.errors.corrected.volatile.total": lambda gpu: gpu.ecc_volatile_corrected,
    "ecc.errors.uncorrected.volatile.total": lambda gpu: gpu.ecc_volatile_uncorrected,
    "ecc.errors.corrected.aggregate.total": lambda gpu: gpu.ecc_aggregate_corrected,
    "ecc.errors.uncorrected.aggregate.total": lambda gpu: gpu.ecc_aggregate_uncorrected,
    "remapped_rows.correctable": lambda gpu: gpu.remapped_correctable,
    "remapped_rows.uncorrectable": lambda gpu: gpu.remapped_uncorrectable,
    "remapped_rows.pending": lambda gpu: _yes(gpu.remap_pending),
    "remapped_rows.failure": lambda gpu: _yes(gpu.remap_failure),
}
CSV_HEADER = ", ".join(("timestamp", *_COLUMNS))


def csv_line(at: datetime, card: Card, gpu: GpuSnapshot) -> str:
    """One row of ``nvidia-smi --query-gpu=... --format=csv``; a lost card answers nothing."""
    if gpu.status == "lost":
        lost = "[GPU is lost]"
        values: list[object] = [card.index, lost, card.uuid, *[lost] * (len(_COLUMNS) - 3)]
    else:
        values = [read(gpu) for read in _COLUMNS.values()]
    cells = [_NA if value is None else str(value) for value in values]
    return ", ".join((f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03d}", *cells))


def _yes(flag: bool | None) -> str | None:
    return None if flag is None else "Yes" if flag else "No"
