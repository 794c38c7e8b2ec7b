"""The copies of the tables on disk: believed only where they are proven to be copies."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from streams.config import StateFolderError
from streams.shelves import Mark, MemoryShelf, RocksShelf, Shelf

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 12, 5, 6, 7, 8, tzinfo=UTC)
TOPIC_ID = b"3f0c"


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def opened(folder: Path, identity: bytes = TOPIC_ID, clock: Clock | None = None) -> RocksShelf:
    return RocksShelf(folder / "rocks", identity, clock=clock or Clock())


def mark(offset: int, epoch: int = 1) -> Mark:
    return Mark(offset, epoch, NOW)


def held(shelf: Shelf, partition: int) -> dict[bytes, bytes]:
    return dict(shelf.items(partition))


@pytest.fixture(params=["memory", "rocksdb"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelf]:
    made: Shelf = MemoryShelf() if request.param == "memory" else opened(tmp_path)
    yield made
    made.close()


def test_a_shelf_holds_each_partition_and_its_mark(shelf: Shelf) -> None:
    shelf.write(0, {b"a": b"1", b"b": b"2"}, mark(4))
    shelf.write(256, {b"a": b"other"}, mark(9))
    shelf.write(0, {b"a": None, b"c": b"\x00"}, mark(6, epoch=3))

    assert held(shelf, 0) == {b"b": b"2", b"c": b"\x00"}
    assert held(shelf, 256) == {b"a": b"other"}
    assert held(shelf, 1) == {}
    assert (shelf.mark(0), shelf.mark(256), shelf.mark(1)) == (mark(6, 3), mark(9), None)


def test_a_dropped_partition_leaves_the_others(shelf: Shelf) -> None:
    for partition in (0, 1, 255, 256):
        shelf.write(partition, {b"a": b"1"}, mark(1))

    shelf.drop(255)

    assert [bool(held(shelf, one)) for one in (0, 1, 255, 256)] == [True, True, False, True]
    assert shelf.mark(255) is None


def test_the_next_worker_finds_what_the_last_one_wrote(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.write(3, {b"a": b"1"}, mark(7, epoch=2))
    first.close()

    second = opened(tmp_path)

    assert second.removed is None
    assert second.mark(3) == mark(7, epoch=2)
    assert held(second, 3) == {b"a": b"1"}


def test_what_another_topic_left_is_removed(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.write(3, {b"a": b"1"}, mark(7))
    first.close()

    second = opened(tmp_path, b"topic made anew")

    assert second.removed == "they are of another cluster, topic or release"
    assert second.mark(3) is None
    assert held(second, 3) == {}


@pytest.mark.parametrize("hours", [13, -1])
def test_a_copy_that_nobody_followed_for_long_or_from_the_future_is_dropped(
    tmp_path: Path, hours: int
) -> None:
    clock = Clock()
    first = opened(tmp_path, clock=clock)
    first.write(3, {b"a": b"1"}, mark(7))
    first.close()
    clock.now += timedelta(hours=hours)

    second = opened(tmp_path, clock=clock)

    assert second.mark(3) is None
    assert held(second, 3) == {}


def full(folder: Path) -> None:
    """A database of many blocks, flushed to its files."""
    shelf = opened(folder)
    for partition in range(4):
        changes: dict[bytes, bytes | None] = {
            b"node-%04d" % number: os.urandom(2000) for number in range(500)
        }
        shelf.write(partition, changes, mark(500))
    shelf._db.flush()
    shelf.close()


def test_a_flipped_bit_is_found_and_all_is_read_anew(tmp_path: Path) -> None:
    full(tmp_path)
    [table] = (tmp_path / "rocks").glob("*.sst")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0x40
    table.write_bytes(content)

    shelf = opened(tmp_path)

    assert shelf.removed is not None
    assert "checksum" in shelf.removed
    assert [shelf.mark(partition) for partition in range(4)] == [None] * 4
    shelf.write(0, {b"a": b"1"}, mark(1))
    assert held(shelf, 0) == {b"a": b"1"}


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "noise"])
def test_damaged_files_are_read_anew_and_never_believed(
    tmp_path: Path, name: str, damage: str
) -> None:
    full(tmp_path)
    file = next((tmp_path / "rocks").glob(name))
    match damage:
        case "missing":
            file.unlink()
        case "empty":
            file.write_bytes(b"")
        case "half":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        case "noise":
            file.write_bytes(os.urandom(file.stat().st_size))

    shelf = opened(tmp_path)

    for partition in range(4):
        assert len(held(shelf, partition)) == (0 if shelf.mark(partition) is None else 500)
    shelf.write(0, {b"a": b"1"}, mark(1))


def test_a_folder_that_is_a_file_or_may_not_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rocks").write_text("not a folder")

    with pytest.raises(StateFolderError, match="cannot be used"):
        opened(tmp_path)


def test_a_folder_that_another_worker_has_is_one_sentence_and_stays_as_it_is(
    tmp_path: Path,
) -> None:
    first = opened(tmp_path)
    first.write(0, {b"a": b"1"}, mark(1))

    with pytest.raises(StateFolderError, match="in use by another worker"):
        opened(tmp_path)

    assert held(first, 0) == {b"a": b"1"}


_WRITER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from streams.shelves import Mark, RocksShelf
at = datetime(2026, 12, 5, 6, 7, 8, tzinfo=UTC)
shelf = RocksShelf(Path(sys.argv[1]), b"3f0c", clock=lambda: at)
for offset in range(10**9):
    number = b"%d" % offset
    value = number * 300
    shelf.write(0, {b"one": value, b"two": value}, Mark(offset, 1, at))
    if offset == 2000:
        print("going", flush=True)
"""


def test_a_writer_killed_in_the_middle_leaves_values_and_mark_of_one_moment(
    tmp_path: Path,
) -> None:
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path / "rocks")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"going\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait()

        shelf = opened(tmp_path)
        assert shelf.removed is None
        found = shelf.mark(0)
        assert found is not None
        value = b"%d" % found.offset * 300
        assert held(shelf, 0) == {b"one": value, b"two": value}
        shelf.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB; skips where this process may not mount one."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(shelf: Shelf) -> None:
    """Write more than fits."""
    for number in range(2, 60):
        shelf.write(0, {b"n": b"%d" % number, b"big": os.urandom(1 << 20)}, mark(number))


def open_while_it_fills(folder: Path) -> None:
    """Open again and again while the rest of the disk is taken."""
    for _ in range(3):
        opened(folder).close()
        with contextlib.suppress(OSError):
            (folder / "more").write_bytes(bytes(24 << 20))


def test_a_full_disk_is_one_sentence_and_what_was_written_before_is_there_when_it_has_room(
    tiny_disk: Path,
) -> None:
    ballast = tiny_disk / "ballast"
    shelf = opened(tiny_disk)
    shelf.write(0, {b"a": b"1"}, mark(1))
    ballast.write_bytes(bytes(16 << 20))
    with pytest.raises(StateFolderError, match=r"cannot be written.*No space left"):
        fill(shelf)
    shelf.close()
    with pytest.raises(StateFolderError, match=r"cannot be (used|written).*No space left"):
        open_while_it_fills(tiny_disk)

    ballast.unlink()
    (tiny_disk / "more").unlink(missing_ok=True)
    again = opened(tiny_disk)

    assert again.removed is None
    found = again.mark(0)
    assert found is not None
    assert held(again, 0)[b"a"] == b"1"
    assert held(again, 0)[b"n"] == b"%d" % found.offset
    again.close()
