"""Every question of docs/forensics.md, over a history whose answers can be reckoned on paper."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.warehouse import made_history as made
from warehouse.query import query

PAGE = Path(__file__).parents[2] / "docs" / "forensics.md"
BLOCK = re.compile(
    r"^## (.+?)$.*?^```sql\n(.+?)^```\n\n(\|.+?)(?=^\n|\Z)", re.MULTILINE | re.DOTALL
)
FOUND = {title: (sql, answer) for title, sql, answer in BLOCK.findall(PAGE.read_text())}


def asked(month: Path, title: str) -> list[dict[str, Any]]:
    columns, rows = query(month, FOUND[title][0])
    return [dict(zip(columns, row, strict=True)) for row in rows]


def test_every_question_of_the_page_has_its_answer() -> None:
    titles = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert list(FOUND) == titles
    assert len(titles) == len(re.findall(r"^```sql$", PAGE.read_text(), re.MULTILINE)) >= 10


@pytest.mark.parametrize("title", FOUND)
def test_the_answer_on_the_page_is_what_the_question_gives(title: str, month: Path) -> None:
    sql, answer = FOUND[title]
    columns, rows = query(month, sql)
    assert as_page(columns, rows) == answer.strip()


def as_page(columns: list[str], rows: list[tuple[Any, ...]]) -> str:
    def cell(value: object) -> str:
        if isinstance(value, datetime):
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return "" if value is None else str(value)

    lines = [columns, ["---"] * len(columns), *([cell(one) for one in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def test_the_hour_before_shows_errors_before_the_xid(month: Path) -> None:
    found = asked(month, "The hour before an incident")
    assert (found[0]["minute"], found[0]["what"]) == ("09:54", "ecc volatile corrected")
    assert found[-1] == {
        "minute": "10:05", "source": "kernel", "pci": "0000:1b:00", "what": "xid 48", "events": 1,
    }  # fmt: skip


def test_the_card_that_moved_is_one_repeat_offender(month: Path) -> None:
    (found,) = asked(month, "Repeat offenders")
    assert (found["uuid"], found["failures"], found["hosts"]) == (made.BAD, 3, ["c01", "c03"])


def test_only_jobs_on_the_failed_host_at_the_time_were_killed(month: Path) -> None:
    found = asked(month, "Jobs that a GPU killed")
    # train-7: 4 GPUs from 03-03 00:00 to 10:05:30; train-9: 4 GPUs for 6 h 2 min.
    assert [(one["job"], one["host"], one["gpus"], one["run_gpu_h"]) for one in found] == [
        ("train-7", "c01", 4, round(4 * (10 + 5.5 / 60), 1)),
        ("train-9", "c03", 4, round(4 * (6 + 2 / 60), 1)),
    ]


def test_a_card_that_moved_is_told_with_both_places(month: Path) -> None:
    (found,) = asked(month, "Cards that moved between hosts")
    assert (found["from_host"], found["to_host"]) == ("c01", "c03")
    assert (found["left_at"], found["seen_at"]) == (made._day(12, 9), made._day(12, 9.5))


def test_lemons_are_counted_within_their_28_days(month: Path) -> None:
    found = asked(month, "Lemon nodes")
    # The failure of 03-03 lies before the 28 days.
    assert [tuple(one.values()) for one in found] == [
        ("c03", 1, 3, 1, 1), ("c01", 1, 2, 0, 1), ("c04", 1, 1, 0, 1),
    ]  # fmt: skip


def test_the_time_between_failures_has_the_interval_that_scipy_gives(month: Path) -> None:
    chi2 = pytest.importorskip("scipy.stats").chi2
    hours = 8 * 31 * 24  # eight places, one month, never empty
    for one in asked(month, "Mean time between failures, per cause, with its confidence interval"):
        failures = {"gpu-memory": 3, "gpu-lost": 1}[one["cause"]]
        assert (one["failures"], one["gpu_h"]) == (failures, hours)
        assert one["mtbf_gpu_h"] == pytest.approx(hours / failures, abs=0.05)
        high, low = chi2.ppf(0.975, 2 * failures + 2) / 2, chi2.ppf(0.025, 2 * failures) / 2
        assert one["at_least"] == pytest.approx(hours / high, abs=0.06)
        assert one["at_most"] == pytest.approx(hours / low, abs=0.06)


@pytest.mark.parametrize("count", [0, 1, 2, 10, 100, 3039])
def test_the_exact_interval_of_a_count_is_that_of_scipy(count: int, month: Path) -> None:
    chi2 = pytest.importorskip("scipy.stats").chi2
    ((low, high),) = query(
        month, f"select garwood_low({count}, 0.05), garwood_high({count}, 0.05)"
    )[1]
    assert low == pytest.approx(chi2.ppf(0.025, 2 * count) / 2 if count else 0.0, rel=1e-9)
    assert high == pytest.approx(chi2.ppf(0.975, 2 * count + 2) / 2, rel=1e-9)


def test_hours_lost_add_up_to_the_hours_out(month: Path) -> None:
    found = asked(month, "GPU-hours lost, per cause and per domain")
    assert {(one["cause"], one["domain_id"]): one["gpu_h"] for one in found} == {
        ("gpu-memory", "gpu:c01/0000:1b:00"): 36.0,
        ("gpu-memory", "gpu:c03/0000:1b:00"): 60.0,
        ("gpu-lost", "gpu:c04/0000:9c:00"): 2.0,
    }


def test_what_was_saved_follows_from_what_is_assumed(month: Path) -> None:
    (found,) = asked(month, "What isolation saved")
    gaps = (6 * 24 + 21 + 55 / 60, 10 * 24 + 8)  # 03-03 10:05, 03-10 08:00, 03-20 16:00
    again = sum(gaps) / 2
    spared = 98 / again
    assert found == {
        "out_gpu_h": 98.0,
        "again_after_h": round(again, 1),
        "failures_spared": round(spared, 3),
        "saved_gpu_h": round(spared * 4 * 3, 1),
        "balance_gpu_h": round(spared * 4 * 3 - 98, 1),
    }


def test_growth_is_told_with_its_coverage(month: Path) -> None:
    bad = [
        one
        for one in asked(month, "Growth of memory errors, and how much of the time was seen")
        if one["gpu"] == made.BAD
    ]
    # Read each minute for 41 of the 60, then silent and lost; (11 + 12) ** 2.
    assert [(one["counter"], one["grown"], one["coverage"]) for one in bad] == [
        ("ecc_volatile_corrected", 529, round(41 / 60, 2)),
        ("ecc_volatile_uncorrected", 2, round(41 / 60, 2)),
    ]
