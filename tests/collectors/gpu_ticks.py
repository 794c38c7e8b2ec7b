"""Reads ticks of the stand-in node, and says what its healthy GPU tells."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import msgspec

from collectors.gpu import NvmlCollector
from evidence.records import GpuFrame, GpuSnapshot, GpuStatus, GpuTick

HOST = "hgx-r07-n03"
BOOT = "5c2f0a9e-1d77-4f0b-9a53-0f6a54b1c7e2"
START = datetime(2026, 3, 9, 2, 14, 7, tzinfo=UTC)


class Clock:
    """Wall time that moves a millisecond a look."""

    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> datetime:
        self.at += timedelta(milliseconds=1)
        return self.at


def frames(collector: NvmlCollector) -> Iterator[GpuFrame]:
    """Every frame as it comes; the test's own timeout ends a wait for none."""
    while True:
        yield from collector.read()
        time.sleep(0.001)


def ticks(collector: NvmlCollector) -> Iterator[GpuTick]:
    for frame in frames(collector):
        yield from frame.ticks


def tick_where(collector: NvmlCollector, wanted: Callable[[GpuTick], bool]) -> GpuTick:
    return next(tick for tick in ticks(collector) if wanted(tick))


def status_is(index: int, status: GpuStatus) -> Callable[[GpuTick], bool]:
    return lambda tick: len(tick.gpus) > index and tick.gpus[index].status is status


def named(stand_in: ModuleType, slot: int) -> dict[str, Any]:
    return {
        "index": slot,
        "uuid": stand_in.uuid(slot),
        "serial": stand_in.serial(slot),
        "pci": stand_in.pci(slot),
        "name": "NVIDIA H100 80GB HBM3",
    }


#: What is read of the stand-in's healthy GPU every tick.
OFTEN: dict[str, Any] = {
    "ecc_volatile_corrected": 2,
    "ecc_volatile_uncorrected": 0,
    "ecc_aggregate_corrected": 17,
    "ecc_aggregate_uncorrected": 1,
    "sram_threshold_exceeded": False,
    "remapped_correctable": 0,
    "remapped_uncorrectable": 1,
    "remap_pending": False,
    "remap_failure": False,
    "recovery_action": 0,
    "temperature_c": 41,
    "temperature_memory_c": 52,
    "temperature_margin_c": 46,
    "power_w": 118.25,
    "energy_mj": 91_884_331_207,
    "utilization_pct": 93,
    "memory_used_mib": 72704,
    "clock_sm_mhz": 1980,
    "clocks_event_reasons": 4,
    "throttled_ns": {
        "power_cap": 18_204_511_000,
        "sync_boost": 0,
        "sw_thermal": 0,
        "hw_thermal": 0,
        "power_brake": 0,
    },
    "pcie_replays": 3,
}

#: What an H100 does not have: it remaps rows and retires no pages.
NO_RETIREMENT = dict.fromkeys(
    ("retired_pages", "retired_pages_sbe", "retired_pages_dbe", "retired_pending"),
    "Not Supported (3)",
)

#: What only root may read.
SRAM = (
    "sram_threshold_exceeded",
    "sram_volatile_parity",
    "sram_volatile_secded",
    "sram_volatile_corrected",
    "sram_aggregate_parity",
    "sram_aggregate_secded",
    "sram_aggregate_corrected",
    "sram_sources",
)

#: What is read of it now and then.
SELDOM: dict[str, Any] = {
    "unread": NO_RETIREMENT,
    "ecc_enabled": True,
    "ecc_enabled_pending": True,
    "ecc_locations": {
        "volatile_corrected_dram": 0,
        "volatile_uncorrected_dram": 0,
        "aggregate_corrected_dram": 13,
        "aggregate_uncorrected_dram": 0,
        "volatile_corrected_sram": 2,
        "volatile_uncorrected_sram": 0,
        "aggregate_corrected_sram": 4,
        "aggregate_uncorrected_sram": 1,
    },
    "sram_volatile_parity": 0,
    "sram_volatile_secded": 0,
    "sram_volatile_corrected": 2,
    "sram_aggregate_parity": 1,
    "sram_aggregate_secded": 0,
    "sram_aggregate_corrected": 4,
    "sram_sources": {"l2": 1, "sm": 0, "pcie": 0, "mcu": 0, "other": 0},
    "remapped_correctable_inactive": 0,
    "remapped_uncorrectable_inactive": 0,
    "remap_banks": {"max": 2559, "high": 1, "partial": 0, "low": 0, "none": 0},
    "channel_repair_pending": False,
    "tpc_repair_pending": False,
    "unrepairable_memory": False,
    "temperature_slowdown_c": 87,
    "temperature_shutdown_c": 92,
    "temperature_max_c": 85,
    "temperature_memory_max_c": 95,
    "temperature_margin_slowdown": -2,
    "temperature_margin_shutdown": -7,
    "temperature_margin_max": 0,
    "temperature_margin_memory_max": 0,
    "power_limit_w": 700.0,
    "memory_total_mib": 81920,
    "clock_sm_max_mhz": 1980,
    "clock_memory_mhz": 2619,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "nvlinks_active": 18,
    "nvlink_errors": {},
    "fabric_state": "completed",
    "fabric_status": 0,
    "fabric_clique": 0,
    "fabric_cluster_uuid": "01234567-89ab-4cde-8f00-112233445566",
    "fabric_health": 5,
    "persistence_mode": True,
    "performance_state": 0,
    "mig_enabled": False,
    "processes": (),
}


def healthy(stand_in: ModuleType, slot: int, **differing: Any) -> GpuSnapshot:
    values: dict[str, Any] = named(stand_in, slot) | OFTEN | SELDOM
    return GpuSnapshot(**(values | differing))


def timeless(gpu: GpuSnapshot) -> GpuSnapshot:
    """A snapshot without what its calls cost."""
    return msgspec.structs.replace(gpu, read_us=None, call_us=None)


def lost(stand_in: ModuleType, slot: int, **differing: Any) -> GpuSnapshot:
    values = named(stand_in, slot) | {"status": GpuStatus.LOST, "error": 15}
    return GpuSnapshot(**(values | differing))
