import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.integration
@pytest.mark.usefixtures("simulator")
def test_a_sweep_is_measured_beside_the_usual_tool(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, ROOT / "bench/run.py", "--quick", "--only", "fabric", "--json", found],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (group,) = json.loads(found.read_text())["groups"]
    sweep, first, records = group["figures"]
    assert sweep["name"] == "sweep over 24 connected ends"
    assert (len(sweep["runs"]), len(first["runs"]), len(records["runs"])) == (3, 1, 3)
    assert sweep["peer"]["name"] == "ibqueryerrors, whole command"
    assert all(figure["median"] > 0 for figure in group["figures"])
