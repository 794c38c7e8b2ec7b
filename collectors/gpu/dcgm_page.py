"""Reads the page of a dcgm-exporter (Prometheus text) into snapshots, one a GPU.

Which readings a page has is the exporter's configuration: what is not there is not read, with the
reason ``not exported``. DCGM writes a number into what it could not read; that is never a value.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from evidence.identity import normalise_pci
from evidence.records import GpuSnapshot, MigInstance

__all__ = ["DcgmPage", "read_page", "reading", "value_of"]

NOT_EXPORTED = "not exported"
_BY_INSTANCE = "exported by MIG instance only"

# DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0fb2...",pci_bus_id="00000000:19:00.0",...} 41
_SAMPLE = re.compile(r"(DCGM_FI_\w+)\{([^\n]*)\}\s+(\S+)(?:\s+-?\d+)?\s*\Z")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_ESCAPE = re.compile(r'\\[\\"n]')

#: First of sixteen numbers by which DCGM says that it has no value, of 64-bit, 32-bit and
#: floating-point fields (dcgm_structs.h, DCGM_INT64_BLANK and on).
_BLANKS = (0x7FFFFFFFFFFFFFF0, 0x7FFFFFF0, 1 << 47)
_WHY = {0: "no value", 1: "not found", 2: "not supported", 3: "no permission"}

_Kind = Callable[[float], Any]


def _scaled(factor: float) -> _Kind:
    return lambda value: round(value * factor)


def _some(value: float) -> bool:
    return value > 0


#: Fields of DCGM (dcgm_fields.h) by their names until 4.6 and from 4.7 on, which renamed many and
#: changed the units of some.
_NAMES: dict[str, tuple[str, _Kind]] = {
    "GPU_TEMP": ("temperature_c", round),
    "GPU_TEMP_CELSIUS": ("temperature_c", round),
    "MEMORY_TEMP": ("temperature_memory_c", round),
    "MEMORY_TEMP_CELSIUS": ("temperature_memory_c", round),
    "GPU_TEMP_LIMIT": ("temperature_margin_c", round),
    "SLOWDOWN_TEMP": ("temperature_slowdown_c", round),
    "SHUTDOWN_TEMP": ("temperature_shutdown_c", round),
    "GPU_MAX_OP_TEMP": ("temperature_max_c", round),
    "MEM_MAX_OP_TEMP": ("temperature_memory_max_c", round),
    "MEMORY_MAX_OP_TEMP_CELSIUS": ("temperature_memory_max_c", round),
    "POWER_USAGE": ("power_w", float),
    "BOARD_POWER_WATTS": ("power_w", float),
    "ENFORCED_POWER_LIMIT": ("power_limit_w", float),
    "TOTAL_ENERGY_CONSUMPTION": ("energy_mj", round),
    "GPU_ENERGY_JOULES_TOTAL": ("energy_mj", _scaled(1000)),
    "SM_CLOCK": ("clock_sm_mhz", round),
    "SM_CLOCK_HERTZ": ("clock_sm_mhz", _scaled(1e-6)),
    "MEM_CLOCK": ("clock_memory_mhz", round),
    "MEMORY_CLOCK_HERTZ": ("clock_memory_mhz", _scaled(1e-6)),
    "MAX_SM_CLOCK": ("clock_sm_max_mhz", round),
    "CLOCKS_EVENT_REASONS": ("clocks_event_reasons", round),
    "CLOCK_THROTTLE_REASONS": ("clocks_event_reasons", round),
    "PSTATE": ("performance_state", round),
    "PERSISTENCE_MODE": ("persistence_mode", _some),
    "MIG_MODE": ("mig_enabled", _some),
    "PCIE_REPLAY_COUNTER": ("pcie_replays", round),
    "PCIE_REPLAY_TOTAL": ("pcie_replays", round),
    "PCIE_LINK_GEN": ("pcie_generation", round),
    "PCIE_MAX_LINK_GEN": ("pcie_generation_max", round),
    "PCIE_LINK_WIDTH": ("pcie_width", round),
    "PCIE_MAX_LINK_WIDTH": ("pcie_width_max", round),
    "GPU_UTIL": ("utilization_pct", round),
    "GPU_UTIL_RATIO": ("utilization_pct", _scaled(100)),
    "FB_USED": ("memory_used_mib", round),
    "FB_USED_BYTES": ("memory_used_mib", _scaled(1 / (1 << 20))),
    "FB_TOTAL": ("memory_total_mib", round),
    "FB_CAPACITY_BYTES": ("memory_total_mib", _scaled(1 / (1 << 20))),
    "ECC_CURRENT": ("ecc_enabled", _some),
    "ECC_MODE": ("ecc_enabled", _some),
    "ECC_PENDING": ("ecc_enabled_pending", _some),
    "ECC_SBE_VOL_TOTAL": ("ecc_volatile_corrected", round),
    "ECC_DBE_VOL_TOTAL": ("ecc_volatile_uncorrected", round),
    "ECC_SBE_AGG_TOTAL": ("ecc_aggregate_corrected", round),
    "ECC_DBE_AGG_TOTAL": ("ecc_aggregate_uncorrected", round),
    "THRESHOLD_SRM": ("sram_threshold_exceeded", _some),
    "RETIRED_SBE": ("retired_pages_sbe", round),
    "PAGE_RETIRED_SBE_TOTAL": ("retired_pages_sbe", round),
    "RETIRED_DBE": ("retired_pages_dbe", round),
    "PAGE_RETIRED_DBE_TOTAL": ("retired_pages_dbe", round),
    "RETIRED_PENDING": ("retired_pending", _some),
    "PAGE_RETIRED_PENDING": ("retired_pending", _some),
    "UNCORRECTABLE_REMAPPED_ROWS": ("remapped_uncorrectable", round),
    "ROW_REMAP_UNCORRECTABLE_TOTAL": ("remapped_uncorrectable", round),
    "CORRECTABLE_REMAPPED_ROWS": ("remapped_correctable", round),
    "ROW_REMAP_CORRECTABLE_TOTAL": ("remapped_correctable", round),
    "ROW_REMAP_FAILURE": ("remap_failure", _some),
    "ROW_REMAP_FAILED": ("remap_failure", _some),
    "ROW_REMAP_PENDING": ("remap_pending", _some),
    "FABRIC_CLIQUE_ID": ("fabric_clique", round),
    "FABRIC_HEALTH_MASK": ("fabric_health", round),
}
_PLACES = {
    "L1": "l1_cache",
    "L2": "l2_cache",
    "DEV": "dram",
    "REG": "register_file",
    "TEX": "texture_memory",
    "SHM": "texture_shm",
    "CBU": "cbu",
    "SRM": "sram",
}
_NAMES |= {
    f"ECC_{bits}_{short}_{place}": (f"ecc_locations.{scope}_{kind}_{part}", round)
    for bits, kind in (("SBE", "corrected"), ("DBE", "uncorrected"))
    for short, scope in (("VOL", "volatile"), ("AGG", "aggregate"))
    for place, part in _PLACES.items()
}
_NAMES |= {
    f"BANKS_REMAP_ROWS_AVAIL_{bank.upper()}": (f"remap_banks.{bank}", round)
    for bank in ("max", "high", "partial", "low", "none")
}
_NAMES |= {
    f"CLOCKS_EVENT_REASON_{name}_NS": (f"throttled_ns.{part}", round)
    for name, part in (
        ("SW_POWER_CAP", "power_cap"),
        ("SYNC_BOOST", "sync_boost"),
        ("SW_THERM_SLOWDOWN", "sw_thermal"),
        ("HW_THERM_SLOWDOWN", "hw_thermal"),
        ("HW_POWER_BRAKE_SLOWDOWN", "power_brake"),
    )
}
# DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L3
_NVLINK = re.compile(r"NVLINK_(CRC_FLIT|CRC_DATA|REPLAY|RECOVERY)_ERROR_COUNT_(?:L(\d+)|(TOTAL))\Z")
_LINK_KINDS = {
    "CRC_FLIT": "crc",
    "CRC_DATA": "crc_data",
    "REPLAY": "replay",
    "RECOVERY": "recovery",
}
_XID = frozenset({"XID_ERRORS", "XID_ERROR"})
_ENERGY = frozenset({"TOTAL_ENERGY_CONSUMPTION", "GPU_ENERGY_JOULES_TOTAL"})
#: Readings that differ between the MIG instances of a card: theirs are not the card's.
_OF_INSTANCE = frozenset({"utilization_pct", "memory_used_mib", "memory_total_mib"})
_FIELDS = tuple(
    dict.fromkeys([name.split(".")[0] for name, _ in _NAMES.values()])
    | {"nvlink_errors": None, "recovery_action": None}
)
_DRIVER_LABELS = ("DCGM_FI_SYSTEM_DRIVER_VERSION", "DCGM_FI_DRIVER_VERSION")
_MOST_GPUS = 1024


@dataclass(slots=True)
class _Gpu:
    """One GPU of a page, under construction."""

    labels: dict[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    links: dict[str, int] | None = None
    mig: dict[int, MigInstance] = field(default_factory=dict)
    xid: int | None = None

    def take(self, name: str, said: str, *, instance: bool) -> None:
        value, why = value_of(said)
        short = name.removeprefix("DCGM_FI_DEV_")
        known = _NAMES.get(short)
        if short in _XID:
            self.xid = self.xid if value is None else round(value)
        elif link := _NVLINK.match(short):
            self._link(link, value)
        elif known is not None:
            reading, kind = known
            if instance and reading in _OF_INSTANCE:
                self.unread.setdefault(reading, _BY_INSTANCE)
            elif value is None:
                self.unread.setdefault(reading, why)
            elif not instance or reading not in self.values:
                self.values[reading] = kind(value)

    def _link(self, found: re.Match[str], value: float | None) -> None:
        if value is None:
            return
        self.links = self.links or {}
        if value:
            kind, link, _ = found.groups()
            place = "total" if link is None else int(link)
            self.links[f"{place}.{_LINK_KINDS[kind]}"] = round(value)

    def snapshot(self) -> GpuSnapshot | None:
        """The snapshot; None where the page does not say which GPU it is."""
        index = self.labels.get("gpu", "")
        if not index.isdecimal() or len(index) > 4:  # noqa: PLR2004 (no node has as many)
            return None
        values = dict(self.values)
        for name in [name for name in values if "." in name]:
            whole, part = name.split(".", 1)
            values.setdefault(whole, {})[part] = values.pop(name)
        for name in [name for name in self.unread if "." in name]:
            self.unread.setdefault(name.split(".", 1)[0], self.unread.pop(name))
        if self.links is not None:
            values["nvlink_errors"] = self.links
        pages = (values.get("retired_pages_sbe"), values.get("retired_pages_dbe"))
        if None not in pages:
            values["retired_pages"] = sum(pages)
        unread = {name: self.unread.get(name, NOT_EXPORTED) for name in _FIELDS}
        return GpuSnapshot(
            index=int(index),
            uuid=self.labels.get("UUID") or self.labels.get("uuid"),
            serial=self.labels.get("DCGM_FI_DEV_SERIAL") or None,
            name=self.labels.get("modelName") or None,
            pci=_pci(self.labels.get("pci_bus_id", "")),
            unread={name: why for name, why in unread.items() if name not in values},
            mig=tuple(self.mig[gi] for gi in sorted(self.mig)),
            **values,
        )


@dataclass(frozen=True, slots=True)
class DcgmPage:
    """What one page says: the GPUs by index, the last Xid of each index, the driver's version.

    ``moving`` tells whether it has a reading that cannot stand still while DCGM reads anew.
    """

    gpus: tuple[GpuSnapshot, ...]
    xids: dict[int, int]
    driver: str | None
    moving: bool


def read_page(text: str) -> DcgmPage:
    """Read a page; lines that are no sample of a GPU are passed over."""
    found: dict[str, _Gpu] = {}
    driver: str | None = None
    moving = False
    for name, labels, said in _samples(text.splitlines()):
        key = labels["gpu"]
        gpu = found.get(key)
        if gpu is None:
            if len(found) >= _MOST_GPUS:
                continue
            gpu = found[key] = _Gpu({})
        gpu.labels = labels | gpu.labels
        driver = driver or next(filter(None, map(labels.get, _DRIVER_LABELS)), None)
        moving = moving or name.removeprefix("DCGM_FI_DEV_") in _ENERGY
        instance = labels.get("GPU_I_ID", "")
        if instance.isdecimal() and len(instance) < 4:  # noqa: PLR2004
            gi = int(instance)
            gpu.mig[gi] = MigInstance(gi=gi, profile=labels.get("GPU_I_PROFILE") or None)
        gpu.take(name, said, instance=bool(instance))
    pairs = [(gpu.snapshot(), gpu.xid) for gpu in found.values()]
    named = [(snapshot, xid) for snapshot, xid in pairs if snapshot is not None]
    return DcgmPage(
        gpus=tuple(sorted((snapshot for snapshot, _ in named), key=lambda one: one.index)),
        xids={snapshot.index: xid for snapshot, xid in named if xid is not None},
        driver=driver,
        moving=moving,
    )


def _samples(lines: Iterable[str]) -> Iterable[tuple[str, dict[str, str], str]]:
    """Name, labels and value of each sample that is about a GPU or a MIG instance."""
    for line in lines:
        sample = _SAMPLE.match(line) if line.startswith("DCGM_FI_") else None
        if sample is None:
            continue
        labels = {key: _ESCAPE.sub(_unescape, said) for key, said in _LABEL.findall(sample[2])}
        if "gpu" in labels and "nvlink" not in labels and "nvswitch" not in labels:
            yield sample[1], labels, sample[3]


def _unescape(found: re.Match[str]) -> str:
    return _ESCAPES[found[0]]


def reading(metric: str) -> tuple[str, Callable[[float], Any]] | None:
    """Which value of a snapshot a metric of DCGM is, and how its number becomes one.

    ``ecc_locations.volatile_corrected_dram`` is a part of a value. None for other metrics.
    """
    return _NAMES.get(metric.removeprefix("DCGM_FI_DEV_"))


def value_of(said: str) -> tuple[float | None, str]:
    """A sample's value; None and why where DCGM had none."""
    try:
        value: float = int(said) if said.lstrip("-").isdecimal() else float(said)
    except ValueError:
        return None, f"unreadable: {said[:32]!r}"
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 (NaN)
        return None, "no value"
    for blank in _BLANKS:
        if blank <= value < blank + 16:
            return None, _WHY.get(int(value) - blank, "no value")
    # A 64-bit blank that went through a floating-point number, or no number of DCGM's at all.
    if not -(1 << 53) < value < 1 << 53:
        return (None, "no value") if value >= 1 << 63 else (None, f"unreadable: {said[:32]!r}")
    return value, ""


def _pci(text: str) -> str | None:
    try:
        return normalise_pci(text)[0]
    except ValueError:
        return None
