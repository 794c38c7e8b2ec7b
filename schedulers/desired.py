"""What should be out of service, read from the compacted topic ``isolation.state``."""

import logging
from collections.abc import Mapping

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from evidence.decisions import DesiredState
from evidence.transport import Kafka
from evidence.wire import DecodeError, decode
from schedulers.checks import Checks

__all__ = ["DesiredStates"]

_LOG = logging.getLogger(__name__)
_TOPIC = "isolation.state"


class DesiredStates:
    """The last desired state of every domain; ``complete`` once the topic was read to its end.

    Where keys are configured a state that is not signed is passed over.
    """

    def __init__(self, kafka: Kafka, checks: Checks, client: Mapping[str, object]) -> None:
        self._topic = kafka.topic(_TOPIC)
        self._checks = checks
        self._consumer = KafkaConsumer(
            **client, group_id=None, auto_offset_reset="earliest", enable_auto_commit=False
        )
        self._parts: list[TopicPartition] = []
        self.complete = False
        self.by_domain: dict[str, DesiredState] = {}

    def generation(self, domain_id: str) -> int | None:
        """The generation of a domain, or None where nothing was ever said of it."""
        state = self.by_domain.get(domain_id)
        return None if state is None else state.generation

    def read(self, wait_ms: int = 0) -> None:
        """Take what is new; a broker that does not answer is met again at the next call."""
        try:
            if not self._parts and not self._assign():
                return
            for messages in self._consumer.poll(timeout_ms=wait_ms).values():
                for message in messages:
                    self._take(message)
            if not self.complete:
                ends = self._consumer.end_offsets(self._parts)
                self.complete = all(self._consumer.position(one) >= ends[one] for one in ends)
        except KafkaError as error:
            _LOG.warning("%s could not be read: %s", self._topic, error)

    def close(self) -> None:
        """Let the broker go."""
        self._consumer.close(autocommit=False, timeout_ms=2000)

    def _assign(self) -> bool:
        numbers = self._consumer.partitions_for_topic(self._topic) or ()
        self._parts = [TopicPartition(self._topic, number) for number in sorted(numbers)]
        self._consumer.assign(self._parts)
        if self._parts:
            self._consumer.seek_to_beginning(*self._parts)
        return bool(self._parts)

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
