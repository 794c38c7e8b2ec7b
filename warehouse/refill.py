"""What a damaged file held is read from Kafka once more, as long as Kafka has it."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from kafka import KafkaConsumer, TopicPartition

from warehouse import quarantine
from warehouse.files import Range, Taken, day_of, look, publish
from warehouse.kinds import KINDS
from warehouse.quarantine import UNKNOWN, Damage
from warehouse.storage import at
from warehouse.tables import Fetched, build, read
from warehouse.watermark import Span, Spans

__all__ = ["Place", "refill"]

_LOG = logging.getLogger(__name__)

_POLL_MS = 500
#: Polls without a message after which the rest of a range is taken for compacted away.
_EMPTY_POLLS = 10
_ANSWER_MS = 10_000


@dataclass(frozen=True, slots=True)
class Place:
    """A partition that exists in Kafka, and how it is called in files: ``0003-5f3a9c1e``."""

    partition: TopicPartition
    log: str
    topic: str

    @property
    def name(self) -> str:
        """Partition and log, as file names and watermarks write them."""
        return f"{self.partition.partition:04d}-{self.log}"


def refill(
    root: Path,
    places: Iterable[Place],
    consumer: Callable[[], KafkaConsumer],
    *,
    compression: str,
    flush_records: int,
) -> None:
    """Store again what is missing of these places, and write down what is lost for good.

    Each file is published as the sink does: by its start, so that of two sinks one wins. Raises
    KafkaError when the brokers do not answer, OSError when the disk refuses: the next call goes on.
    """
    storage = at(root)
    mine = {one.name: one for one in places}
    kinds = sorted({KINDS[one.topic].name for one in mine.values()})
    for damage in (one for kind in kinds for one in quarantine.damages(storage, kind)):
        missing = quarantine.now_missing(storage, damage)
        asked = {
            place: [one for one in spans if one[1] != UNKNOWN]
            for place, spans in missing.items()
            if place in mine and KINDS[mine[place].topic].name == damage.kind
        }
        asked = {
            place: left
            for place, spans in asked.items()
            if (left := _not_lost(damage, place, spans))
        }
        if not asked:
            continue
        reader = consumer()
        after = damage
        try:
            for place, spans in asked.items():
                after = _place(root, after, mine[place], spans, reader, compression, flush_records)
        finally:
            reader.close(autocommit=False, timeout_ms=1000)
        quarantine.put(storage, after)


def _not_lost(damage: Damage, place: str, spans: list[Span]) -> list[Span]:
    lost = damage.lost.get(place, [])
    return [one for one in spans if not any(a <= one[0] and one[1] <= b for a, b in lost)]


def _place(
    root: Path,
    damage: Damage,
    place: Place,
    spans: list[Span],
    reader: KafkaConsumer,
    compression: str,
    flush_records: int,
) -> Damage:
    where = place.partition
    reader.assign([where])
    begin = reader.beginning_offsets([where])[where]
    for start, end in spans:
        if start < begin:
            lost = (start, min(begin, end))
            _LOG.error(
                "%s-%d: offsets %d to %d were in the damaged %s, and Kafka has them no more",
                where.topic, where.partition, lost[0], lost[1] - 1, damage.name,
            )  # fmt: skip
            damage = _noted(damage, "lost", place.name, lost)
        if end > begin:
            _span(root, place, (max(start, begin), end), reader, compression, flush_records)
            damage = _noted(damage, "refilled", place.name, (max(start, begin), end))
            _LOG.info(
                "%s-%d: offsets %d to %d are read from Kafka and stored again",
                where.topic, where.partition, max(start, begin), end - 1,
            )  # fmt: skip
    return damage


def _noted(damage: Damage, what: str, place: str, span: Span) -> Damage:
    spans: Spans = dict(getattr(damage, what))
    spans[place] = [*spans.get(place, []), span]
    return msgspec.structs.replace(damage, **{what: spans})


def _span(
    root: Path,
    place: Place,
    span: Span,
    reader: KafkaConsumer,
    compression: str,
    flush_records: int,
) -> None:
    start, end = span
    reader.seek(place.partition, start)
    held: list[Fetched] = []
    empty = 0
    while start < end:
        batch = [
            one
            for one in reader.poll(timeout_ms=_POLL_MS).get(place.partition, [])
            if start <= one.offset < end
        ]
        held += batch
        empty = 0 if batch else empty + 1
        if empty == _EMPTY_POLLS:  # raises where it is the leader that is away
            reader.end_offsets([place.partition], timeout_ms=_ANSWER_MS)
        done = (
            reader.position(place.partition, timeout_ms=_ANSWER_MS) >= end or empty > _EMPTY_POLLS
        )
        if not done and len(held) < flush_records:
            continue
        if not held:
            return
        last = end - 1 if done else held[-1].offset
        start = _store(root, place, start, last, held, compression)
        held = [one for one in held if one.offset >= start]


def _store(
    root: Path, place: Place, start: int, last: int, held: list[Fetched], compression: str
) -> int:
    """Publish one file of the range; the position behind what is stored now."""
    kind, where = KINDS[place.topic], place.partition
    stored = Range(
        kind=kind,
        log=place.log,
        partition=where.partition,
        start=start,
        first=held[0].offset,
        last=last,
        day=day_of(held[0].timestamp),
    )
    try:
        look(root, stored)
        messages = [read(kind, one) for one in held]
        table = build(kind, where.topic, place.log, where.partition, messages)
        publish(root, stored, table, compression)
    except Taken as taken:
        return taken.last + 1
    return last + 1
