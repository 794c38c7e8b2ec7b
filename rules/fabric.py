"""The fabric stage: counters and states of one subnet's ports into statements about its links.

A link is judged from both of its ends, a switch from all of its links: one that restarts is one
event. A link to a node is a suspicion, told to that node's host, where its job and its health are
known; what has no host (a link between switches, a switch) is a verdict.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from evidence.decisions import (
    Domain,
    DomainKind,
)
from evidence.records import FabricPort, FabricRecord
from rules.fabric_ports import DOWNED, Finding, assess, changes_at, is_up, observe_port, quiet
from rules.fabric_state import Device, FabricState, Port, port_key
from rules.fabric_telling import (
    FAULT,
    SUSPECTED,
    Link,
    Output,
    host_name,
    switch_id,
    take_back,
    tell_link,
    tell_switch,
)
from rules.stage import Arrived, reckonable
from rules.tables import Rules

__all__ = ["FabricState", "due", "step"]

_PORTS_MAX = 4_096
#: Ports of one switch that must fail together before the switch is asked about.
_ENOUGH = 4
_WATCH = timedelta(seconds=60)
#: What a link shows when the node at its other end is off or restarts.
_ABSENT = frozenset({"down", "flapping"})


def due(state: FabricState) -> datetime | None:
    """When a Tick is needed next; None while every port is well."""
    return min((at for at in (state.judge_at, state.watch_at) if at is not None), default=None)


def step(state: FabricState, arrived: Arrived, rules: Rules) -> tuple[FabricState, list[Output]]:
    """Take one sweep of a switch or an adapter, or a Tick.

    Returns the state, the same object when nothing worth keeping changed, and what is new to say.
    """
    if arrived.offset is not None and arrived.offset <= state.offsets.get(arrived.topic, -1):
        return state, []
    before = state
    outputs: list[Output] = []
    wanted = due(state)
    if wanted is not None and wanted <= arrived.at:
        state, outputs = _judge(state, arrived.at, rules)
    if isinstance(arrived.record, FabricRecord):
        state = _take(state, arrived.record, arrived.at, rules)
    if state is not before and arrived.offset is not None:
        state = replace(state, offsets={**state.offsets, arrived.topic: arrived.offset})
    return state, outputs


# --- What a sweep brings --------------------------------------------------------------------------


def _take(state: FabricState, record: FabricRecord, now: datetime, rules: Rules) -> FabricState:
    known = state.devices.get(record.guid)
    at = _taken_at(record, now, rules)
    if known is not None and known.seen_at is not None and at < known.seen_at:
        return state  # a sweep that was overtaken: its counters are history
    if known is None and (record.partial or record.missing):
        return state  # what it leaves out would look as if it had been well
    device = _device(known, record, at)
    look = _Look(dict(state.ports), state.dropped, set(device.uncounted))
    for port in record.ports:
        if port.port not in device.dark:
            look.take(port, record, known, at)
    if look.uncounted != set(device.uncounted):
        device = replace(device, uncounted=tuple(sorted(look.uncounted)))
    if not look.changed and device is known and look.dropped == state.dropped:
        return state
    devices = {**state.devices, record.guid: device}
    if look.lit:
        _unplug(look.lit, devices, look.ports)
    state = replace(state, devices=devices, ports=look.ports, dropped=look.dropped)
    return _await(state, now, rules) if look.changed or device.missing_since else state


def _taken_at(record: FabricRecord, now: datetime, rules: Rules) -> datetime:
    """When a sweep was taken; by the arrival where the clock of a node is off by minutes."""
    at = min(reckonable(record.at or record.observed_at), now)
    behind = now - at > timedelta(seconds=rules.thresholds.clock_skew_s)
    return now if behind else at


@dataclass(slots=True)
class _Look:
    """The ports while one sweep of a device is taken; ``lit`` are the ends that came up on it."""

    ports: dict[str, Port]
    dropped: int
    uncounted: set[int]
    lit: set[tuple[str, int | None]] = field(default_factory=set)
    changed: bool = False

    def take(
        self, port: FabricPort, record: FabricRecord, known: Device | None, at: datetime
    ) -> None:
        """Take one port of the sweep."""
        key = port_key(record.guid, port.port)
        old = self.ports.get(key)
        first = known is None or port.port in self.uncounted
        if first and port.unread and not port.counters:
            self.uncounted.add(port.port)
        else:
            self.uncounted.discard(port.port)
        if known is not None and port.peer_guid is not None and _lights_up(port, old, known):
            self.lit.add((port.peer_guid, port.peer_port))
        seen = observe_port(old, port, record, at, new=known is None, counted=not first)
        if seen is old:
            return
        if quiet(seen, at):
            self.changed |= self.ports.pop(key, None) is not None
        elif old is None and len(self.ports) >= _PORTS_MAX:
            self.dropped += 1
            self.uncounted.add(port.port)
        else:
            self.ports[key] = seen
            self.changed = True


def _lights_up(port: FabricPort, old: Port | None, device: Device) -> bool:
    """Whether a port carries traffic that did not when it was last seen."""
    was_down = port.port in device.dark or (old is not None and old.down_since is not None)
    return was_down and bool(is_up(port))


def _unplug(
    lit: Container[tuple[str, int | None]],
    devices: dict[str, Device],
    ports: dict[str, Port],
) -> None:
    """Take ports that are down for empty ones where their cable lit up at another port."""
    for key, port in list(ports.items()):
        if port.down_since is None or (port.peer_guid, port.peer_port) not in lit:
            continue
        device = devices.get(port.guid)
        if device is not None:
            del ports[key]
            dark = tuple(sorted({*device.dark, port.number}))
            devices[port.guid] = replace(device, dark=dark)


def _device(known: Device | None, record: FabricRecord, at: datetime) -> Device:
    """The device as it is to be remembered; the same object while its look has not changed."""
    up = {port.port for port in record.ports if is_up(port)}
    down = {port.port for port in record.ports if is_up(port) is False}
    dark = down if known is None else set(known.dark) - up
    missing = None
    if record.missing:
        missing = (known.missing_since if known else None) or at
    after = Device(
        kind=record.kind,
        name=record.name or (known.name if known else None),
        host=record.host or (known.host if known else None),
        seen_at=at,
        up=max(len(up), known.up if known else 0),
        dark=tuple(sorted(dark)),
        missing_since=missing,
        uncounted=known.uncounted if known else (),
    )
    if known is None:
        return after
    stale = known.seen_at is None or at - known.seen_at >= _WATCH
    return known if replace(after, seen_at=known.seen_at) == known and not stale else after


def _await(state: FabricState, now: datetime, rules: Rules) -> FabricState:
    """Judge once what belongs together has come: the other end, the other ports of a switch."""
    if state.judge_at is not None:
        return state
    wait = timedelta(seconds=rules.policy.job.settle_across_hosts_s)
    return replace(state, judge_at=now + wait)


# --- Judging --------------------------------------------------------------------------------------


def _judge(state: FabricState, now: datetime, rules: Rules) -> tuple[FabricState, list[Output]]:
    links = {link.domain.id: link for link in _links(state, now, rules)}
    switches = _switches(state, links)
    forgiven = _forgive(state, switches)
    if forgiven is not state:
        state = forgiven
        links = {link.domain.id: link for link in _links(state, now, rules)}
    explained = {id_ for names in switches.values() for id_ in names}
    outputs: list[Output] = []
    said = dict(state.said)
    for guid, names in sorted(switches.items()):
        still = [links[name] for name in names if name in links]  # others were forgiven
        if still:
            outputs += tell_switch(said, state, guid, still, now, rules)
    for id_, link in sorted(links.items()):
        if id_ not in explained and link.finding.level:
            outputs += tell_link(said, link, now)
    for id_ in sorted(said.keys() - links.keys() - {switch_id(guid) for guid in switches}):
        outputs += take_back(said, id_, state, now)
    state = replace(
        state, said=said, judge_at=None, watch_at=_watch(replace(state, said=said), now, rules)
    )
    return state, outputs


def _forgive(state: FabricState, switches: Mapping[str, list[str]]) -> FabricState:
    """Forget that ports went down while their switch did: it was the switch's restart."""
    over = {
        id_.partition(":")[2]: told.at
        for id_, told in state.said.items()
        if told.kind == "switch" and id_.partition(":")[2] not in switches
    }
    ports = dict(state.ports)
    for key, port in state.ports.items():
        since = over.get(port.guid) or over.get(port.peer_guid or "")
        if since is not None and port.flaps:
            flaps = tuple(at for at in port.flaps if at < since)
            growth = {name: steps for name, steps in port.growth.items() if name != DOWNED}
            ports[key] = replace(port, flaps=flaps, growth=growth)
    return state if ports == state.ports else replace(state, ports=ports)


def _watch(state: FabricState, now: datetime, rules: Rules) -> datetime | None:
    """When time alone changes what there is to say: a port stays down, errors have stopped."""
    limits = rules.thresholds
    times = [at for port in state.ports.values() for at in changes_at(port, limits)]
    wait = timedelta(seconds=limits.service_wait_s)
    times += [
        told.at + wait
        for told in state.said.values()
        if told.kind == "switch" and told.level < FAULT and told.at is not None
    ]
    return min((at for at in times if at > now), default=None)


def _links(state: FabricState, now: datetime, rules: Rules) -> list[Link]:
    """Every link one of whose ends is not well, each once."""
    ends: dict[str, list[Port]] = defaultdict(list)
    for port in state.ports.values():
        ends[_end_key(port, state.devices)].append(port)
    found = []
    for key, ports in sorted(ends.items()):
        ordered = tuple(sorted(ports, key=lambda port: (port.guid, port.number)))
        findings = [assess(port, now, rules.thresholds) for port in ordered]
        worst = max(findings, key=lambda one: one.level)
        if not worst.level:
            continue
        host = next((port.host for port in ordered if port.host), None)
        refs = tuple(port.ref for port in ordered if port.ref is not None)
        guid, _, number = key.rpartition("/")
        device = next((port.device for port in ordered if port.device), None)
        domain = Domain(
            kind=DomainKind.LINK, switch=guid, port=int(number), host=host_name(host, state)
        )
        words = _words(ordered, findings, state.devices, device)
        level = worst.level
        if worst.kind in _ABSENT and domain.host is None and not _leads_on(ordered, state.devices):
            level = min(level, SUSPECTED)  # a node that is off looks like that
        finding = worst._replace(level=level, words=words)
        found.append(Link(domain, domain.host, ordered, finding, refs))
    return found


def _leads_on(ports: Iterable[Port], devices: Mapping[str, Device]) -> bool:
    """Whether another switch is known to be at the other end of a link, and not some node."""
    peers = (devices.get(port.peer_guid) for port in ports if port.peer_guid is not None)
    return any(peer is not None and peer.kind != "hca" for peer in peers)


def _end_key(port: Port, devices: Mapping[str, Device]) -> str:
    """The name of the link a port is an end of: its switch end, else the smaller of the two."""
    own = port_key(port.guid, port.number)
    if port.peer_guid is None or port.peer_port is None:
        return own
    other = port_key(port.peer_guid, port.peer_port)
    here, there = devices.get(port.guid), devices.get(port.peer_guid)
    is_hca = here is not None and here.kind == "hca"
    to_hca = (there is not None and there.kind == "hca") or (
        there is None and port.host is not None
    )
    if is_hca:
        return other
    return own if to_hca else min(own, other)


def _words(
    ports: Iterable[Port],
    findings: Iterable[Finding],
    devices: Mapping[str, Device],
    device: str | None,
) -> str:
    told = []
    for port, finding in zip(ports, findings, strict=True):
        if finding.level:
            of = devices.get(port.guid)
            name = (of.name if of else None) or port.guid
            told.append(f"{name} port {port.number} {finding.words}")
    to = f" (cable to {device})" if device else ""
    return "; ".join(told) + to


def _switches(state: FabricState, links: Mapping[str, Link]) -> dict[str, list[str]]:
    """Switches of which half of the ports that ever were up fail together, with their links."""
    bad: dict[str, set[str]] = defaultdict(set)
    for id_, link in links.items():
        if link.finding.level < FAULT and link.finding.kind != "down":
            continue
        for guid in {end.guid for end in link.ends} | {link.domain.switch or ""}:
            bad[guid].add(id_)
        for end in link.ends:
            if end.peer_guid is not None:
                bad[end.peer_guid].add(id_)
    found = {}
    for guid, names in bad.items():
        device = state.devices.get(guid)
        if device is None or device.kind == "hca":
            continue
        if device.missing_since is not None or len(names) >= max(_ENOUGH, device.up / 2):
            found[guid] = sorted(names)
    return found
