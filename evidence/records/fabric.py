"""What switches and adapters of an InfiniBand subnet say about their ports."""

from datetime import datetime

from msgspec import Struct, field

from evidence.records.wire import Wire

__all__ = ["FabricPort", "FabricRecord", "Optics"]


class Optics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the module in a port says about itself: lists are by lane, powers in dBm.

    ``*_low`` and ``*_high`` are the module's own alarm limits.
    """

    vendor: str | None = None
    part: str | None = None
    serial: str | None = None
    temperature_c: float | None = None
    temperature_high_c: float | None = None
    voltage_v: float | None = None
    bias_ma: tuple[float, ...] = ()
    rx_dbm: tuple[float, ...] = ()
    rx_low_dbm: float | None = None
    rx_high_dbm: float | None = None
    tx_dbm: tuple[float, ...] = ()
    tx_low_dbm: float | None = None
    tx_high_dbm: float | None = None
    raw_ber: float | None = None
    effective_ber: float | None = None
    symbol_ber: float | None = None


class FabricPort(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One port of a switch or HCA, as read: counters are raw and never cleared by us.

    Counters are named as the kernel names them in sysfs (`symbol_error`, see
    collectors/fabric/counters.py), whatever they were read from. ``saturated`` names those that
    stand at their maximum and so tell nothing; ``reset`` is set when a counter fell since the
    last sweep (somebody cleared it, or the device restarted). ``unread`` has the reason of what
    could not be read. ``rate_max_gbps`` and ``width_max`` are what the port could do.
    """

    port: int
    state: str | None = None
    physical_state: str | None = None
    rate_gbps: float | None = None
    rate_max_gbps: float | None = None
    width: int | None = None
    width_max: int | None = None
    lid: int | None = None
    port_guid: str | None = None
    link_layer: str | None = None
    peer_guid: str | None = None
    peer_port: int | None = None
    peer_name: str | None = None
    counters: dict[str, int] = field(default_factory=dict)
    saturated: tuple[str, ...] = ()
    reset: bool = False
    unread: dict[str, str] = field(default_factory=dict)
    optics: Optics | None = None


class FabricRecord(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="fabric/1"):
    """One switch or HCA in one sweep; a port is (node GUID, port number).

    ``kind`` is ``switch`` or ``hca``, also ``router`` or ``unknown`` where only a text tells of it;
    ``host`` the node an HCA sits in. ``guid`` is ``lid:44`` or ``device:mlx5_0`` where nothing
    tells the node's GUID, and the port's where a tool prints no other. ``missing`` marks one that
    was there in the sweep before and does not answer any more. ``partial`` says that ports which
    are not listed are as they were listed last, their data counters apart. ``source`` says how it
    was read: ``mad``, ``sysfs``, ``mlxlink``, or the tool whose output it was.
    """

    id: str
    observed_at: datetime
    subnet: str
    guid: str
    name: str | None = None
    kind: str = "switch"
    host: str | None = None
    device: str | None = None
    at: datetime | None = None
    source: str = "mad"
    file: str | None = None
    sweep: int = 0
    sweep_ms: int | None = None
    missing: bool = False
    partial: bool = False
    ports: tuple[FabricPort, ...] = ()
