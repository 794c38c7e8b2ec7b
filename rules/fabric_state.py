"""What the fabric stage remembers of one subnet: its devices, and the ports that are not well.

A port without errors that is up at full speed leaves nothing here, so the state of a subnet stays
small however many ports it has.
"""

from datetime import datetime

from msgspec import Struct

from evidence.decisions import EvidenceRef

__all__ = ["Device", "FabricState", "Port", "Said", "port_key"]


class Port(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One port that is worth remembering.

    ``counters`` are its error counters when last seen, those that are not zero; ``growth`` what
    they grew by, in steps of some minutes (begin of the step, errors). ``flaps`` are the times at
    which it came back after it had been down.
    """

    guid: str
    number: int
    counters: dict[str, int] = {}
    growth: dict[str, tuple[tuple[datetime, int], ...]] = {}
    stuck: tuple[str, ...] = ()
    down_since: datetime | None = None
    flaps: tuple[datetime, ...] = ()
    degraded: str = ""
    optics: str = ""
    narrow_since: datetime | None = None
    peer_guid: str | None = None
    peer_port: int | None = None
    host: str | None = None
    device: str | None = None
    ref: EvidenceRef | None = None


class Device(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One switch or adapter; ``up`` is how many of its ports were up when most of them were.

    ``dark`` are those that were never up: no cable, or nobody at its other end. ``uncounted`` are
    those whose counters are not known yet: what they stand at next is where they begin.
    """

    kind: str = "switch"
    name: str | None = None
    host: str | None = None
    seen_at: datetime | None = None
    up: int = 0
    dark: tuple[int, ...] = ()
    missing_since: datetime | None = None
    uncounted: tuple[int, ...] = ()


class Said(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was said about a link or a switch and still stands.

    ``counted`` is how many errors the links of a switch had when it was said.
    """

    incident: str
    level: int
    kind: str
    revision: int = 1
    at: datetime | None = None
    counted: int = 0


class FabricState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is remembered of one subnet; ``FabricState()`` knows nothing yet.

    ``judge_at`` is when what is new has settled, ``watch_at`` when something that lasts (a port
    that is down, errors that may have stopped) is to be looked at again. ``dropped`` counts ports
    for which there was no room.
    """

    offsets: dict[str, int] = {}
    devices: dict[str, Device] = {}
    ports: dict[str, Port] = {}
    said: dict[str, Said] = {}
    judge_at: datetime | None = None
    watch_at: datetime | None = None
    dropped: int = 0


def port_key(guid: str, number: int) -> str:
    """The name of a port in `FabricState.ports`."""
    return f"{guid}/{number}"
