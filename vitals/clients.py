"""Kafka clients that outlive a killed broker, and that are seen when they stand still all the same.

Just after a broker was killed the metadata may name it as a leader and not among the brokers.
kafka-python 3.0.12 then raises UnknownBrokerIdError out of the middle of its own work: a consumer
never asks that broker again when it is back, and loses what it had read in that call; a producer
sends nothing any more and logs the error a thousand times a second. Made here, a client takes such
a broker for one that is not ready: it asks for new metadata and tries again.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from kafka import TopicPartition
from kafka.errors import KafkaError, NodeNotReadyError, UnknownBrokerIdError
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

__all__ = ["Standstill", "StoodStillError", "made"]

_Client = TypeVar("_Client")
#: Asked for the ends of logs a broker answers at once or is away, and then nothing is known.
_ANSWER_MS = 2_000
#: Whoever did not poll for so long was busy with something else, and measures anew.
_BUSY_S = 5.0


class StoodStillError(KafkaError):  # type: ignore[misc]
    """A consumer got no further though there was more to read; only a new one will."""


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """Takes a broker that is not among the brokers for one that is not ready."""

    def get_connection(self, node_id: Any, *rest: Any, **named: Any) -> Any:  # noqa: ANN401
        try:
            return super().get_connection(node_id, *rest, **named)
        except UnknownBrokerIdError as error:
            self.update_backoff(node_id)  # else whoever asks asks again at once
            self.cluster.request_update()
            raise NodeNotReadyError(node_id) from error


def made(
    kind: Callable[..., _Client],
    *topics: str,
    **config: Any,  # noqa: ANN401 (what kafka-python takes)
) -> _Client:
    """A KafkaConsumer, KafkaProducer or KafkaAdminClient.

    Raises as ``kind`` does; of a client that found no broker no thread and no socket is left.
    """
    held: list[KafkaNetClient] = []

    def client(**arguments: Any) -> KafkaNetClient:  # noqa: ANN401
        net = NetworkSelector(**arguments)
        held.append(KafkaNetClient(net=net, manager=_Manager(net, **arguments)))
        return held[-1]

    try:
        return kind(*topics, kafka_client=client, **config)
    except BaseException:
        for one in held:
            one.close()
        raise


class Standstill:
    """Compares a consumer with itself ``every_s`` seconds ago; give each consumer its own."""

    def __init__(self, every_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._called_at = self._began_at = clock()
        #: partitions that had more to read when they were looked at, and where they stood
        self._behind: dict[TopicPartition, int] = {}

    def look(self, consumer: Any) -> None:  # noqa: ANN401 (kafka-python is untyped)
        """Call it beside every poll; raises StoodStillError.

        Asks the brokers once every ``every_s``. A broker that does not answer, or a partition
        without a leader, is no standstill: a new consumer would not get further either.
        """
        now = self._clock()
        if now - self._called_at > _BUSY_S:
            self._began_at, self._behind = now, {}
        self._called_at = now
        if now - self._began_at < self._every_s:
            return
        before, self._behind = self._behind, _behind(consumer)
        self._called_at = self._began_at = self._clock()
        stood = [place for place, at in before.items() if self._behind.get(place) == at]
        if stood:
            names = ", ".join(f"{one.topic}-{one.partition}" for one in sorted(stood))
            raise StoodStillError(
                f"nothing was read of {names} for {self._every_s:g} s, though there is more"
            )


def _behind(consumer: Any) -> dict[TopicPartition, int]:  # noqa: ANN401
    """Where the consumer stands in partitions that it has not read to their end."""
    places = list(consumer.assignment() - consumer.paused())
    try:
        stands = {one: consumer.position(one, timeout_ms=_ANSWER_MS) for one in places}
        ends = consumer.end_offsets(places, timeout_ms=_ANSWER_MS) if places else {}
    except KafkaError:
        return {}
    return {one: at for one, at in stands.items() if at is not None and at < ends[one]}
