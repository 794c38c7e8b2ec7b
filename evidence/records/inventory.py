"""What names the parts of a node."""

from datetime import datetime

from msgspec import Struct

from evidence.records.gpu import MigInstance
from evidence.records.wire import Wire

__all__ = ["GpuIdentity", "HcaIdentity", "InventoryRecord"]


class GpuIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What names one GPU on one node; history follows ``uuid`` and ``serial``, never ``index``."""

    index: int
    pci: str
    uuid: str | None = None
    serial: str | None = None
    name: str | None = None
    hcas: tuple[str, ...] = ()
    mig: tuple[MigInstance, ...] = ()


class HcaIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One port of a host channel adapter and the switch port it is cabled to."""

    name: str
    port: int = 1
    guid: str | None = None
    port_guid: str | None = None
    pci: str | None = None
    link_layer: str | None = None
    switch_guid: str | None = None
    switch_port: int | None = None
    switch_name: str | None = None


class InventoryRecord(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="inventory/1"):
    """Identity of one node, at start and on change.

    ``clock_skew_ms`` is how far the node's clock is ahead of Kafka's, told when it matters.
    """

    id: str
    host: str
    observed_at: datetime
    boot_id: str | None = None
    driver: str | None = None
    gpus: tuple[GpuIdentity, ...] = ()
    hcas: tuple[HcaIdentity, ...] = ()
    rack: str | None = None
    leaf: str | None = None
    pool: str | None = None
    nvlink_domain: str | None = None
    clock_skew_ms: int | None = None
