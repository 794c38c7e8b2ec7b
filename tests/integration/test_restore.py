"""What is isolated is read back from the compacted state topic, on both brokers."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from kafka import KafkaProducer

from evidence.decisions import Cause, DesiredState, Domain, DomainKind, Hold, Level
from evidence.transport import Kafka
from evidence.wire import encode
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
