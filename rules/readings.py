"""What is believed of one NVML reading: which counts, whether too hot, whether anything is new.

A value that cannot be read says nothing: the last one that could stands.
"""

from datetime import datetime
from operator import attrgetter
from typing import TypeVar
from zlib import crc32

from evidence.records import GpuSnapshot, GpuStatus
from rules.host_state import GpuHealth
from rules.thresholds import Thresholds

__all__ = ["RAW", "as_before", "believed", "grown", "hot", "or_last", "to_be_noted"]

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
        margin, degrees = gpu.temperature_margin_c, gpu.temperature_c  # `hot`, without its call
        if margin is not None:
            cool = margin > limits.temperature_margin_c
        else:
            cool = degrees is None or degrees <= limits.temperature_c
        return cool and (health.wanted_at is None or at < health.wanted_at)
    return (
        health.hot_told and (health.wanted_at is None or at < health.wanted_at) and hot(gpu, limits)
    )


def hot(gpu: GpuSnapshot, limits: Thresholds) -> bool:
    """Too hot by the card's own limit where it tells one, else by degrees."""
    margin = gpu.temperature_margin_c
    if margin is not None:
        return margin <= limits.temperature_margin_c
    return gpu.temperature_c is not None and limits.temperature_c < gpu.temperature_c <= _HOTTEST_C


#: A card shuts down some 20 degrees above its slowdown limit: more is a broken reading (often 255).
_HOTTEST_C = 150

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


def to_be_noted(last: datetime | None, now: datetime, host: str, every_s: float) -> bool:
    """Whether frames are noted anew: at most every ``every_s``, on some hosts half that later.

    A fleet whose frames were first read together would else write all its states together, again
    and again (docs/decisions/0003).
    """
    if last is None:
        return True
    later = crc32(host.encode("utf-8", "surrogatepass")) % 997 / 997 / 2
    return (now - last).total_seconds() >= every_s * (1 + later)
