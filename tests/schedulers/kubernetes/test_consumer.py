"""Commands from Kafka to a real Kubernetes and back: acks, context, and what a person undid."""

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from evidence.decisions import Ack, AckStatus, Command, Domain, DomainKind, Level, Request
from evidence.records import ContextRecord
from evidence.topics import CLUSTER_KEY
from evidence.transport import Kafka
from evidence.wire import decode, encode
from ringfence.cluster import ensure_topics
from ringfence.embedded import EmbeddedBroker
from schedulers.consumer import SchedulerConfig, run
from schedulers.kubernetes.adapter import KubernetesAdapter


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with EmbeddedBroker() as broker:
        kafka = Kafka(bootstrap=broker.bootstrap, prefix=f"k{uuid.uuid4().hex[:8]}.", partitions=1)
        ensure_topics(kafka)
        yield kafka


@pytest.fixture
def running(
    kafka: Kafka, adapter: Callable[..., KubernetesAdapter], tmp_path: Path
) -> Iterator[KubernetesAdapter]:
    """The consumer with the adapter, looking several times a second."""
    stop = Event()
    config = SchedulerConfig(kafka=kafka, name="kubernetes", state_dir=tmp_path, observe_s=0.3)
    one = adapter()
    thread = Thread(target=run, args=(config, one, stop))
    thread.start()
    yield one
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def read(kafka: Kafka, topic: str, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """What is in a topic, once that is enough."""
    consumer = KafkaConsumer(
        kafka.topic(topic), **kafka.client(), auto_offset_reset="earliest", group_id=None
    )
    found: list[Any] = []
    deadline = time.monotonic() + 40
    try:
        while not enough(found):
            assert time.monotonic() < deadline, found
            for messages in consumer.poll(timeout_ms=200).values():
                found += [decode(topic, one.value) for one in messages]
    finally:
        consumer.close()
    return found


@pytest.mark.usefixtures("running")
def test_what_is_commanded_is_acked_and_what_a_person_undoes_is_asked_to_be_released(
    cluster: Any, kafka: Kafka, command: Callable[..., Command]
) -> None:
    hosts = [cluster.node(name) for name in ("a", "b", "c", "d")]
    pod = cluster.pod(hosts[3], "job", 8)
    now = datetime.now(UTC)
    producer = KafkaProducer(**kafka.client())
    for host in hosts[:3]:
        domain = Domain(kind=DomainKind.NODE, host=host)
        fields: dict[str, Any] = {"id": f"c-{host}", "domain": domain, "domain_id": domain.id}
        fields |= {"level": Level.CORDON, "issued_at": now, "act_by": now + timedelta(minutes=5)}
        value = encode(command(**fields))
        producer.send(kafka.topic("isolation.commands"), value, key=CLUSTER_KEY)
    producer.close()
    acks: list[Ack] = read(kafka, "isolation.acks", lambda found: len(found) >= 3)
    assert {(one.command, one.status, one.scheduler) for one in acks} == {
        (f"c-{host}", AckStatus.DONE, "kubernetes") for host in hosts[:3]
    }
    assert [cluster.cordoned(host) for host in hosts] == [True, True, True, False]

    def of_pod(found: list[ContextRecord]) -> bool:
        return any(one.job == pod and one.hosts == (hosts[3],) for one in found)

    read(kafka, "context", of_pod)
    cluster.patch(hosts[3], {"spec": {"unschedulable": True}})
    asked(kafka, "out", hosts[3])
    cluster.patch(hosts[0], {"spec": {"unschedulable": None}})
    found = asked(kafka, "release", hosts[0])
    assert [one.domain.host for one in found if one.action == "release"] == [hosts[0]]


def asked(kafka: Kafka, action: str, host: str) -> list[Request]:
    """All requests, once there is this one."""
    found: list[Request] = read(
        kafka,
        "requests",
        lambda found: any((one.action, one.domain.host) == (action, host) for one in found),
    )
    return found
