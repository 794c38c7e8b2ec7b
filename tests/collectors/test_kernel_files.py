"""Log files that grow, rotate and are read again after a restart."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collectors.collector import Unavailable
from collectors.kernel import FileCollector
from evidence.identity import digest
from evidence.records import KernelKind

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)


def xid(pid: int) -> str:
    return f"[   12.000001] NVRM: Xid (PCI:0000:6a:00): 43, pid={pid}, name=train, Ch 00000008\n"


def collector(*paths: Path, state: Path | None = None) -> FileCollector:
    return FileCollector("n1", list(paths), state, lambda: NOW, zone=UTC)


def add(path: Path, text: str) -> None:
    with path.open("a") as out:
        out.write(text)


def pids(collector: FileCollector) -> list[int | None]:
    return [record.pid for record in collector.read() if record.kind is KernelKind.XID]


def test_lines_are_returned_once_as_the_file_grows(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(xid(1))
    reader = collector(log)
    (record,) = reader.read()
    raw = xid(1).rstrip("\n")
    assert (record.raw, record.file, record.line, record.seq) == (raw, str(log), 1, 0)
    assert record.id == digest("n1", log, log.stat().st_ino, 0, raw)
    assert pids(reader) == []
    add(log, xid(2) + xid(3)[:20])
    assert pids(reader) == [2]
    add(log, xid(3)[20:])
    assert pids(reader) == [3]


def test_after_a_restart_only_what_was_not_saved_is_sent_again_with_the_same_ids(
    tmp_path: Path,
) -> None:
    log, state = tmp_path / "kern.log", tmp_path / "state"
    log.write_text(xid(1))
    reader = collector(log, state=state)
    reader.read()
    reader.saved()
    add(log, xid(2))
    (unsaved,) = reader.read()
    reader.close()
    again = collector(log, state=state)
    assert again.read() == [unsaved]
    again.saved()
    again.close()
    assert collector(log, state=state).read() == []


def test_a_rotated_and_a_truncated_file_lose_nothing(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(xid(1))
    reader = collector(log)
    assert pids(reader) == [1]
    add(log, xid(2))
    log.rename(tmp_path / "kern.log.1")
    log.write_text(xid(3))
    assert pids(reader) + pids(reader) == [2, 3]
    log.write_text(xid(4)[:40] + "\n")
    log.write_text(xid(4))
    assert pids(reader) + pids(reader) == [4]


def test_an_event_that_our_reading_cut_in_two_is_still_one_record(tmp_path: Path) -> None:
    log, state = tmp_path / "kern.log", tmp_path / "state"
    switch = "nvidia-nvswitch0: SXid (PCI:0000:c7:00.0): 20034, "
    log.write_text(xid(1))
    reader = collector(log, state=state)
    reader.read()
    reader.saved()
    add(log, f"{switch}Fatal, Link 30 LTSSM Fault Up\n")
    assert reader.read() == []
    reader.saved()  # must not pass the line that is held
    add(log, f"{switch}Severity 1 Engine instance 30 Sub-engine instance 00\n")
    assert reader.read() == []
    reader.saved()
    assert reader.next_due(0.0) < 0.1
    add(log, f"{switch}Data {{0x50610002, 0x10100030}}\n")
    (record,) = reader.read()
    assert (record.severity, record.unit) == ("fatal", "engine 30.00")

    (again,) = collector(log, state=state).read()
    assert again.id == record.id
    reader.saved()
    assert collector(log, state=state).read() == []


def test_a_beginning_alone_waits_for_one_call_only(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text("NVRM: The NVIDIA GPU 0000:6a:00.0\n")
    reader = collector(log)
    assert reader.read() == []
    (record,) = reader.read()
    assert (record.kind, record.pci) == (KernelKind.NVRM, "0000:6a:00")


def test_an_xid_never_waits_behind_an_unfinished_event(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text("NVRM: The NVIDIA GPU 0000:6b:00.0\n" + xid(5))
    reader = collector(log)
    assert [record.kind for record in reader.read()] == [KernelKind.XID]
    assert [record.kind for record in reader.read()] == [KernelKind.NVRM]


def test_noise_in_files_is_counted_at_most_once_a_minute(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    now = NOW
    reader = FileCollector("n1", [log], None, lambda: now)
    counts = []
    for _ in range(3):
        add(log, "[    1.000001] usb 1-1: reset\n" * 50)
        counts.append([record.count for record in reader.read()])
        now += timedelta(seconds=40)
    assert counts == [[50], [], [100]]


def test_one_missing_file_does_not_hide_the_others_but_all_missing_is_unavailable(
    tmp_path: Path,
) -> None:
    log, missing = tmp_path / "kern.log", tmp_path / "missing.log"
    reader = collector(log, missing)
    with pytest.raises(Unavailable, match=r"missing\.log is not there"):
        reader.read()
    log.write_text(xid(1))
    assert pids(reader) == [1]
    missing.write_text(xid(2))
    assert pids(reader) == [2]


def test_two_files_of_one_name_keep_two_cursors(tmp_path: Path) -> None:
    state = tmp_path / "state"
    logs = [tmp_path / name / "kern.log" for name in ("a", "b")]
    for log in logs:
        log.parent.mkdir()
        log.write_text(xid(1))
    reader = collector(*logs, state=state)
    assert len({record.id for record in reader.read()}) == 2
    reader.saved()
    assert len(list(state.iterdir())) == 2
    assert collector(*logs, state=state).read() == []


def test_an_over_long_line_in_a_file_is_a_record_and_does_not_stop_it(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_bytes(b"q" * 300_000 + b"\n" + xid(9).encode())
    reader = collector(log)
    assert [record.kind for record in reader.read()] == [KernelKind.UNREADABLE, KernelKind.XID]


def test_a_file_among_others_that_cannot_be_read_is_said_once_and_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, later = tmp_path / "kern.log", tmp_path / "fabric.log"
    here.write_text(xid(1))
    caplog.set_level("INFO", "collectors.kernel.files")
    reader = collector(here, later)
    assert [pids(reader), pids(reader)] == [[1], []]
    assert caplog.messages == [f"{later} is not there"]
    later.write_text(xid(2))
    assert [pids(reader), pids(reader)] == [[2], []]
    assert caplog.messages[1:] == [f"{later} is read again"]
