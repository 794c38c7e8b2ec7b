"""`ringfence isolation`, `context` and `release --direct` against the worker and a broker."""

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from kafka import KafkaProducer

from evidence.decisions import (
    Action,
    Cause,
    Command,
    Domain,
    DomainKind,
    EvidenceRef,
    Level,
    Status,
    Verdict,
)
from evidence.topics import CLUSTER_KEY
from evidence.transport import Kafka
from evidence.wire import encode
from ringfence.reading_topics import read_topics
from schedulers.consumer import SchedulerConfig, run
from schedulers.exec import ExecAdapter

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

RINGFENCE = [sys.executable, "-m", "ringfence"]
ROOT = Path(__file__).parents[2]
CARD = Domain(kind=DomainKind.GPU, host="dk-04", pci="0000:2a:00")
OTHER = Domain(kind=DomainKind.GPU, host="dk-09", pci="0000:2a:00")
SETTINGS = """\
[kafka]
bootstrap = "{bootstrap}"
prefix = "{prefix}"
partitions = {partitions}
[worker]
stages = ["isolation"]
metrics_listen = ""
policy = "{policy}"
[scheduler]
state_dir = "{state}"
"""
ENFORCE = 'isolation.mode = { value = "enforce", why = "Acted upon.", source = "test" }\n'


class Site:
    """Settings, a worker's process, and the command line."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        policy = folder / "policy.toml"
        policy.write_text(ENFORCE)
        self.settings = folder / "ringfence.toml"
        self.settings.write_text(
            SETTINGS.format(
                bootstrap=kafka.bootstrap,
                prefix=kafka.prefix,
                partitions=kafka.partitions,
                policy=policy,
                state=folder / "scheduler",
            )
        )
        self.producer = KafkaProducer(**kafka.client(), acks="all")
        self.workers: list[subprocess.Popen[bytes]] = []

    def cli(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [*RINGFENCE, "--config", str(self.settings), "--data", str(self.folder), *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def listed(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.cli("isolation", "list", "--all", "--json"))
        return told

    def part(self, domain: Domain) -> dict[str, Any] | None:
        return next((one for one in self.listed()["parts"] if one["domain_id"] == domain.id), None)

    def worker(self, state: str = "worker") -> Path:
        log = self.folder / f"{state}.log"
        configured = ("--config", str(self.settings))
        with log.open("wb") as output:
            self.workers.append(
                subprocess.Popen(
                    [*RINGFENCE, *configured, "--data", str(self.folder / state), "worker"],
                    cwd=ROOT,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=os.environ | {"RINGFENCE_WORKER_APP_ID": state},
                )
            )  # fmt: skip
        until(lambda: "worker ready" in log.read_text(), 60)
        return log

    def say(self, domain: Domain, incident: str, **fields: Any) -> None:
        now = datetime.now(UTC)
        told: dict[str, Any] = {"hard": True, "status": Status.LOCALIZED, "revision": 1} | fields
        record = Verdict(
            id=f"v-{incident}-{told['revision']}", incident=incident, at=now, decided_at=now,
            cause=Cause.GPU_LOST, domain=domain, confidence=0.99, reason="It fell off the bus.",
            evidence=(EvidenceRef(id=f"e-{incident}", source="kernel", at=now),), **told,
        )  # fmt: skip
        self.send("verdicts", record)

    def send(self, topic: str, record: Any) -> None:
        self.producer.send(self.kafka.topic(topic), encode(record), key=CLUSTER_KEY).get(20)

    def commands(self) -> list[Command]:
        told = read_topics(self.kafka, ("isolation.commands",))
        return [one for one in told if isinstance(one, Command)]


def until(done: Callable[[], object], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.2)


@pytest.fixture
def site(kafka: Kafka, tmp_path: Path) -> Iterator[Site]:
    made = Site(kafka, tmp_path)
    yield made
    made.producer.close(timeout=2)
    for one in made.workers:
        one.terminate()
    for one in made.workers:
        try:
            one.wait(15)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


def test_what_is_out_and_held_is_listed_and_a_person_decides_about_it(site: Site) -> None:
    assert "Nothing is out of service." in site.cli("isolation", "list")
    site.worker()
    site.say(CARD, "inc-1")
    site.say(OTHER, "inc-2")
    until(lambda: len(site.commands()) >= 2)
    told = site.listed()
    status = {one["domain_id"]: one["status"] for one in told["parts"]}
    assert status == {CARD.id: "isolated", OTHER.id: "held"}
    assert next(one for one in told["budget"] if one["kind"] == "node") == {
        "kind": "node",
        "used": 1.0,
        "limit": 1.0,
    }
    text = site.cli("isolation", "show", OTHER.id, code=1)
    assert "held: Budget: 1 of 1 node capacity" in text
    site.cli("isolation", "resume", "--held", OTHER.id, "--by", "ana", "--reason", "looked at")
    until(lambda: (site.part(OTHER) or {})["status"] == "isolated")
    assert (site.part(OTHER) or {})["why"].endswith("(let go by ana: looked at)")
    site.cli("isolation", "hold", CARD.id, "--by", "bo", "--reason", "vendor comes")
    until(lambda: len((site.part(CARD) or {})["holds"]) == 2)
    site.cli("release", CARD.id, "--by", "ana")
    until(lambda: len((site.part(CARD) or {})["holds"]) == 1)
    site.cli("isolation", "resume", CARD.id, "--by", "bo")
    until(lambda: (site.part(CARD) or {})["status"] in ("releasing", "in-service"))


def test_without_its_table_and_the_published_states_the_stage_holds_what_it_would_do(
    site: Site,
) -> None:
    """Commands say that a part is out: who begins anew cannot know what else is."""
    old = Command(
        id="c-old", action=Action.ISOLATE, domain=CARD, domain_id=CARD.id, level=Level.DRAIN,
        cause=Cause.GPU_LOST, reason="It fell off the bus.", incident="inc-0", generation=0,
        issued_at=datetime.now(UTC) - timedelta(hours=2),
    )  # fmt: skip
    site.send("isolation.commands", old)
    log = site.worker()
    assert "The published states are gone, and commands took out 1 parts" in log.read_text()
    site.say(OTHER, "inc-2")
    until(lambda: any(one.incident == "inc-2" for one in site.commands()))
    held = next(one for one in site.commands() if one.incident == "inc-2")
    assert held.held is not None
    assert "the stage's state was not restored" in held.held
    site.cli("isolation", "resume", "cluster", "--by", "ana")
    site.say(OTHER, "inc-2", revision=2)
    until(lambda: [one for one in site.commands() if one.incident == "inc-2" and not one.held])


def test_a_release_without_kafka_is_done_now_and_what_is_sent_again_isolates_nothing(
    site: Site, tmp_path: Path
) -> None:
    program = tmp_path / "act"
    program.write_text(f"#!/bin/sh\ncat >> {tmp_path}/done\necho >> {tmp_path}/done\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    isolate = Command(
        id="c-1", action=Action.ISOLATE, domain=CARD, domain_id=CARD.id, level=Level.DRAIN,
        cause=Cause.GPU_LOST, reason="It fell off the bus.", incident="inc-0", generation=0,
        issued_at=datetime.now(UTC), act_by=datetime.now(UTC) + timedelta(hours=1),
    )  # fmt: skip
    stop = Event()
    config = SchedulerConfig(kafka=site.kafka, name="exec", state_dir=tmp_path / "scheduler")
    consumer = Thread(target=run, args=(config, ExecAdapter([str(program)]), stop))
    consumer.start()

    def did() -> list[str]:
        file = tmp_path / "done"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["action"] for line in lines if line]

    try:
        site.send("isolation.commands", isolate)
        until(lambda: did() == ["isolate"])
        # The consumer runs, and has its journal open; Kafka is not asked.
        said = site.cli(
            "release", f"node:{CARD.host}", "--direct", "exec", "--by", "ana", str(program)
        )
        assert "exec: done release of node:dk-04" in said
        assert did() == ["isolate", "release"]
        again = Command(
            **{f: getattr(isolate, f) for f in isolate.__struct_fields__} | {"id": "c-2"}
        )
        site.send("isolation.commands", again)
        until(lambda: any(a.command == "c-2" for a in read_topics(site.kafka, ("isolation.acks",))))  # type: ignore[attr-defined]
        (refused,) = [
            one
            for one in read_topics(site.kafka, ("isolation.acks",))
            if one.command == "c-2"  # type: ignore[attr-defined]
        ]
        assert refused.status == "refused"  # type: ignore[attr-defined]
        assert did() == ["isolate", "release"]
        asked = list(read_topics(site.kafka, ("requests",)))
        assert [(one.action, one.domain.id, one.by) for one in asked] == [  # type: ignore[attr-defined]
            ("release", "node:dk-04", "ana")
        ]
    finally:
        stop.set()
        consumer.join(30)


def test_what_is_planned_is_announced_listed_and_ended(site: Site) -> None:
    site.cli("context", "maintenance", "dk-04", "--for", "2h", "--by", "ana", "--reason", "fans")
    site.cli("context", "reboot", "dk-05", "--for", "30m")
    (first, second) = json.loads(site.cli("context", "list", "--json"))
    assert (first["host"], first["kind"], first["by"], first["reason"]) == (
        "dk-04",
        "maintenance",
        "ana",
        "fans",
    )
    assert (second["host"], second["kind"]) == ("dk-05", "reboot")
    site.cli("context", "end", "dk-04")
    assert [one["host"] for one in json.loads(site.cli("context", "list", "--json"))] == ["dk-05"]
    site.cli("context", "maintenance", "dk-04", "--for", "soon", code=2)
