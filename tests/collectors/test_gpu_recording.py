"""The recording collector on growing files, and the framing it shares with the live one."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.collector import Unavailable
from collectors.gpu import RecordingCollector
from collectors.gpu.framing import Framer
from evidence.identity import digest
from evidence.records import GpuFrame, GpuSnapshot, GpuStatus, GpuTick

HOST = "dgx-b02-u07"
START = datetime(2026, 6, 1, 8, 30, tzinfo=UTC)
NOW = datetime(2026, 6, 1, 9, 0, tzinfo=UTC)


def tick(second: int, *, ecc: int = 0, status: GpuStatus = GpuStatus.OK) -> GpuTick:
    gpus = (
        GpuSnapshot(index=0, uuid="GPU-a", pci="0000:1b:00", ecc_volatile_uncorrected=0),
        GpuSnapshot(
            index=1, uuid="GPU-b", pci="0000:43:00", ecc_volatile_uncorrected=ecc, status=status
        ),
    )
    return GpuTick(at=START + timedelta(seconds=second), gpus=gpus)


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpu.ndjson"


@pytest.fixture
def collect(path: Path, seconds: Seconds) -> Callable[..., RecordingCollector]:
    def make(**settings: Any) -> RecordingCollector:
        settings = {"frame_ticks": 3, "monotonic": seconds} | settings
        return RecordingCollector(HOST, path, "boot-1", lambda: NOW, **settings)

    return make


def write(path: Path, *lines: GpuTick | bytes) -> None:
    with path.open("ab") as out:
        for line in lines:
            out.write(line if isinstance(line, bytes) else msgspec.json.encode(line) + b"\n")


def seen(frames: Any) -> list[list[datetime]]:
    return [[one.at for one in frame.ticks] for frame in frames]


def at(*seconds: int) -> list[datetime]:
    return [START + timedelta(seconds=second) for second in seconds]


def test_a_frame_is_the_ticks_and_where_they_come_from(path: Path, collect: Any) -> None:
    write(path, tick(0))
    (frame,) = collect(driver="550.163.01").read()
    content = msgspec.json.encode([tick(0)]).decode()
    assert frame == GpuFrame(
        id=digest("gpu", HOST, "boot-1", "recording", content),
        host=HOST,
        observed_at=NOW,
        seq=1,
        ticks=(tick(0),),
        boot_id="boot-1",
        driver="550.163.01",
        source="recording",
    )


def test_calm_ticks_are_framed_and_a_change_takes_the_waiting_ones_along(
    path: Path, collect: Any
) -> None:
    collector = collect()
    write(path, *map(tick, range(5)))
    assert seen(collector.read()) == [at(0), at(1, 2, 3)]
    write(path, tick(5), tick(6, ecc=1), tick(7, ecc=1))
    assert seen(collector.read()) == [at(4, 5, 6)]
    assert seen(collector.rest()) == [at(7)]
    assert seen(collector.rest()) == []


@pytest.mark.parametrize("status", [status for status in GpuStatus if status != "ok"])
def test_a_gpu_that_changes_its_status_is_news(path: Path, collect: Any, status: GpuStatus) -> None:
    collector = collect()
    write(path, tick(0), tick(1, status=status), tick(2))
    assert seen(collector.read()) == [at(0), at(1), at(2)]


def test_a_line_that_is_no_tick_is_counted_said_and_left_out(
    path: Path, collect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    naive = msgspec.json.encode(tick(1)).replace(b"Z", b"")
    garbage = [
        b"{\n",
        b"\xff\xfe\x00\x9f\n",
        b'{"gpus":[]}\n',
        b'{"at":"2026-06-01T08:30:00Z","gpus":[{"index":"one"}]}\n',
        b"[" * 100_000 + b"\n",
        naive + b"\n",
        b"\n",
    ]
    write(path, tick(0), *garbage, tick(2), tick(3), tick(4))
    collector = collect()
    with caplog.at_level(logging.WARNING):
        assert seen(collector.read()) == [at(0), at(2, 3, 4)]
    assert collector.malformed == 6
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 6
    assert caplog.messages[0].startswith(f"{path} line 2 is no GPU tick and is left out: ")
    assert caplog.messages[5].endswith("its time has no zone")


def test_half_a_line_waits_for_its_other_half(path: Path, collect: Any) -> None:
    whole = msgspec.json.encode(tick(0)) + b"\n"
    collector = collect()
    write(path, whole[:40])
    assert seen(collector.read()) == []
    write(path, whole[40:])
    assert seen(collector.read()) == [at(0)]
    assert collector.malformed == 0


def test_an_unfilled_frame_does_not_wait_for_ever(
    path: Path, collect: Any, seconds: Seconds
) -> None:
    collector = collect(interval_s=1.0)
    write(path, tick(0), tick(1))
    assert seen(collector.read()) == [at(0)]
    seconds.now += 5.9
    assert seen(collector.read()) == []
    seconds.now += 0.1
    assert seen(collector.read()) == [at(1)]


def test_a_file_that_is_not_there_yet_is_unavailable(path: Path, collect: Any) -> None:
    collector = collect()
    with pytest.raises(Unavailable, match=r"gpu\.ndjson is not there"):
        collector.read()
    write(path, tick(0))
    assert seen(collector.read()) == [at(0)]


def test_a_restart_goes_on_behind_the_last_saved_frame(
    path: Path, collect: Any, tmp_path: Path
) -> None:
    cursor = tmp_path / "state" / "gpu.json"
    first = collect(cursor_file=cursor)
    write(path, *map(tick, range(6)))
    assert seen(first.read()) == [at(0), at(1, 2, 3)]
    first.saved()
    first.close()
    # Ticks 4 and 5 were read, but are in no frame yet: nothing of them may be lost.
    second = collect(cursor_file=cursor)
    assert seen([*second.read(), *second.rest()]) == [at(4), at(5)]
    second.saved()
    second.close()
    write(path, tick(6))
    assert seen(collect(cursor_file=cursor).read()) == [at(6)]


def test_frames_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one tick"):
        Framer(HOST, None, "nvml", lambda: NOW, frame_ticks=0)
