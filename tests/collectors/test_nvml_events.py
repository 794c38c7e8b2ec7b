"""NVML's own events: what of them is delivered, and that nothing they do hurts polling."""

import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from gpu_ticks import frames, status_is, tick_where, ticks

from collectors.gpu import NvmlCollector
from evidence.records import GpuEvent, GpuEventKind, GpuStatus, GpuTick

REGISTERED_S = 5


def event_ticks(collector: NvmlCollector) -> Iterator[GpuTick]:
    return (tick for tick in ticks(collector) if tick.events)


def waiting(collector: NvmlCollector) -> None:
    """Poll until the thread of the events has registered the GPUs."""
    ends_at = time.monotonic() + REGISTERED_S
    while not (collector._events.running and len(collector._events._cards) == 2):
        list(collector.read())
        assert time.monotonic() < ends_at
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("row", "kind", "data", "gi", "ci"),
    [
        ("1 0x8 79", GpuEventKind.XID, 79, None, None),
        ("1 0x8 94 2 0", GpuEventKind.XID, 94, 2, 0),
        ("1 0x2 3", GpuEventKind.ECC_DOUBLE_BIT, 3, None, None),
        ("1 0x200 0", GpuEventKind.ECC_SINGLE_BIT_STORM, 0, None, None),
        ("1 0x400 0", GpuEventKind.DRAM_RETIREMENT, 0, None, None),
        ("1 0x800 0", GpuEventKind.DRAM_RETIREMENT_FAILURE, 0, None, None),
        ("1 0x1000 0", GpuEventKind.POISON, 0, None, None),
        ("1 0x2000 0", GpuEventKind.FATAL_POISON, 0, None, None),
        ("1 0x4000 0", GpuEventKind.UNAVAILABLE, 0, None, None),
        ("1 0x8000 2", GpuEventKind.RECOVERY_ACTION, 2, None, None),
        ("1 0x100 0", GpuEventKind.MIG_CHANGE, 0, None, None),
    ],
)
def test_an_event_is_told_with_the_card_it_is_about(
    node: Any,
    stand_in: ModuleType,
    collect: Any,
    row: str,
    kind: GpuEventKind,
    data: int,
    gi: int | None,
    ci: int | None,
) -> None:
    collector = collect(interval_s=0.2)
    waiting(collector)
    node.change({"event.1": row})
    (event,) = next(event_ticks(collector)).events
    assert event == GpuEvent(
        at=event.at,
        kind=kind,
        index=1,
        uuid=stand_in.uuid(1),
        pci=stand_in.pci(1),
        data=data,
        gi=gi,
        ci=ci,
    )


def test_an_event_does_not_wait_for_the_tick_nor_for_the_frame(node: Any, collect: Any) -> None:
    collector = collect(interval_s=3600.0, frame_ticks=1000)
    woken = threading.Event()
    collector.on_ready = woken.set
    waiting(collector)
    node.change({"event.1": "0 0x8 48"})
    assert woken.wait(5)
    assert collector.next_due(time.monotonic()) < time.monotonic() + 1
    frame = next(frames(collector))
    assert frame.ticks[-1].gpus == ()
    assert [event.data for event in frame.ticks[-1].events] == [48]
    # A tick of events alone is no tick of the GPUs.
    assert collector.latest is not None
    assert len(collector.latest.gpus) == 2


def test_an_event_brings_a_full_reading_with_the_next_tick(node: Any, collect: Any) -> None:
    collector = collect(slow_ticks=1_000_000)
    waiting(collector)
    node.change({"event.1": "0 0x8 63"})
    next(event_ticks(collector))
    tick_where(collector, lambda tick: bool(tick.gpus) and tick.gpus[1].power_limit_w is not None)


def test_what_happened_before_the_registration_is_not_delivered(node: Any, collect: Any) -> None:
    node.change({"event.7": "0 0x8 31"})
    collector = collect()
    waiting(collector)
    node.change({"event.8": "0 0x8 43"})
    assert [event.data for event in next(event_ticks(collector)).events] == [43]


def test_only_what_a_gpu_supports_is_registered(node: Any, collect: Any) -> None:
    # The stand-in refuses a registration of anything else.
    node.change({"gpu.0.events": 0xA, "gpu.1.events": 0x1F})
    collector = collect()
    waiting(collector)
    node.change({"event.1": "0 0x200 0", "event.2": "1 0x2 0", "event.3": "1 0x4 0"})
    (event,) = next(event_ticks(collector)).events
    assert (event.index, event.kind) == (1, GpuEventKind.ECC_DOUBLE_BIT)


def test_a_storm_comes_in_handfuls_and_loses_nothing(node: Any, collect: Any) -> None:
    collector = collect(interval_s=0.2)
    waiting(collector)
    node.change({f"event.{number}": f"0 0x200 {number}" for number in range(1, 101)})
    found: list[int | None] = []
    told = 0
    for tick in event_ticks(collector):
        told += 1
        found += [event.data for event in tick.events]
        if len(found) >= 100:
            break
    assert found == list(range(1, 101))
    assert told < 50


@pytest.mark.parametrize(
    "change",
    [
        {"event_set": "!3"},
        {"event_wait": "!999"},
        {"event_wait": "!15"},
        {"hang.event_wait": 3},
        {"gpu.*.events": "!999"},
        {"gpu.*.events": 0},
    ],
    ids=str,
)
def test_events_that_fail_or_hang_leave_polling_as_it_is(
    node: Any, collect: Any, change: dict[str, object]
) -> None:
    node.change(change)
    collector = collect()
    taken = [tick for tick, _ in zip(ticks(collector), range(10), strict=False)]
    assert [gpu.status for tick in taken for gpu in tick.gpus] == [GpuStatus.OK] * 20
    node.change({"gpu.0.all": "!15"})
    tick_where(collector, status_is(0, GpuStatus.LOST))


def test_a_wait_that_failed_is_tried_again(node: Any, collect: Any) -> None:
    node.change({"event_wait": "!15"})
    collector = collect()
    waiting(collector)
    node.change({"event_wait": None, "event.1": "0 0x8 79"})
    assert [event.data for event in next(event_ticks(collector)).events] == [79]


def test_events_go_on_after_nvml_was_initialised_anew(node: Any, collect: Any) -> None:
    collector = collect()
    waiting(collector)
    node.change({"gpu.*.stale": "!999"})
    tick_where(collector, status_is(0, GpuStatus.ERROR))
    tick_where(collector, status_is(0, GpuStatus.OK))
    waiting(collector)
    node.change({"event.1": "1 0x8 13"})
    assert [event.index for event in next(event_ticks(collector)).events] == [1]


def test_an_event_does_not_end_an_error_of_the_node(node: Any, collect: Any) -> None:
    collector = collect(interval_s=0.1, frame_ticks=1000)
    waiting(collector)
    node.change({"count": "!999"})
    tick_where(collector, lambda tick: tick.error == 999)
    collector._events._events.append(
        GpuEvent(at=collector._clock(), kind=GpuEventKind.XID, index=0, data=79)
    )
    tick = next(event_ticks(collector))
    assert tick.error == 999


def test_events_that_wait_are_told_at_the_end(node: Any, collect: Any) -> None:
    collector = collect(interval_s=3600.0, frame_ticks=1000)
    woken = threading.Event()
    collector.on_ready = woken.set
    waiting(collector)
    node.change({"event.1": "0 0x8 79"})
    assert woken.wait(5)
    (frame,) = collector.rest()
    assert [event.data for tick in frame.ticks for event in tick.events] == [79]
