"""The journal as a source: real journal files over boots, rotation and vacuum."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from select import select
from types import ModuleType
from typing import Any

import pytest

from collectors.collector import Unavailable
from collectors.kernel.ids import MessageIds
from collectors.kernel.journald import JournalCollector
from evidence.records import KernelKind, KernelRecord

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
START = datetime(2026, 3, 9, 8, 0, tzinfo=UTC)
FIRST = "11112222-3333-4444-5555-666677778888"
SECOND = "99990000-aaaa-bbbb-cccc-ddddeeeeffff"
BANNER = "NVRM: GPU at PCI:0000:6a:00: GPU-0a1b2c3d-1111-2222-3333-444455556666"
DRIVER = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  (a@b)"
_QUIET_S = 0.4
_LONGEST_S = 20.0


def xid(pid: int) -> str:
    return f"NVRM: Xid (PCI:0000:6a:00): 79, pid={pid}, GPU has fallen off the bus."


class Reader:
    """A collector read as the agent does: when its descriptor says so, or it is due."""

    def __init__(self, **options: Any) -> None:
        self.collector = JournalCollector("n7", clock=lambda: NOW, **options)

    def records(self, count: int) -> list[KernelRecord]:
        """So many records, and what comes after them until it is quiet."""
        found: list[KernelRecord] = []
        gives_up = time.monotonic() + _LONGEST_S
        quiet_at = 0.0
        while (now := time.monotonic()) < gives_up and (len(found) < count or now < quiet_at):
            try:
                new = self.collector.read()
            except Unavailable as error:
                assert "journalctl ended" in str(error)  # noqa: PT017 (one that was killed)
                new = []
            found += new
            if new or not quiet_at:
                quiet_at = time.monotonic() + _QUIET_S
            descriptor = self.collector.fileno()
            wait = min(self.collector.next_due(now) - now, _QUIET_S)
            select([] if descriptor is None else [descriptor], [], [], max(0.0, wait))
        return found

    def pids(self, count: int) -> list[int | None]:
        return [one.pid for one in self.records(count) if one.kind is KernelKind.XID]


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Callable[..., Reader]]:
    """A collector of the journal in tmp_path/journal, its cursor in tmp_path/state."""
    readers: list[Reader] = []

    def build(boot_id: str = FIRST, **options: Any) -> Reader:
        reader = Reader(
            boot_id=boot_id,
            cursor_file=tmp_path / "state" / "journal.json",
            directory=tmp_path / "journal",
            **options,
        )
        readers.append(reader)
        return reader

    yield build
    for reader in readers:
        reader.collector.close()


@pytest.fixture
def say(journals: ModuleType) -> Callable[..., bytes]:
    """An entry said so many seconds after the start of its boot (the second: an hour later)."""

    def build(said_s: float, message: str | bytes | None, boot: str = FIRST, **more: str) -> bytes:
        booted = START + timedelta(hours=boot == SECOND)
        said_us = round(said_s * 1e6)
        received = round((booted - datetime.fromtimestamp(0, UTC)).total_seconds() * 1e6) + said_us
        entry: bytes = journals.entry(boot, received + 5000, said_us, message, **more)
        return entry

    return build


def test_an_entry_is_the_record_that_the_ring_would_have_given(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    journals.written(tmp_path / "journal" / "system.journal", say(3600.25, xid(4410)))
    assert read().records(1) == [
        KernelRecord(
            id=MessageIds("n7").of(FIRST, 3600250000, xid(4410)),
            observed_at=NOW,
            raw=xid(4410),
            kind=KernelKind.XID,
            host="n7",
            at=START + timedelta(seconds=3600.25),
            uptime_s=3600.25,
            source="journal",
            seq=1,
            boot_id=FIRST,
            priority=4,
            facility=0,
            code=79,
            pci="0000:6a:00",
            pid=4410,
            message="GPU has fallen off the bus.",
        )
    ]


def test_equal_messages_of_one_microsecond_have_their_own_ids_whether_read_together_or_not(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    line = "mlx5_core 0000:5d:00.0: Port module event: module 1, Cable unplugged"
    journal = journals.Journal(tmp_path / "journal" / "system.journal")
    journal.write(say(7, line))
    reader = read()
    (first,) = reader.records(1)
    reader.collector.saved()
    reader.collector.close()
    journal.write(say(7, line))
    (second,) = read().records(1)
    journal.close()
    ids = MessageIds("n7")
    assert [first.id, second.id] == [ids.of(FIRST, 7000000, line), ids.of(FIRST, 7000000, line)]
    assert first.id != second.id


def test_entries_of_many_boots_and_files_come_once_each_over_restarts(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    journals.written(folder / "system@1.journal", *[say(n, xid(n)) for n in range(1, 5)])
    reader = read()
    assert reader.pids(4) == [1, 2, 3, 4]
    reader.collector.saved()
    reader.collector.close()
    # The node dies: its last words are in the journal only. Then it boots, and the file rotates.
    journals.written(folder / "system@2.journal", say(5, xid(5)), say(6, xid(6)))
    journals.written(folder / "system.journal", *[say(n, xid(n), SECOND) for n in range(7, 9)])
    restarted = read(SECOND)
    assert restarted.pids(4) == [5, 6, 7, 8]
    restarted.collector.saved()
    restarted.collector.close()
    assert read(SECOND).pids(0) == []


def test_the_first_start_begins_with_this_boot(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    journals.written(folder / "a.journal", say(1, xid(1)))
    journals.written(folder / "b.journal", say(1, xid(2), SECOND))
    assert read(SECOND).pids(1) == [2]


def test_what_is_not_saved_comes_again_with_the_same_ids(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    journals.written(tmp_path / "journal" / "s.journal", *[say(n, xid(n)) for n in range(1, 4)])
    reader = read()
    first = reader.records(3)
    reader.collector.close()
    assert read().records(3) == first


def test_an_entry_is_there_as_soon_as_it_is_written(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    journal = journals.Journal(tmp_path / "journal" / "system.journal")
    journal.write(say(1, xid(1)))
    reader = read()
    first = [*reader.collector.read()]
    assert first or reader.collector.busy
    assert [one.pid for one in first] + reader.pids(1 - len(first)) == [1]
    assert not reader.collector.busy
    journal.write(say(2, xid(2)))
    descriptor = reader.collector.fileno()
    assert select([descriptor], [], [], 10)[0] == [descriptor]
    assert reader.pids(1) == [2]
    journal.close()


def test_a_vacuumed_cursor_is_an_overrun_and_what_is_left_is_read(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    old = journals.written(folder / "system@1.journal", say(1, xid(1)), say(2, xid(2)))
    reader = read()
    reader.records(1)
    reader.collector.saved()
    reader.collector.close()
    old.unlink()
    journals.written(folder / "system.journal", say(5, xid(5)), say(6, xid(6)))
    lost, *rest = read().records(3)
    assert (lost.kind, lost.device, lost.source) == (KernelKind.OVERRUN, "journal", "journal")
    assert (lost.at, lost.last_at) == (
        START + timedelta(seconds=2.005),
        START + timedelta(seconds=5),
    )
    assert [one.pid for one in rest] == [5, 6]


def test_a_lost_cursor_does_not_bring_back_what_was_read_before_it(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    journals.written(folder / "a.journal", say(1, xid(1)))
    middle = journals.written(folder / "b.journal", say(2, xid(2)))
    reader = read()
    assert reader.pids(2) == [1, 2]
    reader.collector.saved()
    reader.collector.close()
    middle.unlink()
    journals.written(folder / "c.journal", say(3, xid(3)))
    restarted = read()
    found = restarted.records(2)
    assert [one.kind for one in found] == [KernelKind.OVERRUN, KernelKind.XID]
    assert found[1].pid == 3
    restarted.collector.saved()
    restarted.collector.close()
    assert read().records(0) == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b'{"cursor":"x","boot_id":"","entry_us":1}']
)
def test_a_broken_cursor_means_that_this_boot_is_read_again(
    content: bytes,
    journals: ModuleType,
    say: Callable[..., bytes],
    read: Callable[..., Reader],
    tmp_path: Path,
) -> None:
    journals.written(tmp_path / "journal" / "system.journal", say(1, xid(1)))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "journal.json").write_bytes(content)
    assert read().pids(1) == [1]


def test_a_killed_journalctl_is_started_again_and_nothing_is_lost_or_doubled(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    journal = journals.Journal(tmp_path / "journal" / "system.journal")
    journal.write(say(1, xid(1)))
    reader = read()
    assert reader.pids(1) == [1]
    child = reader.collector._child
    assert child is not None
    os.kill(child._child.pid, signal.SIGKILL)
    journal.write(say(2, xid(2)))
    journal.close()
    descriptor = reader.collector.fileno()
    assert select([descriptor], [], [], 10)[0] == [descriptor]
    assert reader.pids(1) == [2]


def test_an_event_of_three_lines_read_apart_is_one_record_and_is_not_saved_half(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    switch = "nvidia-nvswitch0: SXid (PCI:0000:c7:00.0): 20034, "
    journal = journals.Journal(tmp_path / "journal" / "system.journal")
    journal.write(say(1, xid(1)))
    reader = read()
    assert reader.pids(1) == [1]
    reader.collector.saved()
    journal.write(say(1.5, xid(2)), say(2, f"{switch}Fatal, Link 30 LTSSM Fault Up"))
    time.sleep(_QUIET_S)  # both are there
    assert [one.pid for one in reader.collector.read()] == [2]
    assert reader.collector.next_due(0.0) < 0.1
    reader.collector.saved()  # killed here: the event is read again from its beginning
    reader.collector.close()
    journal.write(
        say(2.000011, f"{switch}Severity 1 Engine instance 30 Sub-engine instance 00"),
        say(2.000015, f"{switch}Data {{0x50610002, 0x10100030}}"),
    )
    journal.close()
    again, event = read().records(2)
    assert again.pid == 2
    assert (event.kind, event.severity, event.link) == (KernelKind.SXID, "fatal", 30)
    assert (event.unit, event.registers) == ("engine 30.00", (0x50610002, 0x10100030))
    assert event.id == MessageIds("n7").of(FIRST, 2000000, f"{switch}Fatal, Link 30 LTSSM Fault Up")


def test_the_banner_is_remembered_over_a_restart_and_forgotten_over_a_boot(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    told = (DRIVER, BANNER, "NVRM: GPU Board Serial Number: 1650999000111")
    journals.written(folder / "a.journal", *[say(n, one) for n, one in enumerate(told, start=1)])
    reader = read()
    reader.records(3)
    reader.collector.saved()
    reader.collector.close()
    journals.written(folder / "b.journal", say(9, xid(9)), say(3, xid(10), SECOND))
    same, other = read(SECOND).records(2)
    assert (same.pid, same.uuid, same.serial, same.driver) == (
        9,
        "GPU-0a1b2c3d-1111-2222-3333-444455556666",
        "1650999000111",
        "570.158.01",
    )
    assert (other.pid, other.uuid, other.serial, other.driver) == (10, None, None, None)


def test_the_fabric_managers_own_entries_come_along_and_a_process_that_quotes_an_xid_does_not(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    error = (
        "detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id "
        "00000000:87:00.0 physical id 8 port 61"
    )
    journals.written(
        tmp_path / "journal" / "system.journal",
        say(1, error, _TRANSPORT="syslog", SYSLOG_IDENTIFIER="nv-fabricmanager", PRIORITY="3"),
        say(2, "saw " + xid(2), _TRANSPORT="stdout", SYSLOG_IDENTIFIER="watcher"),
        say(
            3,
            "device 0000:6a:00.0 - " + xid(3),
            _TRANSPORT="syslog",
            SYSLOG_IDENTIFIER="nvidia-persistenced",
            _SYSTEMD_UNIT="nvidia-persistenced.service",
        ),
    )
    found = read(keep_other=True).records(2)
    assert [(one.kind, one.code, one.pci) for one in found] == [
        (KernelKind.FABRIC_MANAGER, 12028, "0000:87:00"),
        (KernelKind.OTHER, None, None),
    ]


def test_text_that_is_not_utf8_or_has_no_end_or_is_missing_is_a_record(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    journals.written(
        tmp_path / "journal" / "system.journal",
        say(1, b"NVRM: Xid (PCI:0000:6a:00): 31, pid=7, name=\xff\xfe, Ch 00000008"),
        say(2, None),
        say(3, "x" * 100_000),
        say(4, xid(4)),
    )
    found = read(keep_other=True).records(4)
    assert [(one.kind, one.process, one.pid) for one in found] == [
        (KernelKind.UNREADABLE, None, None),
        (KernelKind.UNREADABLE, None, None),
        (KernelKind.XID, "\\xff\\xfe", 7),
        (KernelKind.XID, None, 4),
    ]


def test_a_place_without_a_journal_is_unavailable_and_says_where(tmp_path: Path) -> None:
    collector = JournalCollector("n7", FIRST, None, directory=tmp_path / "nowhere")
    with pytest.raises(Unavailable, match=r"there is no journal in .*nowhere"):
        collector.read()
    assert collector.fileno() is None
    collector.close()


def test_a_machine_without_journalctl_is_unavailable(
    journals: ModuleType,
    say: Callable[..., bytes],
    read: Callable[..., Reader],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journals.written(tmp_path / "journal" / "system.journal", say(1, xid(1)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="journalctl cannot be started"):
        read().collector.read()


def test_a_damaged_journal_file_is_said_and_stops_nobody(
    journals: ModuleType, say: Callable[..., bytes], read: Callable[..., Reader], tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    broken = journals.written(folder / "broken.journal", say(1, xid(1)))
    with broken.open("r+b") as out:
        out.truncate(4096)
    journals.written(folder / "system.journal", say(2, xid(2)))
    assert read().pids(1) == [2]
