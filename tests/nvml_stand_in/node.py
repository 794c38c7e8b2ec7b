"""Writes the file that drives the NVML stand-in, and compiles it."""

import shutil
import subprocess
from pathlib import Path

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
LIBRARY = "libnvidia-ml.so.1"

HEALTHY = {
    "name": "NVIDIA H100 80GB HBM3",
    "ecc.volatile.corrected": 2,
    "ecc.volatile.uncorrected": 0,
    "ecc.aggregate.corrected": 17,
    "ecc.aggregate.uncorrected": 1,
    "remapped": "0 1 0 0",
    "histogram": "2559 1 0 0 0",
    "field.301": 0,
    "field.302": 0,
    "sram_threshold_exceeded": 0,
    "sram": "1 0 4 0 0 2 1 0 0 0 0",
    "location.0.0.2": 0,
    "location.1.0.2": 0,
    "location.0.1.2": 13,
    "location.1.1.2": 0,
    "location.0.0.7": 2,
    "location.1.0.7": 0,
    "location.0.1.7": 4,
    "location.1.1.7": 1,
    "repair": "0 0",
    "unrepairable": 0,
    "ecc_mode": 1,
    "mig_mode": 0,
    "temperature": 41,
    "threshold.0": 92,
    "threshold.1": 87,
    "threshold.2": 95,
    "threshold.3": 85,
    "margin": 46,
    "field.193": -7,
    "field.194": -2,
    "field.195": 0,
    "field.196": 0,
    "field.82": 52,
    "field.230": 0,
    "power": 118250,
    "field.190": 700000,
    "field.83": 91_884_331_207,
    "utilization": 93,
    "memory_used": 71 * 1024**3,
    "memory_total": 80 * 1024**3,
    "clock.1": 1980,
    "clock.2": 2619,
    "clock_max.1": 1980,
    "field.74": 18_204_511_000,
    "field.76": 0,
    "field.269": 0,
    "field.270": 0,
    "field.271": 0,
    "persistence": 1,
    "performance_state": 0,
    "processes": "",
    "nvlinks": 18,
    "field.165": 1,
    "field.161": 0,
    "field.162": 0,
    "field.163": 0,
    "fabric": "3 0 0 0x5 0123456789ab4cde8f00112233445566",
    "events": 0xFFFF,
    "clocks_event_reasons": 4,
    "pcie_replays": 3,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
}


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


def build(folder: Path) -> Path:
    """Compile the stand-in into a folder; the soname makes a loaded one win over a real one."""
    library = folder / LIBRARY
    command = [compiler() or "gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-Wl,-soname,{LIBRARY}", "-o", str(library), *map(str, SOURCES), "-lpthread"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def uuid(slot: int) -> str:
    return f"GPU-6b1f4c70-93de-4a52-8e07-{slot:012x}"


def serial(slot: int) -> str:
    return f"16529210{slot:05d}"


def pci(slot: int) -> str:
    return f"0000:{0x1A + 7 * slot:02x}:00"


class Node:
    """A node of GPUs as the stand-in plays it; every change is written whole."""

    def __init__(self, path: Path, gpus: int = 2) -> None:
        self.path = path
        self.rows: dict[str, object] = {
            "driver": "570.86.15",
            "present": ",".join(map(str, range(gpus))),
        }
        self.rows |= {f"gpu.*.{name}": value for name, value in HEALTHY.items()}
        for slot in range(gpus):
            self.rows[f"gpu.{slot}.uuid"] = uuid(slot)
            self.rows[f"gpu.{slot}.serial"] = serial(slot)
            self.rows[f"gpu.{slot}.pci"] = f"0000{pci(slot).upper()}.0"
        self.write()

    def change(self, rows: dict[str, object]) -> None:
        """Set rows; None takes one away."""
        self.rows |= rows
        self.write()

    def write(self) -> None:
        text = "".join(f"{key} = {row}\n" for key, row in self.rows.items() if row is not None)
        written = self.path.with_suffix(".new")
        written.write_text(text)
        written.replace(self.path)
