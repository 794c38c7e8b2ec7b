"""What the driver says once per GPU: kept over restarts, never over a boot or another card."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from collectors.kernel import FileCollector, parse_stream
from collectors.kernel.ids import MessageIds
from evidence.records import KernelKind, KernelRecord

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
DRIVER = (
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  (a@b)\n"
)
UUID = "GPU-0a1b2c3d-1111-2222-3333-444455556666"
OTHER = "GPU-77778888-1111-2222-3333-444455556666"
BANNER = f"NVRM: GPU at PCI:0000:6a:00: {UUID}\n"
SERIAL = "NVRM: GPU Board Serial Number: 1650999000111\n"
XID = "NVRM: Xid (PCI:0000:6a:00): 79, pid=4410, GPU has fallen off the bus.\n"
GSP = (
    "NVRM: Xid (PCI:0000:6a:00): 119, pid=77, name=python, Timeout after 6s of waiting for RPC"
    " response from GPU2 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4).\n"
)
LIMIT = (
    "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:6a:00 (printing 1 of every 30)."
    "  The GPU likely needs to be reset.\n"
)


def collector(log: Path, state: Path) -> FileCollector:
    return FileCollector("n1", [log], state, lambda: NOW, zone=UTC)


def xids(records: object) -> list[KernelRecord]:
    assert isinstance(records, list)
    return [record for record in records if record.kind is KernelKind.XID]


def test_an_xid_after_a_restart_still_names_card_and_driver_though_the_log_was_rotated(
    tmp_path: Path,
) -> None:
    log, state = tmp_path / "kern.log", tmp_path / "state"
    log.write_text(DRIVER + BANNER + SERIAL)
    before = collector(log, state)
    before.read()
    before.saved()
    before.close()
    log.rename(tmp_path / "kern.log.1")
    log.write_text(XID)
    after = collector(log, state)
    (record,) = xids([*after.read(), *after.read()])
    assert (record.uuid, record.serial, record.driver) == (UUID, "1650999000111", "570.158.01")


def test_what_was_learned_from_a_file_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    log, state = tmp_path / "kern.log", tmp_path / "state"
    log.write_text(DRIVER + BANNER)
    before = collector(log, state)
    before.read()
    before.saved()
    before.close()
    log.unlink()
    (tmp_path / "kern.log").write_text(XID)
    after = collector(log, state)
    (record,) = xids([*after.read(), *after.read()])
    assert (record.uuid, record.driver) == (None, None)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"n1": 3}'])
def test_a_broken_file_of_cards_is_as_none(tmp_path: Path, content: bytes) -> None:
    log, state = tmp_path / "kern.log", tmp_path / "state"
    log.write_text(BANNER)
    before = collector(log, state)
    before.read()
    before.saved()
    before.close()
    (cards,) = state.glob("*.gpus.json")
    assert json.loads(cards.read_bytes())["n1"]["gpus"] == {"0000:6a:00": {"uuid": UUID}}
    cards.write_bytes(content)
    with log.open("a") as out:
        out.write(XID)
    (record,) = xids(collector(log, state).read())
    assert record.uuid is None


def test_a_driver_that_is_loaded_again_makes_the_cards_unknown_until_it_names_them() -> None:
    lines = [BANNER, XID, DRIVER, XID, BANNER.replace(UUID, OTHER), XID]
    found = list(parse_stream([line.encode() for line in lines], host="n1", now=NOW))
    assert [(one.uuid, one.driver) for one in xids(found)] == [
        (UUID, None),
        (None, "570.158.01"),
        (OTHER, "570.158.01"),
    ]


def test_a_card_that_was_swapped_has_its_own_uuid_and_not_the_serial_of_the_one_before() -> None:
    lines = [BANNER, SERIAL, XID, BANNER.replace(UUID, OTHER), XID]
    found = list(parse_stream([line.encode() for line in lines], host="n1", now=NOW))
    assert [(one.uuid, one.serial) for one in xids(found)] == [
        (UUID, "1650999000111"),
        (OTHER, None),
    ]


def test_a_boot_in_a_journal_forgets_the_cards_of_that_host_only() -> None:
    def entry(host: str, boot: str, text: str) -> bytes:
        told = {"_HOSTNAME": host, "_BOOT_ID": boot * 32, "_TRANSPORT": "kernel"}
        return json.dumps(told | {"MESSAGE": text.strip()}).encode()

    lines = [
        entry("n1", "a", BANNER),
        entry("n2", "b", BANNER.replace(UUID, OTHER)),
        entry("n1", "c", XID),
        entry("n2", "b", XID),
    ]
    found = list(parse_stream(lines, host=None, now=NOW))
    assert [(one.host, one.uuid) for one in xids(found)] == [("n1", None), ("n2", OTHER)]


def test_gsp_timeouts_that_the_driver_prints_only_some_of_say_so() -> None:
    other = GSP.replace("6a:00", "6b:00")
    lines = [GSP, LIMIT, GSP, other, XID, DRIVER, GSP]
    found = list(parse_stream([line.encode() for line in lines], host="n1", now=NOW))
    assert [(one.kind.value, one.code, one.pci, one.rate_limited) for one in found] == [
        ("xid", 119, "0000:6a:00", False),
        ("nvrm", None, "0000:6a:00", True),
        ("xid", 119, "0000:6a:00", True),
        ("xid", 119, "0000:6b:00", False),
        ("xid", 79, "0000:6a:00", False),
        ("nvrm", None, None, False),
        ("xid", 119, "0000:6a:00", False),
    ]


def test_a_messages_id_tells_boot_time_text_and_how_often_it_came() -> None:
    ids = MessageIds("n1")
    seen = [
        ids.of("a", 5, "x"),
        ids.of("a", 5, "x"),
        ids.of("a", 6, "x"),
        ids.of("a", 5, "y"),
        ids.of("b", 5, "x"),
    ]
    assert len(set(seen)) == 5
    again = MessageIds("n1")
    assert [again.of("a", 5, "x"), again.of("a", 6, "x"), again.of("a", 5, "x ")] == [
        seen[0],
        seen[2],
        seen[1],
    ]
    resumed = MessageIds("n1", again.seen)
    assert resumed.of("a", 5, "x") not in seen
    assert MessageIds("n2").of("a", 5, "x") not in seen


def test_the_memory_of_ids_is_bounded() -> None:
    ids = MessageIds("n1")
    for number in range(10_000):
        ids.of("a", number, "x")
    assert len(ids.seen) < 100
