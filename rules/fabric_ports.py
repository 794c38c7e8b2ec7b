"""One port from sweep to sweep: what grew, what fell, what is down, and how bad that is.

Increments count, never totals: a counter that fell was cleared, one at its maximum tells nothing.
Errors that were marked upstream, congestion and configuration never accuse a port.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec.structs import replace

from evidence.decisions import EvidenceRef
from evidence.records import FabricPort, FabricRecord, Optics
from rules.fabric_state import Port
from rules.thresholds import Thresholds

__all__ = [
    "DOWNED",
    "Finding",
    "assess",
    "changes_at",
    "is_up",
    "observe_port",
    "quiet",
]

#: Counters that speak of the link a port receives on.
_ACCUSING = (
    "symbol_error",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_RECEIVED, _UPSTREAM = "port_rcv_errors", "port_rcv_remote_physical_errors"
#: A restart of either end counts in it, too.
DOWNED = "link_downed"
_KEPT = frozenset((*_ACCUSING, _RECEIVED, _UPSTREAM, DOWNED))
#: What a counter reads as that did not answer.
_ALL_ONES = frozenset({(1 << 32) - 1, (1 << 64) - 1})
_STEP = timedelta(minutes=5)
_HOUR = timedelta(hours=1)
_FLAPS_WITHIN = timedelta(hours=12)
_FLAPS_KEPT = 16
_UP = frozenset({"active", "active_defer"})


class Finding(NamedTuple):
    """How bad a port is: 0 well, 1 to be watched, 2 a fault; in which way, and in words."""

    level: int
    kind: str
    words: str


_WELL = Finding(0, "", "")


def is_up(port: FabricPort) -> bool | None:
    """Whether a port carries traffic; None where its state was not read."""
    if port.state is None:
        return None
    return port.state.rpartition(":")[2].strip().lower() in _UP


def observe_port(
    known: Port | None,
    port: FabricPort,
    record: FabricRecord,
    at: datetime,
    *,
    new: bool,
    counted: bool,
) -> Port:
    """The port as it is to be remembered after a sweep ``at``; the same object if nothing changed.

    ``new``: its device was never seen before. ``counted``: its counters were read before; else what
    they stand at is where they begin. A port of a known device that is not remembered was up and
    without errors.
    """
    before = known or Port(guid=record.guid, number=port.port)
    counters = {name: n for name, n in port.counters.items() if name in _KEPT and n}
    growth, ref = before.growth, before.ref
    if port.counters and counted:
        grown = _grown(before, port, counters)
        if grown:
            growth = _with_growth(growth, grown, at)
            ref = _ref(
                record, port, at, ", ".join(f"{name} +{n}" for name, n in sorted(grown.items()))
            )
    up = is_up(port)
    down_since, flaps = before.down_since, before.flaps
    if up is False and down_since is None and not new:
        down_since, ref = at, _ref(record, port, at, f"went down ({port.state})")
    elif up and down_since is not None:
        flaps = (*(one for one in flaps if at - one < _FLAPS_WITHIN), at)[-_FLAPS_KEPT:]
        down_since = None
    slow = _degraded(port) if up else before.degraded
    narrow_since = before.narrow_since if _is_narrow(port) or not up else None
    if up and _is_narrow(port) and not new and slow != before.degraded:
        # One that was so at first sight may be split: a lane is lost only where there was one.
        narrow_since, ref = at, _ref(record, port, at, slow)
    optics = before.optics if port.optics is None else _optics(port.optics)
    if optics and optics != before.optics:
        ref = _ref(record, port, at, optics)
    peer = _peer(before, port, record)
    after = replace(
        before,
        counters=counters if port.counters else before.counters,
        growth=growth,
        stuck=tuple(name for name in port.saturated if name in _KEPT) if port.counters else (),
        down_since=down_since,
        flaps=flaps,
        degraded=slow,
        optics=optics,
        narrow_since=narrow_since,
        ref=ref,
        **peer,
    )
    return before if known is not None and after == before else after


def _grown(before: Port, port: FabricPort, counters: Mapping[str, int]) -> dict[str, int]:
    """What each counter grew by; nothing where it fell, was cleared, or stood at its maximum.

    A link that goes down and trains again makes a burst of errors on its way: that it went down is
    what counts then.
    """
    if port.reset:
        return {}
    grown = {
        name: count - before.counters.get(name, 0)
        for name, count in counters.items()
        if before.counters.get(name, 0) < count
        and count not in _ALL_ONES
        and name not in before.stuck
    }
    if before.down_since is not None or DOWNED in grown:
        return {name: n for name, n in grown.items() if name == DOWNED}
    return grown


def _with_growth(
    growth: Mapping[str, tuple[tuple[datetime, int], ...]], grown: Mapping[str, int], at: datetime
) -> dict[str, tuple[tuple[datetime, int], ...]]:
    seconds = int(_STEP.total_seconds())
    begin = datetime.fromtimestamp(int(at.timestamp()) // seconds * seconds, tz=at.tzinfo)
    found = {}
    for name in growth.keys() | grown.keys():
        steps = {step: n for step, n in growth.get(name, ()) if at - step < _HOUR + _STEP}
        if name in grown:
            steps[begin] = steps.get(begin, 0) + grown[name]
        if steps:
            found[name] = tuple(sorted(steps.items()))
    return dict(sorted(found.items()))


def _peer(before: Port, port: FabricPort, record: FabricRecord) -> dict[str, object]:
    """Who is at the other end; a port that is down does not say, so what was known stays."""
    host, device = before.host, before.device
    if record.kind == "hca":
        host, device = record.host or host, record.device or device
    elif words := (port.peer_name or "").split():  # a node may call itself by blanks
        host, device = words[0], words[1] if len(words) > 1 else None
    return {
        "peer_guid": port.peer_guid or before.peer_guid,
        "peer_port": port.peer_port if port.peer_guid else before.peer_port,
        "host": host,
        "device": device,
    }


def _optics(told: Optics) -> str:
    """What of a module is outside its own limits, in words; nothing where it is well or silent."""
    found = []
    hot, limit = told.temperature_c, told.temperature_high_c
    if hot is not None and limit is not None and hot > limit:
        found.append(f"{hot:g} C of at most {limit:g}")
    for name, lanes, low, high in (
        ("receives", told.rx_dbm, told.rx_low_dbm, told.rx_high_dbm),
        ("sends", told.tx_dbm, told.tx_low_dbm, told.tx_high_dbm),
    ):
        dim = [one for one in lanes if low is not None and one < low]
        bright = [one for one in lanes if high is not None and one > high]
        if dim or bright:
            worst = min(dim) if dim else max(bright)
            found.append(f"{name} {worst:g} dBm (its limits: {low} to {high})")
    return "its module " + ", ".join(found) if found else ""


def _is_narrow(port: FabricPort) -> bool:
    return bool(port.width and port.width_max and port.width < port.width_max)


def _degraded(port: FabricPort) -> str:
    if _is_narrow(port):
        return f"runs on {port.width} of {port.width_max} lanes"
    if port.rate_gbps and port.rate_max_gbps and port.rate_gbps < port.rate_max_gbps:
        return f"runs at {port.rate_gbps:g} of {port.rate_max_gbps:g} Gb/s"
    return ""


def _ref(record: FabricRecord, port: FabricPort, at: datetime, words: str) -> EvidenceRef:
    name = record.name or record.guid
    return EvidenceRef(
        id=record.id,
        source="fabric",
        at=at,
        host=record.host,
        file=record.file,
        text=f"{name} port {port.port}: {words}"[:200],
    )


def quiet(port: Port, now: datetime) -> bool:
    """Whether a port need not be remembered: up, at full speed, without an error."""
    return (
        not port.counters
        and not any(now - step < _HOUR for steps in port.growth.values() for step, _ in steps)
        and port.down_since is None
        and not port.flaps
        and not port.degraded
        and not port.optics
    )


def changes_at(port: Port, limits: Thresholds) -> list[datetime]:
    """When a port may look otherwise though nothing is read of it."""
    times = []
    if port.narrow_since is not None:
        times.append(port.narrow_since + timedelta(seconds=limits.ib_down_s))
    if port.down_since is not None:
        lasts = (limits.ib_down_settle_s, limits.ib_down_s)
        times += [port.down_since + timedelta(seconds=one) for one in lasts]
    if port.growth:
        last = max(steps[-1][0] for steps in port.growth.values())
        times.append(last + _HOUR + _STEP)
    if port.flaps:
        times.append(port.flaps[-1] + _FLAPS_WITHIN)
    return times


def assess(port: Port, now: datetime, limits: Thresholds) -> Finding:
    """How bad a port is at ``now``, by what it did within the last hour."""
    findings = (_down(port, now, limits), _flapping(port, now, limits), _errors(port, now, limits))
    worst = max(findings, key=lambda one: one.level)
    if worst.level or not (port.degraded or port.optics):
        return worst
    if not port.degraded:
        return Finding(1, "optics", port.optics)
    since = port.narrow_since
    if since is not None and (now - since).total_seconds() >= limits.ib_down_s:
        # A speed may be set; a lane is only ever lost.
        return Finding(2, "narrow", f"{port.degraded} since {since:%H:%M:%S} UTC")
    return Finding(1, "degraded", port.degraded)


def _down(port: Port, now: datetime, limits: Thresholds) -> Finding:
    if port.down_since is None:
        return _WELL
    lasted = (now - port.down_since).total_seconds()
    words = f"is down since {port.down_since:%H:%M:%S} UTC"
    if lasted >= limits.ib_down_s:
        return Finding(2, "down", words)
    return Finding(1, "down", words) if lasted >= limits.ib_down_settle_s else _WELL


def _flapping(port: Port, now: datetime, limits: Thresholds) -> Finding:
    recent = [at for at in port.flaps if now - at < _FLAPS_WITHIN]
    downed = max(_sum(port, DOWNED, now, _HOUR), len(recent))
    words = f"went down and came back {downed} times"
    if downed >= limits.ib_flaps:
        return Finding(2, "flapping", words)
    return Finding(1, "flapping", words) if downed else _WELL


def _errors(port: Port, now: datetime, limits: Thresholds) -> Finding:
    symbol = _sum(port, "symbol_error", now, _HOUR)
    retrained = _sum(port, "link_error_recovery", now, _HOUR)
    integrity = sum(_sum(port, name, now, _HOUR) for name in _ACCUSING[2:])
    received = _sum(port, _RECEIVED, now, _STEP) - _sum(port, _UPSTREAM, now, _STEP)
    told = {
        "symbol errors": symbol,
        "retrainings": retrained,
        "link integrity errors": integrity,
        "damaged packets": max(0, received),
    }
    words = ", ".join(f"{n} {name}" for name, n in told.items() if n) + " within the hour"
    bad = (
        symbol >= limits.ib_symbol_errors
        or retrained >= limits.ib_retrainings
        or integrity >= limits.ib_retrainings
        or received >= limits.ib_damaged_packets
    )
    if bad:
        return Finding(2, "errors", words)
    watch = (
        symbol >= limits.ib_symbol_errors / 100
        or retrained > 0
        or integrity > 0
        or received >= limits.ib_damaged_packets / 10
    )
    return Finding(1, "errors", words) if watch else _WELL


def _sum(port: Port, name: str, now: datetime, within: timedelta) -> int:
    return sum(n for step, n in port.growth.get(name, ()) if now - step < within + _STEP)
