"""What should be out of service, read from the compacted topic ``isolation.state``."""

import logging
from collections.abc import Mapping
from contextlib import suppress

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from evidence.decisions import DesiredState
from evidence.transport import Kafka
from evidence.wire import DecodeError, decode
from schedulers.checks import Checks
from vitals.clients import Standstill, made

__all__ = ["DesiredStates"]

_LOG = logging.getLogger(__name__)
_TOPIC = "isolation.state"
_ANSWER_MS = 5_000


class DesiredStates:
    """The last desired state of every domain; ``complete`` once the topic was read to its end.

    Where keys are configured a state that is not signed is passed over.
    """

    def __init__(self, kafka: Kafka, checks: Checks, client: Mapping[str, object]) -> None:
        """Connect as ``client`` says; raises KafkaError where no broker answers."""
        self._topic = kafka.topic(_TOPIC)
        self._checks = checks
        self._client = dict(client)
        self._parts: list[TopicPartition] = []
        self._read_to: dict[TopicPartition, int] = {}
        self._consumer: KafkaConsumer | None = None
        self._connect()
        self._client["bootstrap_timeout_ms"] = _ANSWER_MS  # a loop that runs is not held up
        self.complete = False
        self.by_domain: dict[str, DesiredState] = {}

    def generation(self, domain_id: str) -> int | None:
        """The generation of a domain, or None where nothing was ever said of it."""
        state = self.by_domain.get(domain_id)
        return None if state is None else state.generation

    def read(self, wait_ms: int = 0) -> None:
        """Take what is new; a broker that does not answer is met again at the next call."""
        try:
            consumer = self._consumer or self._connect()
            if not self._parts and not self._assign(consumer):
                return
            self._standstill.look(consumer)
            for part, messages in consumer.poll(timeout_ms=wait_ms).items():
                for message in messages:
                    self._take(message)
                self._read_to[part] = messages[-1].offset + 1
            if not self.complete:
                ends = consumer.end_offsets(self._parts, timeout_ms=_ANSWER_MS)
                self.complete = all(self._stands(consumer, one) >= ends[one] for one in ends)
        except KafkaError as error:
            _LOG.warning("%s could not be read: %s", self._topic, error)
            self.close()

    def close(self) -> None:
        """Let the broker go; the next call of `read` goes on where this one ended."""
        consumer, self._consumer, self._parts = self._consumer, None, []
        if consumer is not None:
            with suppress(KafkaError):
                consumer.close(autocommit=False, timeout_ms=2000)

    def _connect(self) -> KafkaConsumer:
        self._consumer = made(
            KafkaConsumer,
            **self._client,
            group_id=None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self._standstill = Standstill()
        return self._consumer

    def _assign(self, consumer: KafkaConsumer) -> bool:
        numbers = consumer.partitions_for_topic(self._topic) or ()
        self._parts = [TopicPartition(self._topic, number) for number in sorted(numbers)]
        consumer.assign(self._parts)
        for part in self._parts:
            if part in self._read_to:  # an error of poll may have moved the position on
                consumer.seek(part, self._read_to[part])
            else:
                consumer.seek_to_beginning(part)
        return bool(self._parts)

    @staticmethod
    def _stands(consumer: KafkaConsumer, part: TopicPartition) -> int:
        at: int | None = consumer.position(part, timeout_ms=_ANSWER_MS)
        return at or 0  # None: not known in time

    def _take(self, message: object) -> None:
        key = (getattr(message, "key", None) or b"").decode(errors="replace")
        value = getattr(message, "value", None)
        flaw = self._checks.flaw(_TOPIC, message)
        if flaw is not None:
            _LOG.warning("the desired state of %s is passed over: %s", key, flaw)
            return
        if value is None:
            self.by_domain.pop(key, None)
            return
        try:
            state: DesiredState = decode(_TOPIC, value)
        except DecodeError as error:
            _LOG.warning("a desired state is passed over: %s", error)
            return
        known = self.by_domain.get(state.domain_id)
        # An older one that was signed once and is sent again tells nothing new.
        if known is None or (state.generation, state.at) >= (known.generation, known.at):
            self.by_domain[state.domain_id] = state
