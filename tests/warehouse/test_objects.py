"""A warehouse on an object store: a real S3 server, plain PUTs, every row seen once."""

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from evidence.records import KernelKind, KernelRecord
from evidence.wire import encode
from warehouse import listing
from warehouse.compaction import Compaction, compact
from warehouse.errors import WarehouseError
from warehouse.files import ends, prepare
from warehouse.kinds import KINDS
from warehouse.partition import Partition, Policy
from warehouse.quarantine import damages
from warehouse.query import query
from warehouse.retention import retain
from warehouse.storage import at, is_remote

AT = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)
LATER = (max(datetime.now(UTC), AT) + timedelta(days=2)).timestamp()
HOW = Compaction(memory_mib=256)
KERNEL = KINDS["kernel"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """``127.0.0.1:port`` of an S3 server with the bucket ``history``."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    client = fs.S3FileSystem(
        access_key="k", secret_key="s", scheme="http", endpoint_override=f"{host}:{port}",
        allow_bucket_creation=True,
    )  # fmt: skip
    client.create_dir("history")
    yield f"{host}:{port}"
    moto.stop()


@pytest.fixture
def remote(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prepared root on the server."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = Path(f"s3://history/{uuid.uuid4().hex}?endpoint_override={server}&scheme=http")
    prepare(root)
    return root


@pytest.fixture
def feed(remote: Path, fetched: Any) -> Callable[..., Partition]:
    """``feed(0, 10)``: store kernel offsets 0 to 9 as one file; returns the partition."""

    def put(start: int, end: int, *, day: int = 0) -> Partition:
        policy = Policy(
            root=remote, flush_records=1000, flush_s=2.0, bulk_flush_s=10.0, tick_flush_s=90.0,
            flush_bytes=1 << 20, compression="zstd",
        )  # fmt: skip
        one = Partition(
            kind=KERNEL, topic="ringfence.kernel", base="0a1b2c3d", rounds=0, number=0, start=start,
            policy=policy,
        )  # fmt: skip
        first_ms = int((AT + timedelta(days=day)).timestamp() * 1000)
        one.add([fetched(n, _kernel(n), timestamp=first_ms + n) for n in range(start, end)], now=0)
        assert one.flush(0.0) is not None
        return one

    return put


def _kernel(number: int) -> bytes:
    return encode(
        KernelRecord(
            id=f"k{number}", observed_at=AT, at=AT, raw="NVRM", kind=KernelKind.XID, code=9
        )
    )


def _ids(root: Path) -> Counter[str]:
    found = Counter[str]()
    for path in listing.visible(root, "kernel"):
        found.update(pq.ParquetFile(path).read(["id"]).column("id").to_pylist())
    return found


def _each(*spans: range) -> Counter[str]:
    return Counter(f"k{one}" for span in spans for one in span)


def test_a_root_keeps_its_meaning_when_it_passes_through_a_path() -> None:
    assert is_remote("s3://bucket/prefix")
    assert is_remote(Path("s3://bucket/prefix?scheme=http"))
    assert not is_remote(Path("/srv/s3"))


def test_an_option_that_is_not_known_is_refused_in_one_sentence() -> None:
    with pytest.raises(WarehouseError, match="no option 'colour'"):
        at(Path("s3://bucket/prefix?colour=blue"))


def test_what_is_stored_is_answered_from_copies(remote: Path, feed: Any) -> None:
    feed(0, 10)
    feed(10, 25)
    sql = "select count(*), count(distinct id), min(day)::varchar from staging.kernel"
    assert query(remote, sql)[1] == [(25, 25, "2026-04-07")]
    assert ends(remote, KERNEL) == {(0, "0a1b2c3d"): 25}


@pytest.mark.parametrize("others", [[(0, 4)], [(0, 10)], [(0, 30)], [(3, 12), (12, 14), (2, 40)]])
def test_of_ranges_that_overlap_each_offset_is_seen_once(
    remote: Path, feed: Any, others: list[tuple[int, int]]
) -> None:
    feed(0, 10)
    feed(10, 25)
    for start, end in others:
        feed(start, end, day=1)
    last = max(25, *(end for _, end in others))
    assert _ids(remote) == _each(range(last))
    assert ends(remote, KERNEL) == {(0, "0a1b2c3d"): last}
    assert query(remote, "select count(*) from staging.kernel")[1] == [(last,)]


def test_a_second_sink_that_stores_the_same_range_changes_nothing(remote: Path, feed: Any) -> None:
    feed(0, 10)
    before = {one.key for one in at(remote).entries("kernel")}
    feed(0, 10)
    assert {one.key for one in at(remote).entries("kernel")} == before
    assert _ids(remote) == _each(range(10))


def test_a_closed_day_is_rewritten_and_what_comes_late_is_seen_once(
    remote: Path, feed: Any
) -> None:
    feed(0, 10)
    feed(10, 25)
    feed(5, 17)
    (done,) = compact(remote, HOW, now_s=LATER)
    assert (done.files, done.rows) == (1, 25)
    assert _ids(remote) == _each(range(25))
    list(compact(remote, HOW, now_s=LATER + 7200))
    names = [one.key for one in at(remote).entries("kernel") if "seed" not in one.key]
    assert len(names) == 1
    feed(20, 40)  # a sink that slept: what is rewritten stays, what is new is taken from it
    assert _ids(remote) == _each(range(40))
    assert ends(remote, KERNEL) == {(0, "0a1b2c3d"): 40}


def test_old_days_go_from_an_object_store_too(remote: Path, feed: Any) -> None:
    feed(0, 10)
    list(compact(remote, HOW, now_s=LATER))
    assert len(retain(remote, {"kernel": 1}, HOW, now_s=LATER + 86_400)) == 1
    retain(remote, {"kernel": 1}, HOW, now_s=LATER + 90_000)
    assert [one.key for one in at(remote).entries("kernel") if "seed" not in one.key] == []
    assert ends(remote, KERNEL) == {(0, "0a1b2c3d"): 10}


def test_a_damaged_object_is_left_out_and_set_aside_by_a_deep_look(
    remote: Path, feed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(0, 10)
    feed(10, 20)
    feed(20, 30)
    storage = at(remote)
    key = next(one.key for one in storage.entries("kernel") if "-00000000000000000010-" in one.key)
    content = storage.read(key)
    assert content is not None
    storage.write(key, content[:-30])
    assert _ids(remote) == _each(range(10), range(20, 30))
    assert "left out" in capsys.readouterr().err
    list(compact(remote, HOW, now_s=LATER, deep=True))
    (damage,) = damages(storage, "kernel")
    assert damage.missing == {"0000-0a1b2c3d": [(10, 20)]}
    assert _ids(remote) == _each(range(10), range(20, 30))
