"""What happened to one GPU, host, rack or job around a time: all sources merged in order.

Only the files of those days are read, and of a GPU only its own row groups, so that it is quick on
years of history.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median_low
from typing import Any

import duckdb
from msgspec import Struct

from warehouse.errors import WarehouseError
from warehouse.listing import shifted
from warehouse.query import Period, connect, sentence
from warehouse.target import Target, find

__all__ = ["Event", "Gap", "Series", "Span", "Timeline", "timeline"]

#: Points of one GPU that are drawn.
_POINTS = 720
#: More samples than this many usual gaps apart are missing ones between.
_MISSING = 3.0
_LANES = (
    "temperature_c", "temperature_memory_c", "power_w", "utilization_pct",
    "ecc_volatile_corrected", "ecc_volatile_uncorrected", "ecc_aggregate_corrected",
    "ecc_aggregate_uncorrected",
)  # fmt: skip


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened; ``source`` is kernel, gpu, nccl, fabric, context, verdict ..."""

    at: datetime
    source: str
    what: str
    text: str = ""
    host: str | None = None
    pci: str | None = None
    job: str | None = None
    id: str = ""


class Span(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that lasted, cut to the window: a verdict, a plan, or a part out of service."""

    kind: str
    what: str
    since: datetime
    until: datetime
    where: str = ""


class Gap(Struct, frozen=True, kw_only=True):
    """A time without samples of a GPU that was sampled before and after, or only on one side."""

    gpu: str
    since: datetime
    until: datetime

    @property
    def length(self) -> timedelta:
        """How long it lasted."""
        return self.until - self.since


class Series(Struct, frozen=True, kw_only=True):
    """One GPU's samples, thinned: the times, and by name the values (None where not read).

    ``coverage`` is the part of the window (0 to 1) in which the GPU answered as often as usual.
    """

    gpu: str
    host: str
    index: int
    at: tuple[datetime, ...]
    values: dict[str, tuple[float | None, ...]]
    coverage: float


class Timeline(Struct, frozen=True, kw_only=True):
    """All of it, in order of time."""

    target: Target
    since: datetime
    until: datetime
    events: tuple[Event, ...]
    spans: tuple[Span, ...]
    gaps: tuple[Gap, ...]
    series: tuple[Series, ...]


def timeline(
    root: Path,
    name: str,
    around: datetime,
    window: timedelta,
    *,
    at: datetime | None = None,
    series: bool = True,
) -> Timeline:
    """The time from half a window before ``around`` to half a window after it.

    ``name`` is a GPU (UUID, serial, host/PCI address), host, rack or job; ``gpu:``, ``node:``,
    ``rack:`` and ``job:`` before it say which. With ``at`` as it was known then. Without ``series``
    the samples are left out. Raises WarehouseError where nothing of that name is known, or the
    warehouse cannot be read.
    """
    period = (shifted(around, -window / 2), shifted(around, window / 2))
    connection = connect(root, period=period, at=at, asks=_ASKS)
    try:
        target = find(connection, root, name, period)
        found = tuple(_series(connection, target, period)) if series else ()
        return Timeline(
            target=target,
            since=period[0],
            until=period[1],
            events=tuple(_events(connection, target, period)),
            spans=tuple(_spans(connection, target, period)),
            gaps=tuple(gap for _, gaps in found for gap in gaps),
            series=tuple(one for one, _ in found),
        )
    except duckdb.Error as error:
        raise WarehouseError(sentence(error)) from error
    finally:
        connection.close()


#: The views that are asked below and in `warehouse.target`.
_ASKS = "timeline gpu_changes gpu_samples states_at staging.verdicts kernel gpu nccl context"

_EVENTS = """
select event_at, source, what, text, host, pci, job, id from facts.timeline
where event_at between $since and $until and source <> 'gpu'
    and (list_contains($hosts, host) or ($job is not null and job = $job))
"""
_CHANGES = """
select
    event_at, 'gpu' as source,
    case when what = 'status' then became else replace(what, '_', ' ') end as what,
    'GPU ' || index || ': ' || replace(what, '_', ' ') || ' ' || coalesce(was || ' -> ', '')
        || became || coalesce(' (NVML error ' || error || ')', '') as text,
    host, pci, null as job, id || '/' || what as id
from facts.gpu_changes
where event_at between $since and $until
"""


def _events(
    connection: duckdb.DuckDBPyConnection, target: Target, period: Period
) -> Iterable[Event]:
    bounds = {"since": period[0], "until": period[1]}
    asked = bounds | {"hosts": list(target.hosts), "job": target.job}
    rows = connection.execute(_EVENTS, asked).fetchall()
    of_gpus, values = _of_gpus(target)
    rows += connection.execute(f"{_CHANGES} and {of_gpus}", bounds | values).fetchall()
    names = ("at", "source", "what", "text", "host", "pci", "job", "id")
    events = (Event(**_told(dict(zip(names, row, strict=True)))) for row in rows)
    return sorted((one for one in events if _concerns(one, target)), key=_order)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"text": row["text"] or "", "what": row["what"] or ""}


#: Cause before effect, where two things have the same time.
_RANK = ("context", "kernel", "gpu", "nvml", "fabric", "nccl", "suspicion", "verdict", "request",
         "command", "state", "ack")  # fmt: skip


def _order(one: Event) -> tuple[datetime, int, str, str]:
    rank = _RANK.index(one.source) if one.source in _RANK else len(_RANK)
    return one.at, rank, one.host or "", one.id


def _concerns(one: Event, target: Target) -> bool:
    """Of a GPU's host what is about the host or this GPU, not what names another one.

    The address of AER and hot-plug lines is the port's above the GPU.
    """
    if target.pci is None or one.pci is None or one.pci == target.pci:
        return True
    return one.source == "kernel" and not one.what.startswith(("xid", "nvrm"))


def _of_gpus(target: Target) -> tuple[str, dict[str, Any]]:
    """The condition that finds the target's GPUs: by UUID, the files are sorted by it."""
    if target.uuids:
        return "list_contains($uuids, uuid)" if len(target.uuids) > 1 else "uuid = $uuid", (
            {"uuids": list(target.uuids)} if len(target.uuids) > 1 else {"uuid": target.uuids[0]}
        )
    if target.pci is not None:
        return "host = $host and pci = $pci", {"host": target.hosts[0], "pci": target.pci}
    return "list_contains($hosts, host)", {"hosts": list(target.hosts)}


def _series(
    connection: duckdb.DuckDBPyConnection, target: Target, period: Period
) -> Iterable[tuple[Series, tuple[Gap, ...]]]:
    """Each GPU's samples, of the source that has most of them, and where they are missing."""
    of_gpus, values = _of_gpus(target)
    lanes = ", ".join(_LANES)
    cursor = connection.execute(
        f"select gpu, source, event_at, ok, host, index, {lanes} from facts.gpu_samples "  # noqa: S608
        f"where {of_gpus} order by gpu, source, event_at",
        values,
    )
    for gpu, rows in groupby(cursor.fetchall(), itemgetter(0)):
        sources = [list(found) for _, found in groupby(rows, itemgetter(1))]
        samples = max(sources, key=len)
        gaps = tuple(_gaps(gpu, [row[2] for row in samples if row[3]], period))
        thinned = samples[:: max(1, len(samples) // _POINTS)]
        yield (
            Series(
                gpu=gpu,
                host=samples[-1][4],
                index=samples[-1][5],
                at=tuple(row[2] for row in thinned),
                values={
                    name: tuple(row[number] for row in thinned)
                    for number, name in enumerate(_LANES, start=6)
                },
                coverage=1 - sum((one.length for one in gaps), timedelta()) / _length(period),
            ),
            gaps,
        )


def _length(period: Period) -> timedelta:
    return max(period[1] - period[0], timedelta(microseconds=1))


def _gaps(gpu: str, answered: list[datetime], period: Period) -> Iterable[Gap]:
    """Times without an answer of the GPU, also at the ends of the window."""
    steps = [after - before for before, after in pairwise(answered)]
    usual = max(median_low(steps), timedelta(seconds=1)) if steps else timedelta(minutes=1)
    for before, after in pairwise([period[0], *answered, period[1]]):
        if after - before > _MISSING * usual:
            yield Gap(gpu=gpu, since=before, until=after)


_SPANS = """
select 'verdict' as kind, status || ' ' || cause as what, decided_at as since,
    lead(decided_at) over (partition by incident order by revision) as until,
    coalesce(domain.host, host) as host, domain.pci as pci, domain.job as job,
    domain.kind || ' ' || coalesce(domain.pci, domain.host, domain.rack, domain.job, '') as place
from staging.verdicts
union all
select 'out of service', concat_ws(' ', level, 'for', cause), valid_from, valid_to, host, pci, null,
    domain_id
from facts.states_at
where isolated
union all
select 'context', concat_ws(' ', kind, job), event_at, coalesce(until, told_until), host, pci, job,
    coalesce(reason, '')
from (
    select kind, job, event_at, until, host, pci, reason, ended,
        lead(case when ended then coalesce(until, observed_at) end ignore nulls) over told
            as told_until,
        lag(kind) over told as before
    from staging.context
    window told as (partition by kind, host, pci, job order by observed_at, kafka_offset)
) as plans
-- What ended, and whose beginning was told days before, tells its beginning itself.
where not ended or before is null
"""


def _spans(connection: duckdb.DuckDBPyConnection, target: Target, period: Period) -> Iterable[Span]:
    rows = connection.execute(
        f"select distinct kind, what, since, until, place, pci from ({_SPANS}) "  # noqa: S608
        "where since <= $until and coalesce(until, $until) >= $since "
        "and (list_contains($hosts, host) or ($job is not null and job = $job)) "
        "order by kind, since, what, place",
        {"since": period[0], "until": period[1], "hosts": list(target.hosts), "job": target.job},
    ).fetchall()
    for kind, what, since, until, place, pci in rows:
        if target.pci is None or pci in (None, target.pci):
            yield Span(
                kind=kind,
                what=what,
                since=max(since, period[0]),
                until=min(until or period[1], period[1]),
                where=place,
            )
