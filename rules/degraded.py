"""Cards that work, but worse than they could: what NVML reads seldom, sighting by sighting.

A slow card is at most suspected. It counts only under load and when it lasts, so that a card that
saves power, a clock that changes or a link that trains says nothing; and only beside neighbours
that do better, since what all cards of a node have is how the node is built or fed.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from statistics import median

from msgspec.structs import replace

from evidence.records import GpuFrame, GpuSnapshot, GpuStatus, GpuTick, Mig
from rules.host_state import GpuHealth, Sighting
from rules.stage import reckonable
from rules.thresholds import Thresholds

__all__ = ["AT_ONCE", "DEGRADED", "seldom", "sightings"]

#: nvml.h, nvmlClocksEventReasonHwPowerBrakeSlowdown.
_POWER_BRAKE = 0x80
#: nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: two bits each, of which 1 is true: degraded bandwidth,
#: route recovery, route unhealthy, access timeout recovery.
_FABRIC = {
    0x01: "bandwidth of its NVLink fabric is degraded",
    0x04: "a route of its NVLink fabric recovers",
    0x10: "a route of its NVLink fabric is unhealthy",
    0x40: "its NVLink fabric recovers from an access timeout",
}
_FABRIC_MASK = 0x55
#: Neighbours under load that it takes to say that one of them is slow.
_NEIGHBOURS = 3
_INSTANCES_MAX = 64

#: What is a fact at its first sight; the rest must last.
AT_ONCE = frozenset({"repair-pending", "unrepairable-memory"})
#: What never adds to another witness's word: slow is not broken.
DEGRADED = frozenset(
    {"nvlinks-down", "fabric-unhealthy", "pcie-narrow", "power-brake", "slow-clock"}
)
#: What tells something only under load.
_UNDER_LOAD = frozenset({"pcie-narrow", "power-brake", "slow-clock"})


def seldom(frame: GpuFrame) -> GpuTick | None:
    """The newest tick of a frame that holds what is read seldom; None where none does."""
    for tick in reversed(frame.ticks):
        if any(gpu.pcie_width is not None for gpu in tick.gpus):
            return tick
    return None


def sightings(
    tick: GpuTick, known: Mapping[str, GpuHealth], arrived: datetime, limits: Thresholds
) -> dict[str, GpuHealth]:
    """The healths, by PCI address, that such a tick changes by what is seen to be degraded."""
    at = min(reckonable(tick.at), arrived)
    slow = _slow_below(tick.gpus, limits)
    changed = {}
    for gpu in tick.gpus:
        if gpu.pci is None or (health := known.get(gpu.pci)) is None:
            continue
        slow_clock = slow and gpu.clock_sm_mhz is not None and gpu.clock_sm_mhz < slow
        mig_ended = bool(health.instances) and gpu.mig_enabled is False
        asked = slow_clock or health.odd or mig_ended or _unusual(gpu)
        if not (asked or _unseen_links(gpu, health)):
            continue
        late = health.seen_at is not None and at < health.seen_at
        if late or gpu.status is not GpuStatus.OK:
            continue
        new = _seen(gpu, health, slow if slow_clock else 0.0, at, limits)
        if new != health:
            changed[gpu.pci] = new
    return changed


#: What a card that is as it should be has none of, and what should be equal, pair by pair.
_NONE = attrgetter(
    "nvlinks_down",
    "channel_repair_pending",
    "tpc_repair_pending",
    "unrepairable_memory",
    "fabric_health",
    "clocks_event_reasons",
    "mig",
)


def _unusual(gpu: GpuSnapshot) -> bool:
    """Whether anything about a card is worth a closer look: almost never."""
    return (
        gpu.pcie_width != gpu.pcie_width_max
        or gpu.pcie_generation != gpu.pcie_generation_max
        or (any(_NONE(gpu)) and _worth_a_look(gpu))
    )


def _worth_a_look(gpu: GpuSnapshot) -> bool:
    return bool(
        (gpu.clocks_event_reasons or 0) & _POWER_BRAKE
        or gpu.nvlinks_down
        or gpu.channel_repair_pending
        or gpu.tpc_repair_pending
        or gpu.unrepairable_memory
        or (gpu.fabric_health or 0) & _FABRIC_MASK
        or gpu.mig
    )


def _unseen_links(gpu: GpuSnapshot, health: GpuHealth) -> bool:
    return health.links_at_first is None and gpu.nvlinks_active is not None


def _slow_below(gpus: Iterable[GpuSnapshot], limits: Thresholds) -> float:
    """The clock below which a card under load holds up its neighbours; 0 where nobody can tell."""
    share, loaded = limits.degraded_clock_share, limits.degraded_load_pct
    clocks = [
        gpu.clock_sm_mhz
        for gpu in gpus
        if gpu.clock_sm_mhz and gpu.utilization_pct is not None and gpu.utilization_pct >= loaded
    ]
    if len(clocks) <= _NEIGHBOURS or min(clocks) >= share * max(clocks):
        return 0.0
    return share * median(clocks)


def _seen(
    gpu: GpuSnapshot, health: GpuHealth, slow_below: float, at: datetime, limits: Thresholds
) -> GpuHealth:
    links = health.links_at_first
    if links is None and gpu.nvlinks_active is not None:
        links = gpu.nvlinks_down
    loaded = (gpu.utilization_pct or 0) >= limits.degraded_load_pct
    holds = _holds(gpu, links or (), slow_below, loaded=loaded)
    odd = {}
    gap = timedelta(seconds=limits.degraded_for_s / 2)
    for name in sorted(holds.keys() | health.odd.keys()):
        before = health.odd.get(name)
        words = holds.get(name)
        if words is None:
            open_still = before is not None and (before.told or at - before.last <= gap)
            if before is not None and open_still and _unseen(name, gpu, loaded=loaded):
                odd[name] = before  # nobody could tell this time
            continue
        odd[name] = _sighting(name, words, before, at, limits)
    return replace(health, odd=odd, links_at_first=links, instances=_instances(gpu, health))


def _sighting(
    name: str, words: str, before: Sighting | None, at: datetime, limits: Thresholds
) -> Sighting:
    gap = timedelta(seconds=limits.degraded_for_s / 2)
    if before is None or (not before.told and at - before.last > gap):
        return Sighting(since=at, last=at, told=name in AT_ONCE, words=words)
    if before.told:
        return before
    lasted = (at - before.since).total_seconds() >= limits.degraded_for_s
    if not lasted and at - before.last < gap / 4:
        return before  # kept as seldom as will do, so that little is written
    return replace(before, last=at, told=lasted, words=words)


def _unseen(name: str, gpu: GpuSnapshot, *, loaded: bool) -> bool:
    """Whether a reading without a sign of it leaves open whether it still holds."""
    if name in _UNDER_LOAD:
        return not loaded
    if name == "fabric-unhealthy":
        return gpu.fabric_health is None
    if name == "nvlinks-down":
        return gpu.nvlinks_active is None
    return gpu.channel_repair_pending is None and gpu.unrepairable_memory is None


def _holds(
    gpu: GpuSnapshot, links: tuple[int, ...], slow_below: float, *, loaded: bool
) -> dict[str, str]:
    """What is seen of a card now, in words by name."""
    found = {}
    repairs = [
        what
        for what, waits in (
            ("memory channel", gpu.channel_repair_pending),
            ("compute unit", gpu.tpc_repair_pending),
        )
        if waits
    ]
    if repairs:
        found["repair-pending"] = f"repair of a {' and a '.join(repairs)} waits for the next reset"
    if gpu.unrepairable_memory:
        found["unrepairable-memory"] = "memory that cannot be repaired any more"
    down = [str(link) for link in gpu.nvlinks_down if link not in links]
    if down and gpu.nvlinks_active:
        found["nvlinks-down"] = f"NVLink {', '.join(down)} went down, others are up"
    unwell = [words for bit, words in _FABRIC.items() if (gpu.fabric_health or 0) & bit]
    if unwell:
        found["fabric-unhealthy"] = " and ".join(unwell)
    if loaded:
        found |= _holds_under_load(gpu, slow_below)
    return found


def _holds_under_load(gpu: GpuSnapshot, slow_below: float) -> dict[str, str]:
    found = {}
    narrow = [
        f"{what} {now} of {most}"
        for what, now, most in (
            ("width", gpu.pcie_width, gpu.pcie_width_max),
            ("generation", gpu.pcie_generation, gpu.pcie_generation_max),
        )
        if now is not None and most is not None and now < most
    ]
    if narrow:
        found["pcie-narrow"] = f"PCIe {' and '.join(narrow)} under load"
    if (gpu.clocks_event_reasons or 0) & _POWER_BRAKE:
        found["power-brake"] = "the power brake holds its clocks down under load"
    if slow_below:
        found["slow-clock"] = (
            f"{gpu.clock_sm_mhz} MHz under load, where its neighbours' clocks are a"
            f" fifth higher or more (limit {slow_below:.0f} MHz)"
        )
    return found


def _instances(gpu: GpuSnapshot, health: GpuHealth) -> dict[str, Mig]:
    """The MIG instances that processes were seen on, newest kept: a line may name a dead one.

    An instance that is gone takes its processes with it, and so does the end of MIG mode.
    """
    if gpu.mig_enabled is False:
        return {}
    seen = {str(one.pid): Mig(one.gi, one.ci) for one in gpu.processes or () if one.gi is not None}
    left = {one.gi for one in gpu.mig}
    older = {
        pid: mig
        for pid, mig in health.instances.items()
        if pid not in seen and (not left or mig.gi in left)
    }
    both = dict(list((older | seen).items())[-_INSTANCES_MAX:])
    return health.instances if both == health.instances else both
