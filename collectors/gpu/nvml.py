"""NVML itself: loading it, its return codes in words, and the node that it counts.

What one GPU says is read by `collectors.gpu.nvml_gpu`.
"""

import contextlib
import ctypes
from dataclasses import dataclass
from typing import Any

from collectors.collector import CollectorError, Unavailable

try:
    import pynvml
except ImportError:
    pynvml = None

__all__ = [
    "FUNCTION_NOT_FOUND",
    "TIMEOUT",
    "UNINITIALIZED",
    "NodeReading",
    "NvmlError",
    "Session",
    "address",
    "nvml_words",
    "pynvml",
    "read_node",
]

# NVML return codes (nvml.h, nvmlReturn_t).
UNINITIALIZED = 1
TIMEOUT = 10
_LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13


class NvmlError(CollectorError):
    """NVML as a whole does not answer: its return code and its words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words} ({code})")
        self.code = code
        self.words = words


@dataclass(frozen=True, slots=True)
class NodeReading:
    """What NVML says about the node: the driver's version and how many GPUs it counts."""

    driver: str | None
    count: int


class Session:
    """This process's hold on NVML; one thread opens and shuts it."""

    def __init__(self) -> None:
        self.is_open = False

    def open(self) -> None:
        """Load and initialise NVML; may take seconds per GPU without persistence mode.

        Does nothing where it is open. Raises Unavailable when there is no nvidia-ml-py or no
        libnvidia-ml.so.1, NvmlError with the code when NVML refuses: 9 driver not loaded,
        18 library and driver of different versions.
        """
        if self.is_open:
            return
        if pynvml is None:
            raise Unavailable("nvidia-ml-py is not installed, GPUs are not read")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value == _LIBRARY_NOT_FOUND:
                raise Unavailable("libnvidia-ml.so.1 is not found, GPUs are not read") from error
            raise _failure(error) from error
        self.is_open = True

    def shut(self) -> None:
        """Shut NVML down; does nothing where it is not open. No thread may be in a call."""
        if self.is_open:
            self.is_open = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def read_node() -> NodeReading:
    """Read driver version (None: it is no text) and GPU count; raises NvmlError."""
    try:
        try:
            driver = pynvml.nvmlSystemGetDriverVersion()
        except UnicodeDecodeError:
            driver = None
        return NodeReading(driver, pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise _failure(error) from error


def nvml_words(code: int) -> str:
    """NVML's own words for a return code, and the code."""
    return f"{pynvml.NVMLError(code)} ({code})"


def address(handle: Any) -> int | None:  # noqa: ANN401 (pynvml has no types)
    """Where a device handle points: the same device as long as NVML stays initialised."""
    return ctypes.addressof(handle.contents) if handle else None


def _failure(error: Any) -> NvmlError:  # noqa: ANN401 (pynvml has no types)
    return NvmlError(error.value, str(error))
