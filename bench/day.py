"""Decisions a second on a simulated day: samples of a whole fleet, and what breaks in it.

The day is short (a quarter of an hour of some nodes), its mix is that of a day: every card sampled
each second, five ticks a frame; faults and chatter of `bench/scenarios` among them.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import load_gpu
from figure import Figure, cpu_rates
from fleet.plant import Plant
from fleet.play import Timed, play
from fleet.scenario import load_all
from fleet.schedule import BEGIN, schedule
from rig import Rig

from evidence.records import GpuFrame
from ringfence.drive import Driver
from rules.tables import Rules, load

__all__ = ["measure"]

_MARK = 200_000
_NODES, _FRAMES = 64, 180
_INCIDENTS = 8


def measure(rig: Rig) -> Iterator[Figure]:
    """All stages on one core, time included; a sample of one card is a record."""
    few = 10 if rig.quick else 1
    rules = load()
    day = list(_day(_NODES, _FRAMES // few))
    count = sum(_records(one) for one in day)
    yield Figure(
        "all steps, a simulated day",
        "records/s",
        cpu_rates(lambda: _drive(day, rules, count), 1 if rig.quick else 3),
        mark=_MARK,
        note=f"{count} records of {_NODES} nodes in {len(day)} messages, {_INCIDENTS} incidents",
    )


def _day(nodes: int, frames: int) -> Iterator[Timed]:
    for frame in load_gpu.frames(nodes, frames, BEGIN):
        yield Timed(frame.observed_at + timedelta(seconds=0.1), "gpu", frame.host, frame)
    plant = Plant(256, seed=1)
    scenarios = load_all(Path(__file__).with_name("scenarios"))
    faults = [one for one in scenarios if one.group == "fault"][: _INCIDENTS // 2]
    chatter = [one for one in scenarios if one.group == "chatter"][: _INCIDENTS // 2]
    for cast in schedule(plant, [*faults, *chatter], incidents=_INCIDENTS, days=0.01, seed=1):
        yield from play(cast).records


def _records(one: Timed) -> int:
    if isinstance(one.record, GpuFrame):
        return sum(len(tick.gpus) for tick in one.record.ticks)
    return 1


def _drive(day: list[Timed], rules: Rules, count: int) -> int:
    driver = Driver(rules)
    for one in day:
        driver.add(one.topic, one.key, one.record, one.at)
    assert driver.run().verdicts, "something breaks in a day"
    return count
