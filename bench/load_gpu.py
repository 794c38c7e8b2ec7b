"""GPU frames as an agent ships them: eight cards, five ticks a frame, values that move."""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID

from load_kernel import BUSES
from msgspec.structs import replace

from evidence.identity import digest
from evidence.records import GpuFrame, GpuSnapshot, GpuStatus, GpuTick

__all__ = ["GPUS", "TICKS", "Cards", "frames", "host_name", "lost"]

GPUS = len(BUSES)
#: Ticks a frame, the agent's own setting (`collectors.gpu`), a second apart.
TICKS = 5


def host_name(number: int) -> str:
    """The name of one node of the fleet."""
    return f"hgx{number:05d}"


class Cards:
    """The eight cards of one node under load: a warm, busy, healthy node."""

    def __init__(self, host: str, seed: int = 0) -> None:
        self.host = host
        self.seq = 0
        self._draw = random.Random(f"{host}/{seed}")
        self._boot = str(UUID(int=self._draw.getrandbits(128), version=4))
        self._warm = [self._draw.randrange(52, 68) for _ in BUSES]
        self._still = [
            GpuSnapshot(
                index=index,
                uuid=f"GPU-{UUID(int=self._draw.getrandbits(128), version=4)}",
                serial=str(self._draw.randrange(1_650_000_000_000, 1_660_000_000_000)),
                pci=f"0000:{bus:02x}:00",
                name="NVIDIA H100 80GB HBM3",
                unread={"retired_pages": "Not Supported (3)"},
                ecc_enabled=True,
                ecc_volatile_uncorrected=0,
                ecc_aggregate_uncorrected=0,
                ecc_aggregate_corrected=self._draw.randrange(4),
                sram_threshold_exceeded=False,
                remapped_correctable=0,
                remapped_uncorrectable=0,
                remap_pending=False,
                remap_failure=False,
                recovery_action=0,
                temperature_slowdown_c=87,
                pcie_replays=0,
                pcie_width=16,
                pcie_width_max=16,
                pcie_generation=5,
                pcie_generation_max=5,
                mig_enabled=False,
                clocks_event_reasons=0,
            )
            for index, bus in enumerate(BUSES)
        ]

    def tick(self, at: datetime, **said: object) -> GpuTick:
        """All cards at one time; ``said`` are values that hold on card 0 instead of its own."""
        draw = self._draw
        gpus = []
        for index, still in enumerate(self._still):
            warm = self._warm[index] = min(78, max(45, self._warm[index] + draw.randrange(-1, 2)))
            moved = {
                "temperature_c": warm,
                "temperature_memory_c": warm + draw.randrange(8, 14),
                "power_w": draw.randrange(420_000, 699_999) / 1000,
                "utilization_pct": draw.randrange(88, 101),
                "memory_used_mib": 70_000 + draw.randrange(2_000),
                "clock_sm_mhz": 1980 - 15 * draw.randrange(6),
                "ecc_volatile_corrected": draw.randrange(2),
                "read_us": draw.randrange(900, 1_900),
            }
            gpus.append(replace(still, **(moved | said if index == 0 else moved)))
        return GpuTick(at=at, gpus=tuple(gpus))

    def frame(self, end: datetime, ticks: int = TICKS, **said: object) -> GpuFrame:
        """One frame whose last tick is at ``end``."""
        self.seq += 1
        return GpuFrame(
            id=digest("gpu", self.host, self._boot, self.seq, end.isoformat()),
            host=self.host,
            observed_at=end,
            seq=self.seq,
            ticks=tuple(
                self.tick(end - timedelta(seconds=back), **said)
                for back in range(ticks - 1, -1, -1)
            ),
            boot_id=self._boot,
            driver="570.158.01",
        )


def lost(host: str, at: datetime) -> GpuFrame:
    """One tick in which card 0 is lost (NVML code 15): a hard fact, answered by a verdict."""
    return Cards(host).frame(at, 1, status=GpuStatus.LOST, error=15)


def frames(
    hosts: int, each: int, end: datetime, *, ticks: int = TICKS, ailing: bool = False
) -> Iterator[GpuFrame]:
    """``each`` frames of ``hosts`` nodes, in the order of their times, the last ones at ``end``.

    With ``ailing`` some of the nodes have a card with a fault, so that every rule has work.
    """
    nodes = [Cards(host_name(number)) for number in range(hosts)]
    for step in range(each):
        at = end - timedelta(seconds=ticks * (each - 1 - step))
        for number, node in enumerate(nodes):
            yield node.frame(at, ticks, **(_ailing(number, step, each) if ailing else {}))


def _ailing(number: int, step: int, each: int) -> dict[str, object]:
    """What card 0 of a node says besides: of 64 nodes six have something, most have nothing."""
    late, now_and_then = step >= each // 2, step % 10 == 9
    told: dict[int, dict[str, object]] = {
        # Above the limit, if not for long enough.
        3: {"temperature_c": 87 + step % 3},
        # Corrected errors that grow all the time.
        14: {"ecc_aggregate_corrected": 10 + step},
        # A row that must be remapped.
        25: {
            "ecc_volatile_uncorrected": 1,
            "ecc_aggregate_uncorrected": 1,
            "remapped_uncorrectable": 1,
            "remap_pending": True,
        }
        if late
        else {},
        # Slowed down by the board.
        36: {"clocks_event_reasons": 0x80, "clock_sm_mhz": 345},
        # Half of its lanes.
        47: {"pcie_width": 8},
        # Does not answer.
        58: {"status": GpuStatus.TIMEOUT, "error": 10} if now_and_then else {},
    }
    return told.get(number % 64, {})
