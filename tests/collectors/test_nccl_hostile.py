"""Folders that somebody else fills: links in circles, closed doors, thousands of files."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from powerless import nobody

from collectors.collector import Unavailable
from collectors.follow import Follower
from collectors.nccl import NcclCollector
from collectors.nccl.flight_recorder import FlightRecorderCollector
from collectors.nccl.pattern import find, matcher

TIMEOUT = (
    b"[rank%d]:[E506 07:08:09.1 ProcessGroupNCCL.cpp:632] [Rank %d] Watchdog caught collective "
    b"operation timeout: WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
    b"Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
)


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def say(path: Path, rank: int, seq: int = 9) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as out:
        out.write(TIMEOUT % (rank, rank, seq))


def collector(pattern: str, clock: Clock, cursors: Path | None = None) -> NcclCollector:
    return NcclCollector([pattern], "j", "n3", cursors, clock)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def read_often(follower: Follower) -> None:
    for _ in range(10):
        assert follower.read() == []


def read(one: NcclCollector, clock: Clock, rounds: int = 3) -> list[int | None]:
    """The ranks that were told of, over a few rounds."""
    ranks = []
    for _ in range(rounds):
        ranks += [record.rank for record in one.read()]
        clock.wait(1)
    return ranks


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_links_in_a_circle_under_two_stars_end(tmp_path: Path) -> None:
    say(tmp_path / "a" / "rank1.log", 1)
    say(tmp_path / "a" / "b" / "rank2.log", 2)
    say(tmp_path / "a" / ".hidden" / "rank3.log", 3)
    for name in ("l1", "l2", "l3"):
        (tmp_path / "a" / name).symlink_to(".")
    (tmp_path / "a" / "b" / "up").symlink_to("..")
    found = find(*matcher(f"{tmp_path}/**/rank{{rank}}.log"))
    assert sorted(one.rank or 0 for one in found) == [1, 2]
    everything = find(*matcher(f"{tmp_path}/**"))
    assert [one.path.name for one in everything] == ["rank2.log", "rank1.log"]


def test_two_stars_find_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("x/rank1.log", "x/y/z/rank2.log", "rank3.log", "w[1]/out/q/rank4.log"):
        say(tmp_path / place, 1)
    monkeypatch.chdir(tmp_path)

    def names(pattern: str) -> list[str]:
        return [str(one.path) for one in find(*matcher(pattern))]

    assert names("**/rank*.log") == [
        "rank3.log",
        "w[1]/out/q/rank4.log",
        "x/rank1.log",
        "x/y/z/rank2.log",
    ]
    assert names("{job}/**/rank*.log") == names("**/rank*.log")[1:]
    assert names("w*/**/out/**/rank{rank}.log") == ["w[1]/out/q/rank4.log"]
    assert names("x/**/**/rank*.log") == ["x/rank1.log", "x/y/z/rank2.log"]


def test_a_folder_that_is_closed_to_us_hides_no_other(shared: Path) -> None:
    say(shared / "open" / "rank1.log", 1)
    say(shared / "closed" / "rank2.log", 2)
    (shared / "closed").chmod(0o744)  # its names can be seen, and nothing more
    clock = Clock()
    one = collector(f"{shared}/*/rank{{rank}}.log", clock)
    with nobody():
        assert read(one, clock) == [1]
    one.close()


def test_logs_that_may_not_be_read_are_unavailable_with_the_reason(shared: Path) -> None:
    say(shared / "rank1.log", 1)
    (shared / "rank1.log").chmod(0o600)
    clock = Clock()
    one = collector(f"{shared}/rank{{rank}}.log", clock)
    with nobody(), pytest.raises(Unavailable, match=r"rank1.log cannot be read: Permission denied"):
        one.read()
    one.close()


def test_more_logs_than_a_process_may_open_are_all_read(tmp_path: Path) -> None:
    logs = 700
    for rank in range(logs):
        say(tmp_path / f"rank{rank}.log", rank)
    clock = Clock()
    one = collector(f"{tmp_path}/rank{{rank}}.log", clock, tmp_path / "cursors")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 300, limits[1]))
    try:
        first = read(one, clock, 8)
        one.saved()
        say(tmp_path / "rank650.log", 650, 10)
        clock.wait(60)
        again = read(one, clock, 8)
        assert descriptors() < held + 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert sorted(rank for rank in first if rank is not None) == list(range(logs))
    assert again == [650]
    one.close()


def test_a_paused_file_is_opened_again_for_what_is_new(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_bytes(b"one\n")
    follower = Follower(log)
    assert [line.data for line in follower.read()] == [b"one"]
    follower.pause()
    held = descriptors()
    assert follower.read() == []
    assert descriptors() == held
    with log.open("ab") as out:
        out.write(b"two\nhalf")
    assert [line.data for line in follower.read()] == [b"two"]
    follower.pause()  # a half line is held: it stays open
    assert follower.pending == 4
    with log.open("ab") as out:
        out.write(b" line\n")
    assert [line.data for line in follower.read()] == [b"half line"]
    follower.pause()
    log.rename(tmp_path / "rank0.log.1")
    with (tmp_path / "rank0.log.1").open("ab") as out:
        out.write(b"late\n")
    log.write_bytes(b"new\n")
    assert [line.data for line in follower.read()] == [b"late", b"new"]
    follower.close()


@pytest.mark.parametrize("what", ["folder", "pipe", "compressed"])
def test_what_takes_a_files_place_and_cannot_be_followed_is_said(what: str, tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_bytes(b"one\n")
    follower = Follower(log)
    assert [line.data for line in follower.read()] == [b"one"]
    log.rename(tmp_path / "kern.log.1")
    with (tmp_path / "kern.log.1").open("ab") as out:
        out.write(b"late\n")
    if what == "folder":
        log.mkdir()
    elif what == "pipe":
        os.mkfifo(log)
    else:
        log.write_bytes(b"\x1f\x8b\x08")
    assert [line.data for line in follower.read()] == [b"late"]
    for _ in range(29):
        assert follower.read() == []
    with pytest.raises(Unavailable, match=r"plain file|compressed"):
        read_often(follower)
    log.rename(tmp_path / "odd")
    log.write_bytes(b"back\n")
    assert [line.data for line in follower.read()] == [b"back"]
    follower.close()


def test_a_clock_that_is_set_back_holds_nothing_back(tmp_path: Path) -> None:
    log = tmp_path / "rank5.log"
    log.write_bytes(TIMEOUT[:-1] % (5, 5, 9))  # its last words, without a newline
    clock = Clock()
    one = collector(f"{tmp_path}/rank{{rank}}.log", clock)
    assert list(one.read()) == []
    clock.wait(-3600)
    assert read(one, clock, 10) == [5]
    one.close()


def test_more_dumps_than_are_remembered_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.nccl.flight_recorder._SEEN_MAX", 12)
    monkeypatch.setattr("collectors.nccl.flight_recorder._LOOKED_AT", 6)
    for rank in range(40):
        (tmp_path / f"dump_rank_{rank}").write_bytes(b"no dump")
        os.utime(tmp_path / f"dump_rank_{rank}", (1_800_000_000 + rank, 1_800_000_000 + rank))
    clock = Clock()
    clock.now = datetime.fromtimestamp(1_800_000_100, UTC)
    one = FlightRecorderCollector([f"{tmp_path}/dump_rank_{{rank}}"], "j", "n3", None, clock)
    ranks = []
    for _ in range(40):
        ranks += [record.rank for record in one.read()]
        while one.busy:
            ranks += [record.rank for record in one.read()]
        clock.wait(6)
    assert sorted(ranks) == [34, 35, 36, 37, 38, 39]
    one.close()
