"""The ring and the journal together: what the ring lost while no agent ran is read once."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from collectors.kernel import KmsgCollector
from collectors.kernel.ids import MessageIds
from evidence.records import KernelKind, KernelRecord

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
FIRST = "11112222-3333-4444-5555-666677778888"
BETWEEN = "55556666-3333-4444-5555-666677778888"
SECOND = "99990000-aaaa-bbbb-cccc-ddddeeeeffff"
BOOTED = {
    FIRST: datetime(2026, 3, 9, 8, 0, tzinfo=UTC),
    BETWEEN: datetime(2026, 3, 9, 9, 0, tzinfo=UTC),
    SECOND: datetime(2026, 3, 9, 10, 0, tzinfo=UTC),
}
BANNER = "NVRM: GPU at PCI:0000:6a:00: GPU-0a1b2c3d-1111-2222-3333-444455556666"


def xid(pid: int) -> str:
    return f"NVRM: Xid (PCI:0000:6a:00): 79, pid={pid}, GPU has fallen off the bus."


class Ring:
    """A FIFO whose every read is one message, as /dev/kmsg's is; an agent over a journal."""

    def __init__(self, folder: Path, boot: str, *, agent: bool = True) -> None:
        self.folder = folder
        self.boot = boot
        path = folder / f"kmsg-{time.monotonic_ns()}"
        os.mkfifo(path)
        self._in = os.open(path, os.O_RDWR)
        fcntl.fcntl(self._in, fcntl.F_SETFL, os.O_DIRECT | os.O_NONBLOCK)
        self.collector = KmsgCollector(
            "n7",
            boot,
            folder / "kmsg.json",
            path=path,
            clock=lambda: NOW,
            boot_time=BOOTED[boot],
            journal=agent,
            journal_directory=folder / "journal",
        )
        if agent:
            (folder / "journal").mkdir(exist_ok=True)

    def write(self, *messages: tuple[int, float, str]) -> None:
        """Messages as (sequence number, seconds since the boot, text)."""
        for seq, said_s, text in messages:
            os.write(self._in, f"4,{seq},{round(said_s * 1e6)},-;{text}\n".encode())

    def read(self) -> list[KernelRecord]:
        """Everything up to the end of the backfill."""
        found = [*self.collector.read()]
        gives_up = time.monotonic() + 20
        while self.collector._backfill is not None:
            assert time.monotonic() < gives_up
            time.sleep(0.02)
            found += self.collector.read()
        return [*found, *self.collector.read()]

    def end(self, *, save: bool = True) -> None:
        if save:
            self.collector.saved()
        self.collector.close()
        os.close(self._in)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Callable[[str], Ring]]:
    rings: list[Ring] = []

    def build(boot: str) -> Ring:
        rings.append(Ring(tmp_path, boot))
        return rings[-1]

    yield build
    for one in rings:
        one.collector.close()


@pytest.fixture
def journal(journals: ModuleType, tmp_path: Path) -> Callable[..., None]:
    """``journal(boot, (seconds, text), ...)``: a journal file with these messages of a boot."""

    def build(boot: str, *messages: tuple[float, str], **fields: str) -> None:
        entries = []
        for said_s, text in messages:
            said_us = round(said_s * 1e6)
            at = BOOTED[boot] + timedelta(microseconds=said_us + 5000)
            received = (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
            entries.append(journals.entry(boot, received, said_us, text, **fields))
        folder = tmp_path / "journal"
        count = len(list(folder.glob("*"))) if folder.exists() else 0
        journals.written(folder / f"system@{count}.journal", *entries)

    return build


def told(records: list[KernelRecord]) -> list[tuple[Any, ...]]:
    return [(one.source, one.boot_id, one.pid or one.kind.value) for one in records]


def test_the_end_of_the_boot_before_this_one_is_read_from_the_journal_once(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(FIRST)
    before.write((7, 1, xid(1)), (8, 2, xid(2)))
    assert len(before.read()) == 2
    before.end()
    journal(FIRST, (1, xid(1)), (2, xid(2)), (3, xid(3)), (4, xid(4)))
    journal(BETWEEN, (1, xid(5)))
    journal(SECOND, (1, xid(6)), (2, xid(7)))

    after = ring(SECOND)
    after.write((0, 1, xid(6)), (1, 2, xid(7)))
    found = after.read()
    assert sorted(told(found)) == sorted(
        [
            ("journal", FIRST, 3),
            ("journal", FIRST, 4),
            ("journal", BETWEEN, 5),
            ("kmsg", SECOND, 6),
            ("kmsg", SECOND, 7),
        ]
    )
    after.end()
    again = ring(SECOND)
    again.write((0, 1, xid(6)), (1, 2, xid(7)))
    assert again.read() == []


def test_a_message_has_one_id_in_the_ring_and_in_the_journal(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(FIRST)
    before.write((7, 1, xid(1)))
    before.read()
    before.end()
    before = ring(FIRST)
    before.write((7, 1, xid(1)), (8, 2.000123, xid(2)))
    (by_ring,) = before.read()
    before.end(save=False)  # the node dies before it is in Kafka, or just after
    journal(FIRST, (1, xid(1)), (2.000123, xid(2)))
    (by_journal,) = ring(SECOND).read()
    assert by_ring.source != by_journal.source
    assert (by_journal.id, by_journal.at, by_journal.uptime_s, by_journal.raw) == (
        by_ring.id,
        by_ring.at,
        by_ring.uptime_s,
        by_ring.raw,
    )


def test_messages_that_stand_out_of_order_at_the_cursor_are_neither_lost_nor_doubled(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(FIRST)
    before.write((7, 2.000009, xid(1)), (8, 2.000005, xid(2)))
    before.read()
    before.end()
    journal(FIRST, (2.000009, xid(1)), (2.000005, xid(2)), (2.000007, xid(3)), (2.000001, xid(4)))
    assert [one.pid for one in ring(SECOND).read()] == [3, 4]


def test_what_was_overwritten_while_no_agent_ran_is_no_overrun_when_the_journal_has_it(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(FIRST)
    before.write((7, 1, xid(1)))
    before.read()
    before.end()
    journal(FIRST, *[(n, xid(n)) for n in range(1, 7)])
    after = ring(FIRST)
    after.write((11, 5, xid(5)), (12, 6, xid(6)))
    found = after.read()
    assert sorted(told(found)) == sorted(
        [("journal", FIRST, n) for n in (2, 3, 4)] + [("kmsg", FIRST, n) for n in (5, 6)]
    )
    assert {one.id for one in found} == {
        MessageIds("n7").of(FIRST, n * 1_000_000, xid(n)) for n in range(2, 7)
    }


def test_what_the_journal_does_not_have_either_is_an_overrun_with_the_rest_of_the_number(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(FIRST)
    before.write((7, 1, xid(1)))
    before.read()
    before.end()
    journal(FIRST, (1, xid(1)), (3, xid(3)))
    after = ring(FIRST)
    after.write((11, 5, xid(5)))
    found = after.read()
    assert [(one.kind, one.count) for one in found if one.kind is KernelKind.OVERRUN] == [
        (KernelKind.OVERRUN, 2)
    ]
    assert sorted(one.pid for one in found if one.pid) == [3, 5]


def test_a_journal_that_does_not_reach_back_is_an_overrun(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(FIRST)
    before.write((7, 1, xid(1)))
    before.read()
    before.end()
    journal(SECOND, (1, xid(2)))
    after = ring(SECOND)
    after.write((0, 1, xid(2)))
    lost, found = sorted(after.read(), key=lambda one: one.kind)
    assert (lost.kind, lost.device, lost.boot_id) == (KernelKind.OVERRUN, "journal", FIRST)
    assert lost.at == BOOTED[FIRST] + timedelta(seconds=1)
    assert (found.pid, found.source) == (2, "kmsg")


def test_the_cursor_stays_in_the_old_boot_until_its_end_was_returned(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(FIRST)
    before.write((7, 1, xid(1)))
    before.read()
    before.end()
    journal(FIRST, (1, xid(1)), (2, xid(2)))
    killed = ring(SECOND)
    killed.write((0, 1, xid(3)))
    assert [one.pid for one in killed.collector.read()][-1] == 3
    if killed.collector._backfill is not None:  # else the journal was very fast
        killed.end()
    after = ring(SECOND)
    after.write((0, 1, xid(3)))
    assert sorted(one.pid for one in after.read() if one.pid) == [2, 3]


def test_without_a_gap_no_journal_is_read(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(FIRST)
    before.write((7, 1, xid(1)))
    before.read()
    before.end()
    journal(FIRST, (1, xid(1)), (2, xid(2)))
    after = ring(FIRST)
    after.write((7, 1, xid(1)), (8, 3, xid(3)))
    assert [one.pid for one in after.collector.read()] == [3]
    assert after.collector._backfill is None


def test_a_missing_journal_is_said_once_and_the_ring_is_read_as_ever(
    ring: Callable[[str], Ring], caplog: pytest.LogCaptureFixture
) -> None:
    before = ring(FIRST)
    before.write((7, 1, xid(1)))
    before.read()
    before.end()
    after = ring(FIRST)
    after.write((9, 3, xid(3)))
    assert [(one.kind, one.count) for one in after.read()] == [
        (KernelKind.OVERRUN, 1),
        (KernelKind.XID, 1),
    ]
    assert [one for one in caplog.messages if "there is no journal in" in one] == caplog.messages


def test_the_banner_is_remembered_over_a_restart_when_the_ring_has_lost_it(
    ring: Callable[[str], Ring],
) -> None:
    before = ring(FIRST)
    before.write((7, 1, BANNER), (8, 2, xid(2)))
    before.read()
    before.end()
    after = ring(FIRST)
    after.write((8, 2, xid(2)), (9, 3, xid(3)))
    assert [(one.pid, one.uuid) for one in after.read()] == [
        (3, "GPU-0a1b2c3d-1111-2222-3333-444455556666")
    ]
    after.end()
    booted = ring(SECOND)
    booted.write((0, 3, xid(4)))
    assert [one.uuid for one in booted.read() if one.pid] == [None]


def test_a_banner_that_only_the_journal_still_has_names_the_card_of_a_later_xid(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(FIRST)
    before.write((7, 1, xid(1)))
    before.read()
    before.end()
    journal(FIRST, (1, xid(1)), (2, BANNER))
    after = ring(FIRST)
    after.write((9, 3, xid(3)))
    after.read()
    after.write((10, 4, xid(4)))
    assert [one.uuid for one in after.read()] == ["GPU-0a1b2c3d-1111-2222-3333-444455556666"]


def test_a_gap_that_stays_forgets_the_cards_since_a_driver_may_have_been_loaded_in_it(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(FIRST)
    before.write((7, 1, BANNER))
    before.read()
    before.end()
    journal(FIRST, (1, BANNER), (2, "usb 1-1: reset"))
    after = ring(FIRST)
    after.write((10, 4, xid(3)))
    assert [one.uuid for one in after.read() if one.pid] == [None]
    after.write((11, 5, xid(4)))
    assert [one.uuid for one in after.read() if one.pid] == [None]


def test_three_lines_of_a_switch_that_are_read_one_by_one_are_one_record(
    ring: Callable[[str], Ring],
) -> None:
    switch = "nvidia-nvswitch0: SXid (PCI:0000:c7:00.0): 20034, "
    here = ring(FIRST)
    here.write((1, 1, f"{switch}Fatal, Link 30 LTSSM Fault Up"))
    assert here.collector.read() == []
    assert here.collector.next_due(0.0) < 0.1
    here.collector.saved()
    assert not (here.folder / "kmsg.json").exists()
    here.write((2, 1, f"{switch}Severity 1 Engine instance 30 Sub-engine instance 00"))
    assert here.collector.read() == []
    here.write((3, 1, f"{switch}Data {{0x50610002}}"), (4, 2, xid(5)))
    event, other = here.collector.read()
    assert (event.severity, event.registers, other.pid) == ("fatal", (0x50610002,), 5)
    assert here.collector.next_due(0.0) > 1.0


def test_a_boot_before_that_of_a_lost_cursor_is_not_read_again(
    ring: Callable[[str], Ring], journal: Callable[..., None]
) -> None:
    before = ring(SECOND)
    before.write((7, 1, xid(1)))
    before.read()
    before.end()
    # The boot between ended a quarter of an hour earlier; its messages were sent then.
    journal(BETWEEN, (2700, xid(2)))
    found = ring(FIRST).read()
    assert [one.kind for one in found] == [KernelKind.OVERRUN]
