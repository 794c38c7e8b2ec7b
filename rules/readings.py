"""What is believed of one NVML reading: which counts, whether too hot, whether anything is new.

A value that cannot be read says nothing: the last one that could stands.
"""

from datetime import datetime
from operator import attrgetter
from typing import TypeVar

from evidence.records import GpuSnapshot, GpuStatus
from rules.host_state import GpuHealth
from rules.thresholds import Thresholds

__all__ = ["RAW", "as_before", "believed", "grown", "hot", "or_last"]

#: A jump this large must stand in a second reading. The largest published bursts of uncorrectable
#: errors are below 40,000 over months (Zhu et al., arXiv 2508.03513, Polaris).
_JUMP = 100_000
#: All ones: what a register of a card that is gone reads as, never a count.
_ALL_ONES = frozenset({2**32 - 1, 2**64 - 1})

#: What of a snapshot is compared with the last one; equal values say nothing new.
RAW = attrgetter(
    "status",
    "error",
    "uuid",
    "ecc_volatile_uncorrected",
    "ecc_aggregate_uncorrected",
    "remap_pending",
    "remap_failure",
    "sram_threshold_exceeded",
    "retired_pending",
    "recovery_action",
)


def as_before(gpu: GpuSnapshot, health: GpuHealth, at: datetime, limits: Thresholds) -> bool:
    """Whether a snapshot says nothing that the last one did not: the path of nearly all."""
    if RAW(gpu) != health.raw:
        return False
    if gpu.status is not GpuStatus.OK:
        return health.bad_told
    if health.doubted:
        return False
    if health.hot_since is None:
        return (health.wanted_at is None or at < health.wanted_at) and not hot(gpu, limits)
    return (
        health.hot_told and (health.wanted_at is None or at < health.wanted_at) and hot(gpu, limits)
    )


def hot(gpu: GpuSnapshot, limits: Thresholds) -> bool:
    """Too hot by the card's own limit where it tells one, else by degrees."""
    margin = gpu.temperature_margin_c
    if margin is not None:
        return margin <= limits.temperature_margin_c
    return gpu.temperature_c is not None and gpu.temperature_c > limits.temperature_c


_Read = TypeVar("_Read")


def or_last(now: _Read | None, last: _Read | None) -> _Read | None:
    """A value, or the last one that could be read."""
    return last if now is None else now


def believed(
    now: int | None, last: int | None, health: GpuHealth, doubted: list[int]
) -> int | None:
    """The count to go on with: the last one where the new one is unread, absurd or in doubt.

    A huge jump is believed when a second reading holds at least as much.
    """
    if now is None or now in _ALL_ONES:
        return last
    if last is None or now - last <= _JUMP or any(last < one <= now for one in health.doubted):
        return now
    doubted.append(now)
    return last


def grown(last: int | None, now: int | None) -> int:
    """How far a volatile counter went; after a driver load it begins at zero again."""
    if last is None or now is None:
        return 0
    return now - last if now >= last else now
