"""How often a GPU is asked."""

from collectors.gpu.pace import Pace


def test_a_quick_gpu_is_asked_every_tick() -> None:
    pace = Pace(slow_s=0.4)
    for tick in range(5):
        assert pace.rests_for(tick) == 0
        pace.took(0.003, tick + 1)


def test_each_slow_reading_in_a_row_leaves_out_more_ticks_up_to_nine() -> None:
    pace = Pace(slow_s=0.4)
    left_out = []
    tick = 0
    for _ in range(7):
        tick += 1
        pace.took(0.5, tick)
        rest = pace.rests_for(tick)
        left_out.append(rest)
        tick += rest
        assert pace.rests_for(tick) == 0
    assert left_out == [0, 1, 3, 7, 9, 9, 9]


def test_one_quick_reading_ends_the_rest() -> None:
    pace = Pace(slow_s=0.4)
    for tick in (1, 2, 3):
        pace.took(60.0, tick)
    assert pace.rests_for(3) == 3
    pace.took(0.01, 3)
    assert pace.rests_for(3) == 0
