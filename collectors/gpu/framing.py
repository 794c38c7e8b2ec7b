"""Gathers ticks of one node into frames: several a message in calm, at once when health changes."""

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter

import msgspec

from evidence.identity import digest
from evidence.records import GpuFrame, GpuSnapshot, GpuTick

__all__ = ["HEALTH", "Framer", "health"]

#: Fields whose change must not wait for a frame to fill. Volatile ECC falls at a driver reload:
#: that is a change too.
HEALTH = (
    "status",
    "error",
    "ecc_volatile_uncorrected",
    "ecc_aggregate_uncorrected",
    "sram_threshold_exceeded",
    "remapped_correctable",
    "remapped_uncorrectable",
    "remap_pending",
    "remap_failure",
    "retired_pages",
    "retired_pending",
    "recovery_action",
)


_values = attrgetter(*HEALTH)


def health(tick: GpuTick) -> tuple[object, ...]:
    """What decides whether a tick is news: NVML's own error, which GPUs, and their health."""
    return (tick.error, *(_gpu_health(gpu) for gpu in tick.gpus))


def _gpu_health(gpu: GpuSnapshot) -> tuple[object, ...]:
    return (gpu.uuid or gpu.pci or gpu.index, _values(gpu))


class Framer:
    """Turns ticks into frames; one per source of one node.

    A frame leaves when it has ``frame_ticks`` ticks, at once when a tick has events or its health
    differs from the one before (the ticks gathered so far go with it, oldest first), and after
    ``hold_s`` when no tick came to fill it.
    """

    def __init__(
        self,
        host: str,
        boot_id: str | None,
        source: str,
        clock: Callable[[], datetime],
        *,
        frame_ticks: int = 5,
        hold_s: float = 10.0,
    ) -> None:
        """``clock`` gives the time a frame is observed at, aware and in UTC."""
        if frame_ticks < 1:
            raise ValueError(f"a frame holds at least one tick, not {frame_ticks}")
        self._host = host
        self._boot_id = boot_id
        self._source = source
        self._clock = clock
        self._frame_ticks = frame_ticks
        self._hold_s = hold_s
        self._ticks: list[GpuTick] = []
        self._oldest_at = 0.0
        self._health: tuple[object, ...] | None = None
        self._seq = 0

    def add(self, tick: GpuTick, now: float, driver: str | None = None) -> GpuFrame | None:
        """Take a tick at ``now`` (monotonic seconds); return the frame that is due, if one is."""
        if not self._ticks:
            self._oldest_at = now
        self._ticks.append(tick)
        before = self._health
        if tick.gpus or tick.error is not None:  # a tick of events alone says nothing about health
            self._health = health(tick)
        if tick.events or self._health != before or len(self._ticks) >= self._frame_ticks:
            return self.rest(driver)
        return None

    def overdue(self, now: float, driver: str | None = None) -> GpuFrame | None:
        """Return the unfilled frame when it has waited ``hold_s``."""
        if self._ticks and now - self._oldest_at >= self._hold_s:
            return self.rest(driver)
        return None

    def rest(self, driver: str | None = None) -> GpuFrame | None:
        """Return what is gathered as a frame; None when there is nothing."""
        if not self._ticks:
            return None
        ticks = tuple(self._ticks)
        self._ticks.clear()
        self._seq += 1
        content = msgspec.json.encode(ticks).decode()
        return GpuFrame(
            id=digest("gpu", self._host, self._boot_id, self._source, content),
            host=self._host,
            observed_at=self._clock(),
            seq=self._seq,
            ticks=ticks,
            boot_id=self._boot_id,
            driver=driver,
            source=self._source,
        )
