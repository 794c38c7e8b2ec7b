"""Files appear whole, once, and are found again."""

import os
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evidence.records import KernelKind, KernelRecord
from warehouse import files
from warehouse.errors import SinkError
from warehouse.files import Range, Taken, day_of, ends, look, prepare, publish
from warehouse.folder import temporary
from warehouse.footers import last_offset
from warehouse.kinds import KINDS
from warehouse.logs import Resume, resume

KERNEL = KINDS["kernel"]
DAY = date(2026, 4, 7)


def _range(start: int, last: int, **changes: Any) -> Range:
    facts: dict[str, Any] = {"log": "0a1b2c3d", "partition": 3, "first": start, "day": DAY}
    return Range(kind=KERNEL, start=start, last=last, **(facts | changes))


def _publish(root: Path, one: Range) -> Path:
    return publish(root, one, KERNEL.schema.empty_table(), "zstd")


def test_a_file_is_named_by_topic_partition_log_and_start(root: Path) -> None:
    path = _publish(root, _range(1234, 1300))
    assert path == (
        root / "kernel" / "day=2026-04-07" / "kernel-0003-0a1b2c3d-00000000000000001234.parquet"
    )
    assert last_offset(path) == 1300
    assert list((root / "_tmp").iterdir()) == []


def test_of_two_writers_of_one_start_only_one_wins(root: Path) -> None:
    path = _publish(root, _range(100, 180))
    with pytest.raises(Taken) as taken:
        _publish(root, _range(100, 250))
    assert taken.value.last == 180
    assert last_offset(path) == 180
    assert list((root / "_tmp").iterdir()) == []


def test_a_start_is_found_taken_on_another_day_when_its_first_message_is_gone(root: Path) -> None:
    _publish(root, _range(100, 180))
    look(root, _range(101, 250))
    with pytest.raises(Taken):
        look(root, _range(100, 250, first=140, day=date(2026, 4, 8)))


def test_a_failed_write_leaves_nothing_behind(root: Path) -> None:
    with pytest.raises(pa.ArrowException):
        publish(root, _range(0, 1), KERNEL.schema.empty_table(), "no-such-codec")
    assert list((root / "_tmp").iterdir()) == []
    assert ends(root, KERNEL) == {}


def test_the_day_is_that_of_the_first_message() -> None:
    assert day_of(int(datetime(2026, 4, 7, 23, 59, 59, tzinfo=UTC).timestamp() * 1000)) == DAY
    assert day_of(-1) == date(1969, 12, 31)
    assert day_of(2**62) == date(1970, 1, 1)


def test_a_partition_goes_on_behind_its_newest_file_whatever_its_day(root: Path) -> None:
    _publish(root, _range(0, 99, day=date(2026, 4, 8)))
    _publish(root, _range(100, 180, day=date(2026, 4, 7)))
    _publish(root, _range(0, 5, partition=4))
    assert resume(root, KERNEL) == {
        (3, "0a1b2c3d"): Resume(rounds=0, start=181),
        (4, "0a1b2c3d"): Resume(rounds=0, start=6),
    }


def test_a_log_that_was_cut_back_goes_on_in_its_last_round(root: Path) -> None:
    _publish(root, _range(0, 999))
    _publish(root, _range(0, 7, log="0a1b2c3dr1"))
    _publish(root, _range(0, 3, log="0a1b2c3dr2"))
    assert resume(root, KERNEL) == {(3, "0a1b2c3d"): Resume(rounds=2, start=4)}


def test_a_damaged_newest_file_is_set_aside_and_its_range_is_read_again(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _publish(root, _range(0, 99))
    path = _publish(root, _range(100, 180))
    path.write_bytes(path.read_bytes()[:-20])
    assert resume(root, KERNEL) == {(3, "0a1b2c3d"): Resume(rounds=0, start=100)}
    assert not path.exists()
    aside = root / "_quarantine" / "kernel" / "day=2026-04-07"
    assert sorted(one.name for one in aside.iterdir()) == [path.name, f"{path.name}.json"]
    assert path.name in caplog.text
    assert last_offset(_publish(root, _range(100, 140))) == 140


def test_what_a_killed_sink_left_is_removed_and_what_a_living_one_writes_is_not(root: Path) -> None:
    scratch = root / "_tmp"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = os.uname().nodename
    left = scratch / f"{host}-{dead.pid}-00112233-1-kernel.tmp"
    reborn = scratch / f"{host}-{os.getpid()}-00112233-1-kernel.tmp"
    other_machine = scratch / "elsewhere-1-00112233-1-kernel.tmp"
    mine = temporary(scratch, "kernel")
    for path in (left, reborn, other_machine, mine):
        path.write_bytes(b"PAR1")
    prepare(root)
    assert sorted(scratch.iterdir()) == sorted([other_machine, mine])
    os.utime(other_machine, (0, 0))
    prepare(root)
    assert list(scratch.iterdir()) == [mine]


def test_a_root_that_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(SinkError, match="cannot store under"):
        prepare(blocked / "root")


def test_seeds_of_an_older_build_are_replaced_and_of_a_newer_one_kept(root: Path) -> None:
    seed = root / "kernel" / files.SEED_DAY / "seed.parquet"
    older = pa.schema([one for one in KERNEL.schema if one.name != "code"])
    pq.write_table(older.empty_table(), seed)
    prepare(root)
    assert pq.read_schema(seed).names == KERNEL.schema.names
    newer = KERNEL.schema.append(pa.field("weather", pa.string()))
    pq.write_table(newer.empty_table(), seed)
    prepare(root)
    assert pq.read_schema(seed).names == newer.names


def test_seeds_whose_types_differ_are_replaced_by_the_sink_alone(root: Path) -> None:
    seed = root / "kernel" / files.SEED_DAY / "seed.parquet"
    code = KERNEL.schema.get_field_index("code")
    pq.write_table(KERNEL.schema.set(code, pa.field("code", pa.int32())).empty_table(), seed)
    files.sow(root)
    assert pq.read_schema(seed).field("code").type == pa.int32()
    prepare(root)
    assert pq.read_schema(seed).field("code").type == pa.int64()
    written = seed.stat().st_mtime_ns
    prepare(root)
    assert seed.stat().st_mtime_ns == written


def test_a_file_is_read_by_pyarrow_alone_and_by_duckdb_alone(root: Path, store: Any) -> None:
    at = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)
    records = [
        KernelRecord(id=f"k{n}", observed_at=at, raw="NVRM", kind=KernelKind.XID, code=79, host="a")
        for n in range(3)
    ]
    path = store("kernel", *records)
    table = pq.read_table(root / "kernel")  # the whole hive folder, seed and all
    assert table.column("id").to_pylist() == ["k0", "k1", "k2"]
    assert {str(one) for one in table.column("day").to_pylist()} == {"2026-04-07"}
    rows = duckdb.sql(f"select id, code, observed_at from '{path}' order by id").fetchall()
    assert rows == [("k0", 79, at), ("k1", 79, at), ("k2", 79, at)]
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert [one.statistics.min for one in columns if one.path_in_schema == "code"] == [79]
