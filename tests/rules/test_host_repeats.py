"""What comes again on one NVLink: a bad moment, the connection, or this GPU's own end."""

from datetime import timedelta
from typing import Any

import pytest

from evidence.decisions import Status
from tests.rules.printed import LINK, NOBODY, read, xid


@pytest.mark.parametrize("hours", [1.0, 30.0])
def test_a_link_that_fails_three_times_within_a_day_is_this_gpus_when_its_end_says_so(
    node: Any, records: Any, hours: float
) -> None:
    node.take(records.inventory(0))
    for turn in range(3):
        node.feed(read((10 + turn * hours * 3600, xid(4, LINK))))
        node.run_on()
    last = node.latest()[-1]
    often = hours < 2
    assert last.status is (Status.LOCALIZED if often else Status.SUSPECTED)
    assert ("failed 3 times within 24 hours" in last.reason) is often


def test_a_link_that_both_ends_complain_of_again_and_again_stays_suspected(
    node: Any, records: Any
) -> None:
    node.take(records.inventory(0))
    for turn in range(4):
        node.feed(read((10 + turn * 3600, xid(4, LINK)), (10.1 + turn * 3600, xid(6, LINK))))
        node.run_on()
    assert {str(verdict.status) for verdict in node.latest()} == {"suspected"}
    assert "failed 4 times" in node.latest()[-1].reason


def test_a_bad_connection_of_a_link_accuses_no_end_however_often_it_fails(
    node: Any, records: Any
) -> None:
    loose = (
        f"74, {NOBODY}NVLink: fatal error detected on link 9(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    )
    node.take(records.inventory(0))
    for turn in range(4):
        node.feed(read((10 + turn * 3600, xid(4, loose))))
        node.run_on()
    assert {str(verdict.status) for verdict in node.latest()} == {"suspected"}


def test_a_storm_on_one_link_is_one_failure(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.feed(read(*((10 + turn, xid(4, LINK)) for turn in range(40))))
    node.run_on()
    assert node.told() == ["suspected nvlink nvlink4/9"]
    assert "failed" not in node.latest()[0].reason
    assert len(node.state.link_errors) == 1


def test_bits_that_only_follow_something_else_ask_for_more(node: Any) -> None:
    followed = "74, NVLink: fatal error detected on link 9(0x100000, 0x0, 0x0, 0x30000, 0x0)"
    node.feed(read((10, xid(4, followed))))
    node.run_on()
    assert node.told() == ["insufficient nvlink nvlink4/9"]
    assert "follows another error" in node.latest()[0].reason


def test_a_repeat_a_day_later_is_not_counted_with_the_first(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    day = timedelta(days=1).total_seconds()
    for start in (10.0, 10 + day + 7200, 10 + 2 * day + 14_400):
        node.feed(read((start, xid(4, LINK))))
        node.run_on()
    assert {str(verdict.status) for verdict in node.latest()} == {"suspected"}
