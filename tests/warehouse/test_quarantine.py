"""Damaged files are named and set aside; questions go on without them."""

import os
import resource
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from evidence.records import KernelKind, KernelRecord
from evidence.wire import encode
from warehouse import listing, quarantine
from warehouse.compaction import Compaction, compact
from warehouse.footers import last_offset
from warehouse.kinds import KINDS
from warehouse.quarantine import Damage, damages, now_missing
from warehouse.query import query
from warehouse.storage import at

AT = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)
#: The day of the files is over by then, and they are two days old.
LATER = (max(datetime.now(UTC), AT) + timedelta(days=2)).timestamp()
HOW = Compaction(memory_mib=256)
PLACE = "0000-0a1b2c3d"


@pytest.fixture
def feed(partition: Any, fetched: Any) -> Callable[[int, int], Path]:
    """``feed(0, 10)``: store kernel offsets 0 to 9 as one file; returns its path."""

    def put(start: int, end: int) -> Path:
        one = partition("kernel", start)
        records = (
            KernelRecord(id=f"k{offset}", observed_at=AT, raw="x" * 200, kind=KernelKind.OTHER)
            for offset in range(start, end)
        )
        one.add(
            [fetched(start + number, encode(record)) for number, record in enumerate(records)],
            now=0.0,
        )
        path = one.flush(0.0)
        assert path is not None
        return Path(path)

    return put


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def _garble(path: Path) -> None:
    """Damage a page, leaving the footer whole."""
    content = bytearray(path.read_bytes())
    content[40:2000] = b"\xa5" * 1960
    path.write_bytes(bytes(content))


def _compact(root: Path, now: float = LATER, **more: Any) -> int:
    return sum(one.rows for one in compact(root, HOW, now_s=now, **more))


def _ids(root: Path) -> Counter[str]:
    paths = [one for one in listing.visible(root, "kernel") if "seed" not in one]
    tables = [pq.ParquetFile(path).read(["id"]) for path in paths]
    return Counter(one for table in tables for one in table.column("id").to_pylist())


def _each(*spans: range) -> Counter[str]:
    return Counter(f"k{one}" for span in spans for one in span)


def _only(root: Path) -> Damage:
    (damage,) = damages(at(root), "kernel")
    return damage


def test_a_question_goes_on_without_a_truncated_file_and_says_so_once(
    root: Path, feed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(0, 10)
    path = feed(10, 20)
    feed(20, 25)
    _truncate(path)
    for _ in range(2):
        assert query(root, "select count(*) from staging.kernel")[1] == [(15,)]
    said = capsys.readouterr().err
    assert said.count(path.name) == 1
    assert "its rows are missing from the answer" in said


def test_a_truncated_file_is_set_aside_with_the_offsets_that_are_missing(
    root: Path, feed: Any
) -> None:
    feed(0, 10)
    path = feed(10, 20)
    feed(20, 25)
    _truncate(path)
    assert _compact(root) == 15
    aside = root / "_quarantine" / "kernel" / path.parent.name
    assert sorted(one.name for one in aside.iterdir()) == [path.name, f"{path.name}.json"]
    damage = _only(root)
    assert damage.missing == {PLACE: [(10, 20)]}
    assert "cut or overwritten" in damage.reason
    assert _ids(root) == _each(range(10), range(20, 25))


def test_a_file_that_is_damaged_inside_is_found_when_its_day_is_rewritten(
    root: Path, feed: Any
) -> None:
    feed(0, 10)
    path = feed(10, 20)
    feed(20, 25)
    _garble(path)
    assert quarantine.trouble(path) is None
    assert quarantine.trouble(path, deep=True)
    assert _compact(root) == 15
    assert _only(root).missing == {PLACE: [(10, 20)]}
    assert _ids(root) == _each(range(10), range(20, 25))


def test_a_rewritten_file_that_is_damaged_gives_way_to_the_small_ones_it_replaced(
    root: Path, feed: Any
) -> None:
    feed(0, 10)
    feed(10, 25)
    _compact(root)
    (whole,) = (root / "kernel").glob("day=*/*whole*")
    _truncate(whole)
    _compact(root, LATER + 60)
    assert _only(root).missing == {}
    assert _ids(root) == _each(range(25))


def test_a_rewritten_file_whose_small_ones_are_gone_says_what_is_missing(
    root: Path, feed: Any
) -> None:
    feed(0, 10)
    feed(10, 25)
    _compact(root)
    _compact(root, LATER + 7200)
    feed(25, 30)
    (whole,) = (root / "kernel").glob("day=*/*whole*")
    _garble(whole)
    _compact(root, LATER + 7300)
    assert damages(at(root), "kernel") == []  # only a deep look finds this
    _compact(root, LATER + 7400, deep=True)
    assert _only(root).missing == {PLACE: [(0, 25)]}
    assert _ids(root) == _each(range(25, 30))


def test_the_end_of_what_the_newest_file_held_is_known_once_there_is_a_newer_one(
    root: Path, feed: Any
) -> None:
    feed(0, 10)
    path = feed(10, 20)
    _truncate(path)
    storage = at(root)
    damage = quarantine.set_aside(storage, path.relative_to(root).as_posix(), "cut")
    assert damage is not None
    assert damage.missing == {PLACE: [(10, quarantine.UNKNOWN)]}
    feed(20, 30)
    assert now_missing(storage, damage) == {PLACE: [(10, 20)]}
    feed(10, 16)
    assert now_missing(storage, damage) == {PLACE: [(16, 20)]}
    feed(16, 20)
    assert now_missing(storage, damage) == {}
    assert KINDS["kernel"].name == damage.kind


def test_a_file_that_cannot_be_opened_is_not_taken_for_damaged(root: Path, feed: Any) -> None:
    path = feed(0, 10)
    feed(10, 20)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_open_files(), limit[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            last_offset(path)
        with pytest.raises(OSError, match="Too many open files"):
            quarantine.trouble(path, deep=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert _compact(root) == 20
    assert damages(at(root), "kernel") == []


def _open_files() -> int:
    """The least number that no new descriptor can have."""
    spare = os.open("/", os.O_RDONLY)
    os.close(spare)
    return spare


def test_a_copy_of_a_day_under_another_name_is_not_read(root: Path, feed: Any) -> None:
    day = feed(0, 10).parent
    for name in ("day=2026-04-07.bak", "day=2026-99-99", "day=old"):
        shutil.copytree(day, day.with_name(name))
    assert _ids(root) == _each(range(10))
    assert _compact(root) == 10
    assert _ids(root) == _each(range(10))
