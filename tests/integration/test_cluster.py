import dataclasses
import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from evidence.topics import TOPICS
from evidence.transport import Kafka
from ringfence.cluster import check_topics, ensure_topics
from ringfence.embedded import EmbeddedBroker

pytestmark = pytest.mark.integration


def test_every_topic_is_there_with_its_partitions(any_kafka: Kafka) -> None:
    admin = KafkaAdminClient(**any_kafka.client())
    names = [any_kafka.topic(name) for name in TOPICS]
    found = {t["name"]: len(t["partitions"]) for t in admin.describe_topics(names)}
    admin.close()
    assert found == {
        any_kafka.topic(name): 4
        if name
        in ("kernel", "gpu", "nccl", "fabric", "inventory", "context", "growth", "suspicions")
        else 1
        for name in TOPICS
    }
    assert check_topics(any_kafka) == []


def test_creating_them_again_changes_nothing(any_kafka: Kafka) -> None:
    assert ensure_topics(any_kafka) == []
    assert check_topics(any_kafka) == []


def test_only_what_is_missing_is_created(any_kafka: Kafka) -> None:
    mine = dataclasses.replace(any_kafka, prefix=f"t{uuid.uuid4().hex[:10]}.")
    admin = KafkaAdminClient(**mine.client())
    admin.create_topics({mine.topic("gpu"): {"num_partitions": 4, "replication_factor": 1}})
    admin.close()
    created = ensure_topics(mine)
    assert created == [mine.topic(name) for name in TOPICS if name != "gpu"]


def test_wrong_partition_counts_are_named_one_sentence_each(any_kafka: Kafka) -> None:
    mine = dataclasses.replace(any_kafka, prefix=f"t{uuid.uuid4().hex[:10]}.")
    admin = KafkaAdminClient(**mine.client())
    for name, count in (("gpu", 2), ("verdicts", 3)):
        admin.create_topics(
            {mine.topic(name): {"num_partitions": count, "replication_factor": 1}},
            wait_for_metadata=True,
        )
    admin.close()
    ensure_topics(mine)
    assert check_topics(mine) == [
        f"Topic {mine.topic('gpu')} has 2 partitions, the setting kafka.partitions says 4: all "
        "host-, job- and subnet-keyed topics must have that many; changing the count is a "
        "migration.",
        f"Topic {mine.topic('verdicts')} has 3 partitions and must have 1, since its records "
        "need one order.",
    ]


def test_missing_topics_are_named(any_kafka: Kafka) -> None:
    nowhere = dataclasses.replace(any_kafka, prefix="nowhere.")
    assert check_topics(nowhere) == [f"Topic nowhere.{name} does not exist." for name in TOPICS]


def test_the_embedded_broker_ignores_topic_settings_and_that_is_said_at_debug(
    embedded_broker: EmbeddedBroker,
    fresh_topics: Callable[..., Kafka],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="ringfence.cluster"):
        fresh_topics(embedded_broker.bootstrap)
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    assert "the broker does not keep cleanup.policy for inventory, isolation.state" in said


@pytest.mark.kafka
def test_apache_kafka_stamps_the_append_time_and_compacts(
    apache_kafka: Any, fresh_topics: Callable[..., Kafka]
) -> None:
    kafka = fresh_topics(apache_kafka.bootstrap)
    admin = KafkaAdminClient(**kafka.client())
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, kafka.topic(name))
        for name in ("kernel", "inventory", "isolation.state", "verdicts", "deadletters")
    ]
    kept = admin.describe_configs(resources)["topic"]
    admin.close()
    # What differs from the broker's defaults.
    wanted = ("message.timestamp.type", "cleanup.policy", "retention.ms", "max.message.bytes")
    assert {
        name.removeprefix(kafka.prefix): [settings.get(key, {}).get("value") for key in wanted]
        for name, settings in kept.items()
    } == {
        "kernel": ["LogAppendTime", None, None, None],
        "inventory": ["LogAppendTime", "compact", None, None],
        "isolation.state": ["LogAppendTime", "compact", None, None],
        "verdicts": ["LogAppendTime", None, "-1", None],
        "deadletters": ["LogAppendTime", None, None, "2097152"],
    }
    producer = KafkaProducer(**kafka.client())
    producer.send(kafka.topic("kernel"), b"{}", key=b"n1", timestamp_ms=1000).get(30)
    producer.close()
    consumer = KafkaConsumer(
        kafka.topic("kernel"),
        **kafka.client(),
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    assert next(consumer).timestamp > 1_700_000_000_000
    consumer.close()


@pytest.mark.kafka
def test_a_killed_apache_broker_comes_back_with_what_it_had(
    own_apache_kafka: Any, fresh_topics: Callable[..., Kafka]
) -> None:
    kafka = fresh_topics(own_apache_kafka.bootstrap)
    producer = KafkaProducer(**kafka.client())
    producer.send(kafka.topic("verdicts"), b"kept", key=b"cluster").get(30)
    producer.close()
    own_apache_kafka.kill()
    assert not own_apache_kafka.alive
    own_apache_kafka.start()
    assert check_topics(kafka) == []
    consumer = KafkaConsumer(
        kafka.topic("verdicts"),
        **kafka.client(),
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    assert next(consumer).value == b"kept"
    consumer.close()
