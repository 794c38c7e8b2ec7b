"""An agent's first look at a kernel ring that is hours old: it says what was, not what is."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from evidence.records import GpuStatus, KernelRecord

LOST = {"status": GpuStatus.LOST, "error": 15}
FIVE_HOURS = -18_000.0


def _read_now(node: Any, lines: Iterable[KernelRecord]) -> None:
    """Take old lines as an agent reads them that has just started, one second into the case."""
    for line in lines:
        assert line.at is not None
        age = timedelta(seconds=1 - FIVE_HOURS)
        node.take(replace(line, observed_at=line.at + age), 1)


def _faults(records: Any) -> list[Any]:
    return [
        records.kernel(FIVE_HOURS, 1, code=79),
        *records.chain(FIVE_HOURS, 2),
        records.kernel(FIVE_HOURS, 3, code=95, reset=True),
    ]


def test_an_old_ring_accuses_nobody_for_sure(node: Any, records: Any) -> None:
    _read_now(node, _faults(records))
    node.run_on()
    assert node.told() == [
        "suspected gpu-lost gpu1",
        "suspected gpu-memory gpu2",
        "suspected gpu-memory gpu3",
    ]
    assert all("NVML snapshots of today" in v.missing for v in node.latest())
    assert not any(v.hard for v in node.verdicts)


def test_cards_of_an_old_ring_that_read_well_have_recovered(node: Any, records: Any) -> None:
    _read_now(node, _faults(records))
    node.take(records.inventory(2))
    node.take(records.frame((4, {})))
    node.run_on()
    assert node.told() == [
        "recovered gpu-lost gpu1",
        "recovered gpu-memory gpu2",
        "recovered gpu-memory gpu3",
    ]


def test_a_card_of_an_old_ring_that_is_still_lost_is_lost(node: Any, records: Any) -> None:
    _read_now(node, [records.kernel(FIVE_HOURS, 1, code=79)])
    node.take(records.frame((4, {1: LOST})))
    node.run_on()
    assert "localized gpu-lost gpu1" in node.told()


def test_a_line_that_was_read_in_time_and_came_hours_late_accuses_nobody_for_sure(
    node: Any, records: Any
) -> None:
    node.take(records.kernel(FIVE_HOURS, 1, code=79), 1)
    node.run_on()
    assert node.told() == ["suspected gpu-lost gpu1"]
    assert node.latest()[0].muted == "stale"


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (None, "localized gpu-lost gpu1"),
        (LOST, "localized gpu-lost gpu1"),
        ({}, "recovered gpu-lost gpu1"),
    ],
)
def test_a_line_read_after_a_short_absence_of_the_agent_counts_unless_nvml_reads_the_card_well(
    node: Any, records: Any, after: dict[str, Any] | None, told: str
) -> None:
    line = records.kernel(-1500, 1, code=79)
    node.take(replace(line, observed_at=records.kernel(1).observed_at), 1)
    if after is not None:
        node.take(records.frame((2, {1: after})))
    node.run_on()
    assert told in node.told()
    assert ("localized" in {str(one.status) for one in node.verdicts}) is told.startswith("loc")


def test_an_old_line_and_a_new_one_of_the_same_card_count(node: Any, records: Any) -> None:
    _read_now(node, [records.kernel(FIVE_HOURS, 1, code=48)])
    node.take(records.kernel(5, 1, code=79))
    assert "localized gpu-lost gpu1" in node.told()


def test_the_driver_that_printed_a_line_says_what_its_code_meant(node: Any, records: Any) -> None:
    node.take(records.inventory(0, driver="580.95.05"))
    node.take(records.kernel(5, 1, code=144, driver="550.90.07"))
    node.take(records.kernel(5, 2, code=144))
    node.run_on()
    assert node.told() == ["insufficient unknown gpu1", "suspected nvlink gpu2"]
