"""Evict one node of three, and give it back: seconds until the others train, and steps lost.

Real agents of torch 1.13 on gloo (Debian's python3-torch), each under its supervisor, commands over
the embedded broker; `python bench/torchrun.py --rounds 5`. Promised are 90 s.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import machine
from kafka import KafkaProducer

from evidence.decisions import Action, Cause, Command, Domain, DomainKind, Level
from evidence.transport import Kafka
from evidence.wire import encode
from ringfence.cluster import ensure_topics
from ringfence.embedded import EmbeddedBroker

PROMISED_S = 90.0
_HOSTS = ("hgx-a", "hgx-b", "hgx-c")
_OUT = "hgx-c"


def _local_job() -> ModuleType:
    path = Path(__file__).parents[1] / "deploy/torchrun/local_job.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _send(kafka: Kafka, action: Action, level: Level, generation: int) -> float:
    """Send one command; returns when."""
    domain = Domain(kind=DomainKind.NODE, host=_OUT)
    now = datetime.now(UTC)
    command = Command(
        id=f"{action}-{generation}",
        action=action,
        domain=domain,
        domain_id=domain.id,
        level=level,
        cause=Cause.GPU_LOST,
        reason="GPU has fallen off the bus",
        incident=f"i-{generation}",
        generation=generation,
        issued_at=now,
        act_by=now + timedelta(minutes=5),
    )
    producer = KafkaProducer(**kafka.client())
    topic = kafka.topic("isolation.commands")
    producer.send(topic, encode(command), key=domain.id.encode()).get(30)
    producer.close()
    return time.time()


def _round(job: Any, kafka: Kafka, number: int, level: Level) -> dict[str, float]:  # noqa: ANN401
    job.trains(3, time.time())
    sent = _send(kafka, Action.ISOLATE, level, 2 * number + 1)
    back = job.trains(2, sent)["at"] - sent
    last = max(line["step"] for line in job.steps(3, sent - 2))
    resumed = next(
        line["step"]
        for line in job.lines()
        if line["what"] == "resume" and line["world"] == 2 and line["at"] >= sent
    )
    again = _send(kafka, Action.RELEASE, level, 2 * number + 2)
    rejoined = job.trains(3, again)["at"] - again
    return {"resume_s": back, "rejoin_s": rejoined, "steps_lost": last - resumed}


def measure(rounds: int) -> dict[str, Any]:
    """Figures of ``rounds`` evictions and as many drains."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker() as broker:
        kafka = Kafka(bootstrap=broker.bootstrap, partitions=1)
        ensure_topics(kafka)
        base = Path(folder)
        settings = {"rejoin": True, "cards": "", "checkpoint_glob": str(base / "checkpoint.pt")}
        job = _local_job().LocalJob(base, kafka, settings=settings)
        job.start(*_HOSTS)
        try:
            runs = {
                level: [_round(job, kafka, rounds * at + number, level) for number in range(rounds)]
                for at, level in enumerate((Level.EVICT, Level.DRAIN))
            }
        finally:
            job.stop()
    found: dict[str, Any] = {"promised_s": PROMISED_S, "steps_between_checkpoints": 20}
    for level, figures in runs.items():
        found[level] = {
            name: {
                "median": round(statistics.median(one[name] for one in figures), 2),
                "worst": round(max(one[name] for one in figures), 2),
            }
            for name in figures[0]
        }
    return found


def main() -> None:
    """Print the figures as JSON, and the machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    where = machine.describe()
    found = measure(given.rounds)
    print(json.dumps(found | {"load_average": os.getloadavg()[0]}, indent=2))
    print(machine.sentence(where))


if __name__ == "__main__":
    main()
