"""Reads isolation commands, has them carried out by one adapter, answers with acks.

A command's offset is committed only after its ack is in Kafka; the journal, not the offset, keeps
a command from being carried out twice.
"""

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
from kafka.structs import OffsetAndMetadata
from msgspec import structs

from evidence.decisions import Ack, Command, DeadLetter
from evidence.identity import digest
from evidence.topics import CLUSTER_KEY
from evidence.transport import Kafka
from evidence.wire import DecodeError, cloudevents_headers, decode, encode
from schedulers.adapter import Adapter, SchedulerError
from schedulers.clerk import Clerk
from schedulers.journal import Journal

__all__ = ["SchedulerConfig", "SchedulerError", "run"]

_LOG = logging.getLogger(__name__)
_COMMANDS = "isolation.commands"
_POLL_MS = 500
_SENT_WITHIN_S = 60.0
#: Longer than any adapter takes with its retries: a member that acts must not lose its partition.
_LONGEST_COMMAND_MS = 30 * 60 * 1000
#: A dead letter holds its message in base64: its topic takes 2 MiB, an old one perhaps 1 MiB.
_LARGEST_BYTES = 2 * 1024 * 1024
_KEPT_BYTES = 256 * 1024


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """One scheduler process.

    ``name`` stands in its acks and names its consumer group (``group`` None: the topic prefix,
    ``scheduler.`` and the name) and its journal in ``state_dir``. ``attempts`` counts the first
    try; ``retry_wait_s`` is the wait before the second, and doubles. A killed scheduler's successor
    gets its commands after ``session_timeout_s``.
    """

    kafka: Kafka = field(default_factory=Kafka)
    name: str = "exec"
    state_dir: Path = Path("ringfence-data/scheduler")
    group: str | None = None
    attempts: int = 3
    retry_wait_s: float = 2.0
    session_timeout_s: float = 6.0
    start_within_s: float = 30.0

    @property
    def group_id(self) -> str:
        """The consumer group."""
        return self.group or f"{self.kafka.prefix}scheduler.{self.name}"


def run(
    config: SchedulerConfig,
    adapter: Adapter,
    stop: Event,
    clock: Callable[[], datetime] = _now,
) -> None:
    """Carry commands out until ``stop`` is set; a command in hand is finished first.

    Raises SchedulerError when Kafka is not there at the start or the state folder is in use.
    """
    with Journal(config.state_dir, config.name) as journal:
        consumer, producer = _clients(config)
        clerk = Clerk(
            config.name, adapter, journal, clock, stop, config.attempts, config.retry_wait_s
        )
        desk = _Desk(config, clerk, consumer, producer, clock)
        _LOG.info("scheduler %s reads %s", config.name, config.kafka.topic(_COMMANDS))
        try:
            while not stop.is_set():
                desk.turn()
        finally:
            consumer.close(autocommit=False, timeout_ms=5000)
            producer.close(timeout=5)
    _LOG.info("scheduler %s stopped", config.name)


def _clients(config: SchedulerConfig) -> tuple[KafkaConsumer, KafkaProducer]:
    session_ms = int(config.session_timeout_s * 1000)
    common = config.kafka.client() | {
        "client_id": f"ringfence-{config.name}",
        "bootstrap_timeout_ms": int(config.start_within_s * 1000),
        "reconnect_backoff_max_ms": 1000,  # a broker that is back is found within a second
    }
    try:
        producer = KafkaProducer(
            **common,
            acks="all",
            max_request_size=_LARGEST_BYTES,
        )
        consumer = KafkaConsumer(
            config.kafka.topic(_COMMANDS),
            **common,
            group_id=config.group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=1,
            max_poll_interval_ms=_LONGEST_COMMAND_MS,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=session_ms // 3,
        )
    except KafkaError as error:
        raise SchedulerError(f"No Kafka answers at {config.kafka.bootstrap}: {error}") from error
    return consumer, producer


@dataclass(slots=True)
class _Desk:
    """The loop's body: one message from Kafka to its ack."""

    config: SchedulerConfig
    clerk: Clerk
    consumer: KafkaConsumer
    producer: KafkaProducer
    clock: Callable[[], datetime]

    def turn(self) -> None:
        """Take at most one message, answer it, commit; on any failure it is taken again."""
        try:
            polled = self.consumer.poll(timeout_ms=_POLL_MS)
        except KafkaError:
            _LOG.exception("reading commands failed, tried again")
            self.clerk.stop.wait(1.0)
            return
        for partition, messages in polled.items():
            for message in messages:
                if not self._answered(partition, message):
                    return

    def _answered(self, partition: TopicPartition, message: Any) -> bool:  # noqa: ANN401 (untyped)
        """Whether the message is done with: its ack (or dead letter) sent, its offset committed."""
        try:
            if not self._answer(message):
                return False
            behind = OffsetAndMetadata(message.offset + 1, "", -1)
            self.consumer.commit({partition: behind}, timeout_ms=30_000)
        except (KafkaError, sqlite3.Error):
            # Nothing was committed: the message is taken again, from its offset.
            _LOG.exception("message %d of %s is taken again", message.offset, message.topic)
            self.clerk.stop.wait(1.0)
            if partition in self.consumer.assignment():
                self.consumer.seek(partition, message.offset)
            return False
        return True

    def _answer(self, message: Any) -> bool:  # noqa: ANN401 (kafka-python is untyped)
        try:
            command: Command = decode(_COMMANDS, message.value or b"")
        except DecodeError as error:
            _LOG.warning("offset %d of %s: %s", message.offset, message.topic, error)
            self._bury(message, str(error))
            return True
        ack = self.clerk.handle(command)
        if ack is None:
            return False
        self._send_ack(ack)
        return True

    def _send_ack(self, ack: Ack) -> None:
        topic = self.config.kafka.topic("isolation.acks")
        headers = cloudevents_headers(ack)
        self.producer.send(topic, encode(ack), key=CLUSTER_KEY, headers=headers).get(_SENT_WITHIN_S)

    def _bury(self, message: Any, error: str) -> None:  # noqa: ANN401 (kafka-python is untyped)
        """Keep what could not be read: whole where it fits, else its beginning."""
        letter = DeadLetter(
            id=digest("deadletter", "scheduler", _COMMANDS, message.partition, message.offset),
            at=self.clock(),
            topic=_COMMANDS,
            error=error,
            value=message.value or b"",
            key=message.key,
            partition=message.partition,
            offset=message.offset,
            stage="scheduler",
            headers={
                name: (text or b"").decode(errors="replace") for name, text in message.headers
            },
        )
        try:
            self._send_letter(letter)
        except (MessageSizeTooLargeError, RecordListTooLargeError):
            kept = letter.value[:_KEPT_BYTES]
            note = f"{error} (first {len(kept)} of {len(letter.value)} bytes kept)"
            self._send_letter(structs.replace(letter, value=kept, headers={}, error=note))

    def _send_letter(self, letter: DeadLetter) -> None:
        topic = self.config.kafka.topic("deadletters")
        self.producer.send(topic, encode(letter), key=_COMMANDS.encode()).get(_SENT_WITHIN_S)
