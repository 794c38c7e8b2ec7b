"""The bench measures the real agent; what it costs, no test says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(200)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here: no NVML stand-in")
def test_the_agent_is_measured_at_work_and_leaves_nothing(tmp_path: Path) -> None:
    scratch, found = tmp_path / "scratch", tmp_path / "found.json"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "bench/run.py", "--quick", "--only", "agent", "--json", str(found)],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (group,) = json.loads(found.read_text())["groups"]
    cpu, memory, wakeups, growth = group["figures"]
    assert [one["mark"] for one in (cpu, memory, wakeups, growth)] == [1.0, 100.0, None, 1.0]
    # It did its work meanwhile: an agent that stands still uses nothing and never wakes.
    assert cpu["median"] > 0
    assert wakeups["median"] >= 1
    assert "of ticks and lines" in growth["note"]
    assert list(scratch.iterdir()) == []
