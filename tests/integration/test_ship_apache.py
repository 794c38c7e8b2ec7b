"""The shipper on Apache Kafka: a broker that is killed, and topics that are not there yet."""

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient

from collectors.shipping.shipper import Shipper
from evidence.records import KernelKind, KernelRecord
from evidence.transport import Kafka
from evidence.wire import decode
from ringfence.cluster import ensure_topics

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

AT = datetime(2026, 5, 20, 22, 41, 3, tzinfo=UTC)
HOST = "gb-c03-n11"


def line(seq: int) -> KernelRecord:
    return KernelRecord(
        id=f"k{seq}", host=HOST, observed_at=AT, raw="mlx5_core", kind=KernelKind.MLX5, seq=seq
    )


def sequences(kafka: Kafka, topic: str, count: int) -> list[int]:
    """Every ``seq`` in a topic, read until ``count`` came and then nothing for half a second."""
    consumer = KafkaConsumer(
        kafka.topic(topic), **kafka.client(), auto_offset_reset="earliest", group_id=None
    )
    found: list[int] = []
    try:
        while True:
            polled = consumer.poll(timeout_ms=500)
            found += [decode(topic, one.value).seq for part in polled.values() for one in part]
            if not polled and len(found) >= count:
                return found
    finally:
        consumer.close()


@pytest.fixture
def made() -> Iterator[list[Shipper]]:
    shippers: list[Shipper] = []
    yield shippers
    for shipper in shippers:
        shipper.close(0)


@pytest.mark.chaos
def test_every_record_is_there_once_and_in_order_over_a_killed_broker(
    own_apache_kafka: Any, made: list[Shipper]
) -> None:
    kafka = Kafka(bootstrap=own_apache_kafka.bootstrap)
    ensure_topics(kafka)
    shipper = Shipper(kafka)
    made.append(shipper)
    for seq in range(300):
        shipper.send("kernel", HOST, line(seq))
        if seq == 100:
            own_apache_kafka.kill()
        if seq == 250:
            own_apache_kafka.start()
        time.sleep(0.002)
    assert shipper.flush(60)
    assert sequences(kafka, "kernel", 300) == [*range(300)]


def test_a_topic_that_comes_later_gets_what_waited_for_it(
    apache_kafka: Any, made: list[Shipper]
) -> None:
    kafka = Kafka(bootstrap=apache_kafka.bootstrap, prefix=f"l{uuid.uuid4().hex[:10]}.")
    admin = KafkaAdminClient(**kafka.client())
    shipper = Shipper(kafka)
    made.append(shipper)
    one = {"num_partitions": 1, "replication_factor": 1}
    admin.create_topics({kafka.topic("kernel"): one})
    shipper.send("context", HOST, line(1))
    shipper.send("kernel", HOST, line(2))
    while shipper.delivered["kernel"] < 1:
        time.sleep(0.01)
    assert shipper.pending == 1
    assert kafka.topic("context") not in admin.list_topics()
    admin.create_topics({kafka.topic("context"): one})
    assert shipper.flush(30)
    assert shipper.delivered == {"kernel": 1, "context": 1}
    admin.close()
