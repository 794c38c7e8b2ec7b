"""The NVML collector, through nvidia-ml-py and ctypes into the stand-in library."""

import time
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from gpu_ticks import (
    BOOT,
    HOST,
    NO_RETIREMENT,
    SRAM,
    START,
    frames,
    healthy,
    lost,
    status_is,
    tick_where,
    ticks,
    timeless,
)

from evidence.records import GpuStatus


@pytest.mark.usefixtures("node")
def test_a_healthy_node_is_read_whole(stand_in: ModuleType, collect: Any) -> None:
    frame = next(frames(collect()))
    assert (frame.host, frame.boot_id, frame.driver) == (HOST, BOOT, "570.86.15")
    assert (frame.seq, frame.source) == (1, "nvml")
    (tick,) = frame.ticks
    assert tick.at == START + timedelta(milliseconds=1)
    assert tick.error is None
    assert [timeless(gpu) for gpu in tick.gpus] == [healthy(stand_in, slot) for slot in (0, 1)]
    assert all(gpu.read_us is not None and gpu.read_us > 0 for gpu in tick.gpus)


def test_a_lost_gpu_keeps_its_name_and_the_others_are_read(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    collector = collect()
    next(ticks(collector))
    node.change({"gpu.1.all": "!15"})
    tick = tick_where(collector, status_is(1, GpuStatus.LOST))
    assert [timeless(gpu) for gpu in tick.gpus] == [healthy(stand_in, 0), lost(stand_in, 1)]


def test_a_gpu_lost_between_two_calls_keeps_what_was_read_before(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    collector = collect()
    next(ticks(collector))
    node.change({"gpu.0.remapped": "!15", "gpu.0.ecc.volatile.uncorrected": 5})
    gpu = tick_where(collector, status_is(0, GpuStatus.LOST)).gpus[0]
    assert (gpu.error, gpu.uuid, gpu.ecc_volatile_uncorrected) == (15, stand_in.uuid(0), 5)
    assert gpu.temperature_c is None


def test_a_gpu_that_needs_a_reset_says_so(node: Any, collect: Any) -> None:
    node.change({"gpu.0.handle": "!16"})
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.status, gpu.error) == (GpuStatus.RESET_REQUIRED, 16)


def test_another_refusal_of_the_handle_is_an_error_with_its_code(node: Any, collect: Any) -> None:
    node.change({"gpu.1.handle": "!999"})
    gpus = next(ticks(collect())).gpus
    assert [(gpu.status, gpu.error) for gpu in gpus] == [
        (GpuStatus.OK, None),
        (GpuStatus.ERROR, 999),
    ]


def test_a_gpu_that_answers_little_but_unknown_error_is_in_error(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    names = [name for name in stand_in.HEALTHY if not name.startswith(("name", "pcie_"))]
    node.change({f"gpu.1.{name}": "!999" for name in names})
    gpu = next(ticks(collect())).gpus[1]
    assert (gpu.status, gpu.error, gpu.uuid) == (GpuStatus.ERROR, 999, stand_in.uuid(1))
    assert gpu.unread["temperature_c"] == "Unknown Error (999)"
    assert gpu.pcie_width == 16


def test_one_unknown_error_is_a_value_that_is_not_read(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    node.change({"gpu.0.power": "!999"})
    gpu = timeless(next(ticks(collect())).gpus[0])
    unread = healthy(stand_in, 0).unread | {"power_w": "Unknown Error (999)"}
    assert gpu == healthy(stand_in, 0, power_w=None, unread=unread)


def test_what_is_not_supported_is_none_and_never_zero(node: Any, collect: Any) -> None:
    node.change(
        {
            "gpu.0.ecc.volatile.uncorrected": "!3",
            "gpu.0.remapped": None,
            "gpu.*.remapped": None,
            "gpu.0.sram_threshold_exceeded": "!4",
            "gpu.0.field.230": "!26",
        }
    )
    gpu = next(ticks(collect())).gpus[0]
    assert gpu.status is GpuStatus.OK
    assert gpu.ecc_volatile_uncorrected is None
    assert gpu.remap_failure is None
    assert gpu.unread == {
        "ecc_volatile_uncorrected": "Not Supported (3)",
        "remapped_correctable": "Not Supported (3)",
        "remapped_uncorrectable": "Not Supported (3)",
        "remap_pending": "Not Supported (3)",
        "remap_failure": "Not Supported (3)",
        "recovery_action": "Deprecated (26)",
        **dict.fromkeys(SRAM, "Insufficient Permissions (4)"),
        **NO_RETIREMENT,
    }


def test_an_inforom_string_that_is_no_text_is_a_value_not_read(node: Any, collect: Any) -> None:
    node.change({"gpu.0.pci": "00000000:1A:00.9"})
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.status, gpu.pci) == (GpuStatus.OK, None)
    assert gpu.unread["pci"] == "unreadable: not a PCI address: '00000000:1A:00.9'"


def test_an_ecc_rise_does_not_wait_for_the_frame_to_fill(node: Any, collect: Any) -> None:
    collector = collect(frame_ticks=1000)
    first = next(frames(collector))
    assert len(first.ticks) == 1
    while collector.latest is None or collector.latest.at < START + timedelta(milliseconds=6):
        assert list(collector.read()) == []
        time.sleep(0.001)
    node.change({"gpu.1.ecc.volatile.uncorrected": 1})
    frame = next(frames(collector))
    assert [tick.gpus[1].ecc_volatile_uncorrected for tick in frame.ticks[-2:]] == [0, 1]
    assert len(frame.ticks) >= 3
    assert frame.seq == 2


@pytest.mark.parametrize(
    "change",
    [
        {"gpu.0.remapped": "0 2 1 0"},
        {"gpu.0.remapped": "0 1 0 1"},
        {"gpu.0.field.230": 4},
        {"gpu.0.sram_threshold_exceeded": 1},
        {"gpu.0.all": "!15"},
        {"gpu.0.handle": "!16"},
        {"present": "1"},
        {"count": "!999"},
    ],
    ids=str,
)
def test_a_change_of_health_is_sent_at_once(node: Any, collect: Any, change: Any) -> None:
    collector = collect(frame_ticks=1000)
    next(frames(collector))
    node.change(change)
    assert next(frames(collector)).seq == 2


def test_a_change_of_load_waits_for_the_frame(node: Any, collect: Any) -> None:
    collector = collect(frame_ticks=4)
    assert len(next(frames(collector)).ticks) == 1
    node.change({"gpu.0.power": 690000, "gpu.0.temperature": 71, "gpu.0.pcie_replays": 9})
    assert len(next(frames(collector)).ticks) == 4


def test_a_gpu_that_leaves_the_count_is_lost_under_its_own_name(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    node = stand_in.Node(node.path, gpus=4)
    collector = collect()
    next(ticks(collector))
    node.change({"present": "0,2,3"})
    tick = tick_where(collector, lambda tick: any(gpu.status != "ok" for gpu in tick.gpus))
    assert [timeless(gpu) for gpu in tick.gpus] == [
        healthy(stand_in, 0),
        healthy(stand_in, 2, index=1),
        healthy(stand_in, 3, index=2),
        lost(stand_in, 1, error=None),
    ]
    node.change({"present": "0,1,2,3"})
    tick = tick_where(collector, lambda tick: all(gpu.status == "ok" for gpu in tick.gpus))
    assert [gpu.uuid for gpu in tick.gpus] == [stand_in.uuid(slot) for slot in range(4)]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "Driver Not Loaded"),
        (18, "RM has detected an NVML/RM version mismatch."),
        (999, "Unknown Error"),
    ],
)
def test_an_nvml_that_does_not_start_is_an_error_of_the_node_until_it_does(
    node: Any, collect: Any, code: int, words: str
) -> None:
    node.change({"init": f"!{code}"})
    collector = collect()
    tick = next(ticks(collector))
    assert (tick.gpus, tick.error, tick.error_text) == ((), code, words)
    node.change({"init": None})
    tick = tick_where(collector, lambda tick: tick.error is None)
    assert [gpu.status for gpu in tick.gpus] == [GpuStatus.OK, GpuStatus.OK]


def test_a_driver_that_is_unloaded_and_comes_back_is_read_again(node: Any, collect: Any) -> None:
    collector = collect()
    next(ticks(collector))
    node.change({"count": "!9", "init": "!9"})
    assert tick_where(collector, lambda tick: tick.error == 9).gpus == ()
    node.change({"count": None, "init": None, "driver": "575.57.08"})
    frame = next(frame for frame in frames(collector) if frame.ticks[-1].error is None)
    assert frame.driver == "575.57.08"
    assert [gpu.status for gpu in frame.ticks[-1].gpus] == [GpuStatus.OK, GpuStatus.OK]


def test_an_nvml_from_before_a_driver_reload_is_initialised_anew(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    collector = collect()
    next(ticks(collector))
    node.change({"gpu.*.stale": "!999"})
    tick = tick_where(collector, status_is(0, GpuStatus.ERROR))
    assert [gpu.status for gpu in tick.gpus] == [GpuStatus.ERROR, GpuStatus.ERROR]
    tick = tick_where(collector, status_is(0, GpuStatus.OK))
    assert [timeless(gpu) for gpu in tick.gpus] == [healthy(stand_in, slot) for slot in (0, 1)]


def test_a_lost_gpu_that_came_back_is_seen_after_a_while(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    collector = collect(lost_retry_s=0.1)
    next(ticks(collector))
    node.change({"gpu.1.stale": "!15"})
    assert tick_where(collector, status_is(1, GpuStatus.LOST)).gpus[1].uuid == stand_in.uuid(1)
    assert tick_where(collector, status_is(1, GpuStatus.OK)).gpus[1].uuid == stand_in.uuid(1)


@pytest.mark.usefixtures("node")
def test_frame_ids_follow_content(collect: Any) -> None:
    first, second = (frame for frame, _ in zip(frames(collect()), range(2), strict=False))
    assert first.id != second.id
    assert len(first.id) == 24


@pytest.mark.usefixtures("node")
def test_who_sleeps_until_the_next_look_is_due_misses_no_tick(collect: Any) -> None:
    collector = collect(interval_s=0.1)
    taken = []
    looks = 0
    while len(taken) < 10:
        taken += [tick for frame in collector.read() for tick in frame.ticks]
        looks += 1
        now = time.monotonic()
        due = collector.next_due(now)
        # Never later than the next tick, and not at once for ever.
        assert due <= now + 0.1
        time.sleep(max(0.0, due - now))
    assert all(gpu.status is GpuStatus.OK for tick in taken for gpu in tick.gpus)
    # One look begins a tick and one or a few end it; a loop that spins has thousands.
    assert looks < 200
