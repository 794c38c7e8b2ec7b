"""The fleet's history out of the warehouse: one pass over the samples, then only what changed.

A year of a fleet is a hundred million samples in which next to nothing changes. DuckDB folds them
into one row a card, day, boot and value of the counters; that leaves a row or two a day, from which
increments follow by the same rules as in `facts.ecc_increments`.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from warehouse.growth.episodes import Episode, episodes
from warehouse.growth.history import COUNTERS, Card, Fleet
from warehouse.growth.increments import Increment, Run, increments
from warehouse.growth.settings import Settings

__all__ = ["grown", "load"]

Array = NDArray[np.float64]

_RUNS = """
create or replace temp table growth_runs as
select
    gpu,
    source,
    -- Whole numbers, not dates: the calendar of a time zone costs ten seconds over such a year.
    epoch_us(event_at) // 86_400_000_000 as day,
    boot_id,
    driver,
    ecc_aggregate_corrected as aggregate_corrected,
    ecc_aggregate_uncorrected as aggregate_uncorrected,
    ecc_volatile_corrected as volatile_corrected,
    ecc_volatile_uncorrected as volatile_uncorrected,
    status = 'ok' as answered,
    count(*) as samples,
    count(utilization_pct) as told,
    count(*) filter (where utilization_pct >= $busy) as busy,
    bit_or(1::integer << ((epoch_us(event_at) // 3_600_000_000) % 24)::integer) as hours,
    min(event_at) as first_at,
    max(event_at) as last_at
from staging.gpu
where index is not null and event_at >= $begin and event_at < $end and ($gpu is null or gpu = $gpu)
group by all
"""

# hours is a mask of the hours of the day with a valid sample; times the share of samples that the
# card answered they are the hours in which something can be said.
_DAYS = """
with
main as (
    select gpu, arg_max(source, samples) as source
    from (
        select gpu, source, sum(samples) as samples
        from growth_runs where answered group by gpu, source
    )
    group by gpu
),
daily as (
    select
        growth_runs.gpu,
        day,
        sum(samples) as samples,
        coalesce(sum(samples) filter (where answered), 0) as answered,
        coalesce(sum(told) filter (where answered), 0) as told,
        coalesce(sum(busy) filter (where answered), 0) as busy,
        coalesce(bit_count(bit_or(hours) filter (where answered and coalesce(
            aggregate_corrected, aggregate_uncorrected, volatile_corrected, volatile_uncorrected
        ) is not null)), 0) as hours
    from growth_runs
    inner join main on main.gpu = growth_runs.gpu and main.source = growth_runs.source
    group by growth_runs.gpu, day
)
select
    gpu,
    day - epoch_us($begin::timestamptz) // 86_400_000_000 as day,
    hours * answered / samples as covered_h,
    case when told > 0 then hours * answered / samples * busy / told end as busy_h
from daily
"""

# Only cards of which a counter ever moved or began anew have a history of increments.
_MOVED = """
with
main as (
    select gpu, arg_max(source, samples) as source
    from (
        select gpu, source, sum(samples) as samples
        from growth_runs where answered group by gpu, source
    )
    group by gpu
),
moved as (
    select growth_runs.gpu, growth_runs.source
    from growth_runs
    inner join main on main.gpu = growth_runs.gpu and main.source = growth_runs.source
    group by growth_runs.gpu, growth_runs.source
    having max(aggregate_corrected) > min(aggregate_corrected)
        or max(aggregate_uncorrected) > min(aggregate_uncorrected)
        or max(volatile_corrected) > min(volatile_corrected)
        or max(volatile_uncorrected) > min(volatile_uncorrected)
        or (count(distinct coalesce(boot_id, '') || '/' || coalesce(driver, '')) > 1
            and (max(volatile_corrected) > 0 or max(volatile_uncorrected) > 0))
)
select
    growth_runs.gpu,
    coalesce(boot_id, '') || '/' || coalesce(driver, '') as epoch,
    epoch_us(first_at) / 3.6e9 - $begin_h as first_h,
    epoch_us(last_at) / 3.6e9 - $begin_h as last_h,
    aggregate_corrected, volatile_corrected, aggregate_uncorrected, volatile_uncorrected
from growth_runs
inner join moved on moved.gpu = growth_runs.gpu and moved.source = growth_runs.source
where answered
order by growth_runs.gpu, first_at
"""

_STATES = """
select
    gpu,
    arg_max(host, event_at) as host,
    arg_max(pci, event_at) as pci,
    arg_max(uuid, event_at) as uuid,
    arg_max(serial, event_at) as serial,
    arg_max(index, event_at) as index,
    arg_max(name, event_at) as name,
    arg_max(status, event_at) as status,
    arg_max(ecc_aggregate_uncorrected, event_at) as ecc_aggregate_uncorrected,
    arg_max(sram_threshold_exceeded, event_at) as sram_threshold_exceeded,
    arg_max(remapped_correctable, event_at) as remapped_correctable,
    arg_max(remapped_uncorrectable, event_at) as remapped_uncorrectable,
    arg_max(remap_pending, event_at) as remap_pending,
    arg_max(remap_failure, event_at) as remap_failure,
    arg_max(channel_repair_pending, event_at) as channel_repair_pending,
    arg_max(unrepairable_memory, event_at) as unrepairable_memory,
    arg_max(retired_pages, event_at) as retired_pages
from staging.gpu
where index is not null and event_at >= $states and event_at < $end
    and ($gpu is null or gpu = $gpu)
group by gpu
"""

# A map is dear to fold over millions of rows: histograms are looked up where rows were remapped.
_BANKS = """
select gpu, map_entries(arg_max(remap_banks, event_at))
from staging.gpu
where index is not null and event_at >= $states and event_at < $end and gpu in $cards
    and remap_banks is not null
group by gpu
"""


def load(
    connection: duckdb.DuckDBPyConnection,
    settings: Settings,
    begin: date,
    end: date,
    gpu: str | None = None,
) -> Fleet:
    """The history of all cards (or one) over the days from ``begin`` to before ``end``, in UTC."""
    first = datetime.combine(begin, time(), UTC)
    last = datetime.combine(end, time(), UTC)
    given: dict[str, Any] = {"begin": first, "end": last, "gpu": gpu}
    connection.execute(_RUNS, given | {"busy": settings.busy_pct})
    days = connection.execute(_DAYS, {"begin": first}).fetchnumpy()
    given["states"] = last - timedelta(days=settings.state_days)
    cards = _cards(connection, given, sorted(set(days["gpu"].tolist())))
    rows = {card.gpu: row for row, card in enumerate(cards)}
    place = np.array([rows[one] for one in days["gpu"]], dtype=int)
    covered = np.zeros((len(cards), (end - begin).days))
    busy = covered.copy()
    day = np.asarray(days["day"], dtype=int)
    covered[place, day] = np.ma.filled(days["covered_h"], 0.0)
    worked: Any = np.ma.masked_invalid(np.ma.asarray(days["busy_h"], dtype=float))
    busy[place, day] = np.where(np.ma.getmaskarray(worked), covered[place, day], worked.filled(0.0))
    found: dict[str, dict[int, tuple[Episode, ...]]] = {counter: {} for counter in COUNTERS}
    marks: dict[tuple[str, int], tuple[int, int]] = {}
    for name, counter, changes in grown(connection, first):
        row = rows[name]
        if seen := tuple(episodes(changes, settings.episode_gap_h)):
            found[counter][row] = seen
        marked = sum(one.reset for one in changes), sum(one.cleared for one in changes)
        if any(marked):
            marks[counter, row] = marked
    return Fleet(first, tuple(cards), covered, busy, found, marks)


def _cards(
    connection: duckdb.DuckDBPyConnection, given: dict[str, Any], names: list[str]
) -> list[Card]:
    """Every card that was sampled, with its newest values where it has any of the last days."""
    newest = {key: given[key] for key in ("states", "end", "gpu")}
    cursor = connection.execute(_STATES, newest)
    columns = [one[0] for one in cursor.description or []]
    seen = {row[0]: dict(zip(columns, row, strict=True)) for row in cursor.fetchall()}
    remapped = [
        gpu
        for gpu, one in seen.items()
        if one["remapped_correctable"] or one["remapped_uncorrectable"]
    ]
    if remapped:
        asked = {"states": given["states"], "end": given["end"], "cards": remapped}
        for gpu, entries in connection.execute(_BANKS, asked).fetchall():
            seen[gpu]["remap_banks"] = {one["key"]: one["value"] for one in entries or ()}
    return [_card(gpu, seen.get(gpu, {})) for gpu in sorted({*names, *seen})]


def _card(gpu: str, seen: dict[str, Any]) -> Card:
    return Card(
        gpu=gpu,
        host=seen.get("host"),
        pci=seen.get("pci"),
        uuid=seen.get("uuid"),
        serial=seen.get("serial"),
        index=seen.get("index"),
        model=seen.get("name"),
        seen=seen,
    )


def grown(
    connection: duckdb.DuckDBPyConnection, begin: datetime
) -> Iterator[tuple[str, str, list[Increment]]]:
    """(card, counter, its increments) of every card of which a counter moved.

    The count over the card's life is taken where there is one: it survives reboots. Hours count
    from ``begin``.
    """
    rows = connection.execute(_MOVED, {"begin_h": begin.timestamp() / 3600}).fetchall()
    runs: dict[tuple[str, str, bool], list[Run]] = defaultdict(list)
    for gpu, epoch, first, last, *values in rows:
        for place, value in enumerate(values):
            if value is not None:
                key = (gpu, COUNTERS[place // 2], place % 2 == 0)
                runs[key].append(Run(first, last, value, epoch))
    for (gpu, counter, aggregate), found in runs.items():
        if aggregate or (gpu, counter, True) not in runs:
            yield gpu, counter, increments(found, aggregate=aggregate)
