"""A kept place that cannot be right: the source is read again, never silent for ever."""

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from collectors.cursors import load
from collectors.follow import Cursor
from collectors.kernel import FileCollector, KmsgCollector
from collectors.kernel.kmsg import KmsgCursor

BOOT = "5a5a0000-1111-4222-8333-94949494aaaa"
XID = (
    "Apr  7 10:11:12 n6 kernel: [ 44.0] NVRM: Xid (PCI:0000:b1:00): 48, "
    "pid=71, An uncorrectable double bit error (DBE) has been detected.\n"
)


@pytest.mark.parametrize(
    "harm",
    [
        {"offset": -7},
        {"offset": 10**30},
        {"line": -1},
        {"fingerprint_size": -1},
        {"fingerprint_size": 10**15},
        {"fingerprint_size": 10**30},
    ],
)
def test_a_file_with_an_impossible_place_is_read_again(
    harm: dict[str, int], tmp_path: Path
) -> None:
    log = tmp_path / "kern.log"
    log.write_text(XID)
    first = FileCollector("n6", [log], tmp_path / "state")
    assert len(list(first.read())) == 1
    first.saved()
    first.close()
    (kept,) = (tmp_path / "state").glob("kernel-kern.log-????????.json")
    assert load(kept, Cursor) is not None
    kept.write_bytes(msgspec.json.encode(msgspec.json.decode(kept.read_bytes())))
    text = kept.read_text()
    for name, value in harm.items():
        found = msgspec.json.decode(text)[name]
        kept.write_text(text.replace(f'"{name}":{found}', f'"{name}":{value}'))
    assert kept.read_text() != text
    again = FileCollector("n6", [log], tmp_path / "state")
    assert len(list(again.read())) == 1
    again.close()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg cannot be read here")
@pytest.mark.parametrize("seq", ["999999999999", "-4", "1" + "0" * 30])
def test_a_place_that_the_ring_never_reached_silences_no_kernel(seq: str, tmp_path: Path) -> None:
    state = tmp_path / "kmsg.json"

    def count() -> int:
        collector = KmsgCollector(
            "n6", BOOT, state, clock=lambda: datetime.now(UTC), keep_other=True
        )
        found = [record for _ in range(4) for record in collector.read()]
        collector.saved()
        collector.close()
        return len([one for one in found if one.kind != "overrun"])

    everything = count()
    assert everything > 0
    kept = load(state, KmsgCursor)
    assert kept is not None
    text = state.read_text()
    state.write_text(text.replace(f'"seq":{kept.seq}', f'"seq":{seq}'))
    assert state.read_text() != text
    assert count() >= everything
    assert count() < everything  # and the place it has now holds
