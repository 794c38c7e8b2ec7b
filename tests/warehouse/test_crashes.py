"""Rewriting is killed at every step, and runs on full disks: what is seen never changes."""

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from evidence.records import KernelKind, KernelRecord
from evidence.wire import encode
from warehouse import listing
from warehouse.compaction import Compaction, compact
from warehouse.files import ends, prepare
from warehouse.kinds import KINDS
from warehouse.partition import Partition, Policy
from warehouse.query import query

SCRIPT = Path(__file__).with_name("compaction_process.py")
AT = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)
LATER = (max(datetime.now(UTC), AT) + timedelta(days=2)).timestamp()
HOW = Compaction(memory_mib=256)
MERGING = ["rewrite-begun", "file-rewritten", "rewrite-published", "files-rewritten"]


def _store(root: Path, fetched: Any, start: int, end: int, raw: str = "x" * 100) -> Partition:
    policy = Policy(
        root=root,
        flush_records=1000,
        flush_s=2.0,
        bulk_flush_s=10.0,
        tick_flush_s=90.0,
        flush_bytes=1 << 20,
        compression="none",
    )
    one = Partition(
        kind=KINDS["kernel"],
        topic="ringfence.kernel",
        base="0a1b2c3d",
        rounds=0,
        number=0,
        start=start,
        policy=policy,
    )
    records = (
        KernelRecord(id=f"k{n}", observed_at=AT, raw=raw, kind=KernelKind.OTHER)
        for n in range(start, end)
    )
    one.add([fetched(start + n, encode(record)) for n, record in enumerate(records)], now=0.0)
    return one


@pytest.fixture
def small_files(root: Path, fetched: Any) -> Path:
    """A root with 40 records of one day in four files."""
    for start in range(0, 40, 10):
        _store(root, fetched, start, start + 10).flush(0.0)
    return root


def _ids(root: Path) -> Counter[str]:
    paths = [one for one in listing.visible(root, "kernel") if "seed" not in one]
    tables = [pq.ParquetFile(path).read(["id"]) for path in paths]
    return Counter(one for table in tables for one in table.column("id").to_pylist())


def _each(count: int) -> Counter[str]:
    return Counter(f"k{one}" for one in range(count))


def _run(root: Path, now: float, *point: str, keep_days: int = 0) -> int:
    command = [sys.executable, str(SCRIPT), str(root), str(now), str(keep_days), *point]
    return subprocess.run(command, check=False, timeout=60).returncode


def test_rewriting_killed_at_any_step_before_the_watermark_leaves_all_as_it_was(
    small_files: Path,
) -> None:
    for point in MERGING:
        assert _run(small_files, LATER, point) == -signal.SIGKILL
        assert _ids(small_files) == _each(40)
    assert _run(small_files, LATER) == 0
    assert _ids(small_files) == _each(40)
    prepare(small_files)
    assert list((small_files / "_tmp").iterdir()) == []
    wholes = list((small_files / "kernel").glob("day=*/*whole*"))
    assert len(wholes) == 1, "what the killed ones left has the same name"


def test_rewriting_killed_after_the_watermark_and_while_deleting_is_finished_by_the_next(
    small_files: Path,
) -> None:
    assert _run(small_files, LATER, "watermark-moved") == -signal.SIGKILL
    assert _ids(small_files) == _each(40)
    after = LATER + HOW.keep_small_s + 1
    assert _run(small_files, after, "file-deleted") == -signal.SIGKILL
    assert len(list((small_files / "kernel").glob("day=*/kernel-0*"))) == 3
    assert _ids(small_files) == _each(40)
    assert _run(small_files, after) == 0
    assert list((small_files / "kernel").glob("day=*/kernel-0*")) == []
    assert _ids(small_files) == _each(40)


def test_taking_days_out_killed_at_any_step_is_finished_by_the_next(small_files: Path) -> None:
    assert _run(small_files, LATER) == 0
    after = LATER + 3 * 86_400
    assert _run(small_files, after, "days-taken", keep_days=1) == -signal.SIGKILL
    assert _ids(small_files) == Counter()
    assert ends(small_files, KINDS["kernel"]) == {(0, "0a1b2c3d"): 40}
    end = after + HOW.keep_small_s + 1
    assert _run(small_files, end, "file-deleted", keep_days=1) == -signal.SIGKILL
    assert _run(small_files, end, keep_days=1) == 0
    assert [one.name for one in (small_files / "kernel").glob("day=*")] == ["day=1970-01-01"]
    assert ends(small_files, KINDS["kernel"]) == {(0, "0a1b2c3d"): 40}


def test_readers_see_every_row_once_while_days_are_rewritten(root: Path, fetched: Any) -> None:
    seen: list[tuple[int, int]] = []
    done = threading.Event()
    _store(root, fetched, 0, 10).flush(0.0)

    def ask() -> None:
        while not done.is_set():
            sql = "select count(*), count(distinct id) from staging.kernel"
            seen.extend(query(root, sql)[1])

    reader = threading.Thread(target=ask)
    reader.start()
    try:
        for round_ in range(1, 8):
            list(compact(root, HOW, now_s=LATER + round_ * 7200, kinds=("kernel",)))
            _store(root, fetched, round_ * 10, round_ * 10 + 10).flush(0.0)
    finally:
        done.set()
        reader.join()
    assert all(rows == ids and rows % 10 == 0 for rows, ids in seen)
    assert [rows for rows, _ in seen] == sorted(rows for rows, _ in seen)
    assert _ids(root) == _each(80)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_costs_no_record_and_leaves_no_torn_file(
    small_disk: Path, fetched: Any
) -> None:
    root = small_disk / "warehouse"
    prepare(root)
    _store(root, fetched, 0, 10).flush(0.0)
    ballast = small_disk / "ballast"
    _fill(ballast)
    one = _store(root, fetched, 10, 60, raw="".join(chr(97 + n % 26) for n in range(20_000)))
    with pytest.raises(OSError, match="No space"):
        one.flush(0.0)
    assert _ids(root) == _each(10)
    assert list((root / "_tmp").iterdir()) == []
    ballast.unlink()
    assert one.flush(0.0) is not None
    assert _ids(root) == _each(60)


def test_a_full_disk_stops_rewriting_and_changes_nothing(small_disk: Path, fetched: Any) -> None:
    root = small_disk / "warehouse"
    prepare(root)
    for start in range(0, 40, 10):
        _store(root, fetched, start, start + 10).flush(0.0)
    ballast = small_disk / "ballast"
    _fill(ballast)
    with pytest.raises(OSError, match="No space"):
        list(compact(root, HOW, now_s=LATER, kinds=("kernel",)))
    assert _ids(root) == _each(40)
    ballast.unlink()
    assert [one.rows for one in compact(root, HOW, now_s=LATER, kinds=("kernel",))] == [40]
    assert _ids(root) == _each(40)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        size = 64 << 10
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
