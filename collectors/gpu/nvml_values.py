"""The tables of what is read of a GPU: by which field or call, how often, and under which name.

Names are those of GpuSnapshot; ``ecc_locations.volatile_corrected_dram`` is an entry of its dict.
Locations have nvidia-smi's names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectors.gpu.nvml import pynvml
from collectors.gpu.nvml_links import FABRIC_NAMES, fabric_v1, fabric_v2, fabric_v3
from collectors.gpu.nvml_parts import SRAM_NAMES, sram_counts, sram_threshold

__all__ = [
    "CALLS",
    "FIELDS",
    "INSTEAD",
    "SLOW_CALLS",
    "SLOW_FIELDS",
    "SLOW_INSTEAD",
    "Field",
    "Value",
    "one",
]


@dataclass(frozen=True, slots=True)
class Field:
    """A value that nvmlDeviceGetFieldValues has, and how its number is to be read."""

    name: str
    id: int
    take: Callable[[int], Any] = int


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What one call gives: its names, and the forms of the call, the newest first."""

    names: tuple[str, ...]
    forms: tuple[Callable[[Any], Any], ...]


def one(name: str, *forms: Callable[[Any], Any]) -> Value:
    """A call that gives a single value."""
    return Value((name,), forms)


def _nvml(name: str, *arguments: int) -> Callable[[Any], Any]:
    """One call of nvidia-ml-py on a handle, looked up when made: the module may be missing."""
    return lambda handle: getattr(pynvml, name)(handle, *arguments)


def _watt(milliwatt: int) -> float:
    return milliwatt / 1000


def _ecc(kind: int, counter: int) -> Callable[[Any], int]:
    """Total errors: kind 0 corrected, 1 uncorrected; counter 0 volatile, 1 aggregate."""
    return lambda handle: int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))


def _retired(cause: int) -> Callable[[Any], int]:
    return lambda handle: len(pynvml.nvmlDeviceGetRetiredPages(handle, cause))


def _remapped(handle: object) -> tuple[int, int, bool, bool]:
    correctable, uncorrectable, pending, failure = pynvml.nvmlDeviceGetRemappedRows(handle)
    return correctable, uncorrectable, bool(pending), bool(failure)


def _memory_v2(handle: object) -> Any:  # noqa: ANN401 (pynvml has no types)
    return pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)


def _memory_v1(handle: object) -> Any:  # noqa: ANN401
    return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _used(info: Callable[[Any], Any]) -> Callable[[Any], int]:
    return lambda handle: int(info(handle).used) >> 20


def _total(info: Callable[[Any], Any]) -> Callable[[Any], int | None]:
    return lambda handle: (int(info(handle).total) >> 20) or None


def _banks(handle: object) -> dict[str, int]:
    found = pynvml.nvmlDeviceGetRowRemapperHistogram(handle)
    return {name: getattr(found, name) for name in ("max", "high", "partial", "low", "none")}


def _repair(handle: object) -> tuple[bool, bool]:
    channel, tpc = pynvml.nvmlDeviceGetRepairStatus(handle)
    return bool(channel), bool(tpc)


def _mode(name: str) -> Callable[[Any], tuple[bool, bool]]:
    def call(handle: object) -> tuple[bool, bool]:
        current, pending = getattr(pynvml, name)(handle)
        return bool(current), bool(pending)

    return call


#: Read every tick, in one call, health first.
FIELDS = (
    Field("ecc_volatile_corrected", 3),
    Field("ecc_volatile_uncorrected", 4),
    Field("ecc_aggregate_corrected", 5),
    Field("ecc_aggregate_uncorrected", 6),
    Field("remapped_correctable", 142),
    Field("remapped_uncorrectable", 143),
    Field("remap_pending", 144, bool),
    Field("remap_failure", 145, bool),
    Field("retired_pages_sbe", 29),
    Field("retired_pages_dbe", 30),
    Field("retired_pending", 31, bool),
    Field("recovery_action", 230),
    Field("temperature_memory_c", 82),
    Field("power_w", 185, _watt),
    Field("energy_mj", 83),
    Field("pcie_replays", 94),
    Field("throttled_ns.power_cap", 74),
    Field("throttled_ns.sync_boost", 76),
    Field("throttled_ns.sw_thermal", 269),
    Field("throttled_ns.hw_thermal", 270),
    Field("throttled_ns.power_brake", 271),
)

#: Read every tick: what no field has.
CALLS = (
    one("sram_threshold_exceeded", sram_threshold),
    one(
        "temperature_c",
        _nvml("nvmlDeviceGetTemperatureV", 0),
        _nvml("nvmlDeviceGetTemperature", 0),
    ),
    one("temperature_margin_c", _nvml("nvmlDeviceGetMarginTemperature")),
    one("utilization_pct", lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    one("memory_used_mib", _used(_memory_v2), _used(_memory_v1)),
    one("clock_sm_mhz", _nvml("nvmlDeviceGetClockInfo", 1)),
    one(
        "clocks_event_reasons",
        _nvml("nvmlDeviceGetCurrentClocksEventReasons"),
        _nvml("nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
)

#: Asked where the driver does not have the field: older drivers, older cards.
INSTEAD = (
    one("ecc_volatile_corrected", _ecc(0, 0)),
    one("ecc_volatile_uncorrected", _ecc(1, 0)),
    one("ecc_aggregate_corrected", _ecc(0, 1)),
    one("ecc_aggregate_uncorrected", _ecc(1, 1)),
    Value(
        ("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure"),
        (_remapped,),
    ),
    one("retired_pages_sbe", _retired(0)),
    one("retired_pages_dbe", _retired(1)),
    one(
        "retired_pending",
        lambda handle: bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)),
    ),
    one("power_w", lambda handle: _watt(pynvml.nvmlDeviceGetPowerUsage(handle))),
    one("energy_mj", _nvml("nvmlDeviceGetTotalEnergyConsumption")),
    one("pcie_replays", _nvml("nvmlDeviceGetPcieReplayCounter")),
)

_LOCATIONS = {
    # name: fields of volatile single and double bit, aggregate single and double bit errors
    "l1_cache": (7, 8, 18, 19),
    "l2_cache": (9, 10, 20, 21),
    "dram": (11, 12, 22, 23),
    "register_file": (13, 14, 24, 25),
    "texture_memory": (15, 16, 26, 27),
}
_COUNTS = (
    ("volatile_corrected", 0, 0),
    ("volatile_uncorrected", 1, 0),
    ("aggregate_corrected", 0, 1),
    ("aggregate_uncorrected", 1, 1),
)

#: Read seldom, in one call.
SLOW_FIELDS = (
    Field("remapped_correctable_inactive", 301),
    Field("remapped_uncorrectable_inactive", 302),
    Field("power_limit_w", 190, _watt),
    Field("temperature_margin_shutdown", 193),
    Field("temperature_margin_slowdown", 194),
    Field("temperature_margin_memory_max", 195),
    Field("temperature_margin_max", 196),
    *(
        Field(f"ecc_locations.{count}_{location}", field)
        for location, fields in _LOCATIONS.items()
        for (count, _, _), field in zip(_COUNTS, fields, strict=True)
    ),
    Field("ecc_locations.volatile_uncorrected_cbu", 17),
    Field("ecc_locations.aggregate_uncorrected_cbu", 28),
)


def _location(place: int, name: str) -> tuple[Value, ...]:
    """The four counts of one location (nvml.h, nvmlMemoryLocation_t)."""
    return tuple(
        one(
            f"ecc_locations.{count}_{name}",
            _nvml("nvmlDeviceGetMemoryErrorCounter", kind, counter, place),
        )
        for count, kind, counter in _COUNTS
    )


#: Asked seldom: what no field has, or what not every driver has as a field.
SLOW_CALLS = (
    one("remap_banks", _banks),
    Value(("channel_repair_pending", "tpc_repair_pending"), (_repair,)),
    one(
        "unrepairable_memory",
        lambda handle: bool(pynvml.nvmlDeviceGetUnrepairableMemoryFlag_v1(handle)),
    ),
    Value(("ecc_enabled", "ecc_enabled_pending"), (_mode("nvmlDeviceGetEccMode"),)),
    *_location(7, "sram"),
    *_location(5, "texture_shm"),
    Value(SRAM_NAMES, (sram_counts,)),
    Value(FABRIC_NAMES, (fabric_v3, fabric_v2, fabric_v1)),
    one("temperature_shutdown_c", _nvml("nvmlDeviceGetTemperatureThreshold", 0)),
    one("temperature_slowdown_c", _nvml("nvmlDeviceGetTemperatureThreshold", 1)),
    one("temperature_memory_max_c", _nvml("nvmlDeviceGetTemperatureThreshold", 2)),
    one("temperature_max_c", _nvml("nvmlDeviceGetTemperatureThreshold", 3)),
    one("memory_total_mib", _total(_memory_v2), _total(_memory_v1)),
    one("clock_memory_mhz", _nvml("nvmlDeviceGetClockInfo", 2)),
    one("clock_sm_max_mhz", _nvml("nvmlDeviceGetMaxClockInfo", 1)),
    one("pcie_width", _nvml("nvmlDeviceGetCurrPcieLinkWidth")),
    one("pcie_width_max", _nvml("nvmlDeviceGetMaxPcieLinkWidth")),
    one("pcie_generation", _nvml("nvmlDeviceGetCurrPcieLinkGeneration")),
    one("pcie_generation_max", _nvml("nvmlDeviceGetMaxPcieLinkGeneration")),
    one("persistence_mode", lambda handle: bool(pynvml.nvmlDeviceGetPersistenceMode(handle))),
    one("performance_state", _nvml("nvmlDeviceGetPerformanceState")),
    one("mig_enabled", lambda handle: _mode("nvmlDeviceGetMigMode")(handle)[0]),
)

#: The same for what SLOW_FIELDS ask.
SLOW_INSTEAD = (
    one("power_limit_w", lambda handle: _watt(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))),
    *_location(2, "dram"),
    *_location(0, "l1_cache"),
    *_location(1, "l2_cache"),
    *_location(3, "register_file"),
    *_location(4, "texture_memory"),
)
