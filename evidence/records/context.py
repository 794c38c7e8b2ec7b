"""What is planned, and the time itself."""

from datetime import datetime
from enum import StrEnum

from evidence.records.wire import Wire

__all__ = ["ContextKind", "ContextRecord", "Tick"]


class ContextKind(StrEnum):
    """Why a node or GPU may look broken without being it, and who uses it."""

    ALLOCATION = "allocation"
    DRAIN = "drain"
    MAINTENANCE = "maintenance"
    REBOOT = "reboot"
    DRIVER_UPGRADE = "driver-upgrade"
    GPU_RESET = "gpu-reset"
    MIG_CHANGE = "mig-change"


class ContextRecord(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="context/1"):
    """Something planned on a host (or on the one GPU ``pci`` of it) from ``at`` until ``until``."""

    id: str
    host: str
    observed_at: datetime
    kind: ContextKind
    at: datetime
    until: datetime | None = None
    ended: bool = False
    pci: str | None = None
    job: str | None = None
    attempt: int = 0
    hosts: tuple[str, ...] = ()
    image: str | None = None
    owner: str | None = None
    by: str | None = None
    reason: str | None = None


class Tick(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="tick/1"):
    """The time, as a record: sent behind the backlog of each input partition, and stored."""

    id: str
    at: datetime
