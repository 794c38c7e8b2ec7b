"""What is isolated is read back from the compacted state topic, on both brokers."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaConnectionError

from evidence.decisions import Cause, DesiredState, Domain, DomainKind, Hold, Level
from evidence.transport import Kafka
from evidence.wire import encode
from ringfence.embedded import EmbeddedBroker
from streams.config import StreamsError
from streams.restore import desired_states

pytestmark = pytest.mark.integration

AT = datetime(2026, 4, 5, 6, 7, 8, tzinfo=UTC)


def state(host: str, generation: int, *, isolated: bool = True) -> DesiredState:
    domain = Domain(kind=DomainKind.GPU, host=host, pci="0000:5b:00")
    hold = Hold(id=f"i-{host}", cause=Cause.GPU_MEMORY, by="ringfence", at=AT, level=Level.DRAIN)
    return DesiredState(
        id=f"{host}-{generation}",
        domain_id=domain.id,
        domain=domain,
        at=AT,
        generation=generation,
        isolated=isolated,
        level=Level.DRAIN if isolated else None,
        holds=(hold,) if isolated else (),
    )


@pytest.fixture
def producer(any_kafka: Kafka) -> Iterator[KafkaProducer]:
    made = KafkaProducer(**any_kafka.client(), acks="all", linger_ms=50)
    yield made
    made.close()


def test_a_first_install_has_nothing_isolated(any_kafka: Kafka) -> None:
    assert desired_states(any_kafka) == []


def test_the_last_state_of_every_domain_is_read_back(
    any_kafka: Kafka, producer: KafkaProducer
) -> None:
    topic = any_kafka.topic("isolation.state")
    for record in (state("n1", 0), *(state(f"m{number}", 0) for number in range(200))):
        producer.send(topic, key=record.domain_id.encode(), value=encode(record))
    producer.send(topic, key=b"gpu:n9/0000:5b:00", value=b"\xffno state")
    last = state("n1", 1, isolated=False)
    producer.send(topic, key=last.domain_id.encode(), value=encode(last))
    producer.send(topic, key=b"gpu:m7/0000:5b:00", value=None)
    producer.flush()
    found = {one.domain_id: one for one in desired_states(any_kafka)}
    assert found[last.domain_id] == last
    assert len(found) == 200
    assert "gpu:m7/0000:5b:00" not in found


def test_it_is_read_on_when_the_reader_fails_on_the_way(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = KafkaProducer(**kafka.client(), acks="all")
    topic = kafka.topic("isolation.state")
    for number in range(20):
        record = state(f"m{number}", 0)
        made.send(topic, key=record.domain_id.encode(), value=encode(record))
    made.close()
    polled = KafkaConsumer.poll
    failed: list[Any] = []

    def poll(self: KafkaConsumer, *rest: Any, **named: Any) -> Any:
        found = polled(self, *rest, **named)
        if found and not failed:  # and what it found is lost
            failed.append(found)
            raise KafkaConnectionError("111 ECONNREFUSED")
        return found

    monkeypatch.setattr(KafkaConsumer, "poll", poll)
    assert len(desired_states(kafka)) == 20
    assert failed


def test_a_topic_that_no_broker_knows_is_not_taken_for_an_empty_one() -> None:
    with EmbeddedBroker() as broker:
        kafka = Kafka(bootstrap=broker.bootstrap, prefix="none.")
        with pytest.raises(StreamsError, match=r"none\.isolation\.state could not be read"):
            desired_states(kafka, within_s=1)
