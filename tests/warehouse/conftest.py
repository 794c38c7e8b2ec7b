"""Storing records without a broker: the sink's own path from messages to files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import Struct

from evidence.wire import encode
from tests.warehouse import made_history
from warehouse.files import prepare
from warehouse.kinds import KINDS
from warehouse.partition import Partition, Policy

#: When the first stored message reached Kafka; each next one a millisecond later.
APPENDED = datetime(2026, 4, 7, 3, 12, 9, tzinfo=UTC)


@dataclass
class Fetched:
    """A message as a consumer hands it out."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = field(default_factory=list)
    timestamp: int = int(APPENDED.timestamp() * 1000)


def policy(root: Path) -> Policy:
    return Policy(
        root=root,
        flush_records=1000,
        flush_s=2.0,
        bulk_flush_s=10.0,
        tick_flush_s=90.0,
        flush_bytes=1 << 20,
        compression="zstd",
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty warehouse."""
    prepare(tmp_path)
    return tmp_path


@pytest.fixture
def partition(root: Path) -> Callable[..., Partition]:
    """``partition("kernel", start=0)``: a partition of a topic that stores under ``root``."""

    def make(topic: str, start: int = 0, number: int = 0, base: str = "0a1b2c3d") -> Partition:
        return Partition(
            kind=KINDS[topic],
            topic=f"ringfence.{topic}",
            base=base,
            rounds=0,
            number=number,
            start=start,
            policy=policy(root),
        )

    return make


@pytest.fixture(scope="session")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse that holds made_history; for reading only."""
    root = tmp_path_factory.mktemp("month")
    prepare(root)

    def partition(topic: str, start: int) -> Partition:
        return Partition(
            kind=KINDS[topic],
            topic=f"ringfence.{topic}",
            base="0a1b2c3d",
            rounds=0,
            number=0,
            start=start,
            policy=policy(root),
        )

    made_history.keep(made_history.history(), partition, Fetched)
    return root


@pytest.fixture
def store(partition: Callable[..., Partition]) -> Callable[..., Path]:
    """``store("kernel", record, ...)``: one file with those records (or raw bytes)."""
    following: dict[str, int] = {}

    def put(topic: str, *records: Struct | bytes | None) -> Path:
        start = following.get(topic, 0)
        one = partition(topic, start)
        values = [encode(record) if isinstance(record, Struct) else record for record in records]
        first_ms = int(APPENDED.timestamp() * 1000)
        one.add(
            [
                Fetched(start + number, value, timestamp=first_ms + start + number)
                for number, value in enumerate(values)
            ],
            now=0.0,
        )
        path = one.flush(0.0)
        assert path is not None
        following[topic] = one.start
        return path

    return put


@pytest.fixture
def fetched() -> type[Fetched]:
    """The class of messages as a consumer hands them out."""
    return Fetched
