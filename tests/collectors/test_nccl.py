"""The collector on real files: patterns, pauses, rotation, cursors."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from collectors.collector import Collector, Unavailable
from collectors.nccl import NcclCollector
from collectors.nccl.pattern import PatternError, find, matcher
from evidence.records import NcclKind, NcclRecord


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


INIT = (
    b"gpu7:811:902 [3] NCCL INFO ncclCommInitRank comm 0x55 rank 11 nranks 16 cudaDev 3 nvmlDev 3 "
    b"busId 5d000 commId 0xa1 - Init COMPLETE\n"
)
PORT = b"gpu7:811:902 [0] x.cc:93 NCCL WARN NET/IB : mlx5_1:1 Got async event : port error\n"
TIMEOUT = (
    b"[rank11]:[E402 09:13:51.1 ProcessGroupNCCL.cpp:632] [Rank 11] Watchdog caught collective "
    b"operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
    b"Timeout(ms)=600000) ran for 600013 milliseconds before timing out.\n"
)
COUNTERS = (
    b"[rank11]:[E402 09:13:51.2 ProcessGroupNCCL.cpp:2241] [PG ID 0 PG GUID 0(default_pg) Rank 11]"
    b"  failure detected by watchdog at work sequence id: 5 PG status: last enqueued work: 6, last"
    b" completed work: 4\n"
)


def append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as out:
        out.write(data)


def collector(pattern: object, clock: Clock, **options: Any) -> NcclCollector:
    options = {"job": "j", "host": "gpu7", "cursor_dir": None} | options
    return NcclCollector([str(pattern)], clock=clock, **options)


def kinds(records: Any) -> list[NcclKind]:
    return [record.kind for record in records]


def test_it_is_a_collector(tmp_path: Path, clock: Clock) -> None:
    one: Collector = collector(tmp_path / "*.log", clock)
    assert (one.name, one.topic) == ("nccl", "nccl")


def test_no_file_is_unavailable_and_a_new_one_is_found_at_the_next_look(
    tmp_path: Path, clock: Clock
) -> None:
    one = collector(tmp_path / "*.log", clock)
    with pytest.raises(Unavailable, match="no file fits"):
        one.read()
    append(tmp_path / "a.log", PORT)
    with pytest.raises(Unavailable):
        one.read()
    clock.wait(5)
    assert kinds(one.read()) == [NcclKind.IB_ASYNC]


def test_fields_of_the_pattern_name_job_host_and_rank(tmp_path: Path, clock: Clock) -> None:
    error = b"RuntimeError: CUDA error: unknown error\n"
    append(tmp_path / "job-81" / "gpu-a-7-12.log", error)
    append(tmp_path / "job-82" / "gpu-b-3.log", error)
    append(tmp_path / "job-82" / "notes.log", error)
    one = collector(tmp_path / "{job}" / "{host}-{rank}.log", clock)
    assert [(r.job, r.host, r.rank) for r in one.read()] == [
        ("job-81", "gpu-a-7", 12),
        ("job-82", "gpu-b", 3),
    ]


def test_a_pattern_is_a_glob(tmp_path: Path) -> None:
    for name in ("a/1.log", "a/b/2.log", "a/b/3.err", "c/x.log"):
        append(tmp_path / name, b"")

    def names(pattern: str) -> list[str]:
        found = find(*matcher(f"{tmp_path}/{pattern}"))
        return [str(one.path.relative_to(tmp_path)) for one in found]

    assert names("**/[0-9].log") == ["a/1.log", "a/b/2.log"]
    assert names("a/**/?.*") == ["a/1.log", "a/b/2.log", "a/b/3.err"]
    assert names("*/[!0-9].log") == ["c/x.log"]
    assert names("a") == []


@pytest.mark.parametrize("pattern", ["/log/{user}.log", "/log/{rank}/{rank}.log", "/log/{}.log"])
def test_a_pattern_that_cannot_be_followed_is_refused_at_once(pattern: str, clock: Clock) -> None:
    with pytest.raises(PatternError, match="unknown or there twice"):
        collector(pattern, clock)


def test_a_timeout_waits_for_its_counters_across_reads(tmp_path: Path, clock: Clock) -> None:
    log = tmp_path / "a.log"
    append(log, INIT + TIMEOUT)
    one = collector(log, clock)
    assert kinds(one.read()) == [NcclKind.COMM_INIT]
    append(log, COUNTERS)
    (record,) = one.read()
    assert (record.op, record.last_enqueued, record.group_desc) == ("ALLREDUCE", 6, "default_pg")
    assert (record.pci, record.host, record.rank) == ("0000:5d:00", "gpu7", 11)


def test_a_timeout_whose_counters_never_come_leaves_after_a_pause(
    tmp_path: Path, clock: Clock
) -> None:
    log = tmp_path / "a.log"
    append(log, TIMEOUT)
    one = collector(log, clock)
    assert one.read() == []
    clock.wait(0.4)
    assert one.read() == []
    clock.wait(0.2)
    assert kinds(one.read()) == [NcclKind.TIMEOUT]


def test_last_words_without_a_newline_are_heard(tmp_path: Path, clock: Clock) -> None:
    log = tmp_path / "a.log"
    append(log, b"noise\n" + PORT.rstrip())
    one = collector(log, clock)
    assert one.read() == []
    clock.wait(6)
    assert kinds(one.read()) == [NcclKind.IB_ASYNC]


def test_what_is_held_back_comes_at_the_end_of_all_input(tmp_path: Path, clock: Clock) -> None:
    append(tmp_path / "a.log", TIMEOUT)
    append(tmp_path / "b.log", PORT.rstrip())
    one = collector(tmp_path / "*.log", clock)
    assert one.read() == []
    assert kinds(one.rest()) == [NcclKind.TIMEOUT, NcclKind.IB_ASYNC]


def test_a_cursor_moves_only_when_records_are_safe_and_complete(
    tmp_path: Path, clock: Clock
) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state"
    append(log, INIT + PORT + TIMEOUT)

    def start() -> NcclCollector:
        return collector(log, clock, cursor_dir=state)

    first = start()
    sent = list(first.read())
    assert kinds(sent) == [NcclKind.COMM_INIT, NcclKind.IB_ASYNC]
    first.close()  # killed before Kafka said that it has them
    again = start()
    assert list(again.read()) == sent
    clock.wait(1)
    (timeout,) = again.read()
    again.saved()
    append(log, COUNTERS)
    again.close()
    third = start()
    assert third.read() == []
    clock.wait(1)
    (late,) = third.read()
    # What the file told of its processes before the cursor is still known.
    assert (late.last_enqueued, late.pci, late.rank) == (6, "0000:5d:00", 11)
    assert late.id != timeout.id


def test_a_record_that_waits_keeps_the_cursor_before_its_line(tmp_path: Path, clock: Clock) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state"
    append(log, PORT)
    one = collector(log, clock, cursor_dir=state)
    assert kinds(one.read()) == [NcclKind.IB_ASYNC]
    append(log, TIMEOUT)
    assert one.read() == []
    one.saved()
    one.close()
    again = collector(log, clock, cursor_dir=state)
    assert again.read() == []
    clock.wait(1)
    assert kinds(again.read()) == [NcclKind.TIMEOUT]


def test_only_what_has_changed_is_written_again(tmp_path: Path, clock: Clock) -> None:
    state = tmp_path / "state"
    loud, quiet = tmp_path / "loud.log", tmp_path / "quiet.log"
    append(loud, INIT)
    append(quiet, INIT)
    one = collector(tmp_path / "*.log", clock, cursor_dir=state)
    one.read()
    one.saved()
    before = {file: file.stat().st_ino for file in state.iterdir()}  # a write makes a new file
    assert len(before) == 4
    append(loud, PORT)
    append(quiet, b"step 12 loss 2.31\n")
    assert kinds(one.read()) == [NcclKind.IB_ASYNC]
    one.saved()
    written = [file for file, inode in before.items() if file.stat().st_ino != inode]
    (cursor,) = written  # neither the quiet file's, nor what is known of the processes
    assert cursor.name.endswith(".cursor.json")
    again = collector(tmp_path / "*.log", clock, cursor_dir=state)
    assert list(again.read()) == []


def test_a_restarted_attempt_is_still_known_after_a_restart_of_ours(
    tmp_path: Path, clock: Clock
) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state"
    append(log, b"[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n")
    one = collector(log, clock, cursor_dir=state)
    one.read()
    one.saved()
    one.close()
    append(log, PORT)
    (record,) = collector(log, clock, cursor_dir=state).read()
    assert record.attempt == 1


def test_broken_state_is_said_and_the_file_read_again(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state"
    append(log, INIT + PORT)
    one = collector(log, clock, cursor_dir=state)
    sent = list(one.read())
    one.saved()
    one.close()
    for file in state.iterdir():
        file.write_bytes(b"{\xff")
    assert list(collector(log, clock, cursor_dir=state).read()) == sent
    assert "is broken and ignored" in caplog.text


def test_equal_lines_after_a_truncation_are_other_records(tmp_path: Path, clock: Clock) -> None:
    log = tmp_path / "a.log"
    append(log, b"run one\n" + PORT)
    one = collector(log, clock)
    (before,) = one.read()
    log.write_bytes(b"run two\n" + PORT)
    (after,) = one.read()
    assert before.offset == after.offset
    assert before.id != after.id


def test_what_was_said_before_a_rotation_may_be_said_again(tmp_path: Path, clock: Clock) -> None:
    log = tmp_path / "a.log"
    error = b"[rank1]: RuntimeError: CUDA error: unspecified launch failure\n"
    append(log, error + error)
    one = collector(log, clock)
    assert len(list(one.read())) == 1
    log.rename(tmp_path / "a.log.1")
    append(log, error)
    assert len(list(one.read())) == 1


def test_a_log_of_an_old_job_is_left_alone_until_it_grows(tmp_path: Path, clock: Clock) -> None:
    old = tmp_path / "old.log"
    append(old, PORT)
    append(tmp_path / "new.log", PORT)
    last_week = (clock.now - timedelta(days=7)).timestamp()
    os.utime(old, (last_week, last_week))
    one = collector(tmp_path / "*.log", clock)
    assert [record.file for record in one.read()] == [str(tmp_path / "new.log")]
    append(old, PORT)
    clock.wait(5)
    assert {record.file for record in one.read()} == {str(old)}


def test_a_file_that_is_gone_is_let_go_and_may_return(tmp_path: Path, clock: Clock) -> None:
    log = tmp_path / "a.log"
    append(log, PORT)
    append(tmp_path / "b.log", b"noise\n")
    one = collector(tmp_path / "*.log", clock)
    one.read()
    log.unlink()
    assert one.read() == []
    clock.wait(5)
    assert one.read() == []
    append(log, PORT + PORT)
    clock.wait(5)
    assert kinds(one.read()) == [NcclKind.IB_ASYNC] * 2


def test_an_overlong_line_is_a_record_of_its_own_kind(tmp_path: Path, clock: Clock) -> None:
    log = tmp_path / "a.log"
    append(log, b"x" * 300_000 + b"\n" + PORT)
    unreadable, event = list(collector(log, clock).read())
    assert (unreadable.kind, unreadable.message) == (
        NcclKind.UNREADABLE,
        "line too long, its end left out",
    )
    assert event.line == 2


def test_records_of_a_growing_file_are_those_of_the_whole(tmp_path: Path, clock: Clock) -> None:
    whole = (INIT + b"noise\n" + TIMEOUT + COUNTERS + PORT) * 3
    log, pieces = tmp_path / "a.log", tmp_path / "b.log"
    append(log, whole)
    at_once: list[NcclRecord] = list(collector(log, clock).read())
    growing = collector(pieces, clock)
    bit_by_bit: list[NcclRecord] = []
    for start in range(0, len(whole), 97):
        append(pieces, whole[start : start + 97])
        bit_by_bit += growing.read()

    def told(records: list[NcclRecord]) -> list[tuple[Any, ...]]:
        return [(r.kind, r.offset, r.line, r.rank, r.seq, r.last_enqueued) for r in records]

    assert told(bit_by_bit) == told(at_once)
