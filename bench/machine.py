"""What a measurement was made on: processor, memory, versions, and what else the machine did."""

import importlib.metadata
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any

__all__ = ["Others", "busy_cores", "describe", "sentence"]

_LIBRARIES = (
    "msgspec",
    "faust-streaming",
    "aiokafka",
    "kafka-python",
    "uvloop",
    "pyarrow",
    "crc32c",
    "lz4",
)


def describe() -> dict[str, Any]:
    """The machine as plain data."""
    return {
        "cpu": _from("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "cores": os.cpu_count() or 0,
        "memory_gib": round(_memory_kib() / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "load_average": [round(one, 2) for one in os.getloadavg()],
        "busy_cores_before": round(busy_cores(), 2),
    }


def sentence(machine: dict[str, Any]) -> str:
    """The same for a reader."""
    libraries = ", ".join(f"{name} {found}" for name, found in machine["libraries"].items())
    return (
        f"Measured on {machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}; {libraries}; "
        f"load average {machine['load_average'][0]}, "
        f"{machine['busy_cores_before']} cores busy before the start."
    )


def busy_cores(over_s: float = 0.5) -> float:
    """How many cores the machine keeps busy while we do nothing."""
    before = _ticks()
    time.sleep(over_s)
    after = _ticks()
    total = sum(after) - sum(before)
    idle = (after[3] + after[4]) - (before[3] + before[4])
    return (os.cpu_count() or 1) * (1 - idle / total) if total else 0.0


class Others:
    """How many cores processes that are not ours keep busy from its making on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._all, self._ours = _busy_s(), _ours_s()

    def cores(self) -> float:
        """Cores that others had until now."""
        theirs = (_busy_s() - self._all) - (_ours_s() - self._ours)
        return max(0.0, theirs / max(time.monotonic() - self._began, 1e-3))


def _busy_s() -> float:
    ticks = _ticks()
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _ours_s() -> float:
    """CPU seconds of this process, of its children that ended, and of those that run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = time.process_time() + ended.ru_utime + ended.ru_stime
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == os.getpid():
            spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def _ticks() -> list[int]:
    """User, nice, system, idle, iowait ... of all cores; zeros where /proc is not there."""
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            return [int(one) for one in file.readline().split()[1:]]
    except OSError:
        return [0] * 8


def _from(path: str, field: str) -> str | None:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError:
        return None
    found = (line.partition(":")[2] for line in text.splitlines() if line.startswith(field))
    return " ".join(next(found, "").split()) or None


def _memory_kib() -> int:
    return int((_from("/proc/meminfo", "MemTotal") or "0").split()[0])


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
