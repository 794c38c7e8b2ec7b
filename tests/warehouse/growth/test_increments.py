"""Resets, gaps and swaps are told apart, and bursts are one thing each."""

from warehouse.growth.episodes import Episode, episodes
from warehouse.growth.increments import Increment, Run, increments


def test_a_count_that_climbs_gives_its_differences() -> None:
    runs = [Run(0, 5, 3), Run(5.1, 9, 10), Run(9.1, 20, 11)]
    assert increments(runs, aggregate=True) == [
        Increment(5, 5.1, 7, 0),
        Increment(9, 9.1, 1, 5.1),
    ]


def test_a_day_s_end_is_no_increment() -> None:
    assert increments([Run(0, 23.9, 4), Run(24, 47.9, 4)], aggregate=True) == []


def test_a_volatile_count_of_another_boot_is_a_lower_bound_even_where_it_is_higher() -> None:
    runs = [Run(0, 5, 3, "b1"), Run(6, 9, 8, "b2")]
    assert increments(runs, aggregate=False) == [Increment(5, 6, 8, 0, reset=True)]


def test_a_volatile_count_that_falls_within_a_boot_began_anew() -> None:
    runs = [Run(0, 5, 30, "b1"), Run(6, 9, 2, "b1")]
    assert increments(runs, aggregate=False) == [Increment(5, 6, 2, 0, reset=True)]


def test_a_reboot_without_errors_is_no_episode() -> None:
    grown = increments([Run(0, 5, 30, "b1"), Run(6, 9, 0, "b2")], aggregate=False)
    assert [one.count for one in grown] == [0]
    assert episodes(grown, 1.0) == []


def test_a_lifetime_count_survives_a_reboot() -> None:
    runs = [Run(0, 5, 3, "b1"), Run(6, 9, 4, "b2")]
    assert increments(runs, aggregate=True) == [Increment(5, 6, 1, 0)]


def test_a_lifetime_count_that_falls_was_cleared_and_tells_nothing() -> None:
    runs = [Run(0, 5, 300), Run(6, 9, 2), Run(10, 11, 5)]
    assert increments(runs, aggregate=True) == [
        Increment(5, 6, None, 0, cleared=True),
        Increment(9, 10, 3, 0),
    ]


def test_a_gap_is_spanned_by_the_increment_behind_it() -> None:
    (one,) = increments([Run(0, 5, 1), Run(50, 60, 9)], aggregate=True)
    assert (one.since, one.at, one.count) == (5, 50, 8)


def test_no_reading_gives_nothing() -> None:
    assert increments([], aggregate=True) == []


def _grown(*at: float) -> list[Increment]:
    return [Increment(one - 0.1, one, 10, 0) for one in at]


def test_errors_closer_than_the_gap_are_one_episode() -> None:
    found = episodes(_grown(1.0, 1.5, 2.5, 9.0), 1.0)
    assert [(one.start, one.end, one.count) for one in found] == [(1.0, 2.5, 30), (9.0, 9.0, 10)]


def test_the_gap_decides_what_is_one_episode() -> None:
    at = (1.0, 1.5, 2.5, 9.0)
    assert [len(episodes(_grown(*at), gap)) for gap in (1 / 12, 1.0, 24.0)] == [4, 2, 1]


def test_hours_without_samples_are_not_quiet() -> None:
    # nothing was read from 2 to 30: the burst may have lasted
    found = episodes([Increment(0, 2, 5, 0), Increment(2, 30, 5, 2)], 1.0)
    assert found == [Episode(2, 30, 10, 2)]
