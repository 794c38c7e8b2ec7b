"""Closed days become few sorted files; every row is seen once before, during and after."""

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evidence.records import GpuFrame, GpuSnapshot, GpuTick, KernelKind, KernelRecord, Tick
from evidence.wire import encode
from warehouse import folder, listing
from warehouse.compaction import Compaction, Rewritten, compact
from warehouse.errors import SinkError
from warehouse.files import Range, Taken, ends, look, publish
from warehouse.kinds import KINDS
from warehouse.query import connect, query
from warehouse.retention import retain
from warehouse.storage import at
from warehouse.upkeep import beside

DAY = "2026-04-07"
AT = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)
#: Two days later: every day of these tests is closed.
LATER = (AT + timedelta(days=2)).timestamp()
HOW = Compaction(memory_mib=256)
KERNEL = KINDS["kernel"]


@pytest.fixture(autouse=True)
def _of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files look as if they had been written when their messages came."""
    entry = folder.Entry
    monkeypatch.setattr(folder, "Entry", lambda key, size, _: entry(key, size, AT.timestamp()))


def _kernel(number: int, host: str = "trn-1") -> bytes:
    return encode(
        KernelRecord(
            id=f"k{number}",
            observed_at=AT,
            at=AT + timedelta(seconds=number),
            raw="NVRM: Xid",
            kind=KernelKind.XID,
            code=79,
            host=host,
        )
    )


def _frame(number: int, gpus: int = 4) -> bytes:
    at = AT + timedelta(seconds=number)
    cards = tuple(GpuSnapshot(index=one, uuid=f"GPU-{gpus - one}") for one in range(gpus))
    tick = GpuTick(at=at, gpus=cards)
    return encode(
        GpuFrame(id=f"f{number}", host="trn-1", observed_at=at, seq=number, ticks=(tick,))
    )


@pytest.fixture
def feed(partition: Any, fetched: Any) -> Callable[..., Any]:
    """``feed("kernel", 0, 10)``: store offsets 0 to 9 as one file; returns its path."""

    def put(topic: str, start: int, end: int, number: int = 0, *, day: int = 0, **odd: Any) -> Any:
        one = partition(topic, start, number)
        make = _frame if topic == "gpu" else _kernel
        first_ms = int((AT + timedelta(days=day)).timestamp() * 1000)
        messages = []
        for offset in range(start, end):
            value = odd.get("value", make(number * 100_000 + offset))
            messages.append(fetched(offset, value, timestamp=first_ms + offset))
        one.add(messages, now=0.0)
        return one.flush(0.0)

    return put


def _rewrite(root: Path, now: float = LATER, **more: Any) -> list[Rewritten]:
    return list(compact(root, more.pop("how", HOW), now_s=now, **more))


def _ids(root: Path, kind: str = "kernel") -> Counter[str]:
    found = Counter[str]()
    for path in listing.visible(root, kind):
        if "id" in pq.read_schema(path).names:
            found.update(pq.ParquetFile(path).read(["id"]).column("id").to_pylist())
    return found


def _each(*ranges: range, number: int = 0) -> Counter[str]:
    return Counter(f"k{number * 100_000 + one}" for span in ranges for one in span)


def _small(root: Path, kind: str = "kernel") -> list[str]:
    return sorted(one.name for one in (root / kind / f"day={DAY}").glob(f"{kind}-0*.parquet"))


def test_a_closed_day_becomes_one_file_with_the_same_rows(root: Path, feed: Any) -> None:
    feed("kernel", 0, 10)
    feed("kernel", 10, 25)
    feed("kernel", 0, 7, number=1)
    (done,) = _rewrite(root)
    assert (done.kind, done.day, done.small_files, done.files, done.rows) == (
        "kernel",
        DAY,
        3,
        1,
        32,
    )
    paths = [one for one in listing.visible(root, "kernel") if DAY in one]
    assert [Path(one).name.split("-")[1] for one in paths] == ["whole"]
    assert _ids(root) == _each(range(25)) + _each(range(7), number=1)
    assert pq.read_schema(paths[0]).equals(KERNEL.schema)
    assert _rewrite(root, LATER + 10) == []


def test_gpu_rows_are_sorted_by_card_and_time_and_have_statistics_and_bloom_filters(
    root: Path, feed: Any
) -> None:
    feed("gpu", 0, 30)
    feed("gpu", 30, 50)
    _rewrite(root)
    (path,) = [one for one in listing.visible(root, "gpu") if "whole" in one]
    rows = pq.ParquetFile(path).read(["uuid", "event_at"]).to_pylist()
    keys = [(one["uuid"], one["event_at"]) for one in rows]
    assert keys == sorted(keys)
    assert len(keys) == 200
    connection = connect(root)
    sql = (
        "select path_in_schema, stats_min_value, stats_max_value, compression "
        "from parquet_metadata($1)"
    )
    facts = {one[0]: one[1:] for one in connection.execute(sql, [path]).fetchall()}
    assert facts["uuid"] == ("GPU-1", "GPU-4", "ZSTD")
    sql = "select path_in_schema from parquet_metadata($1) where bloom_filter_length > 0"
    assert {one for (one,) in connection.execute(sql, [path]).fetchall()} == {"id", "uuid", "host"}
    sql = "select count(*) from staging.gpu where uuid = 'GPU-3'"
    assert connection.execute(sql).fetchall() == [(50,)]


def test_large_kinds_are_several_files_of_whole_partitions(root: Path, feed: Any) -> None:
    for number in range(4):
        feed("kernel", 0, 10, number=number)
    (done,) = _rewrite(root, how=Compaction(file_rows=20, memory_mib=256))
    assert done.files == 2
    assert sum(_ids(root).values()) == 40
    assert set(_ids(root).values()) == {1}


def test_a_day_is_not_closed_while_it_lasts_or_files_still_come_into_it(
    root: Path, feed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed("kernel", 0, 10)
    midnight = datetime(2026, 4, 8, tzinfo=UTC).timestamp()
    assert _rewrite(root, midnight + 3599) == []
    monkeypatch.undo()  # the file was written just now, a week after its day, as a late sink does
    path = next((root / "kernel" / f"day={DAY}").glob("*.parquet"))
    written = max(path.stat().st_mtime, midnight)
    assert _rewrite(root, written + 3599) == []
    assert len(_rewrite(root, written + 3601)) == 1


def test_what_a_late_sink_puts_into_a_rewritten_day_is_seen_once_and_rewritten_next(
    root: Path, feed: Any
) -> None:
    feed("kernel", 0, 10)
    _rewrite(root)
    feed("kernel", 0, 5, number=1)
    feed("kernel", 10, 15)
    expected = _each(range(15)) + _each(range(5), number=1)
    assert _ids(root) == expected
    (done,) = _rewrite(root, LATER + 7200)
    assert (done.small_files, done.rows) == (2, 10)
    assert _ids(root) == expected
    _rewrite(root, LATER + 14_400)
    assert _small(root) == []
    assert _ids(root) == expected


def test_replaced_files_stay_for_readers_that_have_them_in_their_list(
    root: Path, feed: Any
) -> None:
    feed("kernel", 0, 10)
    feed("kernel", 10, 20)
    reader = connect(root)
    sql = "select count(*), count(distinct id) from staging.kernel"
    _rewrite(root)
    assert reader.execute(sql).fetchall() == [(20, 20)]
    _rewrite(root, LATER + HOW.keep_small_s - 1)
    assert len(_small(root)) == 2
    assert reader.execute(sql).fetchall() == [(20, 20)]
    _rewrite(root, LATER + HOW.keep_small_s + 1)
    assert _small(root) == []
    assert connect(root).execute(sql).fetchall() == [(20, 20)]


def test_a_sink_goes_on_behind_a_rewritten_day_whose_small_files_are_gone(
    root: Path, feed: Any
) -> None:
    feed("kernel", 0, 10)
    feed("kernel", 10, 25)
    _rewrite(root)
    _rewrite(root, LATER + 7200)
    assert _small(root) == []
    assert ends(root, KERNEL) == {(0, "0a1b2c3d"): 25}


def test_a_sink_that_slept_through_it_all_stores_nothing_twice(
    root: Path, feed: Any, partition: Any, fetched: Any
) -> None:
    feed("kernel", 0, 10)
    feed("kernel", 10, 25)
    _rewrite(root)
    _rewrite(root, LATER + 7200)
    sleeper = partition("kernel", start=10)
    sleeper.add([fetched(offset, _kernel(offset)) for offset in range(10, 30)], now=0.0)
    sleeper.flush(0.0)
    assert sleeper.start == 30
    assert _ids(root) == _each(range(30))


def test_a_file_published_by_a_sleeper_after_its_last_look_is_taken_back(
    root: Path, feed: Any
) -> None:
    feed("kernel", 0, 10)
    late = Range(kind=KERNEL, log="0a1b2c3d", partition=0, start=0, first=0, last=40, day=AT.date())
    with pytest.raises(Taken) as before:
        look(root, late)
    assert before.value.last == 9

    def overtaken(point: str) -> None:
        if point == "file-synced":
            _rewrite(root)
            _rewrite(root, LATER + 7200)

    with pytest.raises(Taken) as taken:
        publish(root, late, KERNEL.schema.empty_table(), "zstd", overtaken)
    assert taken.value.last == 9
    assert _small(root) == []
    assert _ids(root) == _each(range(10))


def test_a_column_that_came_later_is_kept_beside_files_without_it(root: Path, feed: Any) -> None:
    feed("kernel", 0, 10)
    path = feed("kernel", 10, 20)
    newer = pq.read_table(path, partitioning=None)
    newer = newer.append_column("weather", pa.array(["fog"] * 10))
    pq.write_table(newer, path)
    older = feed("kernel", 20, 25)
    table = pq.read_table(older, partitioning=None)
    pq.write_table(table.drop_columns(["link"]), older)
    assert query(root, "select count(*), count(link) from staging.kernel")[1] == [(25, 0)]
    (done,) = _rewrite(root)
    assert done.rows == 25
    (whole,) = [one for one in listing.visible(root, "kernel") if "whole" in one]
    weather = pq.ParquetFile(whole).read(["weather"]).column("weather").to_pylist()
    assert Counter(weather) == {"fog": 10, None: 15}
    assert query(root, "select count(*), count(link) from staging.kernel")[1] == [(25, 0)]


def test_what_cannot_be_decoded_is_kept_byte_for_byte(root: Path, feed: Any) -> None:
    feed("kernel", 0, 3, value=b"\x8b\x1f\xff")
    _rewrite(root)
    rows = query(root, "select undecodable_value from undecodable")[1]
    assert rows == [(b"\x8b\x1f\xff",)] * 3


def test_a_rewrite_that_would_change_a_row_is_refused(
    root: Path, feed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed("kernel", 0, 10)
    feed("kernel", 10, 20)

    def one_less(reader: Any) -> Iterator[pa.Table]:
        yield pa.Table.from_batches(list(reader)).slice(1)

    monkeypatch.setattr("warehouse.rewrite._groups", one_less)
    with pytest.raises(SinkError, match="would have changed"):
        _rewrite(root)
    assert len(_small(root)) == 2
    assert not (root / "kernel" / "_watermark.json").exists()
    assert _ids(root) == _each(range(20))


def test_a_kind_that_another_process_rewrites_is_left_to_it(root: Path, feed: Any) -> None:
    feed("kernel", 0, 10)
    with at(root).only("kernel") as mine:
        assert mine
        assert _rewrite(root) == []
    assert len(_rewrite(root)) == 1


def test_old_days_go_by_kind_and_the_sink_still_knows_where_to_go_on(root: Path, feed: Any) -> None:
    feed("kernel", 0, 10)
    feed("kernel", 10, 20, day=40)
    feed("gpu", 0, 5)
    now = (AT + timedelta(days=60)).timestamp()
    assert retain(root, {"kernel": 30}, HOW, now_s=now) == []  # not rewritten: never
    _rewrite(root, now)
    assert [one.day for one in retain(root, {"kernel": 30}, HOW, now_s=now, dry_run=True)] == [DAY]
    assert _ids(root) == _each(range(20))
    reader = connect(root)
    (taken,) = retain(root, {"kernel": 30}, HOW, now_s=now)
    assert (taken.day, taken.rows) == (DAY, 10)
    assert _ids(root) == _each(range(10, 20))
    assert reader.execute("select count(*) from staging.kernel").fetchall() == [(20,)]
    retain(root, {"kernel": 30}, HOW, now_s=now + HOW.keep_small_s + 1)
    assert not (root / "kernel" / f"day={DAY}").exists()
    assert len(_ids(root, "gpu")) == 5
    retain(root, {"kernel": 1}, HOW, now_s=now)
    retain(root, {"kernel": 1}, HOW, now_s=now + HOW.keep_small_s + 1)
    assert _ids(root) == Counter()
    assert ends(root, KERNEL) == {(0, "0a1b2c3d"): 20}


@pytest.mark.parametrize(
    ("days", "message"), [({"weather": 3}, "no kind 'weather'"), ({"gpu": 0}, "a day at least")]
)
def test_a_retention_that_makes_no_sense_is_refused(
    root: Path, days: dict[str, int], message: str
) -> None:
    with pytest.raises(SinkError, match=message):
        retain(root, days, HOW)


def test_types_that_no_column_can_hold_stop_their_kind_alone(root: Path, feed: Any) -> None:
    path = feed("kernel", 0, 10)
    table = pq.read_table(path, partitioning=None)
    odd = table.set_column(
        table.schema.get_field_index("code"), "code", pa.array(["x"] * 10, pa.string())
    )
    pq.write_table(odd.replace_schema_metadata(table.schema.metadata), path)
    feed("kernel", 10, 20)
    feed("gpu", 0, 5)
    done = []
    with pytest.raises(SinkError, match="do not fit together"):
        done.extend(one.kind for one in compact(root, HOW, now_s=LATER))
    assert (root / "gpu" / "_watermark.json").exists()
    assert not (root / "kernel" / "_watermark.json").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_rewritten(root: Path, partition: Any, fetched: Any, kind: str) -> None:
    tick = encode(Tick(id="t", at=AT))
    for start in (0, 2):
        one = partition(kind, start)
        ms = int(AT.timestamp() * 1000)
        odd = fetched(start + 1, b"\xff", key=b"k", headers=[("h", b"v")], timestamp=ms)
        one.add([fetched(start, tick, timestamp=ms), odd], now=0.0)
        one.flush(0.0)
    (done,) = _rewrite(root)
    assert (done.kind, done.rows) == (KINDS[kind].name, 4)
    assert query(root, "select count(*) from ticks")[1][0][0] in (0, 2)  # not all topics have them
    sql = "select kafka_key, kafka_headers['h'] from undecodable where undecodable_value = '\\xFF'"
    assert query(root, sql)[1] == [(b"k", b"v")] * 2


@pytest.mark.parametrize("deleted", [False, True])
def test_a_lost_watermark_is_made_anew_from_the_rewritten_files(
    root: Path, feed: Any, deleted: bool
) -> None:
    feed("kernel", 0, 10)
    feed("kernel", 10, 25)
    _rewrite(root)
    if deleted:
        _rewrite(root, LATER + 7200)
    (root / "kernel" / "_watermark.json").unlink()
    _rewrite(root, LATER + 14_400)
    _rewrite(root, LATER + 99_999)
    assert _ids(root) == _each(range(25))
    assert _small(root) == []
    assert ends(root, KERNEL) == {(0, "0a1b2c3d"): 25}


def test_a_process_beside_the_sink_rewrites_and_ends_with_it(root: Path, feed: Any) -> None:
    feed("kernel", 0, 10)
    how = Compaction(close_after_s=-1, keep_small_s=-1, memory_mib=256)
    if datetime.now(UTC) < AT + timedelta(days=1):
        pytest.skip("this machine's clock is before the day of the records")
    with beside(root, how, {}):
        end = time.monotonic() + 60
        while not (root / "kernel" / "_watermark.json").exists():
            assert time.monotonic() < end
            time.sleep(0.1)
    assert multiprocessing.active_children() == []
    assert _ids(root) == _each(range(10))
