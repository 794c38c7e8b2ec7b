from datetime import UTC, datetime, timedelta

from evidence.topics import TOPICS
from evidence.wire import decode, encode
from streams.ticks import StageTime, is_ticked, tick

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
