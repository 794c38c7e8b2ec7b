"""What became of a collector's reads, and how long it is left alone."""

import logging

import pytest

from collectors.attempts import Attempts


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_stays_away_is_left_alone_longer_and_longer_up_to_a_minute() -> None:
    attempts = Attempts("dcgm")
    rests = [attempts.absent("no endpoint") for _ in range(9)]
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    with attempts:
        pass
    assert attempts.failed("broke") == 1


def test_a_log_that_may_appear_at_any_time_is_looked_for_more_often() -> None:
    attempts = Attempts("nccl", longest_rest_s=5)
    assert [attempts.absent("no file") for _ in range(5)] == [1, 2, 4, 5, 5]


def test_it_tells_what_the_last_read_was_like() -> None:
    clock = Clock()
    attempts = Attempts("kmsg", monotonic=clock, wall=lambda: 1_700_000_000.0)
    assert attempts.worked_at is None
    with attempts:
        assert attempts.reading_since == 100.0
        clock.now += 0.25
    assert (attempts.took_s, attempts.reading_since) == (0.25, None)
    assert (attempts.worked_at, attempts.reads) == (1_700_000_000.0, 1)
    with pytest.raises(ValueError, match="odd"), attempts:
        raise ValueError("odd")
    attempts.failed("ValueError: odd")
    assert (attempts.error, attempts.unavailable, attempts.failures) == ("ValueError: odd", None, 1)
    attempts.absent("gone")
    assert (attempts.error, attempts.unavailable, attempts.failures) == (None, "gone", 1)
    with attempts:
        pass
    assert (attempts.error, attempts.unavailable, attempts.reads) == (None, None, 3)


def test_a_read_that_kept_the_others_waiting_is_counted_and_said_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    attempts = Attempts("fabric", monotonic=clock)
    with caplog.at_level(logging.WARNING):
        for took_s in (0.9, 1.5, 2.5, 61.0):
            with attempts:
                clock.now += took_s
    assert attempts.slow == 3
    assert caplog.messages == [
        "fabric took 1.5 s to be read; all others waited for it",
        "fabric took 61.0 s to be read; all others waited for it",
    ]
