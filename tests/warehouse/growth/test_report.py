"""What goes on the wire: records whose ids are functions of their content, and suspicions."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from evidence.decisions import Cause, DomainKind, Says, Status, Witness
from evidence.records import GrowthRecord
from evidence.wire import decode, encode
from warehouse.errors import WarehouseError
from warehouse.growth.episodes import Episode
from warehouse.growth.history import Card, Fleet
from warehouse.growth.plot import write
from warehouse.growth.report import Report, evaluate, growing, record
from warehouse.growth.settings import load
from warehouse.query import query

NOW = datetime(2026, 3, 2, 6, tzinfo=UTC)


def _report(row: int | None = None) -> Report:
    random = np.random.default_rng(11)
    starts = sorted([*random.uniform(0, 308 * 24, 60), *random.uniform(308 * 24, 364 * 24, 60)])
    cards = [Card(gpu=f"GPU-7a{one}", host=f"rk2-n{one // 8:02d}", pci=f"0000:{one:02x}:00",
                  uuid=f"GPU-7a{one}", index=one % 8) for one in range(40)]  # fmt: skip
    cards[1] = replace(cards[1], seen={"sram_threshold_exceeded": True})
    whole = np.full((40, 364), 24.0)
    found = {0: tuple(Episode(float(at), float(at), 9) for at in starts)}
    fleet = Fleet(
        datetime(2025, 3, 3, tzinfo=UTC), tuple(cards), whole, whole / 2, {"corrected": found}
    )
    return evaluate(fleet, load(), row)


def _records(now: datetime = NOW) -> list[GrowthRecord]:
    report = _report()
    return [record(report, place, now) for place in range(len(report.findings))]


def test_the_worst_come_first() -> None:
    assert [one.verdict for one in _records()[:3]] == ["hard", "growing", "stable"]


def test_a_day_that_is_judged_again_has_the_same_ids() -> None:
    first, again = _records(), _records(NOW + timedelta(hours=5))
    assert [one.id for one in first] == [one.id for one in again]
    assert len({one.id for one in first}) == len(first)


def test_a_card_without_an_error_has_no_growth_to_tell() -> None:
    assert {one.effect for one in _records() if not one.episodes} == {None}


def test_a_record_survives_the_wire() -> None:
    for one in _records():
        assert decode("growth", encode(one)) == one


def test_only_a_growing_card_is_suspected_and_never_more_than_that() -> None:
    (one,) = growing(_records())
    assert (one.kind, one.witness, one.says, one.status, one.cause) == (
        "ecc-growth", Witness.HEALTH, Says.ACCUSES, Status.SUSPECTED, Cause.GPU_MEMORY,
    )  # fmt: skip
    assert (one.domain.kind, one.domain.uuid, one.host) == (DomainKind.GPU, "GPU-7a0", "rk2-n00")
    assert [ref.id for ref in one.evidence] == [_records()[1].id]
    assert one.id == growing(_records(NOW + timedelta(hours=1)))[0].id
    assert "times its former rate" in one.reason


def test_results_are_rows_day_by_day_and_a_ranking(root: Path, store: Any) -> None:
    records = _records()
    day_before = replace_at(records[1], records[1].at - timedelta(days=1), "stable")
    store("growth", day_before, *records, *records[:2])
    rows = query(root, "select judged_at, verdict, verdict_before from ecc_growth "
                       "where gpu = 'GPU-7a0' order by judged_at")[1]  # fmt: skip
    assert [row[1:] for row in rows] == [("stable", None), ("growing", "stable")]
    ranking = query(root, "select rank, gpu, verdict from ecc_ranking where rank <= 2 order by 1")[
        1
    ]
    assert ranking == [(1, "GPU-7a1", "hard"), (2, "GPU-7a0", "growing")]
    assert query(root, "select count(*) from ecc_ranking")[1] == [(40,)]


def replace_at(one: GrowthRecord, at: datetime, verdict: str) -> GrowthRecord:
    from msgspec.structs import replace as changed  # noqa: PLC0415

    return changed(one, id=one.id + "-before", at=at, verdict=verdict)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
@pytest.mark.parametrize("row", [None, 0])
def test_a_plot_is_drawn_in_each_format(tmp_path: Path, suffix: str, row: int | None) -> None:
    path = tmp_path / f"plot{suffix}"
    write(_report(row), path, one_card=row is not None)
    if suffix == ".png":
        drawn = image.imread(path)
        assert drawn.shape[0] > 300
        assert drawn.std() > 0.01
    else:
        text = path.read_text()
        assert "<svg" in text
        assert ("growing" in text) or row is None


def test_a_plot_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match=r"a plot is \.png, \.svg, \.html"):
        write(_report(), tmp_path / "plot.pdf", one_card=False)


def test_where_nothing_happened_there_is_nothing_to_plot(tmp_path: Path) -> None:
    report = _report()
    quiet = evaluate(replace(report.fleet, episodes={}, cards=report.fleet.cards[:1] * 40), load())
    with pytest.raises(WarehouseError, match="nothing to plot"):
        write(quiet, tmp_path / "plot.png", one_card=False)
