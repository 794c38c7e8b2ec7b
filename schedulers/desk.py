"""The consumer's loop body: messages from Kafka to their acks, many at a time.

An offset is committed only after the acks before it are in Kafka; the journal, not the offset,
keeps a command from being carried out twice.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import (
    CorruptRecordError,
    KafkaError,
    KafkaTimeoutError,
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
from schedulers.adapter import BatchAdapter, Choosing, SchedulerError
from schedulers.checks import Checks, odd
from schedulers.clerk import Clerk, Delivery
from schedulers.counts import Counts
from vitals.clients import Standstill

__all__ = ["COMMANDS", "Desk"]

_LOG = logging.getLogger(__name__)
COMMANDS = "isolation.commands"
_POLL_S = 0.5
_SENT_WITHIN_S = 60.0
#: So many commands are begun together where the adapter takes many at once.
_BATCH = 256
#: An ack waits no longer than this for those behind it.
_SETTLE_S = 0.2
#: After so long the rest of a fetch is fetched again: a member must poll to stay one.
_FETCH_S = 60.0
#: A dead letter holds its message in base64: its topic takes 2 MiB, an old one perhaps 1 MiB.
_KEPT_BYTES = 256 * 1024
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


@dataclass(slots=True)
class Desk:
    """One consumer's work; ``turn`` never waits longer than the adapter does.

    ``join`` makes a new consumer of the same group; it raises KafkaError where no broker answers.
    """

    kafka: Kafka
    clerk: Clerk
    consumer: KafkaConsumer
    join: Callable[[], KafkaConsumer]
    producer: KafkaProducer
    checks: Checks
    clock: Callable[[], datetime]
    counts: Counts = field(default_factory=Counts)
    _sent: list[Any] = field(default_factory=list)
    _left: bool = False
    _standstill: Standstill = field(default_factory=Standstill)

    def turn(self, wait_s: float = _POLL_S) -> None:
        """Take what is there, answer it, commit; on any failure it is taken again.

        Waits at most ``wait_s`` for the first message, and never longer than half a second.
        Raises SchedulerError when the journal is damaged.
        """
        self.counts.turned = time.monotonic()
        try:
            if self._left:
                self.consumer, self._left = self.join(), False
                self._standstill = Standstill()
            self._standstill.look(self.consumer)
            polled = self._polled(min(wait_s, _POLL_S))
        except KafkaError:
            _LOG.exception("reading commands failed, tried again")
            self.counts.connected = False
            self.close()
            self.clerk.stop.wait(1.0)
            return
        self.counts.connected = True
        self.checks.refresh()
        for partition, messages in polled.items():
            if not self._taken(partition, messages):
                break

    def close(self) -> None:
        """Leave the group; the next `turn` joins it anew, where its offsets were committed.

        What an error of ``poll`` interrupted may be lost to that consumer: its position can be
        behind messages that it did not return (kafka-python 3.0.12).
        """
        if not self._left:
            self._left = True
            with suppress(KafkaError):
                self.consumer.close(autocommit=False, timeout_ms=5000)

    def _taken(self, partition: TopicPartition, messages: Sequence[Any]) -> bool:
        """Whether all of one partition's messages are done with: answered and committed."""
        began = settled = time.monotonic()
        place = messages[0].offset  # from here on nothing is committed
        done = place
        try:
            for part in self._parts(messages):
                answered = self._answer(part)
                done = part[answered - 1].offset + 1 if answered else done
                now = time.monotonic()
                stopped = answered < len(part) or now - began > _FETCH_S
                if stopped or now - settled > _SETTLE_S:
                    self._settle(partition, done)
                    place, settled = done, now
                if stopped:
                    self._take_again(partition, place)
                    return False
            self._settle(partition, done)
        except (KafkaError, sqlite3.Error) as error:
            # Nothing further was committed: the messages are taken again, from their offset.
            _LOG.exception("offset %d of %s is taken again", place, partition.topic)
            self._sent.clear()
            if type(error) is sqlite3.DatabaseError:  # not its kinds: busy, full, unreadable now
                raise SchedulerError(f"The journal is damaged: {error}") from error
            self.clerk.stop.wait(1.0)
            self._take_again(partition, place)
            return False
        return True

    def _parts(self, messages: Sequence[Any]) -> Iterator[Sequence[Any]]:
        size = _BATCH if isinstance(self.clerk.adapter, BatchAdapter) else 1
        for begin in range(0, len(messages), size):
            yield messages[begin : begin + size]

    def _take_again(self, partition: TopicPartition, offset: int) -> None:
        if partition in self.consumer.assignment():
            self.consumer.seek(partition, offset)

    def _settle(self, partition: TopicPartition, offset: int) -> None:
        """Wait for what was sent, then commit."""
        self.producer.flush(_SENT_WITHIN_S)
        for sent in self._sent:
            sent.get(_SENT_WITHIN_S)
        self._sent.clear()
        behind = OffsetAndMetadata(offset, "", -1)
        self.consumer.commit({partition: behind}, timeout_ms=30_000)
        self.counts.settles += 1

    def _answer(self, messages: Sequence[Any]) -> int:
        """Send what each message is answered with; how many of them, from the first, are done."""
        deliveries: dict[int, Delivery] = {}
        for index, message in enumerate(messages):
            try:
                command: Command = decode(COMMANDS, message.value or b"")
            except DecodeError as error:
                self._bury(message, str(error))
                continue
            if (why := odd(command)) is not None:
                self._bury(message, f"topic {COMMANDS}: {why}")
            elif self._is_others(command):
                self.counts.passed_over += 1
            else:
                deliveries[index] = Delivery(command, self.checks.flaw(COMMANDS, message))
        for index, ack in zip(deliveries, self._handled(list(deliveries.values())), strict=True):
            if ack is None:
                return index
            if isinstance(ack, Exception):
                what = f"scheduler failed: {type(ack).__name__}: {ack}"
                self._bury(messages[index], what)
            else:
                self._send_ack(ack)
        return len(messages)

    def _is_others(self, command: Command) -> bool:
        adapter = self.clerk.adapter
        return isinstance(adapter, Choosing) and not adapter.concerns(command)

    def _handled(self, deliveries: list[Delivery]) -> Sequence[Ack | Exception | None]:
        """The acks; where one of many makes us fail, it alone is answered with the error."""
        try:
            return self.clerk.handle_all(deliveries)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 (one command must not keep the others from an answer)
            _LOG.exception("commands could not be handled")
            if len(deliveries) == 1:
                return [error]
        alone: list[Ack | Exception | None] = []
        for one in deliveries:
            alone.extend(self._handled([one]))
        return alone

    def _send_ack(self, ack: Ack) -> None:
        self.counts.acks[ack.status] += 1
        self._send("isolation.acks", encode(ack), CLUSTER_KEY, cloudevents_headers(ack))

    def _send(
        self, topic: str, value: bytes, key: bytes, headers: list[tuple[str, bytes]] | None = None
    ) -> None:
        full = self.kafka.topic(topic)
        self._sent.append(self.producer.send(full, value, key=key, headers=headers or []))

    def _bury(self, message: Any, error: str) -> None:  # noqa: ANN401 (kafka-python is untyped)
        """Keep what could not be read: whole where it fits, else its beginning."""
        _LOG.warning("offset %d of %s: %s", message.offset, message.topic, error)
        self.counts.letters += 1
        letter = DeadLetter(
            id=digest("deadletter", "scheduler", COMMANDS, message.partition, message.offset),
            at=self.clock(),
            topic=COMMANDS,
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
        except _TOO_LARGE:
            kept = letter.value[:_KEPT_BYTES]
            note = f"{error[:1000]} (first {len(kept)} of {len(letter.value)} bytes kept)"
            key = None if letter.key is None else letter.key[:_KEPT_BYTES]
            self._send_letter(structs.replace(letter, value=kept, key=key, headers={}, error=note))

    def _send_letter(self, letter: DeadLetter) -> None:
        """Send it and wait: the broker, too, may find it too large."""
        topic = self.kafka.topic("deadletters")
        self.producer.send(topic, encode(letter), key=COMMANDS.encode()).get(_SENT_WITHIN_S)

    def _polled(self, wait_s: float) -> dict[TopicPartition, list[Any]]:
        """What is there; steps over records whose frame (a header's name) is broken.

        The reader cannot pass such a record, nor what its producer sent in one batch with it: each
        offset of that batch is left word of. At once: asked again for the same offset it never
        returns (kafka-python 3.0.12). A command lost by damage on its way is sent again.
        """
        try:
            polled: dict[TopicPartition, list[Any]] = self.consumer.poll(
                timeout_ms=int(wait_s * 1000)
            )
        except (CorruptRecordError, UnicodeDecodeError) as error:
            _LOG.warning("a record of %s cannot be taken apart: %s", COMMANDS, error)
            for partition in self.consumer.assignment():
                self._step_over(partition, error)
            return {}
        return polled

    def _step_over(self, partition: TopicPartition, error: Exception) -> None:
        offset = self.consumer.position(partition, timeout_ms=5000)
        if offset is None:
            raise KafkaTimeoutError(f"the position in {COMMANDS} is not known")
        self.counts.letters += 1
        self._send_letter(
            DeadLetter(
                id=digest("deadletter", "scheduler", COMMANDS, partition.partition, offset),
                at=self.clock(),
                topic=COMMANDS,
                error=f"the record cannot be taken apart: {error}",
                partition=partition.partition,
                offset=offset,
                stage="scheduler",
            )
        )
        self.consumer.seek(partition, offset + 1)
