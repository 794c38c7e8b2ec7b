"""The kernel's ring: what its messages become, its gaps, its cursor."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.collector import Unavailable
from collectors.cursors import load, save
from collectors.kernel import KmsgCollector
from collectors.kernel.kmsg import (
    KmsgCursor,
    KmsgMessage,
    KmsgRing,
    read_message,
)
from collectors.kernel.stream import KernelStream
from evidence.identity import digest
from evidence.records import KernelKind, KernelRecord

BOOT = "11112222-3333-4444-5555-666677778888"
BOOT_TIME = datetime(2026, 3, 9, 8, 0, tzinfo=UTC)
NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:6a:00): 79, pid=4410, GPU has fallen off the bus."
BANNER = "NVRM: GPU at PCI:0000:6a:00: GPU-0a1b2c3d-1111-2222-3333-444455556666"


class Ring:
    """A ring read by hand: what one read of the device would return goes into `take`."""

    def __init__(self, sent: int | None = None, *, keep_other: bool = False) -> None:
        self.now = NOW
        stream = KernelStream(
            host="n1", clock=lambda: self.now, source="kmsg", keep_other=keep_other, coalesce=True
        )
        self.ring = KmsgRing(
            stream, host="n1", boot_id=BOOT, boot_time=BOOT_TIME, clock=lambda: self.now, sent=sent
        )

    def read(self, *messages: str) -> list[KernelRecord]:
        for message in messages:
            self.ring.take(message.encode())
        return self.ring.settle(noise_every=timedelta(minutes=1))


def test_a_message_of_the_ring_is_read_with_its_escapes_and_its_device() -> None:
    data = (
        b"4,1287,5141900,-,caller=T1;a\\x0ab \\x5cx41 \\xc3\\xa4 \\xff\n"
        b" SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
    )
    assert read_message(data) == KmsgMessage(
        priority=4,
        facility=0,
        seq=1287,
        uptime_us=5141900,
        text="a\nb \\x41 ä \\xff",
        device_pci="0000:3b:00",
    )


@pytest.mark.parametrize("data", [b"", b";", b"x,1,2,-;a", b"4,1;a", b"no semicolon", b"4,1,2,-"])
def test_what_is_no_message_of_the_ring_is_an_unreadable_record(data: bytes) -> None:
    assert read_message(data) is None
    (record,) = Ring().read(data.decode())
    assert (record.kind, record.raw) == (KernelKind.UNREADABLE, data.decode())


@given(st.binary(max_size=300))
def test_no_bytes_whatever_make_the_ring_raise(data: bytes) -> None:
    ring = Ring()
    ring.ring.take(data)
    ring.ring.settle(noise_every=timedelta(0))


def test_an_xid_of_the_ring_has_the_boot_time_plus_its_microseconds() -> None:
    assert Ring().read(f"4,17,3600250000,-;{XID}\n") == [
        KernelRecord(
            id=digest("n1", BOOT, 3600250000, XID),
            observed_at=NOW,
            raw=XID,
            kind=KernelKind.XID,
            host="n1",
            at=datetime(2026, 3, 9, 9, 0, 0, 250000, tzinfo=UTC),
            uptime_s=3600.25,
            source="kmsg",
            seq=17,
            boot_id=BOOT,
            priority=4,
            facility=0,
            code=79,
            pci="0000:6a:00",
            pid=4410,
            message="GPU has fallen off the bus.",
        )
    ]


def test_a_probe_message_of_one_printk_is_one_record() -> None:
    text = (
        "NVRM: The NVIDIA GPU 0000:6a:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system"
        " has\\x0aNVRM: fallen off the bus and is not responding to commands."
    )
    (record,) = Ring().read(f"3,1,1,-;{text}")
    assert (record.kind, record.pci, record.raw.count("\n")) == (KernelKind.NVRM, "0000:6a:00", 2)


def test_overwritten_messages_are_one_overrun_with_their_number() -> None:
    ring = Ring()
    ring.read(f"4,17,1,-;{XID}")
    lost, after = ring.read(f"4,40,2000000,-;{XID}")
    told = "22 kernel messages were overwritten before they were read"
    assert lost == KernelRecord(
        id=digest("n1", BOOT, 18, "overrun"),
        observed_at=NOW,
        raw=told,
        kind=KernelKind.OVERRUN,
        host="n1",
        at=BOOT_TIME + timedelta(seconds=2),
        uptime_s=2.0,
        source="kmsg",
        seq=18,
        boot_id=BOOT,
        count=22,
        message=told,
    )
    assert after.seq == 40


def test_messages_lost_while_no_agent_ran_are_an_overrun_too() -> None:
    lost, _ = Ring(sent=16).read(f"4,20,1,-;{XID}")
    assert (lost.kind, lost.count) == (KernelKind.OVERRUN, 3)


def test_what_was_sent_before_is_not_sent_again_but_its_uuid_is_remembered() -> None:
    found = Ring(sent=5).read(f"4,4,1,-;{BANNER}", f"4,5,1,-;{XID}", f"4,6,1,-;{XID}")
    assert [(record.seq, record.uuid) for record in found] == [
        (6, "GPU-0a1b2c3d-1111-2222-3333-444455556666")
    ]


def test_warnings_go_out_raw_and_merged_and_the_rest_is_counted_once_a_minute() -> None:
    ring = Ring()
    first = ring.read(
        "4,1,1,-;soft lockup - CPU#3", "6,2,1,-;usb 1-1: reset", "12,3,1,-;soft lockup - CPU#3"
    )
    assert [(record.raw, record.count) for record in first] == [
        ("soft lockup - CPU#3", 2),
        ("", 1),
    ]
    assert ring.read("6,4,1,-;usb 1-1: reset") == []
    ring.now += timedelta(minutes=1)
    assert [record.count for record in ring.read("6,5,1,-;usb 1-1: reset")] == [2]


def test_a_flood_of_different_warnings_is_bounded_a_minute_and_counted() -> None:
    found = Ring().read(*[f"4,{n},{n},-;warning number {n}" for n in range(1000)])
    assert len(found) == 601
    assert (found[-1].raw, sum(record.count for record in found)) == ("", 1000)


def test_a_storm_in_the_ring_is_counted_and_its_first_record_does_not_wait() -> None:
    ring = Ring()
    assert [record.count for record in ring.read(f"4,1,1,-;{XID}")] == [1]
    assert [record.count for record in ring.read(*[f"4,{n},9,-;{XID}" for n in range(2, 9)])] == [7]


def test_the_device_of_a_message_is_used_where_the_text_names_none() -> None:
    (record,) = Ring().read(
        "3,1,1,-;infiniband mlx5_0: create_qp:1:(pid 5): failed\n DEVICE=+pci:0000:5d:00.0\n"
    )
    assert record.pci == "0000:5d:00"


def test_the_cursor_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    cursor = KmsgCursor(boot_id=BOOT, seq=2**63, boot_time=BOOT_TIME)
    save(tmp_path / "new" / "kmsg.json", cursor)
    assert load(tmp_path / "new" / "kmsg.json", KmsgCursor) == cursor
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["kmsg.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"boot_id":1,"seq":2}'])
def test_a_broken_cursor_means_that_the_ring_is_sent_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kmsg.json").write_bytes(content)
    assert load(tmp_path / "kmsg.json", KmsgCursor) is None


def test_a_device_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    collector = KmsgCollector("n1", BOOT, None, path=tmp_path / "kmsg")
    with pytest.raises(Unavailable, match="cannot be opened: No such file"):
        collector.read()


def test_a_folder_in_place_of_the_device_is_unavailable_each_time(tmp_path: Path) -> None:
    collector = KmsgCollector("n1", BOOT, None, path=tmp_path)
    for _ in range(2):
        with pytest.raises(Unavailable, match="cannot be read"):
            collector.read()
    collector.close()


def test_an_empty_device_gives_nothing_and_no_cursor(tmp_path: Path) -> None:
    collector = KmsgCollector("n1", BOOT, tmp_path / "kmsg.json", path=Path("/dev/null"))
    assert collector.read() == []
    collector.saved()
    collector.close()
    assert not (tmp_path / "kmsg.json").exists()
