"""Growth of counters: what a reset, a swap, a gap and a saturated counter make of it."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evidence.records import (
    FabricPort,
    FabricRecord,
    GpuFrame,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
)
from warehouse.query import query

AT = datetime(2026, 4, 7, 9, 0, tzinfo=UTC)
UUID = "GPU-5d0c1e77"


def at(minutes: float) -> datetime:
    return AT + timedelta(minutes=minutes)


def frame(minute: float, boot: str = "b1", uuid: str = UUID, **values: Any) -> GpuFrame:
    gpu = GpuSnapshot(index=3, uuid=uuid, pci="0000:5e:00", serial="1652223000917", **values)
    return GpuFrame(
        id=f"{uuid}-{minute}", host="blade-04", observed_at=at(minute), seq=0, boot_id=boot,
        driver="580.65.06", ticks=(GpuTick(at=at(minute), gpus=(gpu,)),),
    )  # fmt: skip


def increments(root: Path, counter: str, columns: str) -> list[tuple[Any, ...]]:
    return query(
        root,
        f"select {columns} from ecc_increments where counter = '{counter}' order by event_at",
    )[1]


def test_a_counter_that_grows_within_one_boot_grows_by_the_difference(
    root: Path, store: Any
) -> None:
    counts = [7, 7, 7, 12, 12, 13]
    frames = [frame(minute, ecc_volatile_corrected=count) for minute, count in enumerate(counts)]
    store("gpu", *frames, *frames)  # sent twice
    assert increments(
        root,
        "ecc_volatile_corrected",
        "since, event_at, increment, flag, previous, value, coverage",
    ) == [
        (None, at(0), None, "first", None, 7, None),
        (at(0), at(2), 0, None, 7, 7, 1.0),
        (at(2), at(3), 5, None, 7, 12, 1.0),
        (at(3), at(4), 0, None, 12, 12, 1.0),
        (at(4), at(5), 1, None, 12, 13, 1.0),
    ]


def test_the_increments_of_one_boot_add_up_to_last_less_first(root: Path, store: Any) -> None:
    counts = [3, 3, 9, 9, 9, 40, 41, 41]
    store("gpu", *(frame(m, ecc_aggregate_corrected=count) for m, count in enumerate(counts)))
    assert increments(root, "ecc_aggregate_corrected", "1")  # several rows
    total = "select sum(increment)::int from ecc_increments where counter = '{}'"
    assert query(root, total.format("ecc_aggregate_corrected"))[1] == [(38,)]


RESETS = {
    "the count fell": ("b1", "b1", 40, 2, 2, "reset"),
    "another boot, and the count has passed its old value": ("b1", "b2", 40, 55, 55, "reset"),
    "another boot, the same count": ("b1", "b2", 4, 4, 4, "reset"),
    "the same boot": ("b1", "b1", 40, 55, 15, None),
}


@pytest.mark.parametrize("case", RESETS)
def test_a_volatile_count_that_began_anew_has_grown_at_least_by_what_it_shows(
    case: str, root: Path, store: Any
) -> None:
    boot, next_boot, before, after, increment, flag = RESETS[case]
    store(
        "gpu",
        frame(0, boot, ecc_volatile_uncorrected=before),
        frame(1, next_boot, ecc_volatile_uncorrected=after),
    )
    columns = "event_at, increment, flag"
    assert increments(root, "ecc_volatile_uncorrected", columns)[1:] == [(at(1), increment, flag)]


def test_a_count_over_the_cards_life_survives_a_boot_and_a_fall_of_it_tells_nothing(
    root: Path, store: Any
) -> None:
    store(
        "gpu",
        frame(0, "b1", ecc_aggregate_uncorrected=10, remapped_uncorrectable=2),
        frame(1, "b2", ecc_aggregate_uncorrected=11, remapped_uncorrectable=2),
        frame(2, "b2", ecc_aggregate_uncorrected=1, remapped_uncorrectable=0),
        frame(3, "b2", ecc_aggregate_uncorrected=4, remapped_uncorrectable=0),
    )
    columns = "event_at, increment, flag"
    assert increments(root, "ecc_aggregate_uncorrected", columns)[1:] == [
        (at(1), 1, None),
        (at(2), None, "cleared_or_swapped"),
        (at(3), 3, None),
    ]
    assert increments(root, "remapped_uncorrectable", columns)[2] == (
        at(2), None, "cleared_or_swapped",
    )  # fmt: skip


def test_a_correctable_remap_that_gives_way_to_an_uncorrectable_one_is_no_reset(
    root: Path, store: Any
) -> None:
    store("gpu", *(frame(m, remapped_correctable=count) for m, count in enumerate([2, 3, 2, 3])))
    columns = "increment, flag"
    assert increments(root, "remapped_correctable", columns) == [
        (None, "first"), (1, None), (0, "replaced"), (1, None),
    ]  # fmt: skip


def test_another_card_in_the_same_slot_is_another_history(root: Path, store: Any) -> None:
    store(
        "gpu",
        frame(0, ecc_aggregate_corrected=500),
        frame(1, uuid="GPU-ffee0011", ecc_aggregate_corrected=3),
        frame(2, uuid="GPU-ffee0011", ecc_aggregate_corrected=4),
    )
    assert increments(root, "ecc_aggregate_corrected", "gpu, increment, flag") == [
        (UUID, None, "first"),
        ("GPU-ffee0011", None, "first"),
        ("GPU-ffee0011", 1, None),
    ]


def test_a_count_that_cannot_be_read_is_a_gap_that_the_next_reading_spans(
    root: Path, store: Any
) -> None:
    store(
        "gpu",
        frame(0, ecc_volatile_corrected=5),
        frame(1, status=GpuStatus.LOST, error=15),
        frame(2, unread={"ecc_volatile_corrected": "N/A"}),
        frame(3, ecc_volatile_corrected=9),
    )
    columns = "since, event_at, increment, flag, samples, round(coverage, 3)"
    # The minute up to the lost sample is not observed.
    assert increments(root, "ecc_volatile_corrected", columns)[1:] == [
        (at(0), at(3), 4, None, 3, 0.667)
    ]


def test_missing_samples_are_told_by_the_coverage_and_never_by_a_zero(
    root: Path, store: Any
) -> None:
    minutes = [0, 1, 2, 3, 63, 64]
    store("gpu", *(frame(m, ecc_volatile_corrected=0) for m in minutes))
    columns = "since, event_at, increment, wall_h, round(observed_h * 60, 6), round(coverage, 4)"
    # Of the hour without samples one usual gap (a minute) is taken for observed.
    (found,) = increments(root, "ecc_volatile_corrected", columns)[1:]
    assert found == (at(0), at(64), 0, 64 / 60, 5.0, 0.0781)


def test_a_card_that_answers_no_more_leaves_its_time_open(root: Path, store: Any) -> None:
    fine = [frame(m, ecc_volatile_corrected=3) for m in range(3)]
    lost = [frame(m, status=GpuStatus.LOST, error=15) for m in range(3, 7)]
    store("gpu", *fine, *lost)
    columns = "since, event_at, increment, flag, coverage"
    assert increments(root, "ecc_volatile_corrected", columns)[1:] == [
        (at(0), at(2), 0, None, 1.0),
        (at(2), at(6), None, "open", 0.0),
    ]


def test_busy_hours_are_those_with_the_gpu_in_use(root: Path, store: Any) -> None:
    loads = [0, 90, 95, 0, 60]
    frames = (
        frame(m, ecc_volatile_corrected=1, utilization_pct=load) for m, load in enumerate(loads)
    )
    unknown = (frame(m, uuid="GPU-00000002", ecc_volatile_corrected=1) for m in range(3))
    store("gpu", *frames, *unknown)
    sql = (
        "select gpu, round(busy_h * 60, 6), round(observed_h * 60, 6) from ecc_increments "
        "where flag is null order by gpu"
    )
    assert query(root, sql)[1] == [("GPU-00000002", None, 2.0), (UUID, 3.0, 4.0)]


def test_days_without_a_change_are_a_row_each(root: Path, store: Any) -> None:
    hours = range(0, 49, 1)
    store("gpu", *(frame(60 * h, ecc_volatile_corrected=2) for h in hours))
    found = increments(root, "ecc_volatile_corrected", "since, event_at, increment, samples")
    assert found[1:] == [
        (at(0), at(14 * 60), 0, 14),
        (at(14 * 60), at(38 * 60), 0, 24),
        (at(38 * 60), at(48 * 60), 0, 10),
    ]


def test_two_sources_of_one_card_are_never_mixed(root: Path, store: Any) -> None:
    from msgspec.structs import replace  # noqa: PLC0415

    ours = [frame(m, ecc_volatile_corrected=c) for m, c in enumerate([10, 20])]
    theirs = [replace(frame(m + 0.5, ecc_volatile_corrected=5), source="dcgm") for m in range(2)]
    store("gpu", *ours, *theirs)
    sql = "select source, increment, flag from ecc_increments where since is not null order by 1"
    assert query(root, sql)[1] == [("dcgm", 0, None), ("nvml", 10, None)]


def sweep(minute: float, **port: Any) -> FabricRecord:
    return FabricRecord(
        id=f"s{minute}", observed_at=at(minute), at=at(minute), subnet="ib0", guid="0xb8cef603",
        name="leaf-02", ports=(FabricPort(port=17, **port),),
    )  # fmt: skip


def link(root: Path, counter: str, records: Iterable[FabricRecord], store: Any) -> Any:
    store("fabric", *records)
    return query(
        root,
        "select event_at, increment, flag, coverage from link_increments "
        f"where counter = '{counter}' order by event_at",
    )[1]


def test_a_link_counter_grows_by_the_difference_and_stuck_at_its_maximum_by_nobody_knows(
    root: Path, store: Any
) -> None:
    values = [(10, ()), (30, ()), (65535, ("symbol_error",)), (65535, ("symbol_error",)), (4, ())]
    sweeps = [
        sweep(m, counters={"symbol_error": value, "port_xmit_data": m}, saturated=full)
        for m, (value, full) in enumerate(values)
    ]
    assert link(root, "symbol_error", sweeps, store) == [
        (at(0), None, "first", None),
        (at(1), 20, None, 1.0),
        (at(2), None, "saturated", 1.0),
        (at(3), None, "saturated", 1.0),
        (at(4), 4, "reset", 1.0),
    ]
    assert query(root, "select distinct counter from link_increments")[1] == [("symbol_error",)]


def test_all_counters_of_a_port_were_cleared_when_one_of_them_fell(root: Path, store: Any) -> None:
    sweeps = [
        sweep(0, counters={"symbol_error": 40, "link_downed": 2}),
        sweep(1, counters={"symbol_error": 1, "link_downed": 3}, reset=True),
    ]
    assert link(root, "symbol_error", sweeps, store)[1] == (at(1), 1, "reset", 1.0)
    sql = (
        "select increment, flag from link_increments "
        "where counter = 'link_downed' and flag <> 'first'"
    )
    assert query(root, sql)[1] == [(1, "reset")]


def test_a_drivers_own_counter_wraps_at_32_bits_and_a_mandatory_one_never(
    root: Path, store: Any
) -> None:
    near = 4294967290
    sweeps = [
        sweep(0, counters={"out_of_sequence": near, "port_rcv_errors": near}),
        sweep(1, counters={"out_of_sequence": 10, "port_rcv_errors": near}, reset=True),
        sweep(2, counters={"out_of_sequence": 10, "port_rcv_errors": 10}, reset=True),
    ]
    assert link(root, "out_of_sequence", sweeps, store)[1] == (at(1), 16, "wrapped", 1.0)
    sql = (
        "select increment, flag from link_increments where counter = 'port_rcv_errors' "
        "order by event_at desc limit 1"
    )
    assert query(root, sql)[1] == [(10, "reset")]


def test_a_sweep_that_lists_only_what_changed_is_a_sweep_of_the_other_ports_too(
    root: Path, store: Any
) -> None:
    from msgspec.structs import replace  # noqa: PLC0415

    other = (FabricPort(port=18, counters={"symbol_error": 1}),)
    sweeps = [
        sweep(0, counters={"symbol_error": 1}),
        *(replace(sweep(m), partial=True, ports=other) for m in range(1, 10)),
        sweep(10, counters={"symbol_error": 3}),
    ]
    assert link(root, "symbol_error", sweeps, store)[-1] == (at(10), 2, None, 1.0)
    sql = "select increment, coverage from link_increments where port = 17 and flag is null"
    assert query(root, sql)[1] == [(2, 1.0)]
