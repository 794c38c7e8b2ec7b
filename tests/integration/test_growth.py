"""Daily results reach Kafka: every record, and a suspicion for what is growing."""

from datetime import UTC, datetime

import pytest
from kafka import KafkaConsumer

from evidence.records import GrowthRecord
from evidence.transport import Kafka
from evidence.wire import decode
from warehouse.errors import WarehouseError
from warehouse.growth.publish import publish
from warehouse.growth.report import suspicion

pytestmark = pytest.mark.integration
AT = datetime(2026, 4, 7, tzinfo=UTC)


def _record(number: int, verdict: str, host: str = "sy-n02") -> GrowthRecord:
    return GrowthRecord(
        id=f"g{number}", host=host, at=AT, observed_at=AT, gpu=f"GPU-{number}", counter="corrected",
        verdict=verdict, uuid=f"GPU-{number}", why=("2.4 times its former rate",),
    )  # fmt: skip


def _read(kafka: Kafka, topic: str, count: int) -> list[tuple[bytes | None, object]]:
    consumer = KafkaConsumer(
        kafka.topic(topic), **kafka.client(), auto_offset_reset="earliest",
        consumer_timeout_ms=20_000, group_id=None,
    )  # fmt: skip
    found = []
    for message in consumer:
        found.append((message.key, decode(topic, message.value)))
        if len(found) == count:
            break
    consumer.close()
    return found


def test_results_are_keyed_by_host_and_growth_is_suspected(kafka: Kafka) -> None:
    records = [
        _record(1, "growing"),
        _record(2, "hard"),
        _record(3, "suspect"),
        _record(4, "stable"),
    ]
    assert publish(kafka, [*records, _record(5, "growing", host="")]) == 1
    assert sorted(_read(kafka, "growth", 4), key=str) == sorted(
        [(b"sy-n02", one) for one in records], key=str
    )
    assert _read(kafka, "suspicions", 1) == [(b"sy-n02", suspicion(records[0]))]


def test_without_a_broker_it_is_one_sentence() -> None:
    nowhere = Kafka(bootstrap="127.0.0.1:1", start_within_s=1.0)
    with pytest.raises(WarehouseError, match=r"no Kafka answers at 127\.0\.0\.1:1"):
        publish(nowhere, [_record(1, "growing")])
