from datetime import UTC, datetime, timedelta

import pytest

from evidence.topics import TOPICS
from evidence.wire import decode, encode
from streams.ticks import StageTime, TickTimes, is_ticked, tick, ticked_at

START = datetime(2026, 11, 3, 9, 12, 44, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_time_is_unknown_until_every_ticked_topic_was_ticked() -> None:
    time = StageTime(("kernel", "gpu"))

    assert time.advance("kernel", 0, at(1)) is None
    assert time.advance("gpu", 0, at(1)) == at(1)


def test_a_backlog_in_one_topic_holds_time_back() -> None:
    time = StageTime(("kernel", "gpu"))
    time.advance("kernel", 0, at(1))
    time.advance("gpu", 0, at(1))

    assert time.advance("kernel", 0, at(60)) is None
    assert time.advance("gpu", 0, at(2)) == at(2)
    assert time.advance("gpu", 0, at(90)) == at(60)


def test_partitions_have_times_of_their_own() -> None:
    time = StageTime(("kernel", "gpu"))
    time.advance("kernel", 0, at(9))
    time.advance("gpu", 0, at(9))

    assert time.advance("kernel", 1, at(1)) is None
    assert time.advance("gpu", 1, at(1)) == at(1)


def test_time_never_goes_back() -> None:
    time = StageTime(("verdicts",))

    assert time.advance("verdicts", 0, at(5)) == at(5)
    assert time.advance("verdicts", 0, at(4)) is None
    assert time.advance("verdicts", 0, at(5)) is None
    assert time.advance("verdicts", 0, at(6)) == at(6)


def test_topics_that_carry_no_ticks_hold_nothing_back() -> None:
    time = StageTime(("verdicts", "requests", "isolation.acks"))

    assert not is_ticked("requests")
    assert not is_ticked("isolation.acks")
    assert time.advance("verdicts", 0, at(1)) == at(1)


def test_forgetting_waits_for_every_topic_again() -> None:
    time = StageTime(("kernel", "gpu"))
    time.advance("kernel", 0, at(1))
    time.advance("gpu", 0, at(1))
    time.forget()

    assert time.advance("kernel", 0, at(2)) is None


def test_a_tick_reads_back_from_every_topic_that_carries_ticks() -> None:
    sent = tick(START, "kernel", 3)

    assert sent == tick(START, "kernel", 3)
    assert sent.id != tick(START, "kernel", 2).id
    assert [decode(name, encode(sent)) for name in TOPICS if is_ticked(name)] == [sent] * 8


def test_a_place_is_ticked_regularly_and_when_a_key_is_due() -> None:
    times = TickTimes(0.5)
    place = ("host", 3)

    def told(seconds: float, due: float | None) -> bool:
        dues = {place: None if due is None else at(due)}
        return times.wanted(100 + seconds, at(seconds), dues) == [place]

    assert told(0.0, None)
    assert not told(0.2, 0.3)
    assert told(0.31, 0.3)
    assert not told(0.4, 0.3)  # its tick is on its way
    assert not told(0.8, None)
    assert told(0.81, None)


def test_keys_that_are_due_close_together_share_a_tick() -> None:
    times = TickTimes(0.5, apart_s=0.045)
    place = ("host", 0)

    sent = [
        step
        for step in range(0, 400, 10)
        if times.wanted(step / 1000, at(step / 1000), {place: at((step - 1) / 1000)})
    ]

    assert sent == list(range(0, 400, 50))


def test_it_is_told_how_long_nothing_will_be_wanted() -> None:
    times = TickTimes(0.5)
    near, far = ("host", 0), ("job", 0)
    times.wanted(100.0, at(0), {near: at(0.2), far: None})

    assert times.wait_s(100.1, at(0.1), {near: at(0.2), far: None}) == pytest.approx(0.1)
    assert times.wait_s(100.1, at(0.1), {near: None, far: None}) == pytest.approx(0.4)
    assert times.wait_s(100.3, at(0.3), {near: at(0.2), far: None}) == 0.0


def test_a_clock_that_stands_still_or_goes_back_stops_no_regular_tick() -> None:
    times = TickTimes(0.5)
    place = ("host", 0)
    times.wanted(100.0, at(9), {place: None})

    assert times.wanted(100.5, at(9), {place: at(3)}) == [place]
    assert times.wanted(101.0, at(2), {place: at(3)}) == [place]


def test_a_tick_says_the_time_unless_its_workers_clock_is_off() -> None:
    appended = at(100)

    assert ticked_at(at(99.8), appended) == at(99.8)
    assert ticked_at(at(104.9), appended) == at(104.9)
    assert ticked_at(at(3700), appended) == appended
    assert ticked_at(at(-3500), appended) == appended
