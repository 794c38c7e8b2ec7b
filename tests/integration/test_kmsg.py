"""The real /dev/kmsg: what root writes there comes back as a record, once."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collectors.kernel import KmsgCollector
from evidence.records import KernelKind, KernelRecord

KMSG = Path("/dev/kmsg")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

pytestmark = pytest.mark.skipif(
    not (os.access(KMSG, os.R_OK | os.W_OK) and BOOT_ID.exists()),
    reason="/dev/kmsg is not there or not writable (it needs root outside a container)",
)


def _say(pid: int) -> None:
    with KMSG.open("w") as out:
        out.write(
            f"<4>NVRM: Xid (PCI:0000:6a:00): 79, pid={pid}, name=kmsg-test, GPU has fallen off the"
            " bus.\n"
        )


def _collector(cursor: Path | None) -> KmsgCollector:
    return KmsgCollector("n1", BOOT_ID.read_text().strip(), cursor)


def _ours(collector: KmsgCollector, pid: int) -> list[KernelRecord]:
    return [
        record
        for record in collector.read()
        if record.kind is KernelKind.XID and (record.pid, record.process) == (pid, "kmsg-test")
    ]


def _wait(collector: KmsgCollector, pid: int) -> list[KernelRecord]:
    for _ in range(50):
        if found := _ours(collector, pid):
            return found
        time.sleep(0.02)
    return []


def test_an_xid_written_into_the_ring_is_read_with_its_time_and_not_again_after_a_restart(
    tmp_path: Path,
) -> None:
    pid = 100_000_000 + time.time_ns() % 1_000_000_000
    cursor = tmp_path / "kmsg.json"
    collector = _collector(cursor)
    collector.read()  # the ring's past
    before = datetime.now(UTC)
    _say(pid)
    (record,) = _wait(collector, pid)
    assert (record.code, record.pci, record.priority) == (79, "0000:6a:00", 4)
    assert record.message == "GPU has fallen off the bus."
    assert record.at is not None
    # the kernel's own clock is not disciplined by NTP: it may drift against the wall clock
    assert abs(record.at - before) < timedelta(minutes=2)
    assert _ours(collector, pid) == []

    # not saved yet: an agent that starts now sends it again, as the very same record
    unsaved = _collector(cursor)
    (again,) = _ours(unsaved, pid)
    assert again.id == record.id
    unsaved.close()

    collector.saved()
    collector.close()
    restarted = _collector(cursor)
    assert _ours(restarted, pid) == []
    _say(pid + 1)
    assert [one.pid for one in _wait(restarted, pid + 1)] == [pid + 1]
    restarted.close()


def test_the_rings_past_is_read_before_what_comes_now(tmp_path: Path) -> None:
    del tmp_path
    pid = 100_000_000 + time.time_ns() % 1_000_000_000
    _say(pid)
    collector = _collector(None)
    assert len(_wait(collector, pid)) == 1
    collector.close()


def test_a_cursor_of_another_boot_does_not_hide_this_boots_messages(tmp_path: Path) -> None:
    pid = 100_000_000 + time.time_ns() % 1_000_000_000
    cursor = tmp_path / "kmsg.json"
    cursor.write_text('{"boot_id":"another","seq":18446744073709551615}')
    _say(pid)
    collector = _collector(cursor)
    assert len(_wait(collector, pid)) == 1
    collector.close()
