"""What is so at each moment of an incident: power, agents, cards in their slots, what they show."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from evidence.records import FabricPort, GpuProcess, GpuSnapshot, MigInstance
from fleet.cast import Cast
from fleet.plant import Card, Host
from fleet.scenario import CardStep, NodeStep, PortStep, ScenarioError

__all__ = ["DRIVER", "World"]

DRIVER = "570.133.20"
_HEALTHY: dict[str, Any] = {
    "ecc_enabled": True,
    "ecc_volatile_corrected": 0,
    "ecc_volatile_uncorrected": 0,
    "ecc_aggregate_corrected": 3,
    "ecc_aggregate_uncorrected": 0,
    "sram_threshold_exceeded": False,
    "remapped_correctable": 0,
    "remapped_uncorrectable": 0,
    "remap_pending": False,
    "remap_failure": False,
    "recovery_action": 0,
    "temperature_c": 58,
    "temperature_memory_c": 66,
    "temperature_slowdown_c": 87,
    "power_w": 612.0,
    "utilization_pct": 100,
    "memory_used_mib": 70_110,
    "clock_sm_mhz": 1_980,
    "clocks_event_reasons": 0,
    "pcie_replays": 0,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "mig_enabled": False,
}
_PORT: dict[str, Any] = {
    "state": "active",
    "physical_state": "linkup",
    "rate_gbps": 400.0,
    "rate_max_gbps": 400.0,
    "width": 4,
    "width_max": 4,
}
_DOWN = {"state": "down", "physical_state": "polling"}
#: A card that is cut up: rows are not told then, and each instance has its own processes.
_CUT = {"mig_enabled": True, "remapped_correctable": None, "remapped_uncorrectable": None}
_INSTANCES = range(1, 7)
_NOTHING = timedelta(0)

T = TypeVar("T")


def _filled(value: Any, drawn: Mapping[str, object]) -> Any:  # noqa: ANN401 (plain TOML)
    """A value of a scenario file with the drawn numbers in place of their names."""
    match value:
        case dict():
            return {_filled(name, drawn): _filled(one, drawn) for name, one in value.items()}
        case list():
            return [_filled(one, drawn) for one in value]
        case str():
            return value.format_map(drawn)
    return value


@dataclass(slots=True)
class _Course(Generic[T]):
    """How one thing changes: values from a time on, in order of time."""

    first: T
    turns: list[tuple[datetime, T]] = field(default_factory=list)

    def turn(self, at: datetime, value: T) -> None:
        self.turns.append((at, value))
        self.turns.sort(key=lambda one: one[0])

    def at(self, when: datetime) -> T:
        value = self.first
        for at, turned in self.turns:
            if at > when:
                break
            value = turned
        return value


class World:
    """The parts of one incident over time; steps are taken first, then it is asked."""

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self._power: dict[str, _Course[bool]] = defaultdict(lambda: _Course(first=True))
        self._agents: dict[str, _Course[bool]] = defaultdict(lambda: _Course(first=True))
        self._nvml: dict[str, _Course[int]] = defaultdict(lambda: _Course(first=0))
        self._slots: dict[str, _Course[Card]] = {}
        self._shown: dict[str, list[tuple[datetime, dict[str, Any]]]] = defaultdict(list)
        self._ports: list[tuple[datetime, PortStep]] = []
        self._port_times: list[datetime] = []
        self._rails: dict[tuple[int, int], _Rail] = {}
        self._known: dict[tuple[str, int, str], GpuSnapshot] = {}

    # --- Steps ----------------------------------------------------------------------------------

    def show(self, step: CardStep, card: Card, at: datetime) -> None:
        """NVML reads something else of a card, or answers otherwise for its node, from now on."""
        if step.nvml is not None:
            self._nvml[card.host].turn(at, step.nvml)
        if step.set:
            self._shown[card.uuid].append((at, step.set))
            self._shown[card.uuid].sort(key=lambda one: one[0])

    def turn(self, step: NodeStep, host: Host, at: datetime) -> None:
        """A node loses or gets its power, its agent stops or starts."""
        if step.power is not None:
            self._power[host.name].turn(at, step.power == "on")
        if step.agent is not None:
            self._agents[host.name].turn(at, step.agent == "on")

    def swap(self, card: Card, at: datetime) -> None:
        """Another card sits in this one's slot from now on."""
        number = int(card.serial)
        spare = UUID(int=(number << 70 | self.cast.seed) & (1 << 128) - 1, version=4)
        new = Card(card.host, card.index, card.pci, f"GPU-{spare}", str(number + 40_001))
        self._slots.setdefault(card.uuid, _Course(first=card)).turn(at, new)

    def port(self, step: PortStep, at: datetime) -> None:
        """Something becomes of ports."""
        self._ports.append((at, step))
        self._ports.sort(key=lambda one: one[0])
        self._port_times = [when for when, _ in self._ports]

    # --- Nodes ----------------------------------------------------------------------------------

    def skew(self, host: str) -> timedelta:
        """How far the clock of a node is ahead."""
        variant = self.cast.variant
        mine = variant is not None and host == self.cast.host.name
        return timedelta(seconds=variant.skew_s) if variant and mine else _NOTHING

    def late(self, host: str) -> timedelta:
        """How late the records of a node arrive."""
        variant = self.cast.variant
        mine = variant is not None and host == self.cast.host.name
        return timedelta(seconds=variant.late_s) if variant and mine else _NOTHING

    def on(self, host: str, at: datetime) -> bool:
        """Whether a node has power."""
        return self._power[host].at(at) if host in self._power else True

    def heard(self, host: str, at: datetime) -> bool:
        """Whether a node has power and its agent runs."""
        return self.on(host, at) and (self._agents[host].at(at) if host in self._agents else True)

    def news(self, host: Host) -> list[datetime]:
        """When a node tells anew who it is: after a boot, a start of its agent, a swap."""
        courses: list[_Course[bool]] = [
            found[host.name] for found in (self._power, self._agents) if host.name in found
        ]
        starts = [at for course in courses for at, up in course.turns if up]
        swaps = [self._slots[card.uuid] for card in host.cards if card.uuid in self._slots]
        return sorted({*starts, *(at for course in swaps for at, _ in course.turns)})

    def boot_id(self, host: str, at: datetime) -> str:
        """The id of the boot in which a node is."""
        turns = self._power[host].turns if host in self._power else []
        return f"{host}-boot-{sum(up for when, up in turns if when <= at)}"

    def nvml(self, host: str, at: datetime) -> int:
        """The code with which NVML answers for a node as a whole."""
        return self._nvml[host].at(at) if host in self._nvml else 0

    # --- Cards ----------------------------------------------------------------------------------

    def sitting(self, card: Card, at: datetime) -> Card:
        """The card in this one's slot."""
        return self._slots[card.uuid].at(at) if card.uuid in self._slots else card

    def snapshot(self, card: Card, at: datetime) -> GpuSnapshot:
        """What NVML reads in this one's slot; what a card showed goes with it."""
        sitting = self.sitting(card, at)
        since = max((when for when, new in self._turns(card) if new == sitting), default=None)
        shown = [
            told
            for when, told in self._shown.get(card.uuid, ())
            if when <= at and (since is None or when >= since)
        ]
        key = (sitting.uuid, len(shown), card.uuid)
        if key not in self._known:
            told = {name: value for one in shown for name, value in one.items()}
            self._known[key] = self._look(sitting, told)
        return self._known[key]

    def _turns(self, card: Card) -> list[tuple[datetime, Card]]:
        return self._slots[card.uuid].turns if card.uuid in self._slots else []

    def _look(self, card: Card, told: dict[str, Any]) -> GpuSnapshot:
        named = {name: getattr(card, name) for name in ("index", "uuid", "serial", "pci")}
        if told.get("status", "ok") != "ok":
            plain = named | {"error": told.get("error", 15), "status": told["status"]}
        else:
            plain = _HEALTHY | named | {"name": self.cast.scenario.card}
            plain |= _CUT | self._instances() if self._is_cut(card) else {}
            shown = _filled(told, self.cast.drawn)
            plain |= {name: shown[name] for name in shown.keys() - {"status", "error"}}
        try:
            return msgspec.convert(plain, GpuSnapshot, strict=False)
        except msgspec.ValidationError as error:
            raise ScenarioError(f"{self.cast.scenario.name}: [[gpu]] {error}") from error

    def _is_cut(self, card: Card) -> bool:
        return self.cast.scenario.mig and card.uuid == self.cast.it.uuid

    def _instances(self) -> dict[str, Any]:
        drawn = self.cast.drawn
        pid = drawn["pid"]
        assert isinstance(pid, int)
        cut = [MigInstance(gi=gi, ci=0, profile="1g.10gb") for gi in _INSTANCES]
        busy = [
            GpuProcess(pid=pid if gi == drawn["gi"] else pid + gi, name="python3.11", gi=gi, ci=0)
            for gi in _INSTANCES
        ]
        return {"mig": msgspec.to_builtins(cut), "processes": msgspec.to_builtins(busy)}

    # --- Ports ----------------------------------------------------------------------------------

    @property
    def swept(self) -> list[int]:
        """The rails whose switches are swept: those on which anything happens."""
        if self._power or any(step.rails == "all" for _, step in self._ports):
            return list(range(len(self.cast.host.ports)))
        return [self.cast.it.index] if self._ports else []

    def gone(self, rail: int, at: datetime) -> bool:
        """Whether the leaf switch of a rail answers no more."""
        return self._of(rail, at).gone

    def reached(self, host: Host, rail: int, at: datetime) -> bool:
        """Whether an adapter answers over the network."""
        if self.gone(rail, at) or not self.on(host.name, at):
            return False
        return self.hca_port(host, rail, at).state != "down"

    def leaf_ports(self, rail: int, at: datetime) -> tuple[FabricPort, ...]:
        """The ports of the leaf switch of a rail."""
        off = tuple(name for name in self._power if not self.on(name, at))
        known = self._of(rail, at).leaf
        if off not in known:
            near = self.cast.plant.leaves[self.cast.host.leaf]
            known[off] = tuple(self._leaf_port(host, rail, at, off) for host in near)
        return known[off]

    def _leaf_port(self, host: Host, rail: int, at: datetime, off: tuple[str, ...]) -> FabricPort:
        port, told = host.ports[rail], self._of(rail, at).ends["switch"].get(host.name, _PLAIN)
        return FabricPort(
            port=port.number,
            peer_guid=port.hca_guid,
            peer_port=1,
            peer_name=f"{host.name} {port.hca}",
            counters=dict(told.counters),
            **(_PORT | told.changed | (_DOWN if host.name in off else {})),
        )

    def hca_port(self, host: Host, rail: int, at: datetime) -> FabricPort:
        """The port of an adapter."""
        known = self._of(rail, at)
        if host.name not in known.adapters:
            port, told = host.ports[rail], known.ends["hca"].get(host.name, _PLAIN)
            known.adapters[host.name] = FabricPort(
                port=1,
                peer_guid=port.switch,
                peer_port=port.number,
                peer_name=port.switch_name,
                counters=dict(told.counters),
                **(_PORT | told.changed),
            )
        return known.adapters[host.name]

    def _of(self, rail: int, at: datetime) -> "_Rail":
        """One rail as all steps until now have left it."""
        taken = bisect_right(self._port_times, at)
        key = rail, taken
        if key not in self._rails:
            self._rails[key] = self._rail(rail, [step for _, step in self._ports[:taken]])
        return self._rails[key]

    def _rail(self, rail: int, steps: list[PortStep]) -> "_Rail":
        found = _Rail()
        for step in steps:
            if step.rails == "own" and rail != self.cast.it.index:
                continue
            found.gone = found.gone if step.gone is None else step.gone
            for host in self.cast.hosts_of(self.cast.cards(step.on)):
                for end in ("switch", "hca") if step.end == "both" else (step.end,):
                    told = found.ends[end].setdefault(host.name, _Told())
                    told.counters.update(step.add)
                    told.changed |= step.set
        return found


@dataclass(slots=True)
class _Told:
    """What steps have made of one port."""

    counters: Counter[str] = field(default_factory=Counter)
    changed: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Rail:
    """One rail between two steps; what was read of it is kept, for most sweeps find the same."""

    gone: bool = False
    ends: dict[str, dict[str, _Told]] = field(default_factory=lambda: {"switch": {}, "hca": {}})
    leaf: dict[tuple[str, ...], tuple[FabricPort, ...]] = field(default_factory=dict)
    adapters: dict[str, FabricPort] = field(default_factory=dict)


_PLAIN = _Told()
