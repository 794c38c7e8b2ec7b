"""The GPU collector in a process of its own, which finds its NVML as any process does."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from evidence.records import GpuFrame, GpuStatus

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, time
from datetime import UTC, datetime
from collectors.collector import Unavailable
from collectors.gpu import NvmlCollector
from evidence.wire import encode

collector = NvmlCollector("solo", None, lambda: datetime.now(UTC), interval_s=0.05, frame_ticks=1)
frames = []
while len(frames) < int(sys.argv[1]):
    try:
        frames += collector.read()
    except Unavailable as error:
        sys.exit(f"unavailable: {error}")
    time.sleep(0.001)
collector.close()
for frame in frames:
    print(encode(frame).decode())
"""


def run(frames: int, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(frames)],
        cwd=ROOT,
        env={"PATH": os.defpath, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def has_a_library() -> bool:
    found = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"],
        env={"PATH": os.defpath},
        capture_output=True,
        check=False,
    )
    return found.returncode == 0


def test_the_library_is_found_by_its_name(
    nvml_library: Path, stand_in: ModuleType, tmp_path: Path
) -> None:
    stand_in.Node(tmp_path / "nvml.txt", gpus=8)
    done = run(
        2,
        LD_LIBRARY_PATH=str(nvml_library.parent),
        NVML_STAND_IN=str(tmp_path / "nvml.txt"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    frames = [msgspec.json.decode(line, type=GpuFrame) for line in done.stdout.splitlines()]
    assert [gpu.uuid for gpu in frames[1].ticks[0].gpus] == [stand_in.uuid(at) for at in range(8)]


def test_a_process_ends_although_a_call_hangs(
    nvml_library: Path, stand_in: ModuleType, tmp_path: Path
) -> None:
    node = stand_in.Node(tmp_path / "nvml.txt")
    node.change({"gpu.1.hang.handle": 3600})
    done = run(
        1,
        LD_LIBRARY_PATH=str(nvml_library.parent),
        NVML_STAND_IN=str(tmp_path / "nvml.txt"),
    )
    assert done.returncode == 0
    assert done.stderr.startswith("GPU 1 has not answered NVML for ")
    frame = msgspec.json.decode(done.stdout, type=GpuFrame)
    assert [gpu.status for gpu in frame.ticks[0].gpus] == [GpuStatus.OK, GpuStatus.TIMEOUT]


@pytest.mark.skipif(has_a_library(), reason="this machine has a libnvidia-ml.so.1 of its own")
def test_a_machine_without_nvml_says_so() -> None:
    done = run(1)
    assert done.returncode == 1
    assert done.stderr == "unavailable: libnvidia-ml.so.1 is not found, GPUs are not read\n"
