"""What nvidia-smi calls each reading: in `-q` by section and key, in XML by tags, in CSV by column.

Names have changed with the drivers; every name that is known is listed, others are passed over.
"""

from collections import defaultdict
from collections.abc import Mapping

from collectors.nvidia_smi.value import (
    Kind,
    cluster,
    fraction,
    mebibytes,
    nanoseconds,
    performance_state,
    recovery_action,
    text,
    whole,
    yes,
)

__all__ = ["CSV", "QUERY", "XML", "Names", "sections"]

Names = Mapping[str, tuple[str, Kind]]

#: Places in memory: `-q` key, XML tag or CSV column -> part of `ecc_locations` (nvml.h,
#: nvmlMemoryLocation_t).
_PLACES = {
    "device_memory": "dram",
    "dram": "dram",
    "register_file": "register_file",
    "l1_cache": "l1_cache",
    "l2_cache": "l2_cache",
    "texture_memory": "texture_memory",
    "texture_shm": "texture_shm",
    "texture_shared": "texture_shm",
    "cbu": "cbu",
    "sram": "sram",
}
_SOURCES = {
    "l2": "l2",
    "sm": "sm",
    "microcontroller": "mcu",
    "mcu": "mcu",
    "pcie": "pcie",
    "other": "other",
}
_BANKS = ("max", "high", "partial", "low", "none")
_SCOPES = ("volatile", "aggregate")

#: Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h), by the words of `-q`.
_REASONS = {
    "idle": 0x1,
    "applications clocks setting": 0x2,
    "sw power cap": 0x4,
    "hw slowdown": 0x8,
    "hw slowdown/hw thermal slowdown": 0x40,
    "hw slowdown/hw power brake slowdown": 0x80,
    "hw thermal slowdown": 0x40,
    "hw power brake slowdown": 0x80,
    "sync boost": 0x10,
    "sw thermal slowdown": 0x20,
    "display clock setting": 0x100,
}
_REASON_TAGS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "display_clocks_setting": 0x100,
    "display_clock_setting": 0x100,
}
_BITS = "clocks_event_reasons"
_THROTTLED = {
    "sw power capping": "power_cap",
    "sw_power_cap": "power_cap",
    "sync boost": "sync_boost",
    "sync_boost": "sync_boost",
    "sw thermal slowdown": "sw_thermal",
    "sw_thermal_slowdown": "sw_thermal",
    "sw_therm_slowdown": "sw_thermal",
    "hw thermal slowdown": "hw_thermal",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_therm_slowdown": "hw_thermal",
    "hw power braking": "power_brake",
    "hw_power_brake_slowdown": "power_brake",
    "hw_power_brake": "power_brake",
}


def _success(value: str) -> int:
    """Only success has a number here: NVML's others are not told by their words alone."""
    if value.casefold() != "success":
        raise ValueError(value)
    return 0


def _state(value: str) -> str:
    """`Completed`, `In Progress` in the spelling that NVML's numbers get."""
    return text(value).casefold().replace(" ", "-")


_PLAIN: dict[str, tuple[str, Kind]] = {
    "product name": ("name", text),
    "serial number": ("serial", text),
    "gpu uuid": ("uuid", text),
    "persistence mode": ("persistence_mode", yes),
    "mig mode/current": ("mig_enabled", yes),
    "gpu reset status/reset required": ("reset_required", yes),
    "gpu reset status/drain and reset recommended": ("reset_recommended", yes),
    "gpu recovery action": ("recovery_action", recovery_action),
    "pci/gpu link info/pcie generation/max": ("pcie_generation_max", whole),
    "pci/gpu link info/pcie generation/current": ("pcie_generation", whole),
    "pci/gpu link info/link width/max": ("pcie_width_max", whole),
    "pci/gpu link info/link width/current": ("pcie_width", whole),
    "pci/replays since reset": ("pcie_replays", whole),
    "performance state": ("performance_state", performance_state),
    "fb memory usage/total": ("memory_total_mib", mebibytes),
    "fb memory usage/used": ("memory_used_mib", mebibytes),
    "utilization/gpu": ("utilization_pct", whole),
    "ecc mode/current": ("ecc_enabled", yes),
    "ecc mode/pending": ("ecc_enabled_pending", yes),
    "ecc errors/aggregate/sram threshold exceeded": ("sram_threshold_exceeded", yes),
    "ecc errors/channel repair pending": ("channel_repair_pending", yes),
    "ecc errors/tpc repair pending": ("tpc_repair_pending", yes),
    "ecc errors/unrepairable memory": ("unrepairable_memory", yes),
    "retired pages/single bit ecc": ("retired_pages_sbe", whole),
    "retired pages/double bit ecc": ("retired_pages_dbe", whole),
    "retired pages/pending page blacklist": ("retired_pending", yes),
    "retired pages/pending": ("retired_pending", yes),
    "remapped rows/correctable error": ("remapped_correctable", whole),
    "remapped rows/uncorrectable error": ("remapped_uncorrectable", whole),
    "remapped rows/correctable error (inactive)": ("remapped_correctable_inactive", whole),
    "remapped rows/uncorrectable error (inactive)": ("remapped_uncorrectable_inactive", whole),
    "remapped rows/inactive correctable error": ("remapped_correctable_inactive", whole),
    "remapped rows/inactive uncorrectable error": ("remapped_uncorrectable_inactive", whole),
    "remapped rows/pending": ("remap_pending", yes),
    "remapped rows/remapping failure occurred": ("remap_failure", yes),
    "temperature/gpu current temp": ("temperature_c", whole),
    "temperature/gpu t.limit temp": ("temperature_margin_c", whole),
    "temperature/gpu shutdown temp": ("temperature_shutdown_c", whole),
    "temperature/gpu slowdown temp": ("temperature_slowdown_c", whole),
    "temperature/gpu max operating temp": ("temperature_max_c", whole),
    "temperature/gpu shutdown t.limit temp": ("temperature_margin_shutdown", whole),
    "temperature/gpu slowdown t.limit temp": ("temperature_margin_slowdown", whole),
    "temperature/gpu max operating t.limit temp": ("temperature_margin_max", whole),
    "temperature/memory current temp": ("temperature_memory_c", whole),
    "temperature/memory max operating temp": ("temperature_memory_max_c", whole),
    "temperature/memory max operating t.limit temp": ("temperature_margin_memory_max", whole),
    "clocks/sm": ("clock_sm_mhz", whole),
    "clocks/memory": ("clock_memory_mhz", whole),
    "max clocks/sm": ("clock_sm_max_mhz", whole),
    "fabric/state": ("fabric_state", _state),
    "fabric/status": ("fabric_status", _success),
    "fabric/cliqueid": ("fabric_clique", whole),
    "fabric/clusteruuid": ("fabric_cluster_uuid", cluster),
}

_TAGS: dict[str, tuple[str, Kind]] = {
    "product_name": ("name", text),
    "serial": ("serial", text),
    "uuid": ("uuid", text),
    "persistence_mode": ("persistence_mode", yes),
    "mig_mode/current_mig": ("mig_enabled", yes),
    "gpu_reset_status/reset_required": ("reset_required", yes),
    "gpu_reset_status/drain_and_reset_recommended": ("reset_recommended", yes),
    "gpu_recovery_action": ("recovery_action", recovery_action),
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": ("pcie_generation_max", whole),
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": ("pcie_generation", whole),
    "pci/pci_gpu_link_info/link_widths/max_link_width": ("pcie_width_max", whole),
    "pci/pci_gpu_link_info/link_widths/current_link_width": ("pcie_width", whole),
    "pci/replay_counter": ("pcie_replays", whole),
    "performance_state": ("performance_state", performance_state),
    "fb_memory_usage/total": ("memory_total_mib", mebibytes),
    "fb_memory_usage/used": ("memory_used_mib", mebibytes),
    "utilization/gpu_util": ("utilization_pct", whole),
    "ecc_mode/current_ecc": ("ecc_enabled", yes),
    "ecc_mode/pending_ecc": ("ecc_enabled_pending", yes),
    "ecc_errors/aggregate/sram_threshold_exceeded": ("sram_threshold_exceeded", yes),
    "ecc_errors/channel_repair_pending": ("channel_repair_pending", yes),
    "ecc_errors/tpc_repair_pending": ("tpc_repair_pending", yes),
    "ecc_errors/unrepairable_memory": ("unrepairable_memory", yes),
    "retired_pages/multiple_single_bit_retirement/retired_count": ("retired_pages_sbe", whole),
    "retired_pages/double_bit_retirement/retired_count": ("retired_pages_dbe", whole),
    "retired_pages/pending_blacklist": ("retired_pending", yes),
    "retired_pages/pending_retirement": ("retired_pending", yes),
    "remapped_rows/remapped_row_corr": ("remapped_correctable", whole),
    "remapped_rows/remapped_row_unc": ("remapped_uncorrectable", whole),
    "remapped_rows/remapped_row_corr_inactive": ("remapped_correctable_inactive", whole),
    "remapped_rows/remapped_row_unc_inactive": ("remapped_uncorrectable_inactive", whole),
    "remapped_rows/remapped_row_pending": ("remap_pending", yes),
    "remapped_rows/remapped_row_failure": ("remap_failure", yes),
    "temperature/gpu_temp": ("temperature_c", whole),
    "temperature/gpu_temp_tlimit": ("temperature_margin_c", whole),
    "temperature/gpu_temp_max_threshold": ("temperature_shutdown_c", whole),
    "temperature/gpu_temp_slow_threshold": ("temperature_slowdown_c", whole),
    "temperature/gpu_temp_max_gpu_threshold": ("temperature_max_c", whole),
    "temperature/gpu_temp_max_tlimit_threshold": ("temperature_margin_shutdown", whole),
    "temperature/gpu_temp_slow_tlimit_threshold": ("temperature_margin_slowdown", whole),
    "temperature/gpu_temp_max_gpu_tlimit_threshold": ("temperature_margin_max", whole),
    "temperature/memory_temp": ("temperature_memory_c", whole),
    "temperature/gpu_temp_max_mem_threshold": ("temperature_memory_max_c", whole),
    "temperature/gpu_temp_max_mem_tlimit_threshold": ("temperature_margin_memory_max", whole),
    "clocks/sm_clock": ("clock_sm_mhz", whole),
    "clocks/mem_clock": ("clock_memory_mhz", whole),
    "max_clocks/sm_clock": ("clock_sm_max_mhz", whole),
    "fabric/state": ("fabric_state", _state),
    "fabric/status": ("fabric_status", _success),
    "fabric/cliqueid": ("fabric_clique", whole),
    "fabric/clusteruuid": ("fabric_cluster_uuid", cluster),
}

_COLUMNS: dict[str, tuple[str, Kind]] = {
    "index": ("index", whole),
    "name": ("name", text),
    "gpu_name": ("name", text),
    "serial": ("serial", text),
    "gpu_serial": ("serial", text),
    "uuid": ("uuid", text),
    "gpu_uuid": ("uuid", text),
    "persistence_mode": ("persistence_mode", yes),
    "mig.mode.current": ("mig_enabled", yes),
    "gpu_recovery_action": ("recovery_action", recovery_action),
    "reset_status.reset_required": ("reset_required", yes),
    "reset_status.drain_and_reset_recommended": ("reset_recommended", yes),
    "pcie.link.gen.current": ("pcie_generation", whole),
    "pcie.link.gen.gpucurrent": ("pcie_generation?", whole),
    "pcie.link.gen.max": ("pcie_generation_max", whole),
    "pcie.link.width.current": ("pcie_width", whole),
    "pcie.link.width.max": ("pcie_width_max", whole),
    "pstate": ("performance_state", performance_state),
    "memory.total": ("memory_total_mib", mebibytes),
    "memory.used": ("memory_used_mib", mebibytes),
    "utilization.gpu": ("utilization_pct", whole),
    "ecc.mode.current": ("ecc_enabled", yes),
    "ecc.mode.pending": ("ecc_enabled_pending", yes),
    "ecc.errors.uncorrected.aggregate.sram.thresholdexceeded": ("sram_threshold_exceeded", yes),
    "retired_pages.single_bit_ecc.count": ("retired_pages_sbe", whole),
    "retired_pages.sbe": ("retired_pages_sbe", whole),
    "retired_pages.double_bit.count": ("retired_pages_dbe", whole),
    "retired_pages.dbe": ("retired_pages_dbe", whole),
    "retired_pages.pending": ("retired_pending", yes),
    "remapped_rows.correctable": ("remapped_correctable", whole),
    "remapped_rows.uncorrectable": ("remapped_uncorrectable", whole),
    "remapped_rows.pending": ("remap_pending", yes),
    "remapped_rows.failure": ("remap_failure", yes),
    "temperature.gpu": ("temperature_c", whole),
    "temperature.gpu.tlimit": ("temperature_margin_c", whole),
    "temperature.memory": ("temperature_memory_c", whole),
    "power.draw": ("power_w", fraction),
    "power.draw.average": ("power_w?", fraction),
    "power.draw.instant": ("power_w?", fraction),
    "enforced.power.limit": ("power_limit_w", fraction),
    "power.limit": ("power_limit_w?", fraction),
    "clocks.current.sm": ("clock_sm_mhz", whole),
    "clocks.sm": ("clock_sm_mhz", whole),
    "clocks.current.memory": ("clock_memory_mhz", whole),
    "clocks.mem": ("clock_memory_mhz", whole),
    "clocks.max.sm": ("clock_sm_max_mhz", whole),
    "fabric.state": ("fabric_state", _state),
    "fabric.status": ("fabric_status", _success),
    "fabric.cliqueid": ("fabric_clique", whole),
    "fabric.clusteruuid": ("fabric_cluster_uuid", cluster),
}


def _query_ecc() -> dict[str, tuple[str, Kind]]:
    names: dict[str, tuple[str, Kind]] = {}
    for scope in _SCOPES:
        at = f"ecc errors/{scope}"
        for bits, kind in (("single bit", "corrected"), ("double bit", "uncorrected")):
            names[f"{at}/{bits}/total"] = (f"ecc_{scope}_{kind}", whole)
            for place, part in _PLACES.items():
                part = f"ecc_locations.{scope}_{kind}_{part}"  # noqa: PLW2901
                names[f"{at}/{bits}/{place.replace('_', ' ')}"] = (part, whole)
        for memory in ("sram", "dram"):
            part = f"ecc_locations.{scope}"
            names[f"{at}/{memory} correctable"] = (f"{part}_corrected_{memory}", whole)
            names[f"{at}/{memory} uncorrectable"] = (f"{part}_uncorrected_{memory}", whole)
        names[f"{at}/sram uncorrectable parity"] = (f"sram_{scope}_parity", whole)
        names[f"{at}/sram uncorrectable sec-ded"] = (f"sram_{scope}_secded", whole)
    return names


def _query() -> dict[str, tuple[str, Kind]]:
    names = _PLAIN | _query_ecc()
    for source, part in _SOURCES.items():
        at = "ecc errors/aggregate uncorrectable sram sources"
        names[f"{at}/sram {source}"] = (f"sram_sources.{part}", whole)
    for bank in _BANKS:
        at = "remapped rows/bank remap availability histogram"
        names[f"{at}/{bank}"] = (f"remap_banks.{bank}", whole)
    for section in ("clocks event reasons", "clocks throttle reasons"):
        for words, bit in _REASONS.items():
            names[f"{section}/{words}"] = (f"{_BITS}#{bit}", yes)
        for words, part in _THROTTLED.items():
            names[f"{section} counters/{words}"] = (f"throttled_ns.{part}", nanoseconds)
    for section in ("gpu power readings", "power readings"):
        names[f"{section}/power draw"] = ("power_w", fraction)
        names[f"{section}/average power draw"] = ("power_w", fraction)
        names[f"{section}/instantaneous power draw"] = ("power_w?", fraction)
        names[f"{section}/current power limit"] = ("power_limit_w", fraction)
        names[f"{section}/enforced power limit"] = ("power_limit_w", fraction)
        names[f"{section}/power limit"] = ("power_limit_w?", fraction)
    return names


def _xml_ecc() -> dict[str, tuple[str, Kind]]:
    names: dict[str, tuple[str, Kind]] = {}
    for scope in _SCOPES:
        at = f"ecc_errors/{scope}"
        for bits, kind in (("single_bit", "corrected"), ("double_bit", "uncorrected")):
            names[f"{at}/{bits}/total"] = (f"ecc_{scope}_{kind}", whole)
            for place, part in _PLACES.items():
                names[f"{at}/{bits}/{place}"] = (f"ecc_locations.{scope}_{kind}_{part}", whole)
        for memory in ("sram", "dram"):
            part = f"ecc_locations.{scope}"
            names[f"{at}/{memory}_correctable"] = (f"{part}_corrected_{memory}", whole)
            names[f"{at}/{memory}_uncorrectable"] = (f"{part}_uncorrected_{memory}", whole)
        names[f"{at}/sram_uncorrectable_parity"] = (f"sram_{scope}_parity", whole)
        names[f"{at}/sram_uncorrectable_secded"] = (f"sram_{scope}_secded", whole)
    return names


def _xml() -> dict[str, tuple[str, Kind]]:
    names = _TAGS | _xml_ecc()
    for source, part in _SOURCES.items():
        at = "ecc_errors/aggregate_uncorrectable_sram_sources"
        names[f"{at}/sram_{source}"] = (f"sram_sources.{part}", whole)
    for bank in _BANKS:
        at = "remapped_rows/row_remapper_histogram/row_remapper_histogram"
        names[f"{at}_{bank}"] = (f"remap_banks.{bank}", whole)
    for word in ("event", "throttle"):
        section = f"clocks_{word}_reasons"
        for tag, bit in _REASON_TAGS.items():
            names[f"{section}/clocks_{word}_reason_{tag}"] = (f"{_BITS}#{bit}", yes)
        for tag, part in _THROTTLED.items():
            path = f"{section}_counters/clocks_{word}_reasons_counters_{tag}"
            names[path] = (f"throttled_ns.{part}", nanoseconds)
    for section in ("gpu_power_readings", "power_readings"):
        names[f"{section}/power_draw"] = ("power_w", fraction)
        names[f"{section}/average_power_draw"] = ("power_w", fraction)
        names[f"{section}/instant_power_draw"] = ("power_w?", fraction)
        names[f"{section}/current_power_limit"] = ("power_limit_w", fraction)
        names[f"{section}/enforced_power_limit"] = ("power_limit_w", fraction)
        names[f"{section}/power_limit"] = ("power_limit_w?", fraction)
    return names


def _csv() -> dict[str, tuple[str, Kind]]:
    names = dict(_COLUMNS)
    for scope in _SCOPES:
        for kind in ("corrected", "uncorrected"):
            at = f"ecc.errors.{kind}.{scope}"
            names[f"{at}.total"] = (f"ecc_{scope}_{kind}", whole)
            for place, part in _PLACES.items():
                names[f"{at}.{place}"] = (f"ecc_locations.{scope}_{kind}_{part}", whole)
        sram = f"ecc.errors.uncorrected.{scope}.sram"
        names[f"{sram}.parity"] = (f"sram_{scope}_parity", whole)
        names[f"{sram}.secded"] = (f"sram_{scope}_secded", whole)
    for source, part in _SOURCES.items():
        at = "ecc.errors.uncorrected.aggregate.sram"
        names[f"{at}.{source}"] = (f"sram_sources.{part}", whole)
    for bank in _BANKS:
        names[f"remapped_rows.histogram.{bank}"] = (f"remap_banks.{bank}", whole)
    for word in ("event", "throttle"):
        section = f"clocks_{word}_reasons"
        names[f"{section}.active"] = (_BITS, whole)
        for tag, bit in _REASON_TAGS.items():
            names[f"{section}.{tag}"] = (f"{_BITS}#{bit}", yes)
        for tag, part in _THROTTLED.items():
            names[f"{section}_counters.{tag}"] = (f"throttled_ns.{part}", nanoseconds)
    return names


QUERY: Names = _query()
XML: Names = _xml()
CSV: Names = _csv()


def sections(names: Names) -> dict[str, tuple[str, ...]]:
    """The readings under each section, for a section that is itself `N/A`."""
    under: dict[str, list[str]] = defaultdict(list)
    for path, (name, _) in names.items():
        parts = path.split("/")
        for depth in range(1, len(parts)):
            under["/".join(parts[:depth])].append(name)
    return {section: tuple(dict.fromkeys(found)) for section, found in under.items()}
