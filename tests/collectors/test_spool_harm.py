"""What a harmed spool costs: the harmed row, never its neighbours and never the agent."""

import sqlite3
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collectors.shipping.backlog import Parcel
from collectors.shipping.shipper import Shipper
from collectors.shipping.spool import Spool
from collectors.shipping.spool_keeper import SpoolKeeper
from evidence.records import KernelKind, KernelRecord
from evidence.transport import Kafka
from evidence.wire import encode
from ringfence.cluster import ensure_topics

AT = datetime(2026, 3, 14, 8, 0, tzinfo=UTC)
HOST = "gb300-c2-n05"


def line(number: int) -> bytes:
    return encode(
        KernelRecord(id=f"h{number}", host=HOST, observed_at=AT, raw="x" * 600, kind=KernelKind.XID)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A spool of nine records, as an agent that was killed leaves it."""
    path = tmp_path / "spool.sqlite"
    spool = Spool(path, 1 << 20)
    parcels = [
        Parcel(n, "kernel", HOST.encode(), line(n), telemetry=False, at=AT + timedelta(seconds=n))
        for n in range(1, 10)
    ]
    spool.write(parcels, ())
    spool.close()
    return path


def harm(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement, values)
    db.close()


@pytest.mark.parametrize(
    "harmed",
    [
        "value = x'789cffff'",
        "value = 'no bytes'",
        "key = 'no bytes'",
        "size = 'large'",
    ],
)
def test_one_harmed_row_is_a_loss_of_one_record(path: Path, harmed: str) -> None:
    harm(path, f"UPDATE parcel SET {harmed} WHERE number = 4")
    spool = Spool(path, 1 << 20)
    spool.open()
    assert [one.number for one in spool.load("kernel", 1 << 20)] == [1, 2, 3, 5, 6, 7, 8, 9]
    assert [(loss.number, loss.topic, loss.count) for loss in spool.losses] == [(4, "kernel", 1)]
    assert dict(spool.dropped) == {"kernel": 1}
    assert not path.with_name("spool.sqlite.damaged").exists()
    spool.close()


@pytest.mark.parametrize("at", ["'20xx'", "CAST(x'ff6b' AS TEXT)", "7"])
def test_a_harmed_time_costs_the_time_and_not_the_record(path: Path, at: str) -> None:
    harm(path, f"UPDATE parcel SET at = {at} WHERE number = 4")
    spool = Spool(path, 1 << 20)
    spool.open()
    loaded = {one.number: one.at for one in spool.load("kernel", 1 << 20)}
    assert sorted(loaded) == list(range(1, 10))
    assert loaded[4] is None
    spool.close()


@pytest.mark.parametrize("topic", ["'gpu'", "CAST(x'ff' AS TEXT)"])
def test_a_harmed_loss_does_not_keep_the_agent_from_starting(path: Path, topic: str) -> None:
    harm(path, f"INSERT INTO lost VALUES (40, {topic}, 3, 'when?', 'when?')")
    spool = Spool(path, 1 << 20)
    spool.open()
    assert [(loss.count, loss.at) for loss in spool.losses] == [(3, None)]
    assert len(spool.load("kernel", 1 << 20)) == 9
    spool.close()


@pytest.mark.parametrize(
    "statement", ["DROP TABLE lost", "ALTER TABLE parcel RENAME COLUMN size TO width"]
)
def test_a_file_with_other_tables_is_set_aside_and_a_new_one_begun(
    path: Path, statement: str
) -> None:
    harm(path, statement)
    keeper = SpoolKeeper(path, 1 << 20, lambda _lost: None)
    parcel = Parcel(50, "kernel", b"k", line(50), telemetry=False)
    assert keeper.write([parcel], ())
    assert path.with_name("spool.sqlite.damaged").exists()
    keeper.close()


def test_a_row_that_would_unpack_to_a_gigabyte_is_harmed(path: Path) -> None:
    bomb = zlib.compress(bytes(64 << 20), 1)
    harm(path, "UPDATE parcel SET value = ? WHERE number = 4", bomb)
    spool = Spool(path, 1 << 20)
    spool.open()
    assert 4 not in [one.number for one in spool.load("kernel", 1 << 20)]
    spool.close()


def test_a_state_folder_that_is_a_file_leaves_records_in_memory(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    keeper = SpoolKeeper(tmp_path / "state" / "spool.sqlite", 1 << 20, lambda _lost: None)
    assert not keeper.write([Parcel(1, "kernel", b"k", b"{}", telemetry=False)], ())


def test_what_a_producer_cannot_take_is_given_up_and_the_rest_is_shipped(
    kafka: Kafka, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_topics(kafka)
    real = Shipper._give

    def odd(self: Shipper, producer: object, parcel: Parcel) -> bool:
        if parcel.number == 4 and parcel.fact is None:
            parcel.key = "text"  # type: ignore[assignment]
        if parcel.number == 6 and not broken:
            broken.append(parcel.number)
            raise LookupError("a state nobody thought of")
        return real(self, producer, parcel)  # type: ignore[arg-type]

    broken: list[int] = []
    monkeypatch.setattr(Shipper, "_give", odd)
    shipper = Shipper(kafka, host=HOST, spool=path)
    until = time.monotonic() + 40
    # Eight of the nine, and the fact of the one.
    while shipper.delivered.total() < 9 and time.monotonic() < until:
        time.sleep(0.05)
    assert (shipper.delivered.total(), dict(shipper.refused)) == (9, {"kernel": 1})
    assert broken == [6]
    assert shipper.close() == 0
