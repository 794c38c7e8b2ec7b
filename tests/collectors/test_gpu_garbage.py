"""NVML's strings and a reading that breaks: never more than the value, or the one GPU."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pynvml
import pytest
from gpu_ticks import tick_where, ticks

from evidence.records import GpuStatus


def test_a_driver_version_that_is_no_text_hides_no_gpu(node: Any, collect: Any) -> None:
    node.change({"driver": "GARBAGE"})
    node.path.write_bytes(node.path.read_bytes().replace(b"GARBAGE", b"\xfe\xff5"))
    collector = collect()
    tick = next(ticks(collector))
    assert [gpu.status for gpu in tick.gpus] == [GpuStatus.OK, GpuStatus.OK]
    assert collector.driver is None


def test_a_name_that_is_no_text_is_not_read_and_all_else_is(
    node: Any, collect: Any, stand_in: ModuleType
) -> None:
    node.change({"gpu.1.name": "GARBAGE"})
    node.path.write_bytes(node.path.read_bytes().replace(b"GARBAGE", b"\xfe\xff5"))
    tick = next(ticks(collect()))
    assert (tick.gpus[1].name, tick.gpus[1].uuid) == (None, stand_in.uuid(1))
    assert tick.gpus[1].unread["name"].startswith("unreadable")
    assert tick.gpus[1].status is GpuStatus.OK


def test_a_reading_that_breaks_is_a_fact_of_its_gpu_and_of_no_other(
    node: Any, collect: Any, stand_in: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(node.rows["present"].split(",")) == 2
    collector = collect()
    tick_where(collector, lambda tick: len(tick.gpus) == 2)
    real: Callable[[int], Any] = pynvml.nvmlDeviceGetHandleByIndex

    def broken(index: int) -> Any:
        if index == 1:
            raise OSError("wrong ELF class")
        return real(index)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", broken)
    tick = tick_where(collector, lambda tick: tick.gpus[1].status is GpuStatus.ERROR)
    assert tick.gpus[1].unread == {"reading": "OSError: wrong ELF class"}
    assert tick.gpus[1].uuid == stand_in.uuid(1)
    assert tick.gpus[0].status is GpuStatus.OK
