"""What is sampled of a world: who is who, the frames of NVML, the sweeps over the switches."""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from msgspec import Struct

from evidence.identity import digest
from evidence.records import (
    FabricPort,
    FabricRecord,
    GpuFrame,
    GpuIdentity,
    GpuTick,
    HcaIdentity,
    InventoryRecord,
)
from fleet import native
from fleet.plant import Host
from fleet.world import DRIVER, World

__all__ = ["AFTER_S", "BEFORE_S", "SUBNET", "frames", "inventory", "looks", "sweeps"]

#: From when on an incident is watched, before it begins.
BEFORE_S = 60.0
#: How long it is watched after its last step, and how often: agents do not stop with a fault.
AFTER_S = 1_200.0
_AFTER_EVERY_S = 60.0
#: How many sweeps an adapter that cannot be reached is told as missing.
_MISSING_SWEEPS = 3
#: Every so many sweeps a switch is told in full, in between what is news of it.
_FULL_EVERY = 30
SUBNET = "default"

Sampled = Iterator[tuple[datetime, str, Struct]]


def inventory(world: World) -> Sampled:
    """Who every node is, at first and after each boot or swap: (true time, host, record)."""
    first = world.cast.begin - timedelta(seconds=BEFORE_S)
    for host in world.cast.hosts:
        for at in (first, *world.news(host)):
            if world.heard(host.name, at):
                yield at, host.name, _identity(world, host, at)


def _identity(world: World, host: Host, at: datetime) -> InventoryRecord:
    cards = [world.sitting(card, at) for card in host.cards]
    boot_id = world.boot_id(host.name, at)
    return InventoryRecord(
        id=digest("sim-inventory", host.name, boot_id, at, *(card.uuid for card in cards)),
        host=host.name,
        observed_at=at,
        boot_id=boot_id,
        driver=DRIVER,
        gpus=tuple(
            GpuIdentity(
                index=card.index,
                pci=card.pci,
                uuid=card.uuid,
                serial=card.serial,
                hcas=(host.ports[card.index].hca,),
            )
            for card in cards
        ),
        hcas=tuple(
            HcaIdentity(
                name=port.hca,
                guid=port.hca_guid,
                switch_guid=port.switch,
                switch_port=port.number,
                switch_name=port.switch_name,
            )
            for port in host.ports
        ),
        rack=host.rack,
        leaf=host.leaf,
    )


def _times(world: World, offset_s: float) -> Iterator[datetime]:
    scenario = world.cast.scenario
    after_s = offset_s - BEFORE_S
    while after_s < scenario.lasts_s + AFTER_S:
        yield world.cast.begin + timedelta(seconds=after_s)
        slow_s = max(_AFTER_EVERY_S, scenario.sample_s)
        after_s += scenario.sample_s if after_s < scenario.lasts_s else slow_s


def frames(world: World, dice: random.Random) -> Sampled:
    """What NVML says of every node, as often as the scenario has it: (true time, host, record)."""
    for host in world.cast.hosts:
        offset_s = dice.uniform(0, min(10.0, world.cast.scenario.sample_s))
        for seq, at in enumerate(_times(world, offset_s)):
            if world.heard(host.name, at):
                yield at, host.name, _frame(world, host, at, seq)


def _frame(world: World, host: Host, at: datetime, seq: int) -> GpuFrame:
    clock = at + world.skew(host.name)
    code = world.nvml(host.name, at)
    if code:
        tick = GpuTick(at=clock, error=code, error_text=f"NVML error {code}")
    else:
        tick = GpuTick(at=clock, gpus=tuple(world.snapshot(card, at) for card in host.cards))
    return GpuFrame(
        id=digest("sim-frame", world.cast.job, world.cast.number, host.name, seq),
        host=host.name,
        observed_at=clock,
        seq=seq,
        ticks=(tick,),
        boot_id=world.boot_id(host.name, at),
        driver=DRIVER,
    )


def looks(world: World, host: Host) -> list[str]:
    """What nvidia-smi logs on a node, with its head; nothing while NVML does not answer."""
    rows = [native.CSV_HEADER]
    for at in _times(world, 5.0):
        if world.on(host.name, at) and not world.nvml(host.name, at):
            clock = at + world.skew(host.name)
            shown = [(card, world.snapshot(card, at)) for card in host.cards]
            rows += [native.csv_line(clock, card, gpu) for card, gpu in shown]
    return rows


def sweeps(world: World) -> Sampled:
    """The leaf switches of the rails on which anything happens, and the adapters at them.

    A switch is read over the network; an adapter by the agent of its node, and over the network it
    is told as missing while it cannot be reached. (true time, subnet, record)
    """
    near = [host for host in world.cast.hosts if host.leaf == world.cast.host.leaf]
    for rail in world.swept:
        unreached: Counter[str] = Counter()
        before: tuple[FabricPort, ...] = ()
        for sweep, at in enumerate(_times(world, rail * 0.03)):
            ports = () if world.gone(rail, at) else world.leaf_ports(rail, at)
            news = () if ports is before else tuple(p for p in ports if p not in before)
            full = not before or sweep % _FULL_EVERY == 0
            yield at, SUBNET, _switch(world, rail, at, sweep, ports if full else news, full=full)
            before = ports
            for host in near:
                reached = world.reached(host, rail, at)
                unreached[host.name] = 0 if reached else unreached[host.name] + 1
                if 0 < unreached[host.name] <= _MISSING_SWEEPS:
                    yield at, SUBNET, _adapter(world, host, rail, at, sweep, missing=True)
                if world.heard(host.name, at):
                    yield at, SUBNET, _adapter(world, host, rail, at, sweep, missing=False)


def _switch(
    world: World,
    rail: int,
    at: datetime,
    sweep: int,
    ports: tuple[FabricPort, ...],
    *,
    full: bool,
) -> FabricRecord:
    port = world.cast.host.ports[rail]
    gone = world.gone(rail, at)
    return FabricRecord(
        id=digest("sim-sweep", world.cast.job, world.cast.number, port.switch, sweep),
        observed_at=at,
        at=at,
        subnet=SUBNET,
        guid=port.switch,
        name=port.switch_name,
        sweep=sweep,
        missing=gone,
        partial=not full and not gone,
        ports=ports,
    )


def _adapter(
    world: World, host: Host, rail: int, at: datetime, sweep: int, *, missing: bool
) -> FabricRecord:
    port = host.ports[rail]
    source = "mad" if missing else "sysfs"
    return FabricRecord(
        id=digest("sim-adapter", source, world.cast.job, world.cast.number, port.hca_guid, sweep),
        observed_at=at,
        at=at,
        subnet=SUBNET,
        guid=port.hca_guid,
        name=f"{host.name} {port.hca}",
        kind="hca",
        host=host.name,
        device=port.hca,
        source=source,
        sweep=sweep,
        missing=missing,
        ports=() if missing else (world.hca_port(host, rail, at),),
    )
