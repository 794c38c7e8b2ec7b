"""An elastic job of three nodes on loopback: real torch, real agents, commands over Kafka."""

import importlib.util
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from evidence.decisions import Ack, Action, Cause, Command, Domain, DomainKind, Level
from evidence.transport import Kafka
from evidence.wire import decode, encode
from ringfence.cluster import ensure_topics
from ringfence.embedded import EmbeddedBroker

HOSTS = ("hgx-a", "hgx-b", "hgx-c")


def _local_job() -> ModuleType:
    path = Path(__file__).parents[3] / "deploy/torchrun/local_job.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Desk:
    """Sends commands for nodes and reads their acks."""

    kafka: Kafka
    out: set[str] = field(default_factory=set)
    _generations: dict[str, int] = field(default_factory=dict)

    def command(
        self, host: str, action: Action = Action.ISOLATE, level: Level = Level.EVICT
    ) -> Command:
        """The next command for a node."""
        generation = self._generations[host] = self._generations.get(host, 0) + 1
        domain = Domain(kind=DomainKind.NODE, host=host)
        now = datetime.now(UTC)
        return Command(
            id=f"{action}-{host}-{generation}",
            action=action,
            domain=domain,
            domain_id=domain.id,
            level=level,
            cause=Cause.GPU_LOST,
            reason="GPU has fallen off the bus",
            incident=f"i-{host}",
            generation=generation,
            issued_at=now,
            act_by=now + timedelta(minutes=5),
        )

    def send(self, command: Command, acks: int = 1) -> Ack:
        """Send it and wait until it was acked so often; returns the last of its acks."""
        host = command.domain.host or ""
        (self.out.add if command.action is Action.ISOLATE else self.out.discard)(host)
        producer = KafkaProducer(**self.kafka.client())
        topic = self.kafka.topic("isolation.commands")
        producer.send(topic, encode(command), key=command.domain_id.encode()).get(30)
        producer.close()
        consumer = KafkaConsumer(
            self.kafka.topic("isolation.acks"),
            **self.kafka.client(),
            auto_offset_reset="earliest",
            group_id=None,
        )
        found: list[Any] = []
        deadline = time.monotonic() + 120
        while len(found) < acks:
            assert time.monotonic() < deadline, f"no ack of {command.id}"
            for messages in consumer.poll(timeout_ms=100).values():
                read = [decode("isolation.acks", one.value) for one in messages]
                found += [one for one in read if one.command == command.id]
        consumer.close()
        last: Ack = found[-1]
        return last


@pytest.fixture(scope="module")
def local_job() -> ModuleType:
    module = _local_job()
    if reason := module.missing():
        assert not os.environ.get("RINGFENCE_REQUIRE_PARTS"), reason
        pytest.skip(f"torch left out: {reason} (deploy/test-parts.sh)")
    return module


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with EmbeddedBroker() as broker:
        kafka = Kafka(bootstrap=broker.bootstrap, prefix=f"t{uuid.uuid4().hex[:8]}.", partitions=1)
        ensure_topics(kafka)
        yield kafka


@pytest.fixture(scope="module")
def desk(kafka: Kafka) -> Desk:
    return Desk(kafka)


@pytest.fixture(scope="module")
def jobs(
    local_job: ModuleType, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Any]]:
    """``jobs(store_at=None, **settings)``: a job, which ends with the module."""
    made: list[Any] = []

    def make(store_at: str | None = None, **settings: object) -> Any:
        folder = tmp_path_factory.mktemp("job")
        plain = {"cards": "", "rejoin": True, "checkpoint_glob": str(folder / "checkpoint.pt")}
        job = local_job.LocalJob(folder, kafka, store_at=store_at, settings=plain | settings)
        made.append(job)
        return job

    yield make
    for job in made:
        job.stop()


@pytest.fixture(scope="module")
def running(jobs: Callable[..., Any]) -> Any:
    """One job of three nodes for all tests of a module, its store outside."""
    job = jobs()
    job.start(*HOSTS)
    return job


@pytest.fixture
def job(running: Any, desk: Desk) -> Any:
    """The job while all three nodes train."""
    for host in sorted(desk.out & set(HOSTS)):
        desk.send(desk.command(host, Action.RELEASE))
    running.trains(3, time.time())
    return running
