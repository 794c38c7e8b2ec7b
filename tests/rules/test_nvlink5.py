"""The NVLink5 table and its two encodings; the lines of the table are those of 2025-10-29."""

from typing import Any

import pytest

from rules import catalog, nvlink5
from rules.nvlink5 import Effect, Fault, NvlinkError
from tests.rules.printed import AT_PEER, OWN_SIGNAL, RESET, read, xid

ROWS = catalog.load().nvlink5
#: Bits of the first register: the link's number, the reason of a link that is down.
LINK, REASON = 13, 20


def _word(row: NvlinkError, code: int, link: int = 5) -> int:
    return (row.reason or 0) << REASON | link << LINK | code


def test_all_seven_codes_are_there() -> None:
    assert len(ROWS) == 96
    assert {row.code for row in ROWS} == set(range(144, 151))
    assert {row.severity for row in ROWS} == {"fatal", "link-fatal", "nonfatal"}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_every_row_is_found_by_both_encodings(version: str) -> None:
    for row in ROWS:
        word = _word(row, getattr(row, version))
        found = nvlink5.decode(ROWS, row.code, row.units[-1], (word, row.status, 0, 0))
        assert found is not None, row
        assert (found.row, found.link, found.fatal) == (row, 5, False), row


def test_seven_reasons_of_a_link_that_is_down_name_the_other_end() -> None:
    named = {row.reason for row in ROWS if row.fault is Fault.PEER}
    assert named == {21, 32, 33, 34, 35, 36, 37}


@pytest.mark.parametrize(
    ("code", "unit", "registers", "told"),
    [
        (149, "NETIR_LINK_EVT", (0x004545C6, 0), ("link", 4, 10, True)),
        (149, "NETIR_LINK_EVT", (0x022585C6, 0), ("peer", 34, 12, True)),
        (149, "NETIR", (0x000FE406, 0), ("secondary", None, None, True)),
        (149, "NETIR_BER_EVENT", (0x00086226, 1), ("link", None, 3, False)),
        (145, "RLW_RXPIPE", (0x0409C0C2, 8), ("gpu", None, 14, False)),
        (145, "RLW_SRC_TRACK", (0x040988E2, 8), ("none", None, 12, False)),
        (150, "MSE_DEGRADED", (0x0003E000, 0xFFFFFFFF), ("gpu", None, None, False)),
    ],
)
def test_a_line_is_decoded(
    code: int, unit: str, registers: tuple[int, ...], told: tuple[str, int | None, int | None, bool]
) -> None:
    found = nvlink5.decode(ROWS, code, unit, registers)
    assert found is not None
    assert found.row is not None
    assert (found.row.fault, found.reason, found.link, found.fatal) == told


def test_an_error_that_becomes_worse_with_the_fatal_bit() -> None:
    (row,) = [row for row in ROWS if (row.units, row.status) == (("RLW_RXPIPE",), 2)]
    assert (row.recovery, row.recovery_if_fatal) == ("none", "reset-gpu")
    assert row.remote == {Effect.PACKET_LOSS}


def test_what_no_row_knows_keeps_its_unit_and_nothing_else() -> None:
    found = nvlink5.decode(ROWS, 149, "NETIR_LINK_EVT", (50 << REASON | 0x5C6, 0))
    assert found is not None
    assert (found.unit, found.reason, found.row) == ("NETIR_LINK_EVT", 50, None)
    assert nvlink5.decode(ROWS, 149, "NETIR_NEW", (0x3FF, 0)) is None
    assert nvlink5.decode(ROWS, 149, "NETIR_LINK_EVT", ()) is None
    assert nvlink5.decode(ROWS, 146, "TLW_CTRL", (0x1C6, 0)) is None


def test_a_gpu_that_reports_the_other_end_stays_innocent_when_it_must_be_reset(
    node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    node.feed(read((10, xid(3, AT_PEER)), (10.4, xid(3, RESET))))
    node.take(records.frame((11, {3: {"recovery_action": 1}})))
    node.run_on()
    assert node.told() == ["insufficient nvlink nvlink3/1"]


def test_of_two_gpus_that_may_be_meant_none_is(node: Any) -> None:
    node.feed(read((10, xid(3, AT_PEER)), (10.1, xid(6, OWN_SIGNAL)), (10.2, xid(7, OWN_SIGNAL))))
    node.run_on()
    assert node.told() == [
        "insufficient nvlink nvlink3/1",
        "suspected nvlink nvlink6/8",
        "suspected nvlink nvlink7/8",
    ]
