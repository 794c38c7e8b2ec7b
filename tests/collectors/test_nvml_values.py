"""Which values are read of a GPU when, by which form of a call, and what is said of the others."""

from types import ModuleType
from typing import Any

import pytest
from gpu_ticks import NO_RETIREMENT, OFTEN, SRAM, healthy, named, tick_where, ticks, timeless

from evidence.records import GpuSnapshot, GpuStatus, GpuTick


def slow(tick: GpuTick) -> bool:
    return tick.gpus[0].power_limit_w is not None


def quick(tick: GpuTick) -> bool:
    return tick.gpus[0].power_limit_w is None


def test_older_forms_of_a_call_are_asked_where_the_newer_is_unknown(
    node: Any, collect: Any
) -> None:
    node.change(
        {
            "gpu.0.clocks_event_reasons": "!13",
            "gpu.0.clocks_throttle_reasons": 32,
            "gpu.0.temperature": "!26",
            "gpu.0.temperature_v": 44,
            "gpu.0.memory_used": "!13",
            "gpu.0.memory_used_v1": 1024**3,
        }
    )
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.clocks_event_reasons, gpu.temperature_c, gpu.memory_used_mib) == (32, 44, 1024)


def test_retired_pages_of_both_causes_are_added(node: Any, collect: Any) -> None:
    node.change({"gpu.0.field.29": 3, "gpu.0.field.30": 2, "gpu.0.field.31": 1})
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.retired_pages, gpu.retired_pending) == (5, True)


@pytest.mark.usefixtures("node")
def test_what_changes_slowly_is_read_every_tenth_tick_and_between_it_is_none_without_a_reason(
    stand_in: ModuleType, collect: Any
) -> None:
    collector = collect(slow_ticks=10)
    taken = [tick for tick, _ in zip(ticks(collector), range(21), strict=False)]
    assert [at for at, tick in enumerate(taken) if slow(tick)] == [0, 10, 20]
    for at in (0, 10, 20):
        assert timeless(taken[at].gpus[1]) == healthy(stand_in, 1)
    for at in (1, 9, 11, 19):
        assert timeless(taken[at].gpus[1]) == GpuSnapshot(**named(stand_in, 1), **OFTEN)


def test_a_change_of_health_brings_everything_at_once(node: Any, collect: Any) -> None:
    collector = collect(slow_ticks=1_000_000)
    assert slow(next(ticks(collector)))
    tick_where(collector, quick)
    node.change({"gpu.0.ecc.aggregate.uncorrected": 2, "gpu.0.location.1.1.2": 1})
    gpu = tick_where(collector, lambda tick: tick.gpus[0].ecc_aggregate_uncorrected == 2).gpus[0]
    assert gpu.ecc_locations is not None
    assert gpu.ecc_locations["aggregate_uncorrected_dram"] == 1
    tick = tick_where(collector, quick)
    assert tick.gpus[1].power_limit_w is None


def test_a_driver_without_fields_tells_the_same_by_its_calls(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    node.change(
        {
            "gpu.*.fields": "!13",
            "gpu.*.power_limit": 700_000,
            "gpu.*.energy": 91_884_331_207,
            "gpu.*.nvlink_state": 1,
            "gpu.*.nvlink_error": 0,
        }
    )
    collector = collect(slow_ticks=2)
    first, second = (tick for tick, _ in zip(ticks(collector), range(2), strict=False))
    # No call knows these.
    fields_only = (
        "throttled_ns",
        "temperature_memory_c",
        "recovery_action",
        "remapped_correctable_inactive",
        "remapped_uncorrectable_inactive",
        "temperature_margin_shutdown",
        "temperature_margin_slowdown",
        "temperature_margin_memory_max",
        "temperature_margin_max",
    )
    lacking = dict.fromkeys(fields_only)
    assert timeless(first.gpus[0]) == healthy(
        stand_in,
        0,
        **lacking,
        unread=NO_RETIREMENT | dict.fromkeys(fields_only, "Function Not Found (13)"),
    )
    assert timeless(second.gpus[0]) == GpuSnapshot(
        **named(stand_in, 0), **(OFTEN | dict.fromkeys(fields_only[:3]))
    )


def test_a_driver_that_does_not_know_the_newest_fields_is_asked_by_call_for_them(
    node: Any, collect: Any
) -> None:
    node.change({"gpu.0.fields_end": 150, "gpu.0.power_limit": 650_000})
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.power_w, gpu.power_limit_w, gpu.remapped_uncorrectable) == (118.25, 650.0, 1)
    assert gpu.unread["recovery_action"] == "Invalid Argument (2)"


def test_without_root_the_sram_status_is_refused_and_the_reason_is_kept(
    node: Any, collect: Any
) -> None:
    node.change({"gpu.*.sram_threshold_exceeded": "!4"})
    collector = collect(slow_ticks=3)
    first, second = (tick for tick, _ in zip(ticks(collector), range(2), strict=False))
    refused = dict.fromkeys(SRAM, "Insufficient Permissions (4)")
    assert first.gpus[0].unread == NO_RETIREMENT | refused
    # It is not asked in vain between two slow readings.
    assert second.gpus[0].unread == {}
    assert second.gpus[0].sram_threshold_exceeded is None


def test_what_is_refused_for_the_moment_is_asked_again_every_tick(node: Any, collect: Any) -> None:
    node.change({"gpu.0.utilization": "!27", "gpu.0.field.82": "!21"})
    collector = collect(slow_ticks=1_000_000)
    first, second = (tick for tick, _ in zip(ticks(collector), range(2), strict=False))
    for tick in (first, second):
        assert tick.gpus[0].status is GpuStatus.OK
        assert tick.gpus[0].unread["utilization_pct"] == "Not Ready (27)"
        assert tick.gpus[0].unread["temperature_memory_c"] == "No data (21)"
    node.change({"gpu.0.utilization": 5, "gpu.0.field.82": 61})
    gpu = tick_where(collector, lambda tick: not tick.gpus[0].unread).gpus[0]
    assert (gpu.utilization_pct, gpu.temperature_memory_c) == (5, 61)


def test_what_a_card_begins_to_have_is_found_by_the_next_thorough_reading(
    node: Any, collect: Any
) -> None:
    node.change({"gpu.0.recovery": None, "gpu.0.field.230": "!3", "gpu.0.repair": "!3"})
    collector = collect(slow_ticks=2)
    next(ticks(collector))
    node.change({"gpu.0.field.230": 0, "gpu.0.repair": "0 1"})
    gpu = tick_where(collector, lambda tick: tick.gpus[0].recovery_action is not None).gpus[0]
    assert gpu.recovery_action == 0
    gpu = tick_where(collector, lambda tick: tick.gpus[0].tpc_repair_pending is not None).gpus[0]
    assert (gpu.channel_repair_pending, gpu.tpc_repair_pending) == (False, True)


def test_old_cards_have_their_retired_pages_and_locations(node: Any, collect: Any) -> None:
    node.change(
        {
            "gpu.0.field.29": "!2",
            "gpu.0.field.30": "!2",
            "gpu.0.field.31": "!2",
            "gpu.0.retired.0": 7,
            "gpu.0.retired.1": 2,
            "gpu.0.retired_pending": 1,
            "gpu.0.field.14": 3,
            "gpu.0.location.1.1.1": 9,
            "gpu.0.field.17": 1,
        }
    )
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.retired_pages, gpu.retired_pages_sbe, gpu.retired_pages_dbe) == (9, 7, 2)
    assert gpu.retired_pending is True
    assert gpu.ecc_locations is not None
    assert gpu.ecc_locations["volatile_uncorrected_register_file"] == 3
    assert gpu.ecc_locations["aggregate_uncorrected_l2_cache"] == 9
    assert gpu.ecc_locations["volatile_uncorrected_cbu"] == 1
    assert "aggregate_corrected_texture_memory" not in gpu.ecc_locations


def test_where_ecc_is_off_there_are_no_counts_and_no_zeros(node: Any, collect: Any) -> None:
    names = [
        f"ecc.{scope}.{kind}"
        for scope in ("volatile", "aggregate")
        for kind in ("corrected", "uncorrected")
    ]
    places = [
        f"location.{kind}.{counter}.{place}" for kind in "01" for counter in "01" for place in "27"
    ]
    node.change(
        {f"gpu.0.{name}": "!3" for name in (*names, *places)}
        | {"gpu.0.ecc_mode": 0, "gpu.0.ecc_mode_pending": 1}
    )
    gpu = next(ticks(collect())).gpus[0]
    assert gpu.status is GpuStatus.OK
    assert (gpu.ecc_enabled, gpu.ecc_enabled_pending) == (False, True)
    assert gpu.ecc_volatile_uncorrected is None
    assert gpu.ecc_locations is None
    assert gpu.unread["ecc_locations"] == "Not Supported (3)"
    assert gpu.unread["ecc_aggregate_corrected"] == "Not Supported (3)"


def test_huge_counts_are_exact(node: Any, collect: Any) -> None:
    node.change({"gpu.0.ecc.aggregate.corrected": 54_731_746_511, "gpu.1.field.5": 2**64 - 2})
    gpus = next(ticks(collect())).gpus
    assert [gpu.ecc_aggregate_corrected for gpu in gpus] == [54_731_746_511, 2**64 - 2]


def test_what_calls_cost_is_told_now_and_then_and_of_slow_ones_every_time(
    node: Any, collect: Any
) -> None:
    node.change(
        {
            "gpu.0.latency": 0,
            "gpu.0.latency.143": 31_400,
            "gpu.0.latency.145": 12,
            "gpu.0.hang.margin": 0.03,
        }
    )
    collector = collect(slow_ticks=1_000_000)
    first, second = (tick.gpus[0] for tick, _ in zip(ticks(collector), range(2), strict=False))
    assert first.call_us is not None
    assert {"fields", "slow_fields", "temperature_c", "nvlinks_active"} <= first.call_us.keys()
    assert (first.call_us["remapped_uncorrectable"], first.call_us["remap_failure"]) == (31_400, 12)
    assert second.call_us is not None
    assert {"remapped_uncorrectable", "temperature_margin_c"} <= second.call_us.keys()
    assert "remap_failure" not in second.call_us
    assert second.call_us["temperature_margin_c"] >= 30_000
    assert "temperature_c" not in second.call_us or second.call_us["temperature_c"] >= 20_000


def test_a_card_that_takes_the_place_of_another_is_read_whole(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    node = stand_in.Node(node.path, gpus=3)
    collector = collect(slow_ticks=1_000_000)
    tick_where(collector, quick)
    node.change({"present": "0,2"})
    tick = tick_where(collector, lambda tick: tick.gpus[1].uuid == stand_in.uuid(2))
    assert timeless(tick.gpus[1]) == healthy(stand_in, 2, index=1)
