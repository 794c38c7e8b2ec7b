"""A rewritten day is read back message by message, in the order in which Kafka took them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from evidence.records import (
    FabricPort,
    FabricRecord,
    GpuFrame,
    GpuSnapshot,
    GpuTick,
    KernelKind,
    KernelRecord,
)
from evidence.wire import encode
from warehouse.compaction import Compaction, compact
from warehouse.replay import Stored, begin_and_end, messages, places
from warehouse.watermark import small_of

AT = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)
SINCE, UNTIL = AT - timedelta(hours=1), AT + timedelta(hours=1)
LATER = (max(datetime.now(UTC), AT) + timedelta(days=2)).timestamp()
HOW = Compaction(memory_mib=256)
TOPICS = ["kernel", "gpu", "fabric"]


def _kernel(number: int, host: str) -> KernelRecord:
    at = AT + timedelta(seconds=number)
    return KernelRecord(
        id=f"k-{host}-{number}", host=host, at=at, observed_at=at, raw="x", kind=KernelKind.OTHER
    )


def _frame(number: int, host: str) -> GpuFrame:
    at = AT + timedelta(seconds=number)
    cards = [GpuSnapshot(index=one, uuid=f"GPU-{host}-{9 - one}") for one in range(3)]
    ticks = tuple(
        GpuTick(at=at + timedelta(milliseconds=100 * one), gpus=tuple(cards[: 3 - one]))
        for one in range(3)
    )
    lost = GpuTick(at=at + timedelta(milliseconds=300), error=999)
    return GpuFrame(
        id=f"g-{host}-{number}", host=host, observed_at=at, seq=number, ticks=(*ticks, lost)
    )


def _sweep(number: int, host: str) -> FabricRecord:
    at = AT + timedelta(seconds=number)
    ports = tuple(FabricPort(port=one) for one in (1, 2, 3))
    return FabricRecord(
        subnet="s1",
        id=f"f-{host}-{number}",
        host=host,
        at=at,
        observed_at=at,
        guid="0xa1",
        ports=ports,
    )


MAKE: dict[str, Callable[[int, str], Struct]] = {
    "kernel": _kernel,
    "gpu": _frame,
    "fabric": _sweep,
}


@pytest.fixture
def feed(partition: Any, fetched: Any) -> Callable[[str, int, int, int], Path]:
    """``feed("kernel", 0, 10, 1)``: store offsets 0 to 9 of partition 1 as one file."""

    def put(topic: str, start: int, end: int, number: int) -> Path:
        one = partition(topic, start, number)
        first_ms = int(AT.timestamp() * 1000)
        hosts = ("trn-2", "trn-1")
        values = {n: encode(MAKE[topic](100 * number - n, hosts[n % 2])) for n in range(start, end)}
        one.add([fetched(n, value, timestamp=first_ms + n) for n, value in values.items()], now=0.0)
        return one.flush(0.0)  # type: ignore[no-any-return]

    return put


def _all(root: Path, **more: Any) -> list[Stored]:
    return list(messages(root, TOPICS, SINCE, UNTIL, **more))


def _rewrite(root: Path) -> None:
    list(compact(root, HOW, now_s=LATER))
    list(compact(root, HOW, now_s=LATER + HOW.keep_small_s + 1))
    left = [one.name for one in root.glob("*/day=2*/*.parquet") if small_of(one.name)]
    assert left == [], "the small files are gone"


@pytest.fixture
def stored(root: Path, feed: Callable[..., Path]) -> Path:
    """Kernel lines, frames and sweeps of two hosts over two partitions, in twelve files."""
    for topic in TOPICS:
        for number in (0, 1):
            feed(topic, 0, 5, number)
            feed(topic, 5, 9, number)
    return root


def test_a_rewritten_day_gives_the_same_messages_in_the_same_order(stored: Path) -> None:
    before = _all(stored)
    assert len(before) == 3 * 2 * 9
    known = begin_and_end(stored)
    ids = {f"k-trn-1-{-n}" for n in range(9)}
    stand = places(stored, ["kernel"], SINCE, UNTIL, ids)
    _rewrite(stored)
    assert _all(stored) == before
    assert begin_and_end(stored) == known
    assert places(stored, ["kernel"], SINCE, UNTIL, ids) == stand != {}


def test_one_host_of_a_rewritten_day_is_told_from_the_others(
    root: Path, feed: Callable[..., Path]
) -> None:
    feed("kernel", 0, 6, 0)
    held = {("kernel", "0a1b2c3d", 0, 2): AT + timedelta(minutes=5)}
    before = list(messages(root, ["kernel"], SINCE, UNTIL, held=held))
    _rewrite(root)
    assert list(messages(root, ["kernel"], SINCE, UNTIL, held=held)) == before


def test_small_files_between_the_ranges_of_a_rewritten_one_stay_in_order(
    root: Path, feed: Callable[..., Path]
) -> None:
    for topic in TOPICS:
        feed(topic, 0, 3, 0)
        middle = feed(topic, 3, 6, 0)
        content = middle.read_bytes()
        feed(topic, 6, 9, 0)
        middle.write_bytes(content[:-4])
    _rewrite(root)
    assert [one.offset for one in _all(root)] == [n for n in (0, 1, 2, 6, 7, 8) for _ in TOPICS]
    for topic in TOPICS:
        feed(topic, 3, 6, 0)
    assert [one.offset for one in _all(root)] == [n for n in range(9) for _ in TOPICS]
    _rewrite(root)
    assert [one.offset for one in _all(root)] == [n for n in range(9) for _ in TOPICS]
