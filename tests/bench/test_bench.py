"""The bench runs and tells its figures; how fast anything is, no test says."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / "bench" / "run.py"
LOCAL_KAFKA = ROOT / "deploy" / "kafka" / "local_kafka.py"


def _bench(*arguments: object, within_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
    )


def _measured(path: Path, *groups: str, within_s: float = 60) -> dict[str, Any]:
    """What a quick run of these groups wrote; it printed every figure too."""
    only = [flag for group in groups for flag in ("--only", group)]
    done = _bench("--quick", "--json", path, *only, within_s=within_s)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "not to be quoted" in done.stdout
    found: dict[str, Any] = json.loads(path.read_text())
    assert [group["name"] for group in found["groups"]] == list(groups)
    for group in found["groups"]:
        assert group["figures"], group["name"]
        for figure in group["figures"]:
            assert figure["median"] > 0 or figure["at_most"], figure["name"]
            assert figure["name"].split()[0] in done.stdout
            assert figure["judgement"] in ("", "ok", "missed")
    return found


def test_the_parts_without_kafka_are_measured(tmp_path: Path) -> None:
    found = _measured(tmp_path / "found.json", "kernel", "nccl", "codec", "steps")
    assert found["quick"] is True
    assert found["machine"]["cores"] == os.cpu_count()
    assert found["machine"]["libraries"]["msgspec"] != "missing"
    marked = [f for group in found["groups"] for f in group["figures"] if f["mark"] is not None]
    assert [(one["name"], one["mark"]) for one in marked] == [
        ("kernel noise lines", 300_000),
        ("Xid lines", 50_000),
    ]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_what_is_stored_and_how_fast_it_answers_is_measured(tmp_path: Path) -> None:
    found = _measured(tmp_path / "found.json", "storage", "history", within_s=180)
    units = {figure["unit"] for group in found["groups"] for figure in group["figures"]}
    assert units == {"B", "MB", "ms", "s", "MiB"}


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_the_parts_over_kafka_are_measured_and_leave_no_process(tmp_path: Path) -> None:
    if not os.environ.get("KAFKA_BOOTSTRAP"):
        fetched = subprocess.run(
            [sys.executable, str(LOCAL_KAFKA), "--fetch"],
            capture_output=True,
            text=True,
            check=False,
        )
        if fetched.returncode != 0 and not os.environ.get("RINGFENCE_REQUIRE_KAFKA"):
            pytest.skip(f"Apache Kafka left out: {fetched.stderr.strip()}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(scratch))
        found = _measured(tmp_path / "found.json", "stream", "sink", "latency", within_s=380)
    units = {figure["unit"] for group in found["groups"] for figure in group["figures"]}
    assert units >= {"snapshots/s", "messages/s", "core s", "rows/s", "ms"}
    assert list(scratch.iterdir()) == []
    assert _processes_naming(str(scratch)) == []


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_burst_is_worked_off_and_two_hours_of_a_fleet_leave_no_more_than_they_should(
    tmp_path: Path,
) -> None:
    if not os.environ.get("KAFKA_BOOTSTRAP"):
        fetched = subprocess.run(
            [sys.executable, str(LOCAL_KAFKA), "--fetch"],
            capture_output=True,
            text=True,
            check=False,
        )
        if fetched.returncode != 0 and not os.environ.get("RINGFENCE_REQUIRE_KAFKA"):
            pytest.skip(f"Apache Kafka left out: {fetched.stderr.strip()}")
    found = _measured(tmp_path / "found.json", "burst", "soak", within_s=380)
    soaked = {figure["name"]: figure["median"] for figure in found["groups"][1]["figures"]}
    # Two hours are too short to say that memory stays: only what must be forgotten is looked at.
    assert soaked["keys of the isolation stage at the end"] == 1
    assert soaked["keys of the host stage at the end"] <= 40


def _processes_naming(words: str) -> list[str]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it ended meanwhile
            continue
    return [command for command in commands if words in command]


def test_a_group_that_does_not_exist_is_refused() -> None:
    done = _bench("--only", "nothing")
    assert done.returncode == 2
    assert "nothing" in done.stderr


@pytest.fixture
def figure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_figure", ROOT / "bench" / "figure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_figure"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_figure_is_judged_by_its_median_run(figure: ModuleType) -> None:
    fast = figure.Figure("rows", "rows/s", (90.0, 110.0, 105.0), mark=100.0, peer=("limit", 210.0))
    assert (fast.value, fast.best, fast.ratio, fast.judgement) == (105.0, 110.0, 0.5, "ok")
    slow = figure.Figure("p99", "ms", (700.0, 400.0, 600.0), mark=500.0, at_most=True)
    assert (slow.value, slow.best, slow.ratio, slow.judgement) == (600.0, 400.0, None, "missed")
    assert figure.Figure("rows", "rows/s", (1.0,)).judgement == ""


@pytest.mark.parametrize(
    ("part", "found"), [(0.5, 50.0), (0.99, 99.0), (0.995, 100.0), (1.0, 100.0), (0.0, 1.0)]
)
def test_a_quantile_is_one_of_the_values(figure: ModuleType, part: float, found: float) -> None:
    assert figure.quantile([float(one) for one in range(100, 0, -1)], part) == found
