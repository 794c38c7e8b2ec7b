"""Drills in the history: one row each, its last record, against the objective."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from evidence.records import DrillOutcome, DrillRecord
from ringfence.drills.history import read

AT = datetime(2026, 5, 6, 9, 0, tzinfo=UTC)


def _drill(ident: str, name: str, day: int, **fields: Any) -> DrillRecord:
    at = AT + timedelta(days=day)
    plain: dict[str, Any] = {
        "id": ident, "drill": name, "at": at, "observed_at": at, "host": "dgx-41", "by": "kim",
        "outcome": DrillOutcome.RUNNING, "objective_s": 90.0, "pool": "yard",
    }  # fmt: skip
    return DrillRecord(**plain | fields)


def _ended(record: DrillRecord, outcome: DrillOutcome, **fields: Any) -> DrillRecord:
    at = record.at + timedelta(seconds=100)
    return replace(record, outcome=outcome, observed_at=at, **fields)


@pytest.fixture
def history(store: Any, root: Path) -> Path:
    late = _drill("d1", "lose-gpu", 0)
    good = _drill("d2", "lose-gpu", 3)
    silent = _drill("d3", "stop-agent", 4)
    killed = _drill("d4", "cut-link", 5)
    end = _ended(good, DrillOutcome.PASSED, detected_s=0.7, recovered_s=31.5)
    store(
        "drills",
        late,
        _ended(late, DrillOutcome.MISSED, recovered_s=140.0, differed=("too late",)),
        # Sent twice, and the start again after the end: the end counts.
        good, end, end, good,
        silent, _ended(silent, DrillOutcome.PASSED, detected_s=540.0),
        killed,
    )  # fmt: skip
    return root


def test_each_drill_is_told_once_as_it_ended(history: Path) -> None:
    told = read(history, now=AT + timedelta(days=6), stale_days=30)
    columns = ("id", "outcome", "recovered_s", "is_met")
    assert [tuple(row[one] for one in columns) for row in told.drills] == [
        ("d1", "missed", 140.0, False),
        ("d2", "passed", 31.5, True),
        ("d3", "passed", None, None),
        ("d4", "running", None, None),
    ]  # fmt: skip


def test_only_the_last_drill_of_a_name_counts_and_not_for_ever(history: Path) -> None:
    soon = read(history, now=AT + timedelta(days=6), stale_days=30)
    assert soon.wrong == ["cut-link on dgx-41: running"]
    later = read(history, now=AT + timedelta(days=34), stale_days=30)
    assert later.wrong == [
        "lose-gpu: not run for 31 days, 30 are allowed",
        "cut-link on dgx-41: running",
    ]


def test_no_drill_at_all_is_wrong(root: Path) -> None:
    assert read(root, now=AT, stale_days=30).wrong == ["no drill was ever run"]
