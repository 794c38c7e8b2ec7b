"""The dead letters: which there are, what one holds, and sending them to their topics again.

Before a letter is sent a note of it stands in the `deadletters` topic, and another one after: what
was sent again is known to everybody, and of two people who do it at once one is told so.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError
from msgspec.structs import replace

from evidence.decisions import DeadLetter
from evidence.topics import TOPICS
from evidence.transport import Kafka
from evidence.wire import DecodeError, decode, encode

__all__ = ["RESENT", "DeadLettersError", "Fate", "Found", "Wanted", "index", "resend", "whole"]

#: Header of a message that was a dead letter: the letter's id. A letter that has it failed again.
RESENT = "ringfence-resent"

_TOPIC = "deadletters"
_POLL_MS = 200
_SENT_WITHIN_S = 30.0
#: As many letters are noted, sent and noted together, or fewer that have so many bytes.
_BATCH, _BATCH_BYTES = 200, 32 << 20
#: A letter holds its message in base64, and each topic takes what it had before.
_LARGEST_BYTES = 16 << 20
_TICK = b'{"schema":"tick/'
#: The isolation stage sends its commands itself until they are answered, and its states on change.
_OURS_TO_SAY = frozenset({"isolation.commands", "isolation.state"})

# `... (first 262144 of 1048577 bytes kept)`
_CUT = re.compile(r"\(first (?P<kept>\d+) of (?P<whole>\d+) bytes kept\)$")


class DeadLettersError(Exception):
    """The letters cannot be read or sent; the message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters: all that fit every word said; ``ids`` may be beginnings of ids."""

    ids: tuple[str, ...] = ()
    topics: frozenset[str] = frozenset()
    stage: str | None = None
    since: datetime | None = None
    error: str | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Whether a letter is one of them."""
        return (
            (not self.ids or any(letter.id.startswith(one) for one in self.ids))
            and (not self.topics or letter.topic in self.topics)
            and self.stage in (None, letter.stage)
            and (self.since is None or letter.at >= self.since)
            and (self.error is None or self.error.casefold() in letter.error.casefold())
        )


@dataclass(slots=True)
class Found:
    """One letter, its bytes left out: ``size`` of them, at ``place`` in the topic.

    ``times`` it was written (a worker that was killed writes one again). ``note`` is the last note
    that it was sent again.
    """

    letter: DeadLetter
    place: tuple[int, int]
    size: int
    times: int = 1
    note: DeadLetter | None = None


class Fate(StrEnum):
    """What becomes of a letter that is to be sent again."""

    SENT = "sent"
    WOULD = "would be sent"
    BEFORE = "was sent before"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(slots=True)
class _Log:
    """The topic, read from its beginning to its end; ``known`` is up to where it was indexed."""

    kafka: Kafka
    consumer: KafkaConsumer
    parts: list[TopicPartition]
    known: dict[TopicPartition, int] = field(default_factory=dict)

    def read(self, begin: dict[TopicPartition, int] | None = None) -> Iterator[tuple[Any, Any]]:
        """(message, letter or note) in order, from ``begin`` on; what is neither is left out."""
        if not self.parts:
            return
        self.consumer.assign(self.parts)
        self.consumer.seek_to_beginning(*self.parts)
        for part, offset in (begin or {}).items():
            self.consumer.seek(part, offset)
        ends = self.consumer.end_offsets(self.parts)
        idle_since = time.monotonic()
        while True:
            polled = self.consumer.poll(timeout_ms=_POLL_MS)
            for messages in polled.values():
                for message in messages:
                    try:
                        yield message, decode(_TOPIC, message.value or b"")
                    except DecodeError:
                        continue
            if polled:
                idle_since = time.monotonic()
            # On to an empty poll: the embedded broker tells the end of a last batch too early.
            elif all(self.consumer.position(part) >= ends[part] for part in self.parts):
                return
            elif time.monotonic() - idle_since > self.kafka.start_within_s:
                name = self.kafka.topic(_TOPIC)
                raise DeadLettersError(f"{name} could not be read to its end.")


@contextmanager
def _log(kafka: Kafka) -> Iterator[_Log]:
    with _one_sentence(kafka):
        consumer = KafkaConsumer(
            **kafka.client(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=int(kafka.start_within_s * 1000),
            reconnect_backoff_max_ms=1000,
            max_partition_fetch_bytes=_LARGEST_BYTES,
        )
        try:
            name = kafka.topic(_TOPIC)
            numbers = consumer.partitions_for_topic(name)
            if not numbers:
                raise DeadLettersError(f"Topic {name} does not exist at {kafka.bootstrap}.")
            yield _Log(kafka, consumer, [TopicPartition(name, one) for one in sorted(numbers)])
        finally:
            consumer.close()


@contextmanager
def _one_sentence(kafka: Kafka) -> Iterator[None]:
    try:
        yield
    except KafkaTimeoutError as error:
        raise DeadLettersError(f"No Kafka answers at {kafka.bootstrap}: {error}") from error
    except (KafkaError, OSError) as error:
        raise DeadLettersError(f"Kafka at {kafka.bootstrap} cannot be used: {error}") from error


def index(kafka: Kafka, wanted: Wanted) -> list[Found]:
    """The letters that are wanted, oldest first, without their bytes.

    Raises DeadLettersError where the topic cannot be read, or an id in ``wanted`` is not that of
    one letter.
    """
    with _log(kafka) as log:
        return _index(log, wanted)


def _index(log: _Log, wanted: Wanted) -> list[Found]:
    found: dict[str, Found] = {}
    for message, letter in log.read():
        known = found.get(letter.id)
        if letter.resent_at is not None:
            if known is not None:
                known.note = letter
        elif known is not None:
            known.times += 1
        elif wanted.takes(letter):
            place = (message.partition, message.offset)
            found[letter.id] = Found(replace(letter, value=b""), place, len(letter.value))
    log.known = {part: log.consumer.position(part) for part in log.parts}
    for one in wanted.ids:
        count = sum(letter_id.startswith(one) for letter_id in found)
        if count != 1:
            which = f"{count} letters have ids" if count else "No letter that is wanted has an id"
            raise DeadLettersError(f"{which} beginning with {one!r}.")
    return list(found.values())


def whole(kafka: Kafka, found: Found) -> DeadLetter:
    """A letter with its bytes; raises DeadLettersError."""
    with _log(kafka) as log:
        for _, letter in _wholes(log, [found]):
            return letter
    raise DeadLettersError(f"Letter {found.letter.id} is no longer in the topic.")


def _wholes(log: _Log, chosen: Sequence[Found]) -> Iterator[tuple[Found, DeadLetter]]:
    """The letters with their bytes, in one pass over the topic."""
    places = {one.place: one for one in chosen}
    begin: dict[TopicPartition, int] = {}
    for part in log.parts:
        offsets = [offset for number, offset in places if number == part.partition]
        if offsets:
            begin[part] = min(offsets)
    for message, letter in log.read(begin):
        one = places.pop((message.partition, message.offset), None)
        if one is not None:
            yield one, letter
        if not places:
            return


def resend(
    kafka: Kafka, wanted: Wanted, *, by: str, now: datetime, again: bool = False, dry: bool = True
) -> Iterator[tuple[Found, Fate, str]]:
    """Send letters to their topics again; tells of each what became of it, in one sentence.

    A ``dry`` run sends nothing. ``again`` also sends what was sent before or failed again since.
    Raises DeadLettersError where Kafka cannot be used; what was told of before is done.
    """
    with _log(kafka) as log:
        chosen: list[Found] = []
        for one in _index(log, wanted):
            fate = refusal(one, again=again)
            if fate is None:
                chosen.append(one)
            else:
                yield one, *fate
        if dry:
            for one in chosen:
                yield one, Fate.WOULD, f"to {kafka.topic(one.letter.topic)}"
            return
        if chosen:
            yield from _Sender(kafka, log, by, now).send(chosen)


def refusal(found: Found, *, again: bool) -> tuple[Fate, str] | None:
    """Why a letter is not sent again, or None."""
    letter, note = found.letter, found.note
    if note is not None and not again:
        when = f"{note.resent_at:%Y-%m-%d %H:%M:%S} by {note.resent_by}"
        if note.resent_to is not None:
            return Fate.BEFORE, f"at {when} to {note.resent_to}"
        return Fate.BEFORE, f"at {when}, perhaps: nothing tells that it arrived (--again sends it)"
    if words := _never(found):
        return Fate.REFUSED, words
    if RESENT in letter.headers and not again:
        first = letter.headers[RESENT]
        return Fate.REFUSED, f"it is letter {first}, which failed again (--again sends it)"
    return None


def _never(found: Found) -> str | None:
    """Why a letter can never be sent again, or None."""
    letter = found.letter
    cut = _CUT.search(letter.error)
    odd = [name for name, text in letter.headers.items() if "\N{REPLACEMENT CHARACTER}" in text]
    if letter.topic == "tick":
        return "a step failed on a tick: there is no message, the next tick tries it"
    if letter.topic not in TOPICS:
        return f"{letter.topic} is none of our topics"
    if letter.topic in _OURS_TO_SAY:
        return f"only the isolation stage writes {letter.topic}, and does so itself"
    if cut:
        return f"only the first {cut['kept']} of its {cut['whole']} bytes were kept"
    if odd:
        return f"its header {odd[0]} was not UTF-8 and is not known any more"
    return None if found.size else "it holds no message"


@dataclass(slots=True)
class _Sender:
    """Sends letters in batches: notes, messages, notes."""

    kafka: Kafka
    log: _Log
    by: str
    now: datetime

    def send(self, chosen: Sequence[Found]) -> Iterator[tuple[Found, Fate, str]]:
        producer = KafkaProducer(
            **self.kafka.client(),
            acks="all",
            max_request_size=_LARGEST_BYTES,
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=int(self.kafka.start_within_s * 1000),
            reconnect_backoff_max_ms=1000,
        )
        try:
            for batch in _batches(chosen):
                yield from self._send_batch(producer, batch)
        finally:
            producer.close(timeout=5)

    def _send_batch(
        self, producer: KafkaProducer, batch: Sequence[Found]
    ) -> Iterator[tuple[Found, Fate, str]]:
        letters = [letter for _, letter in _wholes(self.log, batch)]
        mine = self._note(producer, letters, {})
        taken = self._taken_by_others(mine)
        free = [letter for letter in letters if letter.id not in taken]
        places, failed = self._send_all(producer, free)
        self._note(producer, [one for one in free if one.id in places], places)
        for one in batch:
            name = one.letter.id
            if name in taken:
                yield one, Fate.BEFORE, f"by {taken[name]}, at this moment"
            elif name in places:
                yield one, Fate.SENT, f"to {places[name]}"
            else:
                yield one, Fate.FAILED, failed.get(name, "it is no longer in the topic")

    def _send_all(
        self, producer: KafkaProducer, letters: Iterable[DeadLetter]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Send letters to their topics: where each came to lie, and why others did not."""
        places: dict[str, str] = {}
        failed: dict[str, str] = {}
        waiting = []
        for letter in letters:
            if letter.value.startswith(_TICK):
                failed[letter.id] = "it is a tick, and its time has passed"
                continue
            try:
                waiting.append((letter, _send(producer, self.kafka, letter)))
            except KafkaError as error:
                failed[letter.id] = str(error)
        for letter, sent in waiting:
            try:
                where = sent.get(timeout=_SENT_WITHIN_S)
            except KafkaError as error:
                failed[letter.id] = str(error)
            else:
                places[letter.id] = f"{letter.topic}/{where.partition}/{where.offset}"
        return places, failed

    def _note(
        self, producer: KafkaProducer, letters: Iterable[DeadLetter], places: dict[str, str]
    ) -> dict[str, tuple[int, int]]:
        """Write a note of each letter; returns where the notes stand. Raises KafkaError."""
        sent = []
        for letter in letters:
            note = replace(
                letter,
                value=b"",
                headers={},
                resent_at=self.now,
                resent_by=self.by,
                resent_to=places.get(letter.id),
            )
            name = self.kafka.topic(_TOPIC)
            key = letter.topic.encode()
            sent.append((letter.id, producer.send(name, encode(note), key=key)))
        written = {}
        for letter_id, one in sent:
            where = one.get(timeout=_SENT_WITHIN_S)
            written[letter_id] = (where.partition, where.offset)
        return written

    def _taken_by_others(self, mine: dict[str, tuple[int, int]]) -> dict[str, str]:
        """Letters of which somebody else noted, after we looked and before us, that they go."""
        taken: dict[str, str] = {}
        for message, letter in self.log.read(self.log.known):
            ours = mine.get(letter.id)
            if ours is not None and letter.resent_at is not None and letter.resent_to is None:
                number, offset = ours
                if message.partition == number and message.offset < offset:
                    taken.setdefault(letter.id, letter.resent_by or "somebody")
        return taken


def _send(producer: KafkaProducer, kafka: Kafka, letter: DeadLetter) -> Any:  # noqa: ANN401 (a future)
    """Send a letter's message as it was: same bytes, key and headers, so to the same partition."""
    headers = {**letter.headers, RESENT: letter.headers.get(RESENT, letter.id)}
    return producer.send(
        kafka.topic(letter.topic),
        letter.value,
        key=letter.key,
        headers=[(name, text.encode()) for name, text in headers.items()],
    )


def _batches(chosen: Sequence[Found]) -> Iterator[list[Found]]:
    batch: list[Found] = []
    size = 0
    for one in sorted(chosen, key=lambda found: found.place):
        if batch and (len(batch) >= _BATCH or size + one.size > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.size
    if batch:
        yield batch
