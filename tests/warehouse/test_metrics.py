"""What a sink's metrics say."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import TopicPartition

from warehouse.kinds import KINDS
from warehouse.metrics import SinkCounts, SinkMetrics
from warehouse.partition import Partition, Policy

PLACE = TopicPartition("ringfence.kernel", 3)


@dataclass
class Message:
    """As kafka-python gives one."""

    offset: int
    value: bytes = b"12345"
    key: bytes | None = b"k"
    timestamp: int = 1_790_000_000_000
    headers: tuple[Any, ...] = ()


class Reader:
    """A consumer that knows where partitions end."""

    def __init__(self, end: int | None) -> None:
        self.end = end

    def highwater(self, place: TopicPartition) -> int | None:
        assert place == PLACE
        return self.end


def partition(folder: Path) -> Partition:
    policy = Policy(
        root=folder, flush_records=10, flush_s=1, bulk_flush_s=1, tick_flush_s=1,
        flush_bytes=1 << 20, compression="zstd",
    )  # fmt: skip
    return Partition(
        kind=KINDS["kernel"], topic=PLACE.topic, base="0" * 8, rounds=0, number=3, start=100,
        policy=policy,
    )  # fmt: skip


def samples(one: SinkMetrics) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in one.collect()
        for sample in family.samples
    }


def test_a_sink_tells_what_waits_and_how_far_it_is_behind(tmp_path: Path) -> None:
    counts, one = SinkCounts(), partition(tmp_path)
    counts.consumer = Reader(150)
    metrics = SinkMetrics(counts, {PLACE: one}, clock=lambda: 1007.0)
    found = samples(metrics)
    assert found["ringfence_sink_lag_messages", "3", "kernel"] == 50
    assert found["ringfence_sink_buffered_bytes", "kernel"] == 0
    assert found["ringfence_sink_buffered_seconds", "kernel"] == 0
    one.add([Message(100), Message(101)], 1000.0)  # type: ignore[list-item]
    found = samples(metrics)
    assert found["ringfence_sink_lag_messages", "3", "kernel"] == 48
    assert found["ringfence_sink_buffered_bytes", "kernel"] == 10
    assert found["ringfence_sink_buffered_seconds", "kernel"] == 7


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    counts, one = SinkCounts(), partition(tmp_path)
    for consumer in (None, Reader(None)):
        counts.consumer = consumer
        found = samples(SinkMetrics(counts, {PLACE: one}))
        assert not [name for name, *_ in found if name == "ringfence_sink_lag_messages"]
        assert not [name for name, *_ in found if name == "ringfence_sink_stored_timestamp_seconds"]


def test_what_was_stored_is_counted_by_topic() -> None:
    counts = SinkCounts()
    before = time.time()
    counts.store("gpu", 800, 9000)
    counts.store("gpu", 8, 100)
    counts.errors["storage"] += 1
    found = samples(SinkMetrics(counts, {}))
    assert found["ringfence_sink_rows_total", "gpu"] == 808
    assert found["ringfence_sink_files_total", "gpu"] == 2
    assert found["ringfence_sink_message_bytes_total", "gpu"] == 9100
    assert found["ringfence_sink_errors_total", "storage"] == 1
    assert found["ringfence_sink_stored_timestamp_seconds",] >= before


def test_a_sink_is_ready_while_it_reads_and_well_while_it_goes_round(tmp_path: Path) -> None:
    counts = SinkCounts()
    metrics = SinkMetrics(counts, {PLACE: partition(tmp_path)})
    assert (metrics.healthy, metrics.ready) == (True, False)
    counts.consumer = Reader(1)
    assert metrics.ready
    counts.turned -= 3600
    assert (metrics.healthy, metrics.ready) == (False, False)
