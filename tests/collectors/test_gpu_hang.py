"""A GPU, or NVML as a whole, that does not answer in time, and what becomes of the others."""

import time
from types import ModuleType
from typing import Any

from gpu_ticks import healthy, status_is, tick_where, ticks, timeless

from evidence.records import GpuStatus


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
    assert len(collector._crew._callers) == 2


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


def test_seven_gpus_keep_their_second_while_one_hangs_and_it_is_read_when_it_is_back(
    node: Any, stand_in: ModuleType, collect: Any
) -> None:
    node = stand_in.Node(node.path, gpus=8)
    collector = collect(interval_s=1.0, deadline_s=0.8, frame_ticks=5, slow_ticks=10)
    tick_where(collector, lambda tick: {gpu.status for gpu in tick.gpus} == {GpuStatus.OK})
    node.change({"gpu.2.hang.temperature_v": 6, "gpu.2.hang.temperature": 6})
    hung_at = time.monotonic()
    told_after = None
    seen = []
    for tick in ticks(collector):
        silent = tick.gpus[2].status is GpuStatus.TIMEOUT
        if silent and told_after is None:
            told_after = time.monotonic() - hung_at
            node.change({"gpu.2.hang.temperature_v": None, "gpu.2.hang.temperature": None})
        if told_after is not None:
            seen.append(tick)
            if not silent:
                break
    # The bound of five seconds is the promise; a tick and its deadline are two.
    assert told_after is not None
    assert told_after < 5
    assert len(seen) >= 5
    for tick in seen:
        assert {gpu.status for gpu in tick.gpus if gpu.index != 2} == {GpuStatus.OK}
    assert timeless(seen[-1].gpus[2]).uuid == stand_in.uuid(2)
    assert seen[-1].gpus[2].temperature_c == 41


def test_the_call_that_hangs_is_named_and_what_was_read_before_it_is_kept(
    node: Any, collect: Any
) -> None:
    collector = collect(deadline_s=0.1)
    tick_where(collector, status_is(0, GpuStatus.OK))
    node.change({"gpu.0.hang.utilization": 3, "gpu.0.ecc.volatile.uncorrected": 4})
    first = tick_where(collector, status_is(0, GpuStatus.TIMEOUT)).gpus[0]
    assert first.ecc_volatile_uncorrected == 4
    assert first.utilization_pct is None
    assert first.unread["utilization_pct"].startswith("no answer after 0.1 s")
    second = tick_where(collector, status_is(0, GpuStatus.TIMEOUT)).gpus[0]
    assert second.ecc_volatile_uncorrected is None
    assert list(second.unread) == ["utilization_pct"]


def test_a_reading_that_comes_a_little_late_stands_for_the_next_tick(
    node: Any, collect: Any
) -> None:
    collector = collect(deadline_s=0.05, interval_s=0.1)
    tick_where(collector, status_is(1, GpuStatus.OK))
    node.change({"gpu.1.hang.margin": 0.25, "gpu.1.power": 433_000})
    tick_where(collector, status_is(1, GpuStatus.TIMEOUT))
    late = tick_where(collector, status_is(1, GpuStatus.OK)).gpus[1]
    assert late.power_w == 433.0
    assert late.read_us is not None
    assert late.read_us > 200_000


def test_a_gpu_whose_calls_stay_slow_is_asked_ever_more_rarely_and_that_is_said(
    node: Any, collect: Any
) -> None:
    collector = collect(deadline_s=0.5, interval_s=0.02)
    tick_where(collector, status_is(0, GpuStatus.OK))
    node.change({"gpu.0.hang.margin": 0.3})
    left_out = []
    asked = 0
    for tick in ticks(collector):
        gpu = tick.gpus[0]
        assert tick.gpus[1].status is GpuStatus.OK
        if "reading" in gpu.unread:
            assert gpu.status is GpuStatus.TIMEOUT
            assert gpu.unread["reading"].startswith("not asked: its calls took 0.")
            left_out.append(asked)
        elif gpu.temperature_margin_c is not None:
            asked += 1
        if asked >= 6:
            break
    # After the second slow reading one tick is left out, then three, seven, nine.
    assert [left_out.count(at) for at in sorted(set(left_out))][:3] == [1, 3, 7]
    node.change({"gpu.0.hang.margin": None})
    tick_where(collector, status_is(0, GpuStatus.OK))
    tick_where(collector, status_is(0, GpuStatus.OK))
    run = [tick.gpus[0].status for tick, _ in zip(ticks(collector), range(12), strict=False)]
    assert run == [GpuStatus.OK] * 12
