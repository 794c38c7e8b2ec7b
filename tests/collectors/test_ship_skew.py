"""How far a node's clock is ahead, told from append times."""

from collectors.shipping.skew import ClockSkew


def test_the_best_sample_on_each_side_cancels_what_the_way_takes() -> None:
    skew = ClockSkew()
    assert skew.seconds is None
    # Node two seconds ahead; 400 ms to the broker, then a quick one; 30 and 10 ms back.
    skew.add(sent_ms=10_000, appended_ms=8_400, acknowledged_ms=10_430, now=0.0)
    skew.add(sent_ms=20_000, appended_ms=18_010, acknowledged_ms=20_020, now=1.0)
    assert skew.seconds == 2.0


def test_a_clock_behind_is_negative() -> None:
    skew = ClockSkew()
    skew.add(sent_ms=10_000, appended_ms=13_004, acknowledged_ms=10_008, now=0.0)
    assert skew.seconds == -3.0


def test_the_producers_own_time_tells_nothing() -> None:
    skew = ClockSkew()
    skew.add(sent_ms=10_000, appended_ms=10_000, acknowledged_ms=10_008, now=0.0)
    skew.add(sent_ms=10_000, appended_ms=-1, acknowledged_ms=10_008, now=0.0)
    assert skew.seconds is None


def test_a_record_that_waited_long_tells_nothing() -> None:
    skew = ClockSkew()
    skew.add(sent_ms=10_000, appended_ms=70_000, acknowledged_ms=70_005, now=0.0)
    assert skew.seconds is None


def test_a_clock_that_is_set_is_seen_anew() -> None:
    skew = ClockSkew()
    skew.add(sent_ms=10_000, appended_ms=9_002, acknowledged_ms=10_004, now=0.0)
    assert skew.seconds == 1.0
    # NTP sets it right, within the window and then past it.
    skew.add(sent_ms=19_998, appended_ms=20_000, acknowledged_ms=20_002, now=11.0)
    assert skew.seconds is None
    skew.add(sent_ms=79_998, appended_ms=80_000, acknowledged_ms=80_002, now=71.0)
    assert skew.seconds == 0.0


def test_what_is_long_ago_does_not_count() -> None:
    skew = ClockSkew()
    skew.add(sent_ms=10_000, appended_ms=9_002, acknowledged_ms=10_004, now=0.0)
    skew.add(sent_ms=910_000, appended_ms=909_902, acknowledged_ms=910_102, now=900.0)
    assert skew.seconds == 0.149
