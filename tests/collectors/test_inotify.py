"""Files whose growth is heard of: sooner than a look would find it, and never at a higher price."""

import resource
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.follow import Follower
from collectors.inotify import Ear
from collectors.kernel import FileCollector

_PATIENCE_S = 10.0


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_bytes(b"")
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as out:
        out.write(data)


def readable(source: Ear | FileCollector, within_s: float = _PATIENCE_S) -> bool:
    number = source.fileno()
    assert number is not None
    return bool(select.select([number], [], [], within_s)[0])


def xid(pid: int) -> bytes:
    return b"kernel: NVRM: Xid (PCI:0000:4e:00): 31, pid=%d, name=train, MMU Fault\n" % pid


def awake(collector: FileCollector) -> None:
    """Read until the pause after the last line is over and nothing was found."""
    while collector.fileno() is None:
        time.sleep(0.01)
        assert list(collector.read()) == []


def test_a_line_of_a_kernel_file_wakes_its_reader(log: Path) -> None:
    collector = FileCollector("gpu-a07", [log], None)
    assert list(collector.read()) == []
    assert not readable(collector, 0)
    append(log, xid(101))
    assert readable(collector)
    assert [record.pid for record in collector.read()] == [101]
    awake(collector)
    assert not readable(collector, 0)
    collector.close()


def test_after_a_rotation_the_new_file_is_heard_and_the_old_one_too(log: Path) -> None:
    collector = FileCollector("gpu-a07", [log], None)
    collector.read()
    old = log.with_suffix(".log.1")
    log.rename(old)
    assert readable(collector)
    append(log, xid(201))
    assert [record.pid for record in collector.read()] == [201]
    awake(collector)
    append(log, xid(202))
    assert readable(collector)
    assert [record.pid for record in collector.read()] == [202]
    awake(collector)
    append(old, xid(203))
    assert readable(collector)
    assert [record.pid for record in collector.read()] == [203]
    collector.close()


def test_a_change_that_is_no_line_does_not_keep_the_descriptor_readable(log: Path) -> None:
    collector = FileCollector("gpu-a07", [log], None)
    collector.read()
    log.chmod(0o600)
    assert readable(collector)
    assert list(collector.read()) == []
    assert not readable(collector, 0)
    collector.close()


def test_a_change_that_a_reading_just_misses_wakes_again(log: Path, ear: Ear) -> None:
    follower = Follower(log, ear=ear)
    follower.read()
    ear.listen()
    append(log, b"late\n")  # after what was heard was taken, before the file is read
    assert [line.data for line in follower.read()] == [b"late"]
    assert readable(ear)


def test_a_chatty_file_wakes_no_more_often_than_looks_would(ear: Ear) -> None:
    pauses = []
    for _ in range(8):
        ear.rest(found=True)
        assert ear.fileno() is None
        pauses.append(ear._pause_s)
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.2, 0.2, 0.2]
    ear.rest(found=False)
    assert ear.fileno() is not None


def test_while_it_rests_the_collector_is_due_when_the_rest_ends(log: Path) -> None:
    collector = FileCollector("gpu-a07", [log], None)
    collector.read()
    append(log, xid(301))
    collector.read()
    assert collector.fileno() is None
    assert collector.next_due(time.monotonic()) < time.monotonic() + 0.05
    collector.close()


def test_a_file_that_is_heard_is_looked_at_less_often_and_a_silent_one_as_ever(
    log: Path, ear: Ear
) -> None:
    follower = Follower(log, ear=ear)
    follower.read()
    append(log, b"one\n")
    ear.listen()
    follower.read()
    assert follower.next_due(0.0) == 1.0
    current = follower._current
    assert current is not None
    ear.forget(current.watch)  # as on a file system that does not tell
    append(log, b"two\n")
    ear.listen()
    assert [line.data for line in follower.read()] == [b"two"]
    assert follower.next_due(time.monotonic()) < time.monotonic() + 0.3


def test_where_the_kernel_has_no_inotify_to_give_files_are_looked_at(log: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        collector = FileCollector("gpu-a07", [log], None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert collector.fileno() is None
    append(log, xid(401))
    assert [record.pid for record in collector.read()] == [401]
    append(log, xid(402))
    assert [record.pid for record in collector.read()] == [402]
    collector.close()


def test_watches_and_descriptors_are_given_back(log: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    collector = FileCollector("gpu-a07", [log], None)
    collector.read()
    collector.close()
    collector.close()
    assert set(Path("/proc/self/fd").iterdir()) == before
