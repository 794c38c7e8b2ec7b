"""What collectors observe: one struct per topic, as it stands on the wire.

The ``schema`` tag in every record is ``<topic>/<major>``: unknown fields are tolerated, so a newer
minor version flows through an older reader; a newer major one is refused with its name.
Times are aware UTC datetimes; ``at`` is the event's own time (None where the source has no wall
clock), ``observed_at`` the collector's.
"""

from evidence.records.context import ContextKind, ContextRecord, Tick
from evidence.records.drill import DrillOutcome, DrillRecord
from evidence.records.fabric import FabricPort, FabricRecord, Optics
from evidence.records.gpu import (
    GpuEvent,
    GpuEventKind,
    GpuFrame,
    GpuProcess,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    MigInstance,
)
from evidence.records.growth import GrowthRecord
from evidence.records.inventory import GpuIdentity, HcaIdentity, InventoryRecord
from evidence.records.kernel import KernelKind, KernelRecord, Mig
from evidence.records.nccl import FlightEntry, NcclKind, NcclRecord

__all__ = [
    "ContextKind",
    "ContextRecord",
    "DrillOutcome",
    "DrillRecord",
    "FabricPort",
    "FabricRecord",
    "FlightEntry",
    "GpuEvent",
    "GpuEventKind",
    "GpuFrame",
    "GpuIdentity",
    "GpuProcess",
    "GpuSnapshot",
    "GpuStatus",
    "GpuTick",
    "GrowthRecord",
    "HcaIdentity",
    "InventoryRecord",
    "KernelKind",
    "KernelRecord",
    "Mig",
    "MigInstance",
    "NcclKind",
    "NcclRecord",
    "Optics",
    "Tick",
]
