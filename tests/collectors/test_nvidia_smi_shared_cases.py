"""The shared nvidia-smi outputs: every value that they tell, read off them by eye."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from collectors.nvidia_smi import parse_stream, recognise
from evidence.records import GpuSnapshot, GpuStatus, GpuTick, MigInstance

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
SHARED = Path(os.environ.get("RINGFENCE_SHARED", Path(__file__).parents[3] / "shared"))
NA = "N/A"
LOST, ERROR = GpuStatus.LOST, GpuStatus.ERROR


def ticks(name: str) -> list[tuple[str | None, GpuTick]]:
    """The driver and the tick of each frame."""
    path = SHARED / "cases" / "nvidia-smi" / name
    if not path.exists():
        pytest.skip(f"the shared folder has no {name} here (RINGFENCE_SHARED names another folder)")
    lines = path.read_bytes().splitlines(keepends=True)
    assert recognise(lines[:200])
    return [(one.driver, one.ticks[0]) for one in parse_stream(lines, host="n1", now=NOW)]


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


def zeros(*places: str) -> dict[str, int]:
    """`ecc_locations` with a zero at each place, volatile and aggregate."""
    return {f"{scope}_{place}": 0 for scope in ("volatile", "aggregate") for place in places}


_ECC_CLEAN: dict[str, Any] = {
    "ecc_enabled": True,
    "ecc_enabled_pending": True,
    "ecc_volatile_corrected": 0,
    "ecc_volatile_uncorrected": 0,
    "ecc_aggregate_corrected": 0,
    "ecc_aggregate_uncorrected": 0,
}
_SRAM_CLEAN: dict[str, Any] = {
    "sram_threshold_exceeded": False,
    "sram_volatile_parity": 0,
    "sram_volatile_secded": 0,
    "sram_aggregate_parity": 0,
    "sram_aggregate_secded": 0,
    "sram_sources": {"l2": 0, "sm": 0, "mcu": 0, "pcie": 0, "other": 0},
}
_BY_MEMORY = zeros("corrected_sram", "uncorrected_sram", "corrected_dram", "uncorrected_dram")
_BY_PROTECTION = zeros("corrected_sram", "corrected_dram", "uncorrected_dram")
_NO_RETIRED = dict.fromkeys(
    ("retired_pages", "retired_pages_sbe", "retired_pages_dbe", "retired_pending"), NA
)
_NO_REMAPS = dict.fromkeys(
    (
        "remapped_correctable",
        "remapped_uncorrectable",
        "remapped_correctable_inactive",
        "remapped_uncorrectable_inactive",
        "remap_pending",
        "remap_failure",
        "remap_banks",
    ),
    NA,
)


def test_an_a10_with_a_remap_pending_whose_ecc_counts_are_all_zero() -> None:
    ((driver, tick),) = ticks("01_A10_535.129_q_remap_pending.txt")
    assert driver == "535.129.03"
    assert tick == GpuTick(
        at=utc(2024, 9, 25, 10, 40, 24),
        gpus=(
            GpuSnapshot(
                index=0,
                uuid="GPU-c0893884-aee5-37a5-1812-57a1340f5f99",
                serial="1859873646151",
                pci="0000:07:00",
                name="NVIDIA A10",
                unread=_NO_RETIRED
                | dict.fromkeys(
                    (
                        "mig_enabled",
                        "temperature_margin_c",
                        "temperature_memory_c",
                        "temperature_memory_max_c",
                        "fabric_state",
                        "fabric_status",
                    ),
                    NA,
                ),
                **_ECC_CLEAN,
                ecc_locations=_BY_MEMORY,
                remapped_correctable=0,
                remapped_uncorrectable=4,
                remap_pending=True,
                remap_failure=False,
                remap_banks={"max": 192, "high": 0, "partial": 0, "low": 0, "none": 0},
                temperature_c=33,
                temperature_shutdown_c=101,
                temperature_slowdown_c=98,
                temperature_max_c=91,
                power_w=43.89,
                power_limit_w=150.0,
                utilization_pct=0,
                memory_used_mib=4,
                memory_total_mib=23028,
                clock_sm_mhz=225,
                clock_sm_max_mhz=1695,
                clock_memory_mhz=405,
                clocks_event_reasons=0x1,
                pcie_replays=0,
                pcie_width=16,
                pcie_width_max=16,
                pcie_generation=4,
                pcie_generation_max=4,
                persistence_mode=True,
                performance_state=8,
                processes=(),
            ),
        ),
    )


# bus, UUID, serial, replays, temperature, margin, memory temperature, power
_H100 = [
    ("19", "20ef69d4-c28f-5b2c-0858-75cb2ae6decb", "1335655840245", 67, 29, 56, 39, 67.74),
    ("3b", "35c01158-cd1e-3c88-6af3-a7f8f0b35fdc", "1126968856723", 63, 29, 57, 38, 69.52),
    ("4c", "705048ba-488f-6e39-6458-1b565c2ea406", "1016930457943", 52, 30, 56, 38, 70.55),
    ("5d", "c7fcb445-9010-47e4-2c08-6e1d0b4e6eb0", "1727194849442", 43, 30, 57, 38, 71.37),
    ("9b", "cb5fa635-c916-cd6f-e726-8a07c67c7e2c", "1463110080577", 49, 31, 55, 38, 70.33),
    ("bb", "f07a05e5-2835-5da9-4e8e-b7505e109b88", "1990328187653", 53, 32, 55, 39, 70.21),
    ("cb", "7c3364c9-b5c2-a14b-fed2-d31b8311ff78", "1586457160065", 82, 32, 55, 40, 71.05),
    ("db", "b7f4f11a-44f9-d2db-a8d6-facbfa3bd80f", "1862763499501", 67, 31, 55, 38, 72.27),
]


def test_eight_h100_under_a_power_brake() -> None:
    ((driver, tick),) = ticks("03_H100x8_535.161_q_parity_secded_threshold.txt")
    assert (driver, tick.at) == ("535.161.08", utc(2024, 7, 31, 11, 22, 39))
    for index, row in enumerate(_H100):
        bus, uuid, serial, replays, heat, margin, memory, power = row
        assert tick.gpus[index] == GpuSnapshot(
            index=index,
            uuid=f"GPU-{uuid}",
            serial=serial,
            pci=f"0000:{bus}:00",
            name="NVIDIA H100 80GB HBM3",
            unread=_NO_RETIRED,
            **_ECC_CLEAN,
            **_SRAM_CLEAN,
            ecc_locations=_BY_PROTECTION,
            remapped_correctable=0,
            remapped_uncorrectable=0,
            remap_pending=False,
            remap_failure=False,
            remap_banks={"max": 2560, "high": 0, "partial": 0, "low": 0, "none": 0},
            temperature_c=heat,
            temperature_memory_c=memory,
            temperature_margin_c=margin,
            temperature_margin_shutdown=-8,
            temperature_margin_slowdown=-2,
            temperature_margin_max=0,
            temperature_margin_memory_max=0,
            power_w=power,
            power_limit_w=700.0,
            utilization_pct=0,
            memory_used_mib=0,
            memory_total_mib=81559,
            clock_sm_mhz=86,
            clock_sm_max_mhz=1980,
            clock_memory_mhz=2619,
            clocks_event_reasons=0x8 | 0x80,
            pcie_replays=replays,
            pcie_width=16,
            pcie_width_max=16,
            pcie_generation=5,
            pcie_generation_max=5,
            fabric_state="completed",
            fabric_status=0,
            persistence_mode=True,
            performance_state=0,
            mig_enabled=False,
            processes=(),
        )
    assert len(tick.gpus) == 8


def test_an_a100_in_four_mig_instances_as_xml() -> None:
    ((driver, tick),) = ticks("08_A100_MIG_535.54_x_v12_remapped_NA.xml")
    assert driver == "535.54.03"
    assert tick == GpuTick(
        at=utc(2023, 8, 4, 11, 44, 30),
        gpus=(
            GpuSnapshot(
                index=-1,
                uuid="GPU-e6706ba1-aa25-754d-801e-bf424b779d81",
                serial="1647636770385",
                pci="0000:01:00",
                name="NVIDIA A100-SXM4-80GB",
                unread={"index": "not in the output"}
                | _NO_RETIRED
                | _NO_REMAPS
                | dict.fromkeys(
                    ("utilization_pct", "temperature_margin_c", "fabric_state", "fabric_status"),
                    NA,
                ),
                **_ECC_CLEAN,
                ecc_locations=_BY_MEMORY,
                temperature_c=27,
                temperature_memory_c=44,
                temperature_shutdown_c=92,
                temperature_slowdown_c=89,
                temperature_max_c=85,
                temperature_memory_max_c=95,
                power_w=67.03,
                power_limit_w=500.0,
                memory_used_mib=50,
                memory_total_mib=81920,
                clock_sm_mhz=1275,
                clock_sm_max_mhz=1410,
                clock_memory_mhz=1593,
                clocks_event_reasons=0,
                pcie_replays=0,
                pcie_width=16,
                pcie_width_max=16,
                pcie_generation=4,
                pcie_generation_max=4,
                persistence_mode=False,
                performance_state=0,
                mig_enabled=True,
                mig=tuple(MigInstance(gi=gi, ci=0) for gi in (3, 4, 5, 6)),
                processes=(),
            ),
        ),
    )


_H100_MIG: dict[str, Any] = {
    "index": 0,
    "pci": "0000:00:09",
    "name": "NVIDIA H100 80GB HBM3",
    "temperature_c": 42,
    "memory_used_mib": 59,
    "memory_total_mib": 81559,
    "power_limit_w": 700.0,
    "persistence_mode": True,
    "performance_state": 0,
    "mig_enabled": True,
}
_H100_MIG_FULL: dict[str, Any] = (
    _H100_MIG
    | _ECC_CLEAN
    | _SRAM_CLEAN
    | {
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "serial": "0000000000000",
        "recovery_action": 0,
        "temperature_memory_c": 48,
        "temperature_margin_c": 45,
        "clock_sm_mhz": 345,
        "clock_sm_max_mhz": 1980,
        "clock_memory_mhz": 2619,
        "clocks_event_reasons": 0x1,
        "throttled_ns": {
            "power_cap": 0,
            "sync_boost": 0,
            "sw_thermal": 0,
            "hw_thermal": 0,
            "power_brake": 0,
        },
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "fabric_state": "completed",
        "fabric_status": 0,
        "fabric_clique": 0,
        "fabric_cluster_uuid": "00000000-0000-0000-0000-000000000000",
    }
)
_INSTANCES = tuple(MigInstance(gi=gi, ci=0) for gi in (2, 3, 9, 10))


def test_an_h100_with_mig_as_table_as_text_and_as_csv() -> None:
    table, text, csv = ticks("10_H100_MIG_590.48_table_q_csv.txt")
    assert {driver for driver, _ in (table, text, csv)} == {"590.48.01"}
    assert table[1] == GpuTick(
        at=utc(2026, 7, 14, 9, 0, 26),
        gpus=(
            GpuSnapshot(
                **_H100_MIG,
                unread={"ecc_volatile_uncorrected": "hidden by MIG", "utilization_pct": NA},
                power_w=98.0,
                mig=_INSTANCES,
                processes=(),
            ),
        ),
    )
    assert text[1] == GpuTick(
        at=utc(2026, 7, 14, 9, 0, 27),
        gpus=(
            GpuSnapshot(
                **_H100_MIG_FULL,
                unread=_NO_RETIRED | _NO_REMAPS | {"utilization_pct": NA},
                ecc_locations=_BY_PROTECTION,
                channel_repair_pending=False,
                tpc_repair_pending=False,
                unrepairable_memory=False,
                temperature_margin_shutdown=-8,
                temperature_margin_slowdown=-2,
                temperature_margin_max=0,
                temperature_margin_memory_max=0,
                power_w=71.27,
                pcie_replays=9,
                mig=_INSTANCES,
                processes=(),
            ),
        ),
    )
    # The CSV has the row remapper's histogram, though not its counts.
    no_counts = {
        name: why
        for name, why in _NO_REMAPS.items()
        if name != "remap_banks" and not name.endswith("inactive")
    }
    assert csv[1] == GpuTick(
        at=utc(2026, 7, 14, 9, 0, 27, 792000),
        gpus=(
            GpuSnapshot(
                **_H100_MIG_FULL,
                unread=_NO_RETIRED | no_counts | {"utilization_pct": NA},
                ecc_locations=_BY_MEMORY,
                remap_banks={"max": 2560, "high": 0, "partial": 0, "low": 0, "none": 0},
                power_w=71.15,
            ),
        ),
    )


_FAILING = (
    "name",
    "ecc_volatile_uncorrected",
    "temperature_c",
    "performance_state",
    "power_w",
    "power_limit_w",
    "utilization_pct",
    "mig_enabled",
)


def test_cards_that_answer_err_between_their_neighbours() -> None:
    a40, a30 = ticks("14_ERR_tables_and_gsp_timeouts.txt")
    healthy: dict[str, Any] = {
        "name": "NVIDIA A40",
        "unread": {"mig_enabled": NA},
        "ecc_volatile_uncorrected": 0,
        "power_w": 14.0,
        "power_limit_w": 300.0,
        "utilization_pct": 0,
        "memory_total_mib": 46068,
        "persistence_mode": True,
        "performance_state": 8,
    }
    failing: dict[str, Any] = {"status": ERROR, "unread": dict.fromkeys(_FAILING, "ERR!")}
    assert a40 == (
        None,
        GpuTick(
            at=NOW,
            gpus=(
                GpuSnapshot(
                    index=3, pci="0000:44:00", temperature_c=30, memory_used_mib=0, **healthy
                ),
                GpuSnapshot(
                    index=4,
                    pci="0000:83:00",
                    memory_used_mib=0,
                    memory_total_mib=46068,
                    persistence_mode=True,
                    **failing,
                ),
                GpuSnapshot(
                    index=5, pci="0000:84:00", temperature_c=23, memory_used_mib=3, **healthy
                ),
            ),
        ),
    )
    assert a30 == (
        "525.85.12",
        GpuTick(
            at=utc(2023, 3, 3, 14, 41, 55),
            gpus=(
                GpuSnapshot(
                    index=2,
                    pci="0000:41:00",
                    name="NVIDIA A30",
                    ecc_volatile_uncorrected=0,
                    temperature_c=42,
                    power_w=141.0,
                    power_limit_w=165.0,
                    utilization_pct=33,
                    memory_used_mib=14992,
                    memory_total_mib=24576,
                    persistence_mode=False,
                    performance_state=0,
                    mig_enabled=False,
                ),
                GpuSnapshot(
                    index=3,
                    pci="0000:61:00",
                    memory_used_mib=23025,
                    memory_total_mib=24576,
                    persistence_mode=False,
                    **failing,
                ),
            ),
        ),
    )


def test_messages_in_place_of_an_answer() -> None:
    cards, failed, none, worn = (tick for _, tick in ticks("16_lost_gpu_messages.txt"))
    assert [(gpu.index, gpu.pci, gpu.status, gpu.error) for gpu in cards.gpus] == [
        (-1, "0000:02:00", LOST, 15),
        (-1, "0000:03:00", LOST, 15),
        (-1, "0000:0b:00", ERROR, 999),
        (-1, "0000:08:00", ERROR, 999),
        (-1, "0000:cb:00", ERROR, 999),
        (1, "0000:34:00", ERROR, 999),
        (0, "0000:01:00", ERROR, 999),
        (6, None, ERROR, 999),
    ]
    assert {gpu.unread["handle"] for gpu in cards.gpus} == {"GPU is lost", "Unknown Error"}
    assert (failed.gpus, failed.error, failed.error_text) == ((), 999, "Unknown Error")
    assert (none.gpus, none.error, none.error_text) == ((), 6, "No devices were found")
    (gpu,) = worn.gpus
    assert (gpu.pci, gpu.status, gpu.error) == ("0000:3b:00", ERROR, 14)


def test_an_excerpt_with_the_repair_fields_of_595() -> None:
    ((driver, tick),) = ticks("17_595.58_q_d_ECC_repair_fields.txt")
    assert driver is None
    assert tick == GpuTick(
        at=NOW,
        gpus=(
            GpuSnapshot(
                index=-1,
                pci="0000:54:00",
                unread={"index": "not in the output"},
                **_ECC_CLEAN,
                **_SRAM_CLEAN,
                ecc_locations=_BY_PROTECTION,
                channel_repair_pending=False,
                tpc_repair_pending=False,
                unrepairable_memory=False,
            ),
        ),
    )
