from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from collectors.nccl.times import line_time

NOW = datetime(2026, 6, 15, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[2026-04-02 09:13:51] gpu7:811:902 [3] transport/nvls.cc:254 NCCL WARN x",
            datetime(2026, 4, 2, 9, 13, 51, tzinfo=UTC),
        ),
        (
            "[rank5]:[E402 09:13:51.118204771 ProcessGroupNCCL.cpp:632] x",
            datetime(2026, 4, 2, 9, 13, 51, 118204, tzinfo=UTC),
        ),
        (
            "[rank5]:[E1102 09:13:51.118204771 ProcessGroupNCCL.cpp:632] x",
            datetime(2025, 11, 2, 9, 13, 51, 118204, tzinfo=UTC),
        ),
        (
            "W0402 09:13:51.118000 4711 torch/distributed/elastic/agent/server/api.py:719] x",
            datetime(2026, 4, 2, 9, 13, 51, 118000, tzinfo=UTC),
        ),
        (
            "[2023-10-20 11:55:30,978] torch.distributed.run: [WARNING] x",
            datetime(2023, 10, 20, 11, 55, 30, 978000, tzinfo=UTC),
        ),
        (
            "2026/03/26 12:12:05 gpu7:811:902 [3] NCCL INFO x",
            datetime(2026, 3, 26, 12, 12, 5, tzinfo=UTC),
        ),
        (
            "2026-04-02T09:13:51.5+02:00 stderr F [rank1]:[E402 08:00:00.1 P.cpp:1] x",
            datetime(2026, 4, 2, 7, 13, 51, 500000, tzinfo=UTC),
        ),
        ("2026-04-02T09:13:51Z x", datetime(2026, 4, 2, 9, 13, 51, tzinfo=UTC)),
        ("2026-04-02_09:13:51", datetime(2026, 4, 2, 9, 13, 51, tzinfo=UTC)),
        ("[E ProcessGroupNCCL.cpp:916] [Rank 1] x", None),
        ("gpu7:811:902 [3] NCCL INFO x", None),
        ("[E631 09:13:51.1 ProcessGroupNCCL.cpp:632] no such day", None),
        ("2026-13-45 99:99:99 no such time", None),
        ("2026-04-02T09:13:51+99:99 no such zone", None),
    ],
)
def test_a_line_tells_its_time(text: str, expected: datetime | None) -> None:
    assert line_time(text, tz=UTC, now=NOW) == expected


def test_a_time_without_zone_is_local_to_the_given_one() -> None:
    text = "[rank5]:[E402 09:13:51.0 ProcessGroupNCCL.cpp:632] x"
    berlin = line_time(text, tz=ZoneInfo("Europe/Berlin"), now=NOW)
    assert berlin == datetime(2026, 4, 2, 7, 13, 51, tzinfo=UTC)
    assert berlin is not None
    assert berlin.tzinfo is UTC


def test_the_year_is_the_last_in_which_the_day_was() -> None:
    text = "[rank5]:[E229 09:13:51.0 ProcessGroupNCCL.cpp:632] x"
    assert line_time(text, tz=UTC, now=NOW) == datetime(2024, 2, 29, 9, 13, 51, tzinfo=UTC)


def test_new_year_lies_between_a_december_line_and_a_january_reader() -> None:
    now = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
    text = "W1231 23:59:58.0 4711 torch/x.py:1] x"
    assert line_time(text, tz=UTC, now=now) == datetime(2025, 12, 31, 23, 59, 58, tzinfo=UTC)


def test_no_time_lies_in_the_future() -> None:
    ahead = timezone(timedelta(hours=-8))
    for text in (
        "[rank5]:[E615 11:30:00.0 ProcessGroupNCCL.cpp:632] x",
        "[2026-06-15 11:30:00] gpu7:811:902 [3] x.cc:1 NCCL WARN x",
        "2031-01-01T00:00:00Z x",
    ):
        assert line_time(text, tz=ahead, now=NOW) == NOW
