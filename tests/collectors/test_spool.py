"""Parcels on disk: what was written is there, in order, bounded, whatever happens to the file."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from collectors.shipping.backlog import Parcel
from collectors.shipping.spool import Spool, SpoolInUseError
from collectors.shipping.spool_keeper import SpoolKeeper
from collectors.shipping.spool_loss import Loss, Losses, fact

AT = datetime(2026, 2, 8, 17, 30, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


def parcel(
    number: int, topic: str = "kernel", size: int = 40, *, telemetry: bool = False
) -> Parcel:
    value = b"{" + bytes(random.Random(number).choices(b"abcdefgh", k=size - 1))
    at = AT + timedelta(seconds=number)
    return Parcel(number, topic, b"gx-07", value, telemetry, at=at)


def seen(parcels: list[Parcel]) -> list[tuple[int, str, bytes, bytes, bool, Any]]:
    return [(p.number, p.topic, p.key, p.value, p.telemetry, p.at) for p in parcels]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "spool.sqlite"


@pytest.fixture
def spool(path: Path) -> Iterator[Spool]:
    made = Spool(path, 1 << 20)
    yield made
    made.close()


def reopened(spool: Spool, max_bytes: int | None = None) -> Spool:
    """The spool as a restarted agent finds it."""
    spool.close()
    again = Spool(spool.path, max_bytes or spool.max_bytes)
    again.open()
    return again


def test_there_is_no_file_before_something_is_kept(spool: Spool, path: Path) -> None:
    spool.open()
    assert not path.exists()
    spool.write([parcel(1)], ())
    assert path.exists()
    assert path.stat().st_mode & 0o077 == 0


def test_what_was_written_comes_back_in_order_by_topic_after_a_restart(spool: Spool) -> None:
    kernel = [parcel(n, telemetry=n % 3 == 0) for n in range(1, 60, 2)]
    gpu = [parcel(n, "gpu", size=3000, telemetry=True) for n in range(2, 60, 2)]
    spool.write(sorted([*kernel, *gpu], key=lambda one: one.number), ())
    again = reopened(spool)
    assert (again.rows, again.last_number, dict(again.unread)) == (
        59,
        58 + 1,
        {"kernel": 30, "gpu": 29},
    )
    found: list[Parcel] = []
    while again.unread["kernel"]:
        found += again.load("kernel", 200)
    assert seen(found) == seen(kernel)
    assert seen(again.load("gpu", 1 << 20)) == seen(gpu)
    assert again.load("gpu", 1 << 20) == []
    assert all(one.spooled for one in found)
    again.close()


def test_what_stays_in_memory_is_not_read_back_and_is_after_a_restart(spool: Spool) -> None:
    spool.write([parcel(1), parcel(2)], in_memory=(1, 2))
    spool.write([parcel(3)], ())
    assert [one.number for one in spool.load("kernel", 1000)] == [3]
    again = reopened(spool)
    assert [one.number for one in again.load("kernel", 1000)] == [1, 2, 3]
    again.close()


def test_the_file_goes_when_the_last_record_is_in_kafka(spool: Spool, path: Path) -> None:
    parcels = [parcel(n) for n in range(1, 4)]
    spool.write(parcels, ())
    loaded = spool.load("kernel", 1000)
    spool.delete(loaded[:2])
    assert (spool.rows, path.exists()) == (1, True)
    spool.delete(loaded[2:])
    assert (spool.rows, spool.bytes, path.exists()) == (0, 0, False)
    spool.write([parcel(4)], ())
    assert [one.number for one in reopened(spool).load("kernel", 1000)] == [4]


def test_a_full_spool_drops_the_oldest_telemetry_first_and_evidence_last(path: Path) -> None:
    spool = Spool(path, 9000)
    first = [parcel(n, ("kernel", "gpu")[n % 2], telemetry=n % 2 == 1) for n in range(1, 61)]
    spool.write(first, ())
    assert not spool.dropped
    spool.write([parcel(n, "nccl") for n in range(61, 81)], ())
    assert spool.bytes <= 9000
    # Older evidence stays: only GPU frames went, the oldest of them.
    gone = spool.dropped["gpu"]
    assert gone > 0
    assert spool.dropped == {"gpu": gone}
    assert [one.number for one in spool.load("gpu", 1 << 20)] == [*range(1 + 2 * gone, 61, 2)]
    spool.write([parcel(n, "nccl") for n in range(81, 181)], ())
    assert spool.dropped["nccl"] + spool.dropped["kernel"] > 0
    assert next(loss.topic for loss in spool.losses) == "gpu"
    spool.close()


def test_what_was_dropped_is_counted_over_a_restart(path: Path) -> None:
    spool = Spool(path, 6000)
    for start in range(1, 200, 20):
        spool.write([parcel(n, "gpu", telemetry=True) for n in range(start, start + 20)], ())
    gone = spool.dropped["gpu"]
    expected = [Loss(1, "gpu", gone, AT + timedelta(seconds=1), AT + timedelta(seconds=gone))]
    assert [*spool.losses] == expected
    again = reopened(spool)
    assert [*again.losses] == expected
    # It may have been told already, so it does not grow: what goes now is a loss of its own.
    again.write([parcel(n, "gpu", telemetry=True) for n in range(201, 221)], ())
    old, new = again.losses
    assert [old] == expected
    assert new.number == gone + 1
    told = again.take_loss(None)
    assert told == old
    again.close()


def test_a_loss_that_was_not_told_keeps_the_file(path: Path) -> None:
    spool = Spool(path, 6000)
    spool.write([parcel(n, "gpu", telemetry=True) for n in range(1, 101)], ())
    left = spool.load("gpu", 1 << 20)
    spool.delete(left)
    assert path.exists()
    again = reopened(spool)
    loss = again.take_loss(None)
    assert loss is not None
    again.delete([])
    assert path.exists()
    told = Parcel(loss.number, "kernel", b"", b"{}", telemetry=False, fact=loss)
    again.delete([told])
    assert not path.exists()
    again.close()


def test_a_loss_is_told_with_the_same_id_each_time() -> None:
    losses = Losses()
    losses.note(Loss(7, "gpu", 1, AT, AT))
    losses.note(Loss(5, "gpu", 3, AT - timedelta(hours=1), None))
    losses.note(Loss(6, "kernel", 1))
    assert losses.take(before=4) is None
    loss = losses.take(before=6)
    assert loss == Loss(5, "gpu", 4, AT - timedelta(hours=1), AT)
    record = fact(loss, "gx-07")
    assert (record.kind, record.source, record.device, record.count) == (
        "overrun",
        "spool",
        "gpu",
        4,
    )
    assert (record.at, record.last_at, record.host) == (AT - timedelta(hours=1), AT, "gx-07")
    assert fact(loss, "gx-07").id == record.id != fact(loss, "gx-08").id


def test_a_second_agent_on_one_folder_is_refused(spool: Spool) -> None:
    with pytest.raises(SpoolInUseError, match="one state folder serves one agent"):
        Spool(spool.path, 1000)
    spool.close()
    Spool(spool.path, 1000).close()


@pytest.mark.parametrize("damage", ["zeros", "noise", "short", "text"])
def test_a_damaged_file_is_set_aside_with_what_it_holds(
    spool: Spool, path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    spool.write([parcel(n, size=300) for n in range(1, 400)], ())
    spool.close()
    whole = path.read_bytes()
    broken = {
        "zeros": bytes(len(whole)),
        "noise": whole[:100] + random.Random(5).randbytes(len(whole) - 100),
        "short": whole[:5000],
        "text": b"this is no database, but it is long enough to look at" * 40,
    }[damage]
    path.write_bytes(broken)
    lost: list[Loss] = []
    keeper = SpoolKeeper(path, 1 << 20, lost.extend)
    keeper.load("kernel", 1000)
    assert keeper.write([parcel(500)], ()) or keeper.write([parcel(500)], ())
    assert [one.number for one in keeper.load("kernel", 1000)] == [500]
    assert len([said for said in caplog.messages if "set aside" in said]) == 1
    assert Path(f"{path}.damaged").read_bytes() == broken
    keeper.close()


def test_a_file_of_another_version_is_set_aside_untouched(path: Path) -> None:
    path.parent.mkdir()
    db = sqlite3.connect(path)
    db.executescript("CREATE TABLE queue (id, body); INSERT INTO queue VALUES (1, 'x');")
    db.execute("PRAGMA user_version = 7")
    db.close()
    keeper = SpoolKeeper(path, 1 << 20, lambda _lost: None)
    assert keeper.write([parcel(1)], ())
    keeper.close()
    old = sqlite3.connect(f"{path}.damaged")
    assert old.execute("SELECT * FROM queue").fetchall() == [(1, "x")]
    old.close()


def test_a_full_disk_is_said_once_and_nothing_counts_as_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() != 0 or subprocess.call(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)], stderr=subprocess.DEVNULL
    ):
        pytest.skip("needs to mount a small file system")
    try:
        keeper = SpoolKeeper(small / "spool.sqlite", 64 << 20, lambda _lost: None)
        kept, number = [], 1
        while number < 4000:
            chunk = [parcel(n, size=500) for n in range(number, number + 100)]
            number += 100
            if not keeper.write(chunk, ()):
                break
            kept += chunk
        assert 0 < len(kept) < 3900
        assert not keeper.usable(time.monotonic())
        keeper.write([parcel(999, size=9000)], ())
        (said,) = caplog.messages
        assert said.endswith("database or disk is full; records wait in memory")
        # What was kept can be read, though the disk is full.
        assert [one.number for one in keeper.load("kernel", 1 << 20)] == [p.number for p in kept]
        keeper.close()
    finally:
        subprocess.check_call(["umount", "--lazy", str(small)])


def test_a_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    keeper = SpoolKeeper(tmp_path / "file" / "spool.sqlite", 1 << 20, lambda _lost: None)
    assert not keeper.write([parcel(1)], ())
    (said,) = caplog.messages
    assert "it cannot be used" in said
    assert "records wait in memory" in said
    assert not keeper.usable(time.monotonic())
    keeper.close()


WRITER = """
import sys
from pathlib import Path
from collectors.shipping.backlog import Parcel
from collectors.shipping.spool import Spool
spool = Spool(Path(sys.argv[1]), 1 << 26)
number = 0
while True:
    chunk = [Parcel(number + n, "kernel", b"k", b"{%d" % (number + n), False) for n in range(1, 41)]
    spool.write(chunk, ())
    number += 40
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_loses_nothing_it_said_was_kept(path: Path) -> None:
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(12)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.stdout.close()
        writer.wait()
        promised = int([one for one in lines if one.endswith(b"\n")][-1])
        spool = Spool(path, 1 << 26)
        spool.open()
        found = spool.load("kernel", 1 << 30)
        assert [one.number for one in found][:promised] == [*range(1, promised + 1)]
        assert len(found) % 40 == 0
        spool.delete(found)
        spool.close()


def test_a_spool_that_another_agent_took_meanwhile_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "later"
    folder.touch()
    keeper = SpoolKeeper(folder / "spool.sqlite", 1 << 20, lambda _lost: None)
    folder.unlink()
    other = Spool(folder / "spool.sqlite", 1 << 20)
    assert not keeper.write([parcel(1)], ())
    assert "one state folder serves one agent" in caplog.messages[-1]
    other.close()
    keeper.close()
