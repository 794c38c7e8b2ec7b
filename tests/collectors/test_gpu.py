"""The NVML collector, through nvidia-ml-py and ctypes into the stand-in library."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import msgspec
import pytest

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


@pytest.fixture
def collect() -> Iterator[Callable[..., NvmlCollector]]:
    made: list[NvmlCollector] = []

    def make(**settings: Any) -> NvmlCollector:
        settings = {"interval_s": 0.02, "frame_ticks": 1, "deadline_s": 10.0} | settings
        made.append(NvmlCollector(HOST, BOOT, Clock(), **settings))
        return made[-1]

    yield make
    for collector in made:
        collector.close()


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


def healthy(stand_in: ModuleType, slot: int, **differing: Any) -> GpuSnapshot:
    values: dict[str, Any] = {
        "index": slot,
        "uuid": stand_in.uuid(slot),
        "serial": stand_in.serial(slot),
        "pci": stand_in.pci(slot),
        "name": "NVIDIA H100 80GB HBM3",
        "unread": {
            "retired_pages": "Not Supported (3)",
            "retired_pending": "Not Supported (3)",
        },
        "ecc_enabled": True,
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
        "temperature_slowdown_c": 87,
        "power_w": 118.25,
        "utilization_pct": 93,
        "memory_used_mib": 72704,
        "clock_sm_mhz": 1980,
        "clocks_event_reasons": 4,
        "pcie_replays": 3,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "mig_enabled": False,
    }
    return GpuSnapshot(**(values | differing))


def timeless(gpu: GpuSnapshot) -> GpuSnapshot:
    """A snapshot without what its calls cost."""
    return msgspec.structs.replace(gpu, read_us=None)


def lost(stand_in: ModuleType, slot: int, **differing: Any) -> GpuSnapshot:
    values: dict[str, Any] = {
        "index": slot,
        "uuid": stand_in.uuid(slot),
        "serial": stand_in.serial(slot),
        "pci": stand_in.pci(slot),
        "name": "NVIDIA H100 80GB HBM3",
        "status": GpuStatus.LOST,
        "error": 15,
    }
    return GpuSnapshot(**(values | differing))


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
        "sram_threshold_exceeded": "Insufficient Permissions (4)",
        "recovery_action": "Deprecated (26)",
        "retired_pages": "Not Supported (3)",
        "retired_pending": "Not Supported (3)",
    }


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


def test_an_inforom_string_that_is_no_text_is_a_value_not_read(node: Any, collect: Any) -> None:
    node.change({"gpu.0.pci": "00000000:1A:00.9"})
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.status, gpu.pci) == (GpuStatus.OK, None)
    assert gpu.unread["pci"] == "unreadable: not a PCI address: '00000000:1A:00.9'"


def test_a_gpu_that_hangs_is_a_fact_and_the_others_keep_their_pace(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    node = stand_in.Node(node.path, gpus=8)
    collector = collect(deadline_s=0.5)
    tick_where(collector, lambda tick: {gpu.status for gpu in tick.gpus} == {GpuStatus.OK})
    node.change({"gpu.5.hang.ecc.aggregate.uncorrected": 4})
    taken = []
    for tick in ticks(collector):
        if tick.gpus[5].status is GpuStatus.TIMEOUT:
            taken.append(tick)
        elif taken:
            break
        node.change({"gpu.5.hang.ecc.aggregate.uncorrected": None})
    for tick in taken:
        silent = tick.gpus[5]
        assert (silent.uuid, silent.pci) == (stand_in.uuid(5), stand_in.pci(5))
        assert silent.ecc_aggregate_uncorrected is None
        assert silent.read_us is not None
        assert silent.read_us > 400_000
        assert [timeless(gpu) for gpu in tick.gpus if gpu.index != 5] == [
            healthy(stand_in, slot) for slot in range(8) if slot != 5
        ]
    # Had each tick waited for the deadline, there would be seven at most.
    assert len(taken) > 10


def test_a_thread_that_is_stuck_is_not_asked_again(node: Any, collect: Any) -> None:
    collector = collect(deadline_s=0.05)
    next(ticks(collector))
    node.change({"gpu.0.hang.all": 5})
    waits = [
        tick.gpus[0].read_us
        for tick, _ in zip(
            (tick for tick in ticks(collector) if status_is(0, GpuStatus.TIMEOUT)(tick)),
            range(5),
            strict=False,
        )
    ]
    node.change({"gpu.0.hang.all": None})
    # One call, ever longer silent: a second one would have begun counting anew.
    assert waits == sorted(waits)
    assert len(collector._callers) == 2


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


def test_an_nvml_that_hangs_as_a_whole_is_an_error_of_the_node(node: Any, collect: Any) -> None:
    collector = collect(deadline_s=0.05)
    next(ticks(collector))
    node.change({"hang.count": 0.5})
    tick = tick_where(collector, lambda tick: tick.error is not None)
    assert (tick.error, tick.gpus) == (10, ())
    node.change({"hang.count": None})
    tick_where(collector, lambda tick: status_is(1, GpuStatus.OK)(tick) and tick.error is None)


def test_a_slow_start_of_nvml_is_waited_for(node: Any, collect: Any) -> None:
    node.change({"hang.init": 0.5})
    assert next(ticks(collect(deadline_s=0.1))).error is None


@pytest.mark.usefixtures("node")
def test_frame_ids_follow_content(collect: Any) -> None:
    first, second = (frame for frame, _ in zip(frames(collect()), range(2), strict=False))
    assert first.id != second.id
    assert len(first.id) == 24
