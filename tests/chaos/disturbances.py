"""What happens to an installation in the middle of a stream of faults, one function each.

A function starts its workers, yields until a third of the stream was sent, and then does its harm.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from .ground import Clock, Disk, NotHereError, Wire, leave_out
from .plant import Plant

__all__ = ["DISTURBANCES", "Round"]


@dataclass(slots=True)
class Round:
    """One round: the plant, its broker, the way from a namespace to it, chance."""

    plant: Plant
    broker: Any
    wire: Wire | NotHereError
    draw: random.Random
    held: ExitStack
    #: How often a scheduler was killed: so many commands may be carried out again.
    schedulers_killed: int = 0

    def start(self, *names: str, **how: Any) -> None:
        for name in names:
            self.plant.worker(name, **how)

    def start_behind_wire(self, *names: str) -> Wire:
        """Start workers that reach Kafka over the wire alone."""
        if isinstance(self.wire, NotHereError):
            leave_out(f"a cut network left out: {self.wire}")
        self.wire.mend()  # a round before may have failed in the middle
        self.start(*names, inside=self.wire.inside(), bootstrap=self.broker.wired)
        return self.wire

    def wait(self, shortest_s: float, longest_s: float) -> None:
        time.sleep(self.draw.uniform(shortest_s, longest_s))


def one_worker_killed(one: Round) -> Iterator[None]:
    one.start("a", "b")
    yield
    one.plant.signal(one.draw.choice("ab"))


def all_workers_killed(one: Round) -> Iterator[None]:
    one.start("a", "b")
    yield
    one.plant.signal("a")
    one.wait(0, 1)
    one.plant.signal("b")


def workers_killed_again_and_again(one: Round) -> Iterator[None]:
    one.start("a", "b")
    yield
    for _ in range(4):
        one.plant.signal(one.draw.choice("ab"))
        one.wait(0.5, 5)


def broker_killed(one: Round) -> Iterator[None]:
    one.start("a", "b")
    yield
    one.broker.kill()
    one.wait(0, 6)
    one.broker.start()


def one_worker_cut_off_past_its_session(one: Round) -> Iterator[None]:
    wire = one.start_behind_wire("a")
    one.start("b")
    yield
    wire.cut()
    one.wait(12, 20)
    wire.mend()


def all_workers_cut_off(one: Round) -> Iterator[None]:
    wire = one.start_behind_wire("a", "b")
    yield
    wire.cut()
    one.wait(5, 20)
    wire.mend()


def one_worker_stopped_past_its_session(one: Round) -> Iterator[None]:
    one.start("a", "b")
    yield
    name = one.draw.choice("ab")
    one.plant.signal(name, signal.SIGSTOP)
    one.wait(10, 16)
    one.plant.signal(name, signal.SIGCONT)


def all_workers_stopped(one: Round) -> Iterator[None]:
    one.start("a", "b")
    yield
    for name in "ab":
        one.plant.signal(name, signal.SIGSTOP)
    one.wait(2, 12)
    for name in "ab":
        one.plant.signal(name, signal.SIGCONT)


def disk_full(one: Round) -> Iterator[None]:
    """The tables of one worker, or of the only one."""
    disk = Disk(one.plant.folder / "small")
    one.held.callback(disk.close)
    one.start("a", data=disk.folder)
    if one.draw.random() < 0.5:
        one.start("b")
    yield
    until = time.monotonic() + one.draw.uniform(6, 12)
    while time.monotonic() < until:
        disk.fill()
        time.sleep(0.1)
    disk.free()


def clock_stepped(one: Round) -> Iterator[None]:
    """The wall clock of one worker's machine, or of the only one's, an hour off and put right."""
    clock = Clock(one.plant.folder)
    one.start("a", inside=clock.inside())
    if one.draw.random() < 0.5:
        one.start("b")
    yield
    hour_s = one.draw.choice((3600.0, -3600.0))
    clock.step(hour_s)
    one.wait(3, 6)
    clock.step(one.draw.choice((0.0, -hour_s)))


def scheduler_and_sink_killed(one: Round) -> Iterator[None]:
    one.start("a")
    yield
    for _ in range(3):
        victim = one.draw.choice(("scheduler", "sink"))
        one.schedulers_killed += victim == "scheduler"
        one.plant.signal(victim)
        one.wait(0.5, 3)


DISTURBANCES: Mapping[str, Callable[[Round], Iterator[None]]] = {
    one.__name__: one
    for one in (
        one_worker_killed,
        all_workers_killed,
        workers_killed_again_and_again,
        broker_killed,
        one_worker_cut_off_past_its_session,
        all_workers_cut_off,
        one_worker_stopped_past_its_session,
        all_workers_stopped,
        disk_full,
        clock_stepped,
        scheduler_and_sink_killed,
    )
}
