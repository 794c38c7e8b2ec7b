"""One measured number: every run of it, its mark, and the peer or limit beside which it stands.

A figure is judged by the median of its runs; the best one is told beside it, since a shared machine
only ever makes a run slower.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Figure", "cpu_rates", "quantile"]


@dataclass(frozen=True, slots=True)
class Figure:
    """``values`` holds one number a run; ``peer`` is (name, value) of what was measured beside it.

    ``at_most`` marks a figure of which less is better (a latency).
    """

    name: str
    unit: str
    values: tuple[float, ...]
    mark: float | None = None
    at_most: bool = False
    peer: tuple[str, float] | None = None
    note: str = ""

    @property
    def value(self) -> float:
        """The median run."""
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        """The best run."""
        return min(self.values) if self.at_most else max(self.values)

    @property
    def ratio(self) -> float | None:
        """The median as a part of the peer's."""
        return None if self.peer is None or not self.peer[1] else self.value / self.peer[1]

    @property
    def judgement(self) -> str:
        """``ok``, ``missed``, or nothing where there is no mark."""
        if self.mark is None:
            return ""
        reached = self.value <= self.mark if self.at_most else self.value >= self.mark
        return "ok" if reached else "missed"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.value,
            "best": self.best,
            "runs": list(self.values),
            "mark": self.mark,
            "at_most": self.at_most,
            "judgement": self.judgement,
            "peer": None if self.peer is None else {"name": self.peer[0], "value": self.peer[1]},
            "ratio_to_peer": self.ratio,
            "note": self.note,
        }


def cpu_rates(work: Callable[[], int], runs: int) -> tuple[float, ...]:
    """What ``work`` says it did, a second of this process's CPU time, in each of ``runs`` runs.

    CPU time and not the wall clock: the code measured so runs in one thread and waits for nothing,
    and what else the machine does should not be counted against it.
    """
    rates = []
    for _ in range(runs):
        began = time.process_time()
        done = work()
        rates.append(done / max(time.process_time() - began, 1e-9))
    return tuple(rates)


def quantile(values: list[float], part: float) -> float:
    """The smallest value that at least ``part`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
