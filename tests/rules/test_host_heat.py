"""A card too hot for ten minutes: told by the tick between two readings, never by silence."""

from typing import Any

import pytest

from rules import host

HOT = {2: {"temperature_c": 91}}


def read(node: Any, records: Any, since: float, until: float, every: float) -> float:
    """Frames of a hot card; the time of the last one."""
    count = int((until - since) / every)
    for number in range(count + 1):
        node.take(records.frame((since + number * every, HOT)))
    return since + count * every


@pytest.fixture
def warm(node: Any, records: Any) -> Any:
    node.feed(records.quiet())
    return node


def thermal(node: Any) -> list[str]:
    return [one for one in node.told() if "thermal" in one]


def test_readings_that_are_sparse_are_told_by_the_tick_at_ten_minutes(
    warm: Any, records: Any
) -> None:
    """Read every 90 s: the limit is passed at 610 s, the next reading would be at 640."""
    assert read(warm, records, 10, 600, 90) == 550
    assert host.due(warm.state) == warm.at(610)
    warm.tick(609)
    warm.tick(611)
    warm.tick(614)
    assert thermal(warm) == ["localized gpu-thermal gpu2"]


def test_the_reading_after_the_tick_changes_nothing(warm: Any, records: Any) -> None:
    read(warm, records, 10, 600, 90)
    warm.run_on()
    before = len(warm.verdicts)
    read(warm, records, 640, 1_000, 90)
    warm.run_on()
    assert len(warm.verdicts) == before


@pytest.mark.parametrize("every", [1.0, 5.0, 10.0, 59.9, 60.0, 100.0])
def test_readings_that_are_due_in_time_are_told_by_the_reading(
    every: float, warm: Any, records: Any
) -> None:
    read(warm, records, 10, 610 + every, every)
    warm.run_on()
    assert thermal(warm) == ["localized gpu-thermal gpu2"]


@pytest.mark.parametrize(("last", "every"), [(609, 1.0), (609.5, 0.5), (600, 10.0), (550, 60.0)])
def test_a_card_of_which_nothing_more_is_heard_before_its_time_is_not_told(
    last: float, every: float, warm: Any, records: Any
) -> None:
    """Hot for 9:59, then silent: no evidence says that it still is."""
    read(warm, records, 10, last, every)
    for seconds in (611, 640, 700, 2_000):
        warm.tick(seconds)
    warm.run_on()
    assert thermal(warm) == []


def test_an_agent_that_was_silent_in_between_makes_time_begin_anew(warm: Any, records: Any) -> None:
    read(warm, records, 10, 400, 10)
    read(warm, records, 800, 1_390, 10)
    warm.run_on()
    assert thermal(warm) == []
    read(warm, records, 1_400, 1_410, 10)
    warm.run_on()
    assert thermal(warm) == ["localized gpu-thermal gpu2"]


def test_a_short_pause_does_not(warm: Any, records: Any) -> None:
    read(warm, records, 10, 300, 10)
    read(warm, records, 400, 620, 10)
    warm.run_on()
    assert thermal(warm) == ["localized gpu-thermal gpu2"]


def test_a_cool_reading_before_the_tick_takes_it_back(warm: Any, records: Any) -> None:
    read(warm, records, 10, 600, 90)
    warm.take(records.frame((605, {})))
    assert host.settles(warm.state) is None
    warm.tick(611)
    warm.run_on()
    assert thermal(warm) == []


def test_a_card_that_is_lost_before_the_tick_is_lost_and_not_hot(warm: Any, records: Any) -> None:
    read(warm, records, 10, 600, 90)
    warm.take(records.frame((605, {2: {"status": "lost", "error": 15}})))
    warm.tick(611)
    warm.run_on()
    assert thermal(warm) == []


def test_the_tick_follows_the_broker_where_the_hosts_clock_is_wrong(
    warm: Any, records: Any
) -> None:
    """Frames are dated 100 s early: ten minutes have passed by either clock at the same moment."""
    for number in range(7):
        warm.take(records.frame((110 + number * 90, HOT)), 210 + number * 90)
    assert host.settles(warm.state) == warm.at(810)
