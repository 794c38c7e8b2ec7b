"""From stored samples to a history: the same increments as the view's, and what was seen of it."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evidence.records import GpuFrame, GpuSnapshot, GpuStatus, GpuTick
from warehouse.growth.load import grown, load
from warehouse.growth.settings import load as settings
from warehouse.query import connect

BEGIN = datetime(2026, 2, 2, tzinfo=UTC)
A, B = "GPU-5d1c0001", "GPU-5d1c0002"


def _frame(hour: float, *gpus: GpuSnapshot, boot: str = "b1") -> GpuFrame:
    at = BEGIN + timedelta(hours=hour)
    return GpuFrame(
        id=f"f{hour}", host="rk3-n04", observed_at=at, seq=int(hour * 10),
        ticks=(GpuTick(at=at, gpus=gpus),), boot_id=boot, driver="570.86",
    )  # fmt: skip


def _gpu(uuid: str, **values: Any) -> GpuSnapshot:
    return GpuSnapshot(index=int(uuid[-1]), uuid=uuid, pci=f"0000:1{uuid[-1]}:00", **values)


@pytest.fixture
def stored(root: Path, store: Any) -> Path:
    """Two days: one card with lifetime counts, one with counts since driver load and a reboot."""
    lifetime = {0: 5, 7: 5, 8: 9, 8.5: 12, 20: 12, 26: 12, 30: 13, 40: 2, 44: 4}
    volatile = {0: 0, 7: 3, 8: 3, 20: 3, 26: 4, 30: 6, 40: 6, 44: 6}
    frames = []
    for hour in sorted({*lifetime, *volatile}):
        cards = []
        if hour in lifetime:
            cards.append(_gpu(A, ecc_aggregate_corrected=lifetime[hour], utilization_pct=90))
        if hour in volatile:
            cards.append(_gpu(B, ecc_volatile_uncorrected=volatile[hour]))
        frames.append(_frame(hour, *cards, boot="b1" if hour < 24 else "b2"))
    frames.append(
        _frame(45, _gpu(A, status=GpuStatus.TIMEOUT), _gpu(B, remap_failure=True), boot="b2")
    )
    store("gpu", *frames)
    return root


def _history(root: Path) -> Any:
    connection = connect(root)
    fleet = load(connection, settings(), date(2026, 2, 2), date(2026, 2, 4))
    changes = {(gpu, counter): found for gpu, counter, found in grown(connection, BEGIN)}
    connection.close()
    return fleet, changes


def test_increments_follow_reset_and_clearing(stored: Path) -> None:
    _, changes = _history(stored)
    assert [(one.at, one.count, one.cleared) for one in changes[A, "corrected"]] == [
        (8, 4, False), (8.5, 3, False), (30, 1, False), (40, None, True), (44, 2, False),
    ]  # fmt: skip
    assert [(one.at, one.count, one.reset) for one in changes[B, "uncorrected"]] == [
        (7, 3, False), (26, 4, True), (30, 2, False),
    ]  # fmt: skip


def test_the_fast_way_and_the_view_agree_on_every_increment(stored: Path) -> None:
    _, changes = _history(stored)
    connection = connect(stored)
    told = connection.execute(
        "select gpu, counter, event_at, increment, flag from facts.ecc_increments "
        "where increment > 0 or flag in ('reset', 'cleared_or_swapped')"
    ).fetchall()
    connection.close()
    view = {
        (A, "corrected"): "ecc_aggregate_corrected",
        (B, "uncorrected"): "ecc_volatile_uncorrected",
    }
    flags = {(False, False): None, (True, False): "reset", (False, True): "cleared_or_swapped"}
    ours = [
        (gpu, view[gpu, counter], BEGIN + timedelta(hours=one.at), one.count,
         flags[one.reset, one.cleared])
        for (gpu, counter), found in changes.items()
        for one in found
    ]  # fmt: skip
    assert sorted(ours, key=str) == sorted(told, key=str)


def test_hours_with_samples_and_busy_hours_are_counted(stored: Path) -> None:
    fleet, _ = _history(stored)
    names = [card.gpu for card in fleet.cards]
    row = names.index(A)
    # day one: hours 0, 7, 8 (twice), 20; day two: 2, 6, 16, 20 and a sample that was not answered
    assert fleet.covered[row].tolist() == pytest.approx([4, 4 * 4 / 5])
    assert fleet.busy[row].tolist() == pytest.approx([4, 4 * 4 / 5])
    # without a utilization every hour seen is one of use
    assert fleet.busy[names.index(B)].tolist() == fleet.covered[names.index(B)].tolist()


def test_errors_half_an_hour_apart_are_one_episode(stored: Path) -> None:
    fleet, _ = _history(stored)
    row = [card.gpu for card in fleet.cards].index(A)
    found = fleet.episodes["corrected"][row]
    # (7, 8], (8, 8.5]; the view's intervals (26, 30] and (40, 44] stand apart
    assert [(one.start, one.count) for one in found] == [(8, 7), (30, 1), (44, 2)]


def test_the_newest_values_are_those_of_the_card(stored: Path) -> None:
    fleet, _ = _history(stored)
    seen = {card.gpu: card.seen for card in fleet.cards}
    assert (seen[A]["status"], seen[B]["remap_failure"]) == ("timeout", True)


def test_an_empty_warehouse_has_no_cards(root: Path) -> None:
    fleet, changes = _history(root)
    assert (fleet.cards, changes) == ((), {})
