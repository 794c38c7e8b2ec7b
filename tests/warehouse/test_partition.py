"""When a buffer becomes a file, and what happens when another sink was first."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from evidence.records import GpuFrame, KernelKind, KernelRecord, Tick
from evidence.wire import encode
from warehouse import partition as module

AT = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)
RECORD = encode(KernelRecord(id="k", observed_at=AT, raw="x", kind=KernelKind.OTHER))
FRAME = encode(GpuFrame(id="f", host="h", observed_at=AT, seq=0, ticks=()))
TICK = encode(Tick(id="t", at=AT))


def _offsets(root: Path) -> list[int]:
    return sorted(pq.read_table(root / "kernel").column("kafka_offset").to_pylist())


def test_an_empty_buffer_is_never_due(partition: Any) -> None:
    one = partition("kernel")
    assert one.due_in_s(1e9) is None
    assert one.flush(0.0) is None


def test_a_record_waits_flush_s(partition: Any, fetched: Any) -> None:
    one = partition("kernel")
    one.add([fetched(0, RECORD)], now=100.0)
    assert one.due_in_s(101.5) == 0.5
    assert one.due_in_s(103.0) < 0


def test_samples_wait_bulk_flush_s_and_ticks_alone_wait_tick_flush_s(
    partition: Any, fetched: Any
) -> None:
    ticks, samples = partition("kernel"), partition("gpu")
    ticks.add([fetched(0, TICK)], now=100.0)
    samples.add([fetched(0, FRAME)], now=100.0)
    assert ticks.due_in_s(103.0) == 87.0
    assert samples.due_in_s(103.0) == 7.0


def test_a_record_among_ticks_is_not_kept_waiting_by_them(partition: Any, fetched: Any) -> None:
    one, late = partition("kernel"), partition("kernel")
    one.add([fetched(0, TICK)], now=100.0)
    one.add([fetched(1, RECORD)], now=105.0)
    assert one.due_in_s(105.0) == 2.0
    late.add([fetched(0, TICK)], now=100.0)
    late.add([fetched(1, RECORD)], now=189.5)
    assert late.due_in_s(189.5) == 0.5


def test_a_busy_log_has_bulk_flush_s_from_file_to_file_and_a_decision_never_waits(
    partition: Any, fetched: Any
) -> None:
    log, verdicts = partition("kernel"), partition("verdicts")
    for one in (log, verdicts):
        one.add([fetched(0, RECORD)], now=100.0)
        one.flush(102.0)
        one.add([fetched(1, RECORD)], now=103.0)
    assert log.due_in_s(103.0) == 9.0
    assert verdicts.due_in_s(103.0) == 2.0
    log.flush(112.0)
    log.add([fetched(2, RECORD)], now=130.0)
    assert log.due_in_s(130.0) == 2.0


def test_what_cannot_be_decoded_is_as_urgent_as_a_record(partition: Any, fetched: Any) -> None:
    one = partition("kernel")
    one.add([fetched(0, None), fetched(1, b"\xff")], now=100.0)
    assert one.due_in_s(100.0) == 2.0


def test_many_messages_or_many_bytes_are_due_at_once(partition: Any, fetched: Any) -> None:
    many, large = partition("kernel"), partition("kernel")
    many.add([fetched(offset, RECORD) for offset in range(1000)], now=0.0)
    assert many.due_in_s(0.0) == 0.0
    large.add([fetched(0, b"x" * (1 << 20))], now=0.0)
    assert large.due_in_s(0.0) == 0.0


def test_messages_fetched_again_are_skipped(partition: Any, fetched: Any, root: Path) -> None:
    one = partition("kernel", start=5)
    one.add([fetched(offset, RECORD) for offset in (3, 4, 5, 6)], now=0.0)
    one.add([fetched(offset, RECORD) for offset in (5, 6, 7)], now=0.0)
    assert one.next == 8
    one.flush(0.0)
    one.add([fetched(offset, RECORD) for offset in (6, 7, 8)], now=0.0)
    one.flush(0.0)
    assert _offsets(root) == [5, 6, 7, 8]


def test_after_a_file_nothing_is_due_and_the_next_one_starts_behind_it(
    partition: Any, fetched: Any
) -> None:
    one = partition("kernel")
    one.add([fetched(offset, RECORD) for offset in range(10)], now=0.0)
    path = one.flush(0.0)
    assert path.name.endswith("-00000000000000000000.parquet")
    assert (one.start, one.next, one.size, one.due_in_s(0.0)) == (10, 10, 0, None)
    one.add([fetched(15, RECORD)], now=0.0)  # a gap: compacted away, or a transaction's marker
    assert one.flush(0.0).name.endswith("-00000000000000000010.parquet")


@pytest.mark.parametrize("others_end", [4, 9, 30])
def test_of_two_sinks_with_different_ranges_each_message_is_stored_once(
    others_end: int, partition: Any, fetched: Any, root: Path
) -> None:
    mine, other = partition("kernel"), partition("kernel")
    mine.add([fetched(offset, RECORD) for offset in range(10)], now=0.0)
    other.add([fetched(offset, RECORD) for offset in range(others_end + 1)], now=0.0)
    other.flush(0.0)
    mine.flush(0.0)
    mine.add([fetched(offset, RECORD) for offset in range(10, 40)], now=0.0)
    other.add([fetched(offset, RECORD) for offset in range(others_end + 1, 40)], now=0.0)
    mine.flush(0.0)
    other.flush(0.0)
    assert _offsets(root) == list(range(40))


def test_the_loser_of_a_race_inside_publish_drops_what_the_winner_stored(
    partition: Any, fetched: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = partition("kernel"), partition("kernel")
    mine.add([fetched(offset, RECORD) for offset in range(10)], now=0.0)
    other.add([fetched(offset, RECORD) for offset in range(6)], now=0.0)
    build = module.build

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(module, "build", build)
        other.flush(0.0)  # between the look and the link
        return build(*arguments)

    monkeypatch.setattr(module, "build", overtaken)
    mine.flush(0.0)
    assert _offsets(root) == list(range(10))
    assert len(list((root / "kernel").glob("day=2026*/*.parquet"))) == 2


def test_a_full_disk_keeps_the_buffer(
    partition: Any, fetched: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = partition("kernel")
    one.add([fetched(offset, RECORD) for offset in range(3)], now=0.0)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "publish", full)
        with pytest.raises(OSError, match="No space"):
            one.flush(0.0)
    assert one.next == 3
    one.flush(0.0)
    assert _offsets(root) == [0, 1, 2]
