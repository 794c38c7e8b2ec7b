"""Replay: the stages over what the sink has stored say what the worker said, live."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evidence.transport import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringfence", "--config", str(folder / "ringfence.toml"),
         "--data", str(folder), *arguments],
        env={name: text for name, text in os.environ.items() if "RINGFENCE_" not in name},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )  # fmt: skip


def test_the_stored_history_gives_the_same_verdicts_and_commands_again(
    kafka: Kafka, installed: Any, tmp_path: Path
) -> None:
    here = installed(kafka)
    here.start()
    here.play()
    here.until(lambda: here.story().missing() == [])
    here.finish()
    (command,) = here.story().commands.values()
    verdicts = {one.id for one in here.records("verdicts") if type(one).__name__ == "Verdict"}

    told = call(here.folder, "replay", "--json")
    assert told.stderr == ""
    again = json.loads(told.stdout)
    assert (again["different"], again["failed"], again["late"]) == ([], [], {})
    assert told.returncode == 0
    # What two topics brought within one fetch may have been met in another order than Kafka's.
    assert again["same"]["command"] == 1
    assert again["same"]["verdict"] >= 2
    if not again["order"]:
        assert {one["id"] for one in again["verdicts"]} == verdicts
    assert [one["id"] for one in again["commands"]] == [command.id]
    assert again["read"].keys() >= {
        "kernel", "gpu", "nccl", "inventory", "context", "suspicions", "verdicts", "isolation.acks",
    }  # fmt: skip

    # `why` prints the call that proves it, and the call proves it.
    why = json.loads(call(here.folder, "why", command.id, "--json").stdout)
    program, *arguments = why["replay"].split()
    assert (program, arguments[0]) == ("ringfence", "replay")
    one = call(here.folder, *arguments, "--json")
    assert (one.returncode, one.stderr) == (0, "")
    assert [found["id"] for found in json.loads(one.stdout)["commands"]] == [command.id]

    # ... and `why` proves it by itself.
    proved = call(here.folder, "why", command.id, "--prove", "--json")
    assert (proved.returncode, proved.stderr) == (0, "")
    proof = json.loads(proved.stdout)["proof"]
    assert (proof["same"], proof["differences"], proof["failed"]) == (True, [], [])
    assert {one["stored"] for one in json.loads(proved.stdout)["evidence"]} == {True}

    # Another policy: what would have been said, and that it is not what was.
    policy = tmp_path / "shadow.toml"
    policy.write_text('isolation.mode = { value = "shadow", why = "What if.", source = "test" }\n')
    other = call(here.folder, "replay", "--policy", str(policy), "--json")
    assert other.returncode == 1
    found = json.loads(other.stdout)
    assert [(one["domain_id"], one["dry_run"]) for one in found["commands"]] == [
        (command.domain_id, True)
    ]
    assert ("command", command.id) in [(one["kind"], one["id"]) for one in found["different"]]
    shown = call(here.folder, "replay", "--policy", str(policy))
    assert (shown.returncode, shown.stderr) == (1, "")
    assert f"different command {command.id}" in " ".join(shown.stdout.split())
