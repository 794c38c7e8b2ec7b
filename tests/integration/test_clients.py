"""Kafka clients as ours are made: a broker that was killed is asked again when it is back."""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaTimeoutError

from evidence.transport import Kafka
from vitals.clients import Standstill, StoodStillError, made

pytestmark = pytest.mark.integration

TOPIC = "kernel"


@pytest.fixture
def place(kafka: Kafka) -> TopicPartition:
    return TopicPartition(kafka.topic(TOPIC), 0)


@pytest.fixture
def producer(kafka: Kafka) -> Iterator[KafkaProducer]:
    made_here = made(KafkaProducer, **kafka.client(), acks="all", reconnect_backoff_max_ms=500)
    yield made_here
    made_here.close(timeout=5)


@pytest.fixture
def consumer(kafka: Kafka, place: TopicPartition) -> Iterator[KafkaConsumer]:
    made_here = made(
        KafkaConsumer, **kafka.client(), group_id=None, auto_offset_reset="earliest",
        enable_auto_commit=False, fetch_max_wait_ms=200, reconnect_backoff_max_ms=500,
    )  # fmt: skip
    made_here.assign([place])
    yield made_here
    made_here.close(timeout_ms=1000)


def killed(client: Any) -> None:
    """What a client has of a broker that was killed just now: it leads, and is not there.

    So the metadata of Apache Kafka looks for a moment; the client's next one, which another broker
    gives, is whole again.
    """
    cluster = client.cluster
    (broker,) = cluster.brokers()
    cluster._brokers = {0: type(broker)(0, broker.host, broker.port, None)}
    for connection in list(client._manager._conns.values()):
        connection.close()


def send(producer: KafkaProducer, place: TopicPartition, value: bytes) -> int:
    return int(producer.send(place.topic, value, partition=place.partition).get(20).offset)


def read(consumer: KafkaConsumer, count: int, within_s: float = 20) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + within_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} were read"
        for messages in consumer.poll(timeout_ms=200).values():
            found += [message.value for message in messages]
    return found


def test_a_producer_sends_on_when_the_leader_was_not_among_the_brokers_for_a_moment(
    producer: KafkaProducer, place: TopicPartition
) -> None:
    first = send(producer, place, b"before")
    killed(producer._sender._client)
    assert send(producer, place, b"after") == first + 1


def test_a_consumer_reads_on_when_the_leader_was_not_among_the_brokers_for_a_moment(
    consumer: KafkaConsumer, producer: KafkaProducer, place: TopicPartition
) -> None:
    send(producer, place, b"before")
    assert read(consumer, 1) == [b"before"]
    consumer._net.run(killed, consumer._client)
    send(producer, place, b"after")
    assert read(consumer, 1) == [b"after"]
    consumer._net.run(killed, consumer._client)
    assert consumer.end_offsets([place], timeout_ms=10_000)[place] > 0


def test_a_client_that_finds_no_broker_leaves_no_thread_and_no_socket(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")  # a line that is kept keeps what failed in it

    def left() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    before = left()
    for kind in (KafkaConsumer, KafkaAdminClient, KafkaProducer):
        with pytest.raises(KafkaTimeoutError):
            made(kind, bootstrap_servers=["127.0.0.1:1"], bootstrap_timeout_ms=200)
    assert left() == before


def test_a_consumer_that_gets_no_further_is_told_of_and_one_that_has_read_all_is_not(
    consumer: KafkaConsumer, producer: KafkaProducer, place: TopicPartition
) -> None:
    for number in range(3):
        send(producer, place, b"%d" % number)
    read(consumer, 3)
    standstill = Standstill(every_s=0.3)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        standstill.look(consumer)
        consumer.poll(timeout_ms=100)

    # As if a broker had been asked, and its answer could not come any more.
    (node,) = (one.node_id for one in consumer._manager.cluster.brokers())
    time.sleep(0.5)
    consumer._fetcher._nodes_with_pending_fetch_requests.add(node)
    send(producer, place, b"unread")

    def turn() -> None:
        standstill.look(consumer)
        consumer.poll(timeout_ms=100)

    with pytest.raises(StoodStillError, match=rf"nothing was read of {place.topic}-0 for 0.3 s"):
        repeated(turn, 50)


def test_who_was_busy_for_long_did_not_stand_still(
    consumer: KafkaConsumer, producer: KafkaProducer, place: TopicPartition
) -> None:
    send(producer, place, b"waits")
    consumer.seek(place, 0)
    now = [100.0]
    standstill = Standstill(every_s=30, clock=lambda: now[0])

    def turn_of(seconds: float) -> Callable[[], None]:
        def turn() -> None:  # nothing is polled
            now[0] += seconds
            standstill.look(consumer)

        return turn

    repeated(turn_of(10), 20)
    with pytest.raises(StoodStillError):
        repeated(turn_of(4), 20)


def repeated(turn: Callable[[], None], times: int) -> None:
    for _ in range(times):
        turn()
