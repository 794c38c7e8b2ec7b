"""Sends a day's results to Kafka: every record, and a suspicion for each growing card."""

from collections.abc import Sequence

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from evidence.records import GrowthRecord
from evidence.transport import Kafka
from evidence.wire import encode
from vitals.clients import made
from warehouse.errors import WarehouseError
from warehouse.growth.report import growing

__all__ = ["publish"]

_WITHIN_S = 30.0


def publish(kafka: Kafka, records: Sequence[GrowthRecord]) -> int:
    """Send records to ``growth`` and suspicions to ``suspicions``, keyed by host.

    Returns how many suspicions there were, when the broker has everything. Records of no host have
    no place to go to and are left out. Raises WarehouseError, one sentence, when it does not.
    """
    placed = [one for one in records if one.host]
    suspicions = growing(placed)
    within_ms = int(min(_WITHIN_S, kafka.start_within_s) * 1000)
    try:
        producer = made(
            KafkaProducer,
            **kafka.client(),
            acks="all",
            bootstrap_timeout_ms=within_ms,
            max_block_ms=within_ms,
        )
    except KafkaTimeoutError as error:
        raise WarehouseError(f"no Kafka answers at {kafka.bootstrap}") from error
    except (KafkaError, OSError) as error:
        raise WarehouseError(f"Kafka at {kafka.bootstrap} cannot be used: {error}") from error
    try:
        # The records first: who reads a suspicion finds its evidence.
        for topic, many in (("growth", placed), ("suspicions", suspicions)):
            sent = [
                producer.send(kafka.topic(topic), key=str(one.host).encode(), value=encode(one))
                for one in many
            ]
            for future in sent:
                future.get(timeout=_WITHIN_S)
    except KafkaError as error:
        raise WarehouseError(f"Kafka at {kafka.bootstrap} did not take it: {error}") from error
    finally:
        producer.close(timeout=1)
    return len(suspicions)
