"""The real /dev/kmsg and a real systemd-journald over it: one message, one id; nothing is lost."""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from select import select

import pytest

from collectors.collector import Unavailable
from collectors.kernel import KmsgCollector
from collectors.kernel.journald import JournalCollector
from evidence.records import KernelKind, KernelRecord

KMSG = Path("/dev/kmsg")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
JOURNALD = Path("/lib/systemd/systemd-journald")

#: journald in a mount namespace of its own: its sockets and its journal are nobody else's.
_SCRIPT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/log/journal /run/systemd/journald.conf.d
printf '[Journal]\\nStorage=volatile\\nAudit=no\\nReadKMsg=yes\\nMaxLevelStore=debug\\n' \
    > /run/systemd/journald.conf.d/test.conf
mount --bind "$1" /run/log/journal
exec "$2"
"""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not (os.access(KMSG, os.R_OK | os.W_OK) and BOOT_ID.exists()),
        reason="/dev/kmsg is not there or not writable (it needs root outside a container)",
    ),
]


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Path]:
    """The folder into which a journald writes what the kernel says."""
    missing = [one for one in ("unshare", "journalctl") if shutil.which(one) is None]
    if missing or not JOURNALD.exists():
        why = f"{missing or JOURNALD} is not here (Debian packages systemd, util-linux)"
        if os.environ.get("RINGFENCE_REQUIRE_PARTS") == "1":
            pytest.fail(why)
        pytest.skip(why)
    folder = tmp_path / "journal"
    folder.mkdir()
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", folder, JOURNALD],
        stderr=subprocess.PIPE,
    )
    ends = time.monotonic() + 20
    while not list(folder.glob("*/system.journal")):
        if process.poll() is not None or time.monotonic() > ends:
            assert process.stderr is not None
            process.kill()
            said = process.stderr.read().decode()
            if "permitted" in said or "denied" in said:
                pytest.skip(f"no mount namespace may be made here: {said}")
            pytest.fail(f"journald did not start: {said}")
        time.sleep(0.05)
    yield folder
    process.terminate()
    process.wait(20)


def _say(*pids: int) -> None:
    for pid in pids:
        with KMSG.open("w") as out:
            out.write(
                f"<4>NVRM: Xid (PCI:0000:6b:00): 79, pid={pid}, name=journald test, GPU has fallen"
                " off the bus.\n"
            )


def _read(
    collector: KmsgCollector | JournalCollector, first: int, count: int
) -> list[KernelRecord]:
    """So many of our records, read as the agent does, and a moment longer."""
    found: list[KernelRecord] = []
    ends = time.monotonic() + 20
    while (now := time.monotonic()) < ends:
        try:
            new = [
                one
                for one in collector.read()
                if one.kind is KernelKind.XID and one.pid and 0 <= one.pid - first < 100
            ]
        except Unavailable:
            new = []
        found += new
        if len(found) >= count and not new and ends - now > 1:
            ends = now + 0.5
        descriptor = collector.fileno()
        wait = max(0.0, min(collector.next_due(now) - now, 0.2))
        select([] if descriptor is None else [descriptor], [], [], wait)
    return found


def test_a_message_is_the_same_record_from_the_ring_and_from_journald(
    journald: Path, tmp_path: Path
) -> None:
    first = random.SystemRandom().randrange(10**8, 10**9)
    boot = BOOT_ID.read_text().strip()
    by_ring = KmsgCollector("n1", boot, tmp_path / "kmsg.json")
    by_journal = JournalCollector("n1", boot, tmp_path / "journal.json", directory=journald)
    _say(first, first + 1)
    ring, journal = _read(by_ring, first, 2), _read(by_journal, first, 2)
    assert [one.pid for one in ring] == [first, first + 1]
    told = [(one.id, one.uptime_s, one.raw, one.priority, one.facility, one.pci) for one in ring]
    assert told == [
        (one.id, one.uptime_s, one.raw, one.priority, one.facility, one.pci) for one in journal
    ]
    assert {one.facility for one in ring} == {1}  # a process wrote it
    by_journal.saved()
    by_journal.close()
    _say(first + 2)
    again = JournalCollector("n1", boot, tmp_path / "journal.json", directory=journald)
    assert [one.pid for one in _read(again, first, 1)] == [first + 2]
    again.close()
    by_ring.close()


def test_the_descriptor_of_the_ring_is_ready_when_the_kernel_speaks(tmp_path: Path) -> None:
    first = random.SystemRandom().randrange(10**8, 10**9)
    collector = KmsgCollector("n1", BOOT_ID.read_text().strip(), tmp_path / "kmsg.json")
    assert collector.fileno() is None
    while collector.read():
        pass
    descriptor = collector.fileno()
    assert descriptor is not None
    _say(first)
    assert select([descriptor], [], [], 5)[0] == [descriptor]
    assert [one.pid for one in collector.read() if one.pid == first] == [first]
    assert collector.next_due(time.monotonic()) > time.monotonic() + 1
    collector.close()


def test_what_the_ring_of_a_boot_before_lost_comes_from_the_real_journal(
    journald: Path, tmp_path: Path
) -> None:
    """The collector is told that it runs in a later boot than the one the cursor is of."""
    first = random.SystemRandom().randrange(10**8, 10**9)
    boot = BOOT_ID.read_text().strip()
    agent = KmsgCollector("n1", boot, tmp_path / "kmsg.json")
    _say(first)
    assert len(_read(agent, first, 1)) == 1
    agent.saved()
    agent.close()
    _say(first + 1, first + 2)
    time.sleep(0.5)  # journald takes them in
    empty = tmp_path / "ring"
    os.mkfifo(empty)
    hold = os.open(empty, os.O_RDWR)
    later = KmsgCollector(
        "n1",
        "0f0f0f0f-1111-2222-3333-444455556666",
        tmp_path / "kmsg.json",
        path=empty,
        journal=True,
        journal_directory=journald,
    )
    found = _read(later, first, 2)
    assert [(one.pid, one.source, one.boot_id) for one in found] == [
        (first + 1, "journal", boot),
        (first + 2, "journal", boot),
    ]
    at = found[0].at
    assert at is not None
    assert abs((at - datetime.now(UTC)).total_seconds()) < 120
    later.close()
    os.close(hold)
