"""Events printed in pieces become one record: interleaved, cut by batch borders, never ended."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.follow import Line
from collectors.kernel.stream import KernelStream
from evidence.records import KernelKind, KernelRecord

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:6a:00): 79, pid=4410, GPU has fallen off the bus."
PROBE = [
    "NVRM: The NVIDIA GPU 0000:6a:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
]
DUMP = [
    "NVRM: A GPU crash dump has been created. If possible, please run",
    "NVRM: nvidia-bug-report.sh as root to collect this data before",
    "NVRM: the NVIDIA kernel module is unloaded.",
]


def switch(number: int, code: int = 20034) -> list[str]:
    """The three lines of an event of a switch; its link and data are its number."""
    start = f"nvidia-nvswitch{number}: SXid (PCI:0000:c{number}:00.0): {code}, "
    return [
        f"{start}Fatal, Link {number:02d} LTSSM Fault Up",
        f"{start}Severity 1 Engine instance {number:02d} Sub-engine instance 00",
        f"{start}Data {{0x{number:08x}, 0x00000001}}",
    ]


class Batches:
    """Lines taken in batches as the collectors take them."""

    def __init__(self) -> None:
        self.stream = KernelStream(host="n1", clock=lambda: NOW, keep_other=True, coalesce=True)
        self.found: list[KernelRecord] = []
        self.offset = 0

    def take(self, *texts: str) -> list[KernelRecord]:
        for text in texts:
            self.stream.line(Line(text.encode(), self.offset, self.offset + 1))
            self.offset += 1
        new = self.stream.settle(joined=not (texts and self.stream.unfinished))
        self.found += new
        return new


@st.composite
def _interleaved(draw: st.DrawFn) -> list[list[str]]:
    """Events of several switches, hosts, and the driver, in any order, cut into batches."""
    events = [switch(number) for number in range(draw(st.integers(1, 3)))]
    events.append([f"Mar  9 11:00:00 gpu8 kernel: {line}" for line in switch(1)])
    if draw(st.booleans()):
        events.append(list(PROBE))
    lines: list[str] = []
    while events:
        event = draw(st.sampled_from(events))
        lines.append(event.pop(0))
        if not event:
            events.remove(event)
    batches: list[list[str]] = [[]]
    for line in lines:
        # Nothing is held for more than a few batches.
        if batches[-1] and len(batches) < 5 and draw(st.booleans()):
            batches.append([])
        batches[-1].append(line)
    return batches


@given(_interleaved())
def test_events_are_whole_however_they_interleave_and_wherever_batches_end(
    batches: list[list[str]],
) -> None:
    taken = Batches()
    for batch in batches:
        taken.take(*batch)
    taken.take()
    raw = [line for record in taken.found for line in record.raw.split("\n")]
    assert sorted(raw) == sorted(line for batch in batches for line in batch)
    assert all(len(record.raw.split("\n")) == 3 for record in taken.found)
    for record in taken.found:
        if record.kind is KernelKind.SXID:
            assert record.link is not None
            assert record.registers == (record.link, 1)
            assert record.unit == f"engine {record.link:02d}.00"


@pytest.mark.parametrize("event", [switch(1), PROBE, DUMP], ids=["switch", "probe", "dump"])
def test_an_event_whose_end_never_comes_is_a_record_after_one_quiet_look(event: list[str]) -> None:
    for lines in (event[:1], event[:2]):
        taken = Batches()
        assert taken.take(*lines) == []
        (record,) = taken.take()
        assert record.raw == "\n".join(lines)


@pytest.mark.parametrize("event", [switch(1), PROBE, DUMP], ids=["switch", "probe", "dump"])
def test_a_whole_event_is_not_held(event: list[str]) -> None:
    (record,) = Batches().take(*event)
    assert record.raw == "\n".join(event)


def test_an_event_whose_end_never_comes_is_not_held_for_ever_by_lines_that_keep_coming() -> None:
    taken = Batches()
    calls = 0
    while not any(record.kind is KernelKind.SXID for record in taken.found):
        taken.take(switch(1)[0] if not calls else f"usb 1-1: reset {calls}")
        calls += 1
        assert calls < 10
    assert [record.raw for record in taken.found if record.kind is KernelKind.OTHER] == [
        f"usb 1-1: reset {number}" for number in range(1, calls)
    ]


def test_two_events_of_one_switch_and_code_keep_their_own_details() -> None:
    first, second = switch(1), [line.replace("Link 01", "Link 09") for line in switch(1)]
    found = Batches().take(*first, *second)
    assert [(one.link, len(one.raw.split("\n"))) for one in found] == [(1, 3), (9, 3)]


def test_a_buried_beginning_does_not_tear_the_event_that_began_after_it() -> None:
    others = [f"usb 1-1: reset {number}" for number in range(7)]
    taken = Batches()
    whole = switch(2)
    taken.take(switch(1)[0], *others, whole[0], "usb 2-1: reset", whole[1], whole[2])
    taken.take()
    by_link = {one.link: one for one in taken.found if one.kind is KernelKind.SXID}
    assert by_link[1].raw == switch(1)[0]
    assert by_link[2].raw == "\n".join(whole)


def test_a_loss_told_by_one_printk_and_by_an_xid_in_the_next_message_is_one_record() -> None:
    text = "#012".join(PROBE)  # as rsyslog writes a message of several lines
    (record,) = Batches().take(text, XID)
    assert (record.kind, record.code, record.pci) == (KernelKind.XID, 79, "0000:6a:00")
    assert record.raw == f"{text}\n{XID}"


def test_details_without_their_first_line_are_kept_and_are_no_event() -> None:
    found = Batches().take(*switch(1)[1:])
    assert [(one.kind, one.severity, one.code) for one in found] == [
        (KernelKind.SXID, None, 20034),
        (KernelKind.SXID, None, 20034),
    ]


def test_an_xid_that_does_not_follow_the_probe_message_at_once_is_an_event_of_its_own() -> None:
    found = Batches().take(*PROBE, "usb 1-1: reset", XID)
    assert [one.kind for one in found] == [KernelKind.NVRM, KernelKind.OTHER, KernelKind.XID]
