import logging

from streams.stall import Sparing, Stall


def test_a_counter_that_stands_still_is_stuck_and_one_that_moves_is_not() -> None:
    stall = Stall(60.0)
    assert stall.stuck(0.0, {"host": 1, "job": 1}) == []
    assert stall.stuck(60.0, {"host": 1, "job": 2}) == []

    assert stall.stuck(61.0, {"host": 1, "job": 2}) == ["host"]
    assert stall.stuck(62.0, {"host": 2, "job": 2}) == []


def test_a_counter_that_was_left_out_starts_anew() -> None:
    stall = Stall(60.0)
    stall.stuck(0.0, {"host": 1})
    stall.stuck(30.0, {})

    assert stall.stuck(61.0, {"host": 1}) == []


def test_a_line_that_repeats_itself_is_said_once_and_then_counted() -> None:
    now = [0.0]
    sparing = Sparing(10.0, clock=lambda: now[0])

    def line(node: int) -> logging.LogRecord:
        return logging.LogRecord(
            "aiokafka", logging.ERROR, "f", 1, "Unable connect to %s", (node,), None
        )

    assert sparing.filter(line(1))
    assert not sparing.filter(line(1))
    assert not sparing.filter(line(2))
    now[0] = 10.0
    said = line(1)
    assert sparing.filter(said)
    assert said.getMessage() == "Unable connect to 1 (and 2 more like it)"
    other = logging.LogRecord("aiokafka", logging.ERROR, "f", 1, "Something else", (), None)
    assert sparing.filter(other)
