"""Writes the file that drives the NVML stand-in, and compiles it."""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"

HEALTHY = {
    "name": "NVIDIA H100 80GB HBM3",
    "ecc.volatile.corrected": 2,
    "ecc.volatile.uncorrected": 0,
    "ecc.aggregate.corrected": 17,
    "ecc.aggregate.uncorrected": 1,
    "remapped": "0 1 0 0",
    "sram_threshold_exceeded": 0,
    "ecc_mode": 1,
    "mig_mode": 0,
    "temperature": 41,
    "threshold.1": 87,
    "margin": 46,
    "field.82": 52,
    "field.230": 0,
    "power": 118250,
    "utilization": 93,
    "memory_used": 71 * 1024**3,
    "clock.1": 1980,
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
    command += [f"-Wl,-soname,{LIBRARY}", "-o", str(library), str(SOURCE), "-lpthread"]
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
