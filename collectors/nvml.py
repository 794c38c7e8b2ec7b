"""Reads one GPU, and the node around it, through NVML.

A value that NVML does not give is None with NVML's own reason: ``not supported`` is never zero.
"""

import ctypes
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectors.collector import CollectorError, Unavailable
from evidence.identity import normalise_pci
from evidence.records import GpuSnapshot, GpuStatus

try:
    import pynvml
except ImportError:
    pynvml = None

__all__ = [
    "Fixed",
    "GpuReading",
    "NodeReading",
    "NvmlError",
    "close_nvml",
    "open_nvml",
    "read_gpu",
    "read_node",
]

# NVML return codes (nvml.h, nvmlReturn_t).
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
_RESET_REQUIRED = 16
_ARGUMENT_VERSION_MISMATCH = 25
_DEPRECATED = 26

_STATUS = {_GPU_IS_LOST: GpuStatus.LOST, _RESET_REQUIRED: GpuStatus.RESET_REQUIRED}

#: Codes by which a healthy GPU declines one reading: invalid argument, not supported, no
#: permission, function not found, corrupted inforom, in use, no data, version mismatch,
#: deprecated, not ready, invalid state.
_DECLINED = frozenset({2, 3, 4, 13, 14, 19, 21, 25, 26, 27, 29})

#: Codes after which an older form of the same call is worth asking.
_TRY_OLDER = frozenset({_FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH, _DEPRECATED})

# Fields of nvmlDeviceGetFieldValues (nvml.h, NVML_FI_*): one batch, each with its own code.
_RETIRED_SBE, _RETIRED_DBE, _RETIRED_PENDING = 29, 30, 31
_MEMORY_TEMPERATURE = 82
_RECOVERY_ACTION = 230
_FIELDS = (_RETIRED_SBE, _RETIRED_DBE, _RETIRED_PENDING, _MEMORY_TEMPERATURE, _RECOVERY_ACTION)


class NvmlError(CollectorError):
    """NVML as a whole does not answer: its return code and its words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words} ({code})")
        self.code = code
        self.words = words


@dataclass(frozen=True, slots=True)
class NodeReading:
    """What NVML says about the node: the driver's version and how many GPUs it counts."""

    driver: str
    count: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """What does not change while one card sits in one slot; read once per UUID."""

    uuid: str
    values: dict[str, Any]
    unread: dict[str, str]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU's snapshot, and what need not be read again (None when it could not be read)."""

    snapshot: GpuSnapshot
    fixed: Fixed | None


class _Stop(Exception):  # noqa: N818 (no error: it ends a reading)
    """The GPU is lost or needs a reset: asking further costs time and tells nothing."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def open_nvml() -> None:
    """Load and initialise NVML; may take seconds per GPU without persistence mode.

    Raises Unavailable when there is no nvidia-ml-py or no libnvidia-ml.so.1, NvmlError with the
    code when NVML refuses: 9 driver not loaded, 18 library and driver of different versions.
    """
    if pynvml is None:
        raise Unavailable("nvidia-ml-py is not installed, GPUs are not read")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == _LIBRARY_NOT_FOUND:
            raise Unavailable("libnvidia-ml.so.1 is not found, GPUs are not read") from error
        raise _failure(error) from error


def close_nvml() -> None:
    """Shut NVML down; does nothing where it is not up."""
    if pynvml is None:
        return
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return


def read_node() -> NodeReading:
    """Read driver version and GPU count; raises NvmlError."""
    try:
        return NodeReading(pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise _failure(error) from error


def read_gpu(index: int, fixed: Fixed | None = None) -> GpuReading:
    """Read everything about the GPU at an NVML index; never raises for what NVML answers.

    Its status is lost (15) or reset-required (16) by any call's answer. It is ``error`` when the
    handle is refused with another code, or when more of the changing values fail (with a code by
    which no healthy GPU declines) than answer: one odd ``unknown error`` is a value not read, a
    card that answers little else is a card in trouble. ``read_us`` is what all calls cost.
    """
    started = time.perf_counter_ns()
    reading = _Reading(index)
    try:
        fixed = reading.take(fixed)
    except _Stop as stop:
        reading.fail(_STATUS[stop.code], stop.code)
    reading.values["read_us"] = (time.perf_counter_ns() - started) // 1000
    snapshot = GpuSnapshot(index=index, unread=reading.unread, **reading.values)
    return GpuReading(snapshot, fixed)


class _Reading:
    """The calls of one snapshot, their values and their refusals."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.values: dict[str, Any] = {}
        self.unread: dict[str, str] = {}
        self.answered = 0
        self.troubled: Counter[int] = Counter()

    def take(self, fixed: Fixed | None) -> Fixed | None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(self.index)
        except pynvml.NVMLError as error:
            self.fail(_STATUS.get(error.value, GpuStatus.ERROR), error.value)
            return fixed
        self.read(handle, ("uuid",), pynvml.nvmlDeviceGetUUID)
        self.read(handle, ("pci",), _pci)
        fixed = self.take_fixed(handle, fixed)
        self.answered = 0
        self.troubled.clear()
        for names, call in _CHANGING:
            self.read(handle, names, call)
        self.read_fields(handle)
        if self.troubled.total() > self.answered:
            self.fail(GpuStatus.ERROR, self.troubled.most_common(1)[0][0])
        return fixed

    def take_fixed(self, handle: object, fixed: Fixed | None) -> Fixed | None:
        uuid = self.values.get("uuid")
        if fixed is not None and fixed.uuid == uuid:
            self.values |= fixed.values
            self.unread |= fixed.unread
            return fixed
        before = self.troubled.total()
        for names, call in _FIXED:
            self.read(handle, names, call)
        if uuid is None or self.troubled.total() > before:
            return None
        kept = {name for group, _ in _FIXED for name in group}
        unread = {name: why for name, why in self.unread.items() if name in kept}
        return Fixed(uuid, {name: self.values[name] for name in kept - unread.keys()}, unread)

    def read(
        self, handle: object, names: tuple[str, ...], call: Callable[[Any], tuple[Any, ...] | Any]
    ) -> None:
        try:
            found = call(handle)
        except pynvml.NVMLError as error:
            self.refuse(names, error.value)
        except ValueError as error:  # an InfoROM string that is no text, a bus id that is none
            self.unread |= dict.fromkeys(names, f"unreadable: {error}")
        else:
            self.answered += 1
            self.values |= zip(names, found if isinstance(found, tuple) else (found,), strict=True)

    def read_fields(self, handle: object) -> None:
        names = ("retired_pages", "retired_pending", "temperature_memory_c", "recovery_action")
        try:
            values = pynvml.nvmlDeviceGetFieldValues(handle, list(_FIELDS))
        except pynvml.NVMLError as error:
            self.refuse(names, error.value)
            return
        sbe, dbe, pending, memory, action = values
        self.field((sbe, dbe), "retired_pages", lambda: _field(sbe) + _field(dbe))
        self.field((pending,), "retired_pending", lambda: bool(_field(pending)))
        self.field((memory,), "temperature_memory_c", lambda: _field(memory))
        self.field((action,), "recovery_action", lambda: _field(action))

    def field(self, values: tuple[Any, ...], name: str, get: Callable[[], Any]) -> None:
        code = next((value.nvmlReturn for value in values if value.nvmlReturn), 0)
        if code:
            self.refuse((name,), code)
        else:
            self.answered += 1
            self.values[name] = get()

    def refuse(self, names: tuple[str, ...], code: int) -> None:
        if code in _STATUS:
            raise _Stop(code)
        self.unread |= dict.fromkeys(names, _words(code))
        if code not in _DECLINED:
            self.troubled[code] += 1

    def fail(self, status: GpuStatus, code: int) -> None:
        self.values["status"] = status
        self.values["error"] = code


def _failure(error: Any) -> NvmlError:  # noqa: ANN401 (pynvml has no types)
    return NvmlError(error.value, str(error))


def _words(code: int) -> str:
    return f"{pynvml.NVMLError(code)} ({code})"


def _nvml(name: str, *arguments: int) -> Callable[[Any], Any]:
    """One call of nvidia-ml-py on a handle, looked up when made: the module may be missing."""
    return lambda handle: getattr(pynvml, name)(handle, *arguments)


def _either(newer: Callable[[Any], Any], older: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The newer form of a call, or the older where library or driver do not know the newer."""

    def call(handle: object) -> Any:  # noqa: ANN401
        try:
            return newer(handle)
        except pynvml.NVMLError as error:
            if error.value not in _TRY_OLDER:
                raise
            return older(handle)

    return call


def _pci(handle: object) -> str:
    return normalise_pci(pynvml.nvmlDeviceGetPciInfo_v3(handle).busId)[0]


def _ecc(kind: int, counter: int) -> Callable[[Any], int]:
    """Total errors: kind 0 corrected, 1 uncorrected; counter 0 volatile, 1 aggregate."""
    return lambda handle: int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))


def _remapped(handle: object) -> tuple[int, int, bool, bool]:
    correctable, uncorrectable, pending, failure = pynvml.nvmlDeviceGetRemappedRows(handle)
    return correctable, uncorrectable, bool(pending), bool(failure)


def _sram(handle: object) -> bool:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return bool(status.bThresholdExceeded)


def _memory(handle: object) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used) >> 20


def _field(value: Any) -> int:  # noqa: ANN401
    """A field's value by the type that the driver says it has (nvml.h, nvmlValueType_t)."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    name = names[value.valueType] if value.valueType < len(names) else "ullVal"
    return int(getattr(value.value, name))


_Call = tuple[tuple[str, ...], Callable[[Any], Any]]

#: Read once per card: they cannot change under a UUID, and each may cost a driver call.
_FIXED: tuple[_Call, ...] = (
    (("serial",), _nvml("nvmlDeviceGetSerial")),
    (("name",), _nvml("nvmlDeviceGetName")),
    (
        ("temperature_slowdown_c",),
        _nvml("nvmlDeviceGetTemperatureThreshold", 1),
    ),
    (("pcie_width_max",), _nvml("nvmlDeviceGetMaxPcieLinkWidth")),
    (("pcie_generation_max",), _nvml("nvmlDeviceGetMaxPcieLinkGeneration")),
)

#: Read every tick, health first: a GPU that stops answering midway has told that much.
_CHANGING: tuple[_Call, ...] = (
    (("ecc_volatile_uncorrected",), _ecc(1, 0)),
    (("ecc_aggregate_uncorrected",), _ecc(1, 1)),
    (("ecc_volatile_corrected",), _ecc(0, 0)),
    (("ecc_aggregate_corrected",), _ecc(0, 1)),
    (
        ("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure"),
        _remapped,
    ),
    (("sram_threshold_exceeded",), _sram),
    (("ecc_enabled",), lambda handle: bool(pynvml.nvmlDeviceGetEccMode(handle)[0])),
    (("mig_enabled",), lambda handle: bool(pynvml.nvmlDeviceGetMigMode(handle)[0])),
    (
        ("temperature_c",),
        _either(
            _nvml("nvmlDeviceGetTemperature", 0),
            _nvml("nvmlDeviceGetTemperatureV", 0),
        ),
    ),
    (("temperature_margin_c",), _nvml("nvmlDeviceGetMarginTemperature")),
    (("power_w",), lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
    (("utilization_pct",), lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    (
        ("memory_used_mib",),
        _either(_memory, lambda handle: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) >> 20),
    ),
    (("clock_sm_mhz",), _nvml("nvmlDeviceGetClockInfo", 1)),
    (
        ("clocks_event_reasons",),
        _either(
            _nvml("nvmlDeviceGetCurrentClocksEventReasons"),
            _nvml("nvmlDeviceGetCurrentClocksThrottleReasons"),
        ),
    ),
    (("pcie_replays",), _nvml("nvmlDeviceGetPcieReplayCounter")),
    (("pcie_width",), _nvml("nvmlDeviceGetCurrPcieLinkWidth")),
    (("pcie_generation",), _nvml("nvmlDeviceGetCurrPcieLinkGeneration")),
)
