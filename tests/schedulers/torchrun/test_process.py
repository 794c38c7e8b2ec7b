"""The supervisor as a process, with a stand-in for torchrun, while no Kafka answers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_STAND_IN = str(Path(__file__).with_name("stand_in.py"))


def _alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def _until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    made = []

    def call(*flags: str, **variables: str) -> subprocess.Popen[bytes]:
        environ = os.environ | {
            "FOLDER": str(tmp_path),
            "RINGFENCE_KAFKA_BOOTSTRAP": "127.0.0.1:1",
            "RINGFENCE_TORCHRUN_CARDS": "",
            "RINGFENCE_TORCHRUN_START_WITHIN_S": "0.2",
            "RINGFENCE_TORCHRUN_STOP_WITHIN_S": "1",
        }
        front = [sys.executable, "-m", "ringfence", "--data", str(tmp_path), "scheduler"]
        command = [*front, "torchrun", "--host", "hgx-07", *flags, "--", sys.executable, _STAND_IN]
        with (tmp_path / "log").open("ab") as log:
            made.append(subprocess.Popen(command, env=environ | variables, stdout=log, stderr=log))
        return made[-1]

    yield call
    for one in made:
        if one.poll() is None:
            one.kill()
        one.wait()


def _starts(folder: Path) -> list[dict[str, Any]]:
    path = folder / "starts"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_agent_runs_without_kafka_and_its_exit_code_is_ours(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start(CODE="9")
    _until(lambda: _starts(tmp_path))
    (tmp_path / "end").touch()
    assert process.wait(30) == 9
    assert "could not be read yet; what is known here counts" in (tmp_path / "log").read_text()


def test_a_signal_reaches_the_agent_and_nothing_is_left(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start()
    _until(lambda: _starts(tmp_path))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 1  # the stand-in's, as torchrun's
    (told,) = _starts(tmp_path)
    assert not _alive(told["pid"])
    assert not _alive(told["worker"])


@pytest.mark.parametrize("mode", ["well", "careless", "stubborn"])
def test_nothing_outlives_a_supervisor_that_is_killed(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, mode: str
) -> None:
    process = start(MODE=mode)
    _until(lambda: _starts(tmp_path))
    process.kill()
    (told,) = _starts(tmp_path)
    _until(lambda: not _alive(told["pid"]) and not _alive(told["worker"]))


def test_an_isolated_node_starts_no_agent_until_it_is_cleared(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    mark = {
        "command": "c1",
        "domain": {"kind": "node", "host": "hgx-07"},
        "domain_id": "node:hgx-07",
        "generation": 1,
        "level": "evict",
        "reason": "GPU has fallen off the bus",
        "at": "2026-11-03T02:14:09Z",
    }
    folder = tmp_path / "scheduler"
    folder.mkdir()
    kept = {"schema": "torchrun/1", "marks": [mark]}
    (folder / "torchrun-hgx-07.agent.json").write_text(json.dumps(kept))
    assert start().wait(30) == 75
    assert "no agent runs on hgx-07: node:hgx-07 (GPU has fallen" in (tmp_path / "log").read_text()
    assert _starts(tmp_path) == []
    (tmp_path / "end").touch()
    assert start("--clear").wait(30) == 0
    assert len(_starts(tmp_path)) == 1


def test_a_setting_that_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    front = [sys.executable, "-m", "ringfence", "--data", str(tmp_path), "scheduler", "torchrun"]
    done = subprocess.run(
        [*front, "--host", "hgx 7", "torchrun"],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "host 'hgx 7' is no host's name" in done.stderr
