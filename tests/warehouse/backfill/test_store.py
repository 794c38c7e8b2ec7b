"""Old records are stored once: given twice, by killed runs, by two runs, beside compaction."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from evidence.records import GpuFrame, GpuSnapshot, GpuTick, KernelKind, KernelRecord
from warehouse.backfill.place import is_import
from warehouse.backfill.store import Store
from warehouse.compaction import Compaction, compact
from warehouse.errors import SinkError
from warehouse.files import ends, prepare
from warehouse.kinds import KINDS
from warehouse.query import query
from warehouse.replay import messages
from warehouse.retention import retain

PROCESS = Path(__file__).with_name("import_process.py")
NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
DAY = timedelta(days=1)


def _xid(number: int, code: int = 79) -> KernelRecord:
    return KernelRecord(
        id=f"{number:024x}", observed_at=NOW, at=AT + timedelta(seconds=number),
        kind=KernelKind.XID, raw=f"NVRM: Xid (PCI:0000:4b:00): {code}, line {number}",
        host="vk-07", code=code, pci="0000:4b:00",
    )  # fmt: skip


def _sample(number: int, watts: float, uuid: str = "GPU-11") -> GpuFrame:
    gpu = GpuSnapshot(index=2, uuid=uuid, power_w=watts)
    at = AT + timedelta(seconds=number)
    return GpuFrame(
        id=f"{uuid}-{number}-{watts}", host="vk-07", observed_at=NOW, seq=0,
        ticks=(GpuTick(at=at, gpus=(gpu,)),), source="nvidia-smi",
    )  # fmt: skip


def _import(root: Path, *records: KernelRecord | GpuFrame, now: datetime = NOW) -> Store:
    with Store(root, now) as store:
        for one in records:
            store.add(one)
        store.flush()
    return store


def _count(root: Path, view: str) -> int:
    return int(query(root, f"select count(*) from {view}")[1][0][0])


def _run(root: Path, how: str, day: int = 0) -> int:
    command = [sys.executable, str(PROCESS), str(root), how, str(day)]
    return subprocess.run(command, timeout=60, check=False).returncode


def test_what_is_given_again_is_stored_once_whatever_the_day_and_the_order(tmp_path: Path) -> None:
    _import(tmp_path, *map(_xid, range(10)))
    again = _import(tmp_path, *map(_xid, reversed(range(5, 15))), now=NOW + DAY)
    assert (again.counts["kernel"].new, again.counts["kernel"].known) == (5, 5)
    assert _count(tmp_path, "staging.kernel") == 15


def test_a_record_given_twice_in_one_call_is_stored_once(tmp_path: Path) -> None:
    counts = _import(tmp_path, _xid(1), _xid(2), _xid(1)).counts["kernel"]
    assert (counts.new, counts.known) == (2, 1)


def test_a_run_that_was_killed_is_repeated(tmp_path: Path) -> None:
    assert _run(tmp_path, "killed") == -9
    assert 0 < _count(tmp_path, "staging.kernel") < 10_000
    assert _run(tmp_path, "whole", day=1) == 0
    found = query(tmp_path, "select count(*), count(distinct id) from staging.kernel")[1]
    assert found == [(10_000, 10_000)]


def test_another_sample_of_the_same_time_is_told_and_left_out(tmp_path: Path) -> None:
    _import(tmp_path, _sample(0, 300.0), _sample(1, 301.0))
    counts = _import(tmp_path, _sample(0, 300.0), _sample(1, 999.0), _sample(2, 302.0)).counts[
        "gpu"
    ]
    assert (counts.new, counts.known, counts.differs) == (1, 1, 1)
    rows = query(tmp_path, "select power_w from gpu_samples order by event_at")[1]
    assert rows == [(300.0,), (301.0,), (302.0,)]


def test_two_cards_of_one_time_are_two_samples(tmp_path: Path) -> None:
    counts = _import(tmp_path, _sample(0, 300.0), _sample(0, 300.0, uuid="GPU-12")).counts["gpu"]
    assert counts.new == 2


def test_a_dry_run_writes_nothing_and_knows_what_is_stored(tmp_path: Path) -> None:
    root = tmp_path / "warehouse"
    with Store(root, NOW, dry_run=True) as store:
        store.add(_xid(1))
        store.flush()
    assert (store.counts["kernel"].new, root.exists()) == (1, False)
    _import(root, _xid(1))
    with Store(root, NOW, dry_run=True) as store:
        store.add(_xid(1))
        store.add(_xid(2))
        store.flush()
    assert (store.counts["kernel"].new, store.counts["kernel"].known) == (1, 1)
    assert _count(root, "staging.kernel") == 1


def test_two_imports_at_once_exclude_each_other(tmp_path: Path) -> None:
    with Store(tmp_path, NOW), pytest.raises(SinkError, match="another import writes"):
        Store(tmp_path, NOW).__enter__()


def test_compaction_takes_imported_files_and_they_are_still_known(tmp_path: Path) -> None:
    _import(tmp_path, *map(_xid, range(10)), _sample(0, 300.0))
    _import(tmp_path, *map(_xid, range(5, 15)))
    later = time.time() + 2 * 86_400
    how = Compaction(keep_small_s=0.0)
    done = list(compact(tmp_path, how, now_s=later))
    assert {(one.kind, one.rows, one.small_files) for one in done} == {
        ("kernel", 15, 2), ("gpu", 1, 1),
    }  # fmt: skip
    list(compact(tmp_path, how, now_s=later + 10))  # the small ones go
    counts = _import(tmp_path, *map(_xid, range(20)), _sample(0, 300.0)).counts
    assert (counts["kernel"].new, counts["kernel"].known) == (5, 15)
    assert (counts["gpu"].new, counts["gpu"].known) == (0, 1)


def test_retention_takes_imported_days(tmp_path: Path) -> None:
    _import(tmp_path, _sample(0, 300.0))
    later = max(time.time(), (NOW + 500 * DAY).timestamp()) + 2 * 86_400
    list(compact(tmp_path, Compaction(), now_s=later))
    taken = retain(tmp_path, {"gpu": 400}, Compaction(), now_s=later)
    assert [(one.day, one.rows) for one in taken] == [("2026-03-04", 1)]
    assert _count(tmp_path, "staging.gpu") == 0


def test_no_sink_goes_on_where_an_import_ended_and_nothing_of_it_is_replayed(
    tmp_path: Path,
) -> None:
    prepare(tmp_path)
    _import(tmp_path, *map(_xid, range(3)))
    assert all(is_import(partition) for partition, _ in ends(tmp_path, KINDS["kernel"]))
    assert list(messages(tmp_path, ["kernel"], AT - 900 * DAY, NOW + 900 * DAY)) == []


def test_it_is_not_seen_as_of_a_time_before_it_was_imported(tmp_path: Path) -> None:
    _import(tmp_path, _xid(1))
    sql = "select count(*) from xid_events"
    assert query(tmp_path, sql, at=NOW - DAY)[1] == [(0,)]
    assert query(tmp_path, sql, at=NOW + DAY)[1] == [(1,)]
