"""Lines of training logs parsed a second: what ranks print all day, and timeouts."""

from collections import deque
from collections.abc import Iterator

import load_kernel
import load_nccl
from figure import Figure, cpu_rates
from rig import Rig

from collectors.nccl import parse_stream

__all__ = ["measure"]


def measure(rig: Rig) -> Iterator[Figure]:
    """Two figures; the peer is a search for one word in every line."""
    count, runs = (20_000, 1) if rig.quick else (200_000, 5)
    noise = load_nccl.noise(count)
    waits = [
        line
        for number in range(count // 40)
        for line in load_nccl.timeouts(number % 1024, 800 + number, load_kernel.BEGAN)
    ]
    yield Figure(
        "training log lines of no interest",
        "lines/s",
        cpu_rates(lambda: _parse(noise), runs),
        peer=("one word searched a line", max(cpu_rates(lambda: _search(noise), runs))),
        note="a second of one core",
    )
    yield Figure(
        "collective timeout lines",
        "lines/s",
        cpu_rates(lambda: _parse(waits), runs),
        peer=("one word searched a line", max(cpu_rates(lambda: _search(waits), runs))),
        note="two lines become one record; a second of one core",
    )


def _parse(lines: list[bytes]) -> int:
    records = parse_stream(
        lines, job="train-1", host="hgx100", now=load_kernel.BEGAN, file="/l/train-1/0.log"
    )
    deque(records, maxlen=0)
    return len(lines)


def _search(lines: list[bytes]) -> int:
    return len(lines) + 0 * sum(b"Watchdog caught" in line for line in lines)
