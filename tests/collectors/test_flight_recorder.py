"""Dumps of PyTorch's flight recorder, from the file to the records."""

import json
import os
import pickle
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.nccl.flight_recorder import FlightRecorderCollector, rank_in_name, read_file
from collectors.nccl.flight_recorder_dump import DumpError, IncompleteError, read_dump
from evidence.ranks import from_ranges
from evidence.records import NcclKind, NcclRecord

sys.path.insert(0, str(Path(__file__).parent))
from flight_dumps import FRAMES, dump, entry, to_json, to_pickle

TENSOR = {"group": ("37", "TENSOR_GROUP"), "local": 4}
ENTRIES = [
    *(entry(n, n) for n in range(1, 9)),
    entry(9, 208, **TENSOR),
    entry(10, 209, state="started", op="nccl:_all_gather_base", **TENSOR),
    entry(11, 9, state="scheduled", input_sizes=[[1]], retired=True),
    entry(12, 210, state="scheduled", **TENSOR),
    entry(
        13,
        210,
        state="scheduled",
        op="nccl:send 0->1",
        group=("52", "undefined"),
        local=6,
        is_p2p=True,
        p2p_seq_id=5,
    ),
]
NOW = datetime(2026, 9, 1, tzinfo=UTC)


def records(content: bytes, folder: Path, name: str = "nccl_trace_rank_7") -> list[NcclRecord]:
    file = folder / name
    file.write_bytes(content)
    found = read_file(file, job="moe", host="hgx12", now=NOW + timedelta(days=400))
    # Whatever it is, it travels.
    return msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=list[NcclRecord])


@pytest.mark.parametrize("form", [to_pickle, to_json, pickle.dumps])
def test_a_dump_is_one_record_and_one_for_each_group(form: Any, tmp_path: Path) -> None:
    whole, *groups = records(form(dump(ENTRIES)), tmp_path)
    assert (whole.kind, whole.phase) == (NcclKind.FLIGHT_RECORDER, "dump")
    assert (whole.rank, whole.host, whole.job, whole.comm_size) == (7, "hgx12", "moe", 16)
    assert whole.incomplete == 4
    assert "version 2.10; NCCL 2.27.5; 13 operations in 3 groups" in str(whole.message)
    assert sorted(str(group.group) for group in groups) == ["0", "37", "52"]
    assert {group.phase for group in groups} == {"group"}
    assert not any(record.ranks for record in (whole, *groups))


@pytest.mark.parametrize("form", [to_pickle, to_json])
def test_a_group_tells_its_members_its_counters_and_its_oldest_open_operation(
    form: Any, tmp_path: Path
) -> None:
    by_name = {one.group: one for one in records(form(dump(ENTRIES)), tmp_path)}
    tensor = by_name["37"]
    assert (tensor.group_desc, tensor.members) == ("TENSOR_GROUP", "3-15/4")
    assert (tensor.rank, tensor.comm_rank, tensor.comm_size) == (7, 1, 4)
    assert (tensor.last_enqueued, tensor.last_started, tensor.last_completed) == (210, 209, 208)
    assert (tensor.seq, tensor.op, tensor.state) == (209, "_all_gather_base", "started")
    assert (tensor.numel_in, tensor.numel_out, tensor.timeout_ms) == (4096, 4096, 600_000)
    assert tensor.incomplete == 2
    done, oldest, next_one = tensor.entries
    assert (done.seq, done.state) == (208, "completed")
    assert (oldest.sizes_in, oldest.dtype) == ("[[4, 1024]]", "BFloat16")
    assert oldest.started_at is not None
    assert oldest.completed_at is None
    assert (next_one.seq, next_one.started_at) == (210, None)
    assert "2 of 3 operations not completed; the oldest is collective 209" in str(tensor.message)


def test_the_calls_that_led_to_the_oldest_open_operation_are_kept(tmp_path: Path) -> None:
    by_name = {one.group: one for one in records(to_pickle(dump(ENTRIES)), tmp_path)}
    assert by_name["37"].frames == (
        "/opt/torch/distributed_c10d.py:2810 all_reduce",
        "/srv/train.py:412 step",
    )


def test_point_to_point_operations_count_apart(tmp_path: Path) -> None:
    (pair,) = [one for one in records(to_pickle(dump(ENTRIES)), tmp_path) if one.group == "52"]
    assert (pair.seq, pair.op, pair.group_desc) == (5, "send 0->1", None)
    assert pair.entries[0].p2p
    assert pair.members is None
    assert pair.last_enqueued is None


def test_what_agreed_before_the_oldest_open_operation_is_kept_and_no_more(tmp_path: Path) -> None:
    many = [entry(n, n) for n in range(1, 500)]
    many += [entry(n, n, state="scheduled") for n in range(500, 2500)]
    (default,) = [one for one in records(to_pickle(dump(many)), tmp_path) if one.group == "0"]
    assert [one.seq for one in default.entries] == [*range(496, 500), *range(500, 508)]
    assert (default.incomplete, default.seq) == (2000, 500)


def test_records_stay_small_whatever_the_dump_holds(tmp_path: Path) -> None:
    world = list(range(0, 32768, 2)) + list(range(1, 32768, 2))
    groups = {str(n): {"name": str(n), "desc": "d" * 5000, "ranks": str(world)} for n in range(300)}
    long = entry(
        1,
        1,
        state="started",
        op="nccl:" + "x" * 9000,
        input_sizes=[list(range(1, 400))] * 900,
        input_dtypes=["Float" * 90] * 900,
        frames=[FRAMES[0] | {"name": "n" * 9000}] * 900,
    )
    found = records(to_pickle(dump([long], pg_config=groups)), tmp_path)
    assert len(found) == 129
    assert "groups left out" in str(found[0].message)
    assert found[-1].members == "0-32767"
    assert max(len(msgspec.json.encode(one)) for one in found) < 16_000


def test_counters_of_a_group_that_nothing_names_are_counted_not_guessed(tmp_path: Path) -> None:
    status = {"9": {"last_enqueued_collective": 5}, "0": {"last_enqueued_collective": 77}}
    whole, *groups = records(to_pickle(dump([], pg_status=status)), tmp_path)
    assert "counters of 1 groups left out" in str(whole.message)
    assert {one.group: one.last_enqueued for one in groups} == {"0": 77, "37": None}


def test_an_old_dump_without_group_names_is_read(tmp_path: Path) -> None:
    old = {"pg_id": 2, "seq_id": 41, "profiling_name": "nccl:broadcast", "state": "scheduled"}
    _, group = records(to_pickle({"version": "1.5", "entries": [old]}), tmp_path)
    assert (group.group, group.seq, group.op) == ("2", 41, "broadcast")


@pytest.mark.parametrize(
    "entries",
    [
        [{"state": "started"}],
        [None, 3, "x", []],
        [{"collective_seq_id": "many", "process_group": 7, "input_sizes": 4, "frames": "no"}],
        [{"collective_seq_id": 2**70, "process_group": [None, None], "input_sizes": [[-1, None]]}],
        [{"collective_seq_id": 1, "time_created_ns": 2**63 - 1, "timeout_ms": True}],
        {"a": 1},
    ],
)
def test_values_that_make_no_sense_are_none_and_stop_nothing(entries: Any, tmp_path: Path) -> None:
    whole, *groups = records(json.dumps(dump([]) | {"entries": entries}).encode(), tmp_path)
    assert whole.phase == "dump"
    assert {"0", "37"} <= {one.group for one in groups}
    assert not any(one.numel_in for one in groups)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x80\x02cos\nsystem\n.", "asks for a Python object"),
        (b"\x80\x02K\x01.", "holds no flight recorder entries"),
        (b'{"loss": 1}', "holds no flight recorder entries"),
        (b"{" * 1_100_000 + b"}", "more than 400000 containers"),
        (b'{"entries": ' + b"[" * 5000 + b"}", "cannot be read"),
        (b'{"entries": [}', "cannot be read"),
        (b"epoch 3: loss 2.1", "broken at byte"),
    ],
)
def test_what_is_no_dump_is_one_record_with_one_sentence(
    content: bytes, sentence: str, tmp_path: Path
) -> None:
    (record,) = records(content, tmp_path)
    assert (record.kind, record.rank) == (NcclKind.UNREADABLE, 7)
    assert sentence in str(record.message)
    assert "\n" not in str(record.message)


@pytest.mark.parametrize("form", [to_pickle, to_json])
def test_a_dump_that_is_still_being_written_is_told_from_a_broken_one(form: Any) -> None:
    content = form(dump(ENTRIES))
    for size in range(1, len(content) - 1, 7):
        with pytest.raises(IncompleteError):
            read_dump(content[:size])
    broken = {to_pickle: content[:-1] + b"c", to_json: content + b"x"}[form]
    with pytest.raises(DumpError) as raised:
        read_dump(broken)
    assert not isinstance(raised.value, IncompleteError)


def test_the_rank_is_read_from_the_end_of_the_name() -> None:
    names = ["nccl_trace_rank_12", "nccl_trace_rank_12.pickle", "rank12", "trace", "r1_of_2x"]
    assert [rank_in_name(Path(name)) for name in names] == [12, 12, 12, None, None]


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


class Watch:
    """A collector over one folder, whose thread is waited for."""

    def __init__(self, folder: Path, pattern: str = "nccl_trace_rank_*", **options: Any) -> None:
        self.clock = Clock()
        self.folder = folder
        options = {"job": "moe", "host": "hgx12", "state_dir": folder / "state"} | options
        self.collector = FlightRecorderCollector(
            [str(folder / pattern)], clock=self.clock, **options
        )

    def round(self, later_s: float = 10.0) -> list[NcclRecord]:
        """Let time pass, let the thread look once, and return what it found."""
        self.clock.now += timedelta(seconds=later_s)
        found = list(self.collector.read())
        end = time.monotonic() + 20
        while self.collector.busy and time.monotonic() < end:
            time.sleep(0.002)
            found += self.collector.read()
        assert not self.collector.busy
        return found

    def rounds(self, count: int = 3) -> list[NcclRecord]:
        return [record for _ in range(count) for record in self.round()]


def test_a_dump_is_read_once(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    assert watch.rounds() == []
    (tmp_path / "nccl_trace_rank_3").write_bytes(to_pickle(dump(ENTRIES)))
    found = watch.rounds()
    assert [one.phase for one in found] == ["dump", "group", "group", "group"]
    assert {one.rank for one in found} == {3}
    assert watch.rounds() == []


def test_a_new_dump_under_the_same_name_is_read_and_a_mere_touch_is_not(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    file = tmp_path / "nccl_trace_rank_3"
    file.write_bytes(to_pickle(dump(ENTRIES)))
    first = watch.rounds()
    os.utime(file, ns=(1, file.stat().st_mtime_ns + 5_000_000_000))
    assert watch.rounds() == []
    file.write_bytes(to_pickle(dump(ENTRIES[:4])))
    second = watch.rounds()
    assert second
    assert not {one.id for one in first} & {one.id for one in second}


def test_after_a_restart_nothing_is_said_twice_but_what_was_not_saved_is(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_3").write_bytes(to_pickle(dump(ENTRIES)))
    first = Watch(tmp_path).rounds()  # killed before it was saved
    watch = Watch(tmp_path)
    again = watch.rounds()
    assert [one.id for one in again] == [one.id for one in first]
    watch.collector.saved()
    assert Watch(tmp_path).rounds() == []


def test_a_dump_is_waited_for_until_it_has_its_end(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    content = to_pickle(dump(ENTRIES))
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(content[:700])
    assert watch.rounds() == []
    file.write_bytes(content)
    assert len(watch.rounds()) == 4


def test_a_dump_whose_writer_died_is_said_to_be_broken_once(tmp_path: Path) -> None:
    watch = Watch(tmp_path, give_up_s=60.0)
    (tmp_path / "nccl_trace_rank_0").write_bytes(to_pickle(dump(ENTRIES))[:700])
    (record,) = watch.rounds(20)
    assert record.kind is NcclKind.UNREADABLE
    assert "not a whole flight recorder dump" in str(record.message)


def test_a_dump_that_is_too_large_is_said_and_not_read(tmp_path: Path) -> None:
    watch = Watch(tmp_path, max_bytes=1000)
    (tmp_path / "nccl_trace_rank_0").write_bytes(to_pickle(dump(ENTRIES)))
    (record,) = watch.rounds()
    assert "larger than 1000 bytes and was not read" in str(record.message)


def test_links_pipes_and_folders_under_such_a_name_are_left_alone(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(to_pickle(dump(ENTRIES)))
    (tmp_path / "nccl_trace_rank_1").symlink_to(secret)
    os.mkfifo(tmp_path / "nccl_trace_rank_2.pipe")
    (tmp_path / "nccl_trace_rank_3").mkdir()
    assert Watch(tmp_path, give_up_s=5.0).rounds(4) == []


def test_a_dump_of_an_old_job_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "nccl_trace_rank_1"
    file.write_bytes(to_pickle(dump(ENTRIES)))
    os.utime(file, (1_600_000_000, 1_600_000_000))
    assert Watch(tmp_path).rounds() == []


def test_job_host_and_rank_come_from_the_pattern(tmp_path: Path) -> None:
    (tmp_path / "llm-9").mkdir()
    (tmp_path / "llm-9" / "b200-04.17.trace").write_bytes(to_pickle(dump(ENTRIES)))
    watch = Watch(tmp_path, "{job}/{host}.{rank}.trace", host=None, job="", attempt=2)
    first = watch.rounds()[0]
    assert (first.job, first.host, first.rank, first.attempt) == ("llm-9", "b200-04", 17, 2)


def test_many_dumps_leave_in_pieces_and_all(tmp_path: Path) -> None:
    for rank in range(20):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(to_pickle(dump(ENTRIES)))
    watch = Watch(tmp_path)
    found = watch.rounds(8)
    assert sorted(one.rank or 0 for one in found if one.phase == "dump") == list(range(20))


def test_a_state_file_that_is_broken_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "flight_recorder.json").write_bytes(b"\xff{")
    (tmp_path / "nccl_trace_rank_3").write_bytes(to_pickle(dump(ENTRIES)))
    assert len(Watch(tmp_path).rounds()) == 4


def test_members_are_read_back_from_their_ranges(tmp_path: Path) -> None:
    (tensor,) = [one for one in records(to_pickle(dump(ENTRIES)), tmp_path) if one.group == "37"]
    assert from_ranges(str(tensor.members)) == (3, 7, 11, 15)
