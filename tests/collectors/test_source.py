"""A collector at work: when it is read, and when its cursor may move."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from collectors.collector import Unavailable
from collectors.shipping.shipper import Shipper
from collectors.source import Source, key_of
from evidence.records import InventoryRecord, KernelKind, KernelRecord, NcclKind, NcclRecord
from evidence.transport import Kafka

AT = datetime(2026, 8, 19, 4, 4, 4, tzinfo=UTC)


def line(seq: int, size: int = 10, host: str | None = "n5") -> KernelRecord:
    return KernelRecord(
        id=f"k{seq}", host=host, observed_at=AT, raw="x" * size, kind=KernelKind.OTHER, seq=seq
    )


class Lines:
    """A source of kernel lines whose next answers a test lays out; exceptions are raised."""

    name = "kernel"
    topic = "kernel"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.reads = 0
        self.saves = 0
        self.closed = False

    def read(self) -> Iterable[Struct]:
        self.reads += 1
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def saved(self) -> None:
        self.saves += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def away() -> Iterator[Shipper]:
    """A shipper whose broker does not answer."""
    shipper = Shipper(Kafka(bootstrap="127.0.0.1:1"), max_bytes=4000)
    yield shipper
    shipper.close(0)


def test_a_record_is_keyed_by_its_own_host_or_job() -> None:
    nccl = NcclRecord(id="a", observed_at=AT, raw="", kind=NcclKind.OTHER, job="412.0", host="c9")
    assert key_of("nccl", nccl, "n5") == "412.0"
    assert key_of("kernel", line(1, host="n6"), "n5") == "n6"
    assert key_of("kernel", line(1, host=None), "n5") == "n5"
    assert key_of("inventory", InventoryRecord(id="i", host="n5", observed_at=AT), "x") == "n5"


def test_a_missing_source_is_said_once_and_asked_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = Lines(Unavailable("/dev/kmsg is not there"), Unavailable("/dev/kmsg is not there"))
    source = Source(lines, "n5", patient=True)
    with caplog.at_level(logging.WARNING):
        taken = [source.take(now) for now in (0.0, 0.5, 1.0, 2.5, 3.0)]
    assert taken == [[]] * 5
    assert lines.reads == 3
    assert caplog.messages == ["kernel: /dev/kmsg is not there"]
    assert source.errors == 0


def test_a_collector_that_fails_is_counted_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = Lines(ValueError("odd"), ValueError("odd"), [line(1)])
    source = Source(lines, "n5", patient=True)
    with caplog.at_level(logging.WARNING):
        taken = [source.take(now) for now in (0.0, 0.5, 1.0, 3.0)]
    assert taken == [[], [], [], [line(1)]]
    assert (source.errors, source.records) == (2, 1)
    assert caplog.messages == ["kernel: ValueError: odd"]


def test_a_cursor_does_not_move_before_kafka_has_the_records(away: Shipper) -> None:
    lines = Lines([line(1)])
    source = Source(lines, "n5", patient=True)
    assert source.ship(away, 10.0) == 1
    for now in (10.6, 11.2, 11.8):
        source.ship(away, now)
    source.finish(12.0)
    assert (lines.saves, lines.closed) == (0, True)


@pytest.mark.integration
def test_a_cursor_moves_when_kafka_has_the_records(kafka: Kafka) -> None:
    shipper = Shipper(kafka)
    lines = Lines([line(1)], [line(2)])
    source = Source(lines, "n5", patient=True)
    assert source.ship(shipper, 10.0) == 1
    assert source.ship(shipper, 10.01) == 1
    assert shipper.flush(20)
    while source._under_way:
        time.sleep(0.001)
    source.ship(shipper, 10.6)
    source.ship(shipper, 11.2)
    assert lines.saves == 1
    source.finish(12.0)
    assert (lines.saves, lines.closed, source.lost) == (1, True, 0)
    shipper.close(0)


def test_a_patient_source_waits_while_memory_is_short_and_others_do_not(away: Shipper) -> None:
    files, ring = Lines(), Lines()
    patient = Source(files, "n5", patient=True)
    hurried = Source(ring, "n5", patient=False)
    away.send("kernel", "n5", line(1, size=3000))
    for now in (10.0, 11.0):
        patient.ship(away, now)
        hurried.ship(away, now)
    assert (files.reads, ring.reads) == (0, 2)


def test_a_patient_source_is_not_read_on_while_its_records_are_long_under_way(
    away: Shipper,
) -> None:
    lines = Lines([line(1)])
    source = Source(lines, "n5", patient=True)
    source.ship(away, 10.0)
    source.ship(away, 11.0)
    assert lines.reads == 2
    source.ship(away, 12.5)
    assert lines.reads == 2


def test_records_that_memory_could_not_hold_are_counted(away: Shipper) -> None:
    lines = Lines([line(seq, size=1500) for seq in range(4)])
    source = Source(lines, "n5", patient=False)
    source.ship(away, 10.0)
    assert source.lost == 2


def test_a_cursor_that_cannot_be_kept_does_not_stop_the_reading(kafka: Kafka) -> None:
    class Full(Lines):
        def saved(self) -> None:
            raise OSError(28, "No space left on device")

    shipper = Shipper(kafka)
    lines = Full([line(1)], [line(2)])
    source = Source(lines, "n5", patient=True)
    source.ship(shipper, 10.0)
    assert shipper.flush(20)
    while source._under_way:
        time.sleep(0.001)
    assert source.ship(shipper, 11.0) == 1
    assert source.errors == 1
    shipper.close(0)


def until(reached: Callable[[], bool]) -> None:
    """Wait for another thread; the test's own time limit ends it."""
    while not reached():
        time.sleep(0.002)


def test_a_cursor_moves_when_the_disk_has_the_records(tmp_path: Path) -> None:
    spool = tmp_path / "spool.sqlite"
    shipper = Shipper(Kafka(bootstrap="127.0.0.1:1"), spool=spool, spool_after_s=0.05)
    lines = Lines([line(1), line(2)])
    source = Source(lines, "n5", patient=False)
    source.ship(shipper, 10.0)
    until(lambda: not source._under_way)
    source.ship(shipper, 10.6)
    assert (lines.saves, shipper.spooled[0], shipper.pending) == (1, 2, 2)
    assert shipper.close(0) == 0


def test_a_stream_that_never_ends_is_held_for_a_moment_so_that_its_cursor_can_move(
    tmp_path: Path,
) -> None:
    shipper = Shipper(Kafka(bootstrap="127.0.0.1:1"), spool=tmp_path / "spool.sqlite")
    lines = Lines(*([line(seq)] for seq in range(400)))
    source = Source(lines, "n5", patient=False)
    now = 10.0
    while not lines.saves:
        source.ship(shipper, now)
        now += 0.05
        time.sleep(0.005)
    assert 40 <= lines.reads < 390
    assert shipper.close(0) == 0


def test_a_stream_is_read_on_when_nothing_makes_its_records_safe(away: Shipper) -> None:
    lines = Lines(*([line(seq)] for seq in range(200)))
    source = Source(lines, "n5", patient=False)
    for tenth in range(100):
        source.ship(away, 10.0 + tenth / 10)
    assert 80 < lines.reads < 100
    assert lines.saves == 0
