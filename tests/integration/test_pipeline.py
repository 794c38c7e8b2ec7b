"""The whole pipeline, part by part a process of its own, on each broker there is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evidence.decisions import Action, Level, Says, Witness
from evidence.transport import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringfence", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_an_incident_becomes_one_verdict_one_command_and_a_history_of_every_record(
    any_kafka: Kafka, installed: Any
) -> None:
    here = installed(any_kafka)
    incident = here.incident
    here.start()
    here.play()
    here.until(lambda: here.story().missing() == [])
    here.finish()

    # What was played, and nothing else: no command about the software or the planned reset.
    story = here.story()
    assert story.missing() == []
    verdict = story.culprit_verdict()
    assert {one.witness: one.says for one in verdict.testimony} == {
        Witness.KERNEL: Says.ACCUSES,
        Witness.HEALTH: Says.ACCUSES,
        Witness.COLLECTIVE: Says.ACCUSES,
    }
    assert (verdict.domain.uuid, verdict.domain.index) == (
        incident.culprit.uuid,
        incident.culprit.index,
    )
    others = {
        (node.host, gpu.pci)
        for node in incident.training
        for gpu in node.gpus
        if gpu is not incident.culprit
    }
    assert len(others) == 31
    assert {(victim.host, victim.pci) for victim in verdict.victims} == others

    (command,) = story.commands.values()
    assert (command.action, command.level) == (Action.ISOLATE, Level.DRAIN)
    assert (command.domain.host, command.domain.pci) == (
        incident.victim_node.host,
        incident.culprit.pci,
    )
    assert (command.dry_run, command.held) == (False, None)
    assert [one["id"] for one in here.carried_out()] == [command.id]
    assert list(story.acks) == [command.id]

    # The history has every record of every topic once, and nothing was refused on the way.
    sent, stored = here.sent(), here.stored()
    assert stored == sent
    topics = {topic for topic, *_ in sent}
    assert topics >= {"kernel", "gpu", "nccl", "inventory", "context", "suspicions", "verdicts",
                      "isolation.commands", "isolation.state", "isolation.acks"}  # fmt: skip
    assert "deadletters" not in topics
    assert here.logs_with("Traceback") == []
    assert here.said == []

    # And it answers.
    told = call("--data", str(here.folder), "why", command.id, "--json")
    assert (told.returncode, told.stderr) == (0, "")
    why = json.loads(told.stdout)
    assert why["command"]["id"] == command.id
    assert why["verdicts"][-1]["id"] == verdict.id
    assert [ack["status"] for ack in why["acks"]] == ["done"]
    asked = call(
        "--data", str(here.folder), "sql", "--json",
        "select host, pci, code, sum(count)::int as lines from xid_events "
        "group by all order by all",
    )  # fmt: skip
    assert (asked.returncode, asked.stderr) == (0, "")
    rows = [json.loads(line) for line in asked.stdout.splitlines()]
    culprit = {"host": incident.victim_node.host, "pci": incident.culprit.pci}
    reset = {"host": incident.reset_node.host, "pci": incident.reset_gpu.pci}
    counted = [(culprit, 48, 1), (culprit, 63, 1), (culprit, 94, 9), (reset, 45, 1), (reset, 79, 1)]
    assert sorted(rows, key=str) == sorted(
        (where | {"code": code, "lines": lines} for where, code, lines in counted), key=str
    )


def test_the_demo_finds_what_it_played_within_a_minute(tmp_path: Path) -> None:
    # Settings of the one who calls it are about another cluster.
    done = call("demo", "--json", "--keep", str(tmp_path), RINGFENCE_KAFKA_PREFIX="production.")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout)
    assert (told["passed"], told["missing"]) == (True, [])
    assert told["took_s"] < 60
    assert set(told["restarts"].values()) == {0}

    truth, verdict = told["truth"], told["verdict"]
    assert (verdict["status"], verdict["cause"]) == ("localized", "gpu-memory")
    assert {name: verdict["domain"][name] for name in ("host", "pci", "uuid", "rank")} == {
        name: truth[name] for name in ("host", "pci", "uuid", "rank")
    }
    assert [one["says"] for one in verdict["testimony"]] == ["accuses"] * 3
    assert len(verdict["victims"]) == 31
    (command,) = told["commands"]
    assert (command["action"], command["level"]) == ("isolate", "drain")
    assert command["domain_id"] == f"gpu:{truth['host']}/{truth['pci']}"
    (ack,) = told["acks"]
    assert (ack["command"], ack["status"]) == (command["id"], "done")
    assert told["software"]["job"] == truth["software_job"]
    assert {name: told["reset"]["domain"][name] for name in ("host", "pci")} == truth["reset"]
    assert told["why"]["command"]["id"] == command["id"]
    assert {"host": truth["host"], "pci": truth["pci"], "code": 48} in [
        {name: row[name] for name in ("host", "pci", "code")} for row in told["sql"]
    ]
    # What a person sees meanwhile names it too, as it is.
    assert f"gpu {truth['pci']} on {truth['host']}" in " ".join(done.stderr.split())
