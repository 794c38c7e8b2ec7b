"""Which partitions exist now, and where each goes on: what the brokers say and what the files say.

A topic deleted and made again, or an in-memory broker started again, counts its offsets from 0 once
more: Kafka's topic id (KIP-516) tells the two logs apart, and its digest is part of file names.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient

from evidence.identity import digest
from evidence.transport import Kafka
from warehouse.files import ends
from warehouse.kinds import Kind

__all__ = ["Found", "Resume", "discover", "end_by_reading", "log_name", "resume"]

_READ_MS = 1000
_ROUND = re.compile(r"(?P<base>[0-9a-f]{8})(?:r(?P<round>\d+))?")


@dataclass(frozen=True, slots=True)
class Found:
    """A partition that exists: its topic's short name and the base name of its log."""

    place: TopicPartition
    topic: str
    base: str


def discover(admin: KafkaAdminClient, kafka: Kafka, topics: Iterable[str]) -> list[Found]:
    """The partitions of those topics that exist now.

    Raises KafkaError when the brokers do not answer.
    """
    short = {kafka.topic(topic): topic for topic in topics}
    found = []
    for described in admin.describe_topics(list(short)):
        if described["error_code"]:
            continue  # does not exist yet, or not for us: asked again at the next discovery
        # A broker older than 2.8 gives no id; then only a shorter log tells a new one.
        base = digest("log", described["topic_id"])[:8]
        found += [
            Found(
                TopicPartition(described["name"], one["partition_index"]),
                short[described["name"]],
                base,
            )
            for one in described["partitions"]
        ]
    return found


def end_by_reading(reader: KafkaConsumer, place: TopicPartition, begin: int, end: int) -> int:
    """The position behind the last message, by reading on from the ``end`` that the broker tells.

    The embedded broker tells the position behind the **first** message of the last batch.
    """
    reader.assign([place])
    reader.seek(place, max(begin, end - 1))
    while True:
        messages = reader.poll(timeout_ms=_READ_MS).get(place, [])
        if not messages:
            return end
        end = max(end, messages[-1].offset + 1)


def log_name(base: str, rounds: int) -> str:
    """The log's name in file names: its base, and how often it lost its end and began again."""
    return base if rounds == 0 else f"{base}r{rounds}"


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a partition goes on: the log's round and the first position not yet in a file."""

    rounds: int
    start: int


def resume(root: Path, kind: Kind) -> dict[tuple[int, str], Resume]:
    """Where every (partition, log base) of a kind goes on, read from its files.

    Raises SinkError when what must be read for this is damaged.
    """
    found: dict[tuple[int, str], Resume] = {}
    for (partition, name), start in ends(root, kind).items():
        parts = _ROUND.fullmatch(name)
        assert parts is not None  # the file name's own pattern says so
        rounds = int(parts["round"] or 0)
        place = (partition, parts["base"])
        if place not in found or found[place].rounds < rounds:
            found[place] = Resume(rounds, start)
    return found
