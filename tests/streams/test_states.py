from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Struct

from rules.stage import Arrived
from streams.stage import Stage
from streams.states import Live, States, StateTooLargeError, read_kept

START = datetime(2026, 11, 3, 9, 12, 44, tzinfo=UTC)


class Count(Struct, frozen=True, omit_defaults=True):
    count: int = 0
    due: datetime | None = None
    words: str = ""


def step(state: Count, _arrived: Arrived) -> tuple[Count, Iterable[Struct]]:
    return state, []


def states(max_bytes: int = 1000) -> States:
    return States(Stage("count", ("kernel",), Count, step, lambda one: one.due), max_bytes)


def test_a_key_is_empty_until_it_is_advanced() -> None:
    kept = states()

    assert kept.of(b"node-a", 2) == Live(2, Count())
    assert len(kept) == 0


def test_what_is_written_restores_the_same_state_partition_and_offsets() -> None:
    before, after = states(), states()
    live = Live(2, Count(), {"kernel": 41})
    value = before.advance(b"node-a", live, Count(7, START))
    assert value is not None

    after.restore([(2, b"node-a", value)])
    after.forget_beyond({("kernel", 2): 50})

    assert after.of(b"node-a", 0) == Live(2, Count(7, START), {"kernel": 41})
    assert after.due(2, START) == [b"node-a"]


def test_a_topic_made_anew_is_read_from_its_start() -> None:
    before, after = states(), states()
    live = Live(0, Count(), {"kernel": 900, "gpu": 10})
    value = before.advance(b"node-a", live, Count(1))
    assert value is not None

    after.restore([(0, b"node-a", value)])
    after.forget_beyond({("kernel", 0): 3, ("gpu", 0): 11})

    assert after.of(b"node-a", 0).seen == {"gpu": 10}


def test_a_kept_state_that_cannot_be_read_starts_anew(caplog: pytest.LogCaptureFixture) -> None:
    kept = states()

    kept.restore([(0, b"node-a", b'{"partition":0,"state":{"count":"x"}}'), (0, b"b", b"\xff")])

    assert kept.of(b"node-a", 0).state == Count()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_only_keys_of_the_partition_that_are_due_are_asked_and_the_oldest_first() -> None:
    kept = states()
    for key, partition, seconds in ((b"c", 0, 3), (b"a", 0, 1), (b"b", 0, 2), (b"z", 1, 1)):
        live = Live(partition, Count())
        kept.advance(key, live, Count(1, START + timedelta(seconds=seconds)))
    kept.advance(b"never", Live(0, Count()), Count(1))

    assert kept.due(0, START + timedelta(seconds=2)) == [b"a", b"b"]
    assert kept.due(1, START + timedelta(seconds=2)) == [b"z"]


def test_a_key_whose_step_failed_is_asked_again_a_minute_later() -> None:
    kept = states()
    kept.advance(b"a", Live(0, Count()), Count(1, START))
    kept.postpone(b"a", 0, START)

    assert kept.due(0, START + timedelta(seconds=59)) == []
    assert kept.due(0, START + timedelta(seconds=60)) == [b"a"]


def test_a_state_of_none_forgets_the_key() -> None:
    kept = states()
    live = Live(0, Count())
    kept.advance(b"a", live, Count(1, START))

    assert kept.advance(b"a", live, None) is None
    assert kept.of(b"a", 0) == Live(0, Count())
    assert kept.due(0, START) == []


def test_a_state_that_is_too_large_is_refused_and_the_old_one_stays() -> None:
    kept = states(max_bytes=200)
    live = Live(0, Count())
    kept.advance(b"a", live, Count(1))

    with pytest.raises(StateTooLargeError, match="200 can be kept"):
        kept.advance(b"a", live, Count(2, words="w" * 300))
    assert kept.of(b"a", 0).state == Count(1)


def test_the_newest_offset_seen_of_each_place_is_found() -> None:
    kept = states()
    values = [
        kept.advance(b"a", Live(0, Count(), {"kernel": 5, "gpu": 2}), Count(1)),
        kept.advance(b"b", Live(0, Count(), {"kernel": 9}), Count(1)),
        kept.advance(b"c", Live(1, Count(), {"kernel": 3}), Count(1)),
    ]
    after = states()
    after.restore(
        (1 if index == 2 else 0, bytes([index]), value)
        for index, value in enumerate(values)
        if value is not None
    )

    assert after.newest_seen() == {("kernel", 0): 9, ("gpu", 0): 2, ("kernel", 1): 3}


def test_the_tables_value_is_readable_json() -> None:
    value = states().advance(b"a", Live(3, Count(), {"kernel": 5}), Count(1))

    assert value == b'{"partition":3,"state":{"count":1},"seen":{"kernel":5}}'
    assert read_kept(value).partition == 3


def test_the_first_key_that_is_due_is_known_as_it_moves() -> None:
    kept = states()
    assert kept.next_due(0) is None

    kept.advance(b"a", Live(0, Count()), Count(1, START + timedelta(seconds=5)))
    kept.advance(b"b", Live(0, Count()), Count(1, START + timedelta(seconds=7)))
    assert kept.next_due(0) == START + timedelta(seconds=5)

    kept.advance(b"a", Live(0, Count()), Count(2, START + timedelta(seconds=9)))
    assert kept.next_due(0) == START + timedelta(seconds=7)
    kept.forget(b"b", 0)
    assert kept.next_due(0) == START + timedelta(seconds=9)
    kept.advance(b"a", Live(0, Count()), Count(3))
    assert kept.next_due(0) is None
    assert kept.next_due(1) is None


def test_a_key_that_is_due_again_at_the_same_time_is_asked_again() -> None:
    kept = states()
    live = Live(0, Count(1, START))
    kept.remember(b"a", live)

    assert kept.due(0, START) == [b"a"]
    kept.remember(b"a", live)
    assert kept.due(0, START) == [b"a"]


def test_what_a_key_no_longer_waits_for_is_not_kept_for_ever() -> None:
    kept = states()
    for second in range(5000):
        kept.remember(b"a", Live(0, Count(1, START + timedelta(seconds=second))))

    assert len(kept._order[0]) < 300
    assert kept.next_due(0) == START + timedelta(seconds=4999)


def test_a_key_of_which_nothing_is_known_is_not_kept() -> None:
    kept = states()
    kept.remember(b"a", Live(0, Count()))
    assert len(kept) == 0

    kept.advance(b"a", Live(0, Count()), Count(1))
    kept.remember(b"a", Live(0, Count()))
    assert len(kept) == 1
