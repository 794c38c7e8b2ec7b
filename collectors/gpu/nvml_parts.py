"""What is inside one GPU: its MIG instances and its processes, and the SRAM status."""

import ctypes
from typing import Any

from collectors.gpu.nvml import pynvml
from collectors.gpu.nvml_jobs import Jobs
from evidence.records import GpuProcess, MigInstance

__all__ = ["SRAM_NAMES", "mig_instances", "processes", "sram_counts", "sram_threshold"]

_NOT_FOUND = 6
_INVALID_ARGUMENT = 2
_NO_INSTANCE = 0xFFFFFFFF

SRAM_NAMES = (
    "sram_volatile_parity",
    "sram_volatile_secded",
    "sram_volatile_corrected",
    "sram_aggregate_parity",
    "sram_aggregate_secded",
    "sram_aggregate_corrected",
    "sram_sources",
)


def _sram(handle: object) -> Any:  # noqa: ANN401 (pynvml has no types)
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return status


def sram_threshold(handle: object) -> bool:
    """Say whether SRAM errors passed the vendor's threshold; needs root."""
    return bool(_sram(handle).bThresholdExceeded)


def sram_counts(handle: object) -> tuple[Any, ...]:
    """Return the values of SRAM_NAMES; needs root. Raises pynvml.NVMLError."""
    status = _sram(handle)
    sources = {
        "l2": status.aggregateUncBucketL2,
        "sm": status.aggregateUncBucketSm,
        "pcie": status.aggregateUncBucketPcie,
        "mcu": status.aggregateUncBucketMcu,
        "other": status.aggregateUncBucketOther,
    }
    return (
        status.volatileUncParity,
        status.volatileUncSecDed,
        status.volatileCor,
        status.aggregateUncParity,
        status.aggregateUncSecDed,
        status.aggregateCor,
        sources,
    )


def mig_instances(handle: object) -> tuple[MigInstance, ...]:
    """Return every compute instance of a GPU in MIG mode; raises pynvml.NVMLError."""
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as error:
            if error.value in (_NOT_FOUND, _INVALID_ARGUMENT):
                continue
            raise
        # `NVIDIA H100 80GB HBM3 MIG 1g.10gb`
        name = pynvml.nvmlDeviceGetName(part)
        found.append(
            MigInstance(
                gi=pynvml.nvmlDeviceGetGpuInstanceId(part),
                ci=pynvml.nvmlDeviceGetComputeInstanceId(part),
                uuid=pynvml.nvmlDeviceGetUUID(part),
                profile=name.rpartition(" MIG ")[2] if " MIG " in name else None,
            )
        )
    return tuple(found)


def processes(handle: object, jobs: Jobs, form: str) -> tuple[GpuProcess, ...]:
    """Return the compute processes of a GPU with their jobs; raises pynvml.NVMLError."""
    found = []
    for process in getattr(pynvml, form)(handle):
        owner = jobs.of(process.pid)
        used = process.usedGpuMemory
        found.append(
            GpuProcess(
                pid=process.pid,
                name=owner.name,
                job=owner.job,
                memory_used_mib=None if used is None else int(used) >> 20,
                gi=_instance(process.gpuInstanceId),
                ci=_instance(process.computeInstanceId),
            )
        )
    return tuple(found)


def _instance(number: int | None) -> int | None:
    return None if number == _NO_INSTANCE else number
