"""A year of a fleet as `ringfence compact` leaves it: closed days, sorted, one file a kind.

Values move as those of `load_gpu` do; one card in fifty errs, in bursts. What the rewriting of a
day proves is not proved here: the files are written sorted at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warehouse.files import prepare
from warehouse.footers import whole_metadata
from warehouse.kinds import KINDS, UTC_TIME
from warehouse.rewrite import GROUP_ROWS, ORDER, options
from warehouse.storage import at
from warehouse.watermark import Day, Watermark, Whole, save

__all__ = ["Fleet", "hours", "make"]

_EACH = 8
_LOG = "0a1b2c3d"
_STILL: dict[str, object] = {
    "kafka_topic": "ringfence.gpu", "kafka_log": _LOG, "kafka_partition": 0, "schema": "gpu/1",
    "driver": "570.158.01", "source": "nvml", "name": "NVIDIA H100 80GB HBM3", "status": "ok",
    "ecc_enabled": True, "ecc_volatile_uncorrected": 0, "ecc_aggregate_uncorrected": 0,
    "sram_threshold_exceeded": False, "remapped_correctable": 0, "remapped_uncorrectable": 0,
    "remap_pending": False, "remap_failure": False, "recovery_action": 0,
    "temperature_slowdown_c": 87, "pcie_replays": 0, "pcie_width": 16, "pcie_width_max": 16,
    "pcie_generation": 5, "pcie_generation_max": 5, "mig_enabled": False,
    "clocks_event_reasons": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fleet:
    """``gpus`` cards, eight a node, sampled each ``step_s`` seconds for ``days`` days."""

    gpus: int
    days: int
    step_s: int
    end: date

    @property
    def begin(self) -> date:
        """The first day."""
        return self.end - timedelta(days=self.days)

    @property
    def ticks(self) -> int:
        """Samples of a card in a day."""
        return 86_400 // self.step_s

    @property
    def uuids(self) -> list[str]:
        """The cards, in the order of the files."""
        draw = np.random.default_rng(1)
        made = (UUID(bytes=draw.bytes(16), version=4) for _ in range(self.gpus))
        return sorted(f"GPU-{one}" for one in made)

    def host(self, card: int) -> str:
        """The node a card is in."""
        return f"hgx{card // _EACH:05d}"


def make(root: Path, fleet: Fleet) -> int:
    """Write the year; returns the rows."""
    prepare(root)
    days: dict[str, Day] = {}
    corrected = np.zeros(fleet.gpus, dtype=np.int64)
    for number in range(fleet.days):
        day = fleet.begin + timedelta(days=number)
        table, corrected = _day(fleet, number, corrected)
        first = number * fleet.gpus * fleet.ticks
        days[day.isoformat()] = _publish(root, "gpu", day, table, first)
    save(at(root), "gpu", Watermark(days=days))
    _kernel(root, fleet)
    return fleet.gpus * fleet.ticks * fleet.days


def _publish(root: Path, kind: str, day: date, table: pa.Table, first: int) -> Day:
    """Put one day's file in place, as the rewriting does, and say what the watermark has of it."""
    covers = {f"0000-{_LOG}": [(first, first + table.num_rows)]}
    name = f"{kind}-whole-{sha256(repr((day, covers)).encode()).hexdigest()[:16]}.parquet"
    folder = root / kind / f"day={day.isoformat()}"
    folder.mkdir(parents=True)
    schema = table.schema.with_metadata(whole_metadata(covers))
    with pq.ParquetWriter(folder / name, schema, **options(schema, ORDER, "zstd")) as writer:
        writer.write_table(table.cast(schema), row_group_size=GROUP_ROWS)
    since = datetime.combine(day, datetime.min.time(), UTC).timestamp() + 100_000
    return Day(since, (Whole(name, table.num_rows, covers),))


def _day(
    fleet: Fleet, number: int, corrected: NDArray[np.int64]
) -> tuple[pa.Table, NDArray[np.int64]]:
    draw = np.random.default_rng([7, number])
    shape = (fleet.gpus, fleet.ticks)
    rows = fleet.gpus * fleet.ticks
    card = np.repeat(np.arange(fleet.gpus), fleet.ticks)
    begin = datetime.combine(fleet.begin, datetime.min.time(), UTC) + timedelta(days=number)
    since = int(begin.timestamp() * 1e6)
    step = np.tile(np.arange(fleet.ticks) * fleet.step_s * 1_000_000, fleet.gpus)
    warm = np.clip(60 + draw.integers(-1, 2, shape).cumsum(axis=1), 45, 78).ravel()
    bursts = (draw.random(fleet.gpus) < 0.05) & (np.arange(fleet.gpus) % 50 == 0)
    grown = np.zeros(shape, dtype=np.int64)
    where = draw.integers(0, fleet.ticks, fleet.gpus)
    grown[np.arange(fleet.gpus), where] = bursts * draw.integers(1, 40, fleet.gpus)
    counts = corrected[:, None] + grown.cumsum(axis=1)
    moved: dict[str, Any] = {
        "kafka_offset": number * rows + np.arange(rows),
        "seq": number * fleet.ticks + np.tile(np.arange(fleet.ticks), fleet.gpus),
        "tick": np.zeros(rows, dtype=np.int32),
        "index": card % _EACH,
        "temperature_c": warm,
        "temperature_memory_c": warm + draw.integers(8, 14, rows),
        "power_w": draw.integers(420_000, 699_999, rows) / 1000,
        "utilization_pct": draw.integers(88, 101, rows),
        "memory_used_mib": 70_000 + draw.integers(0, 2_000, rows),
        "clock_sm_mhz": 1980 - 15 * draw.integers(0, 6, rows),
        "ecc_volatile_corrected": counts.ravel() - corrected[card],
        "ecc_aggregate_corrected": counts.ravel(),
        "read_us": draw.integers(900, 1_900, rows),
    }
    columns = {name: pa.array(values) for name, values in moved.items()}
    for name in ("event_at", "observed_at", "appended_at"):
        columns[name] = pa.array(since + step).cast(UTC_TIME)
    columns |= _named(fleet, card, number)
    return _table("gpu", columns, _STILL, rows), counts[:, -1].copy()


def _named(fleet: Fleet, card: NDArray[np.int64], day: int) -> dict[str, pa.Array]:
    """What tells the card, and what it cannot tell; the id is that of a frame of the node."""
    of = pa.array(card)
    cards = range(fleet.gpus)
    boots = [f"b{one // _EACH}-{day // 30}" for one in cards]
    places = [f"0000:{0x19 + 0x10 * (one % _EACH):02x}:00" for one in cards]
    hosts = [fleet.host(one) for one in cards]
    tick = np.tile(np.arange(fleet.ticks), fleet.gpus)
    node = day * 10_000_000 + (card // _EACH) * fleet.ticks + tick
    unread = KINDS["gpu"].schema.field("unread").type
    said = pa.array([[("retired_pages", "Not Supported (3)")]], unread)
    return {
        "uuid": pa.array(fleet.uuids).take(of),
        "host": pa.array(hosts).take(of),
        "kafka_key": pa.array([one.encode() for one in hosts]).take(of),
        "boot_id": pa.array(boots).take(of),
        "serial": pa.array([str(1_650_000_000_000 + one) for one in cards]).take(of),
        "pci": pa.array(places).take(of),
        "id": pa.array(node * 2_654_435_761 % (1 << 52)).cast(pa.string()),
        "unread": said.take(pa.array(np.zeros(len(card), dtype=np.int64))),
    }


def _kernel(root: Path, fleet: Fleet) -> None:
    """Fifty lines a node and day, of which one in a thousand is an Xid."""
    days: dict[str, Day] = {}
    nodes = -(-fleet.gpus // _EACH)
    each = 50
    rows = nodes * each
    for number in range(fleet.days):
        day = fleet.begin + timedelta(days=number)
        draw = np.random.default_rng([9, number])
        begin = datetime.combine(day, datetime.min.time(), UTC).timestamp() * 1e6
        when = np.sort(draw.integers(0, 86_400_000_000, (nodes, each)), axis=1).ravel()
        xid = draw.random(rows) < 1e-3
        host = np.repeat(np.arange(nodes), each)
        columns: dict[str, pa.Array] = {
            "id": pa.array(number * rows + np.arange(rows)).cast(pa.string()),
            "kafka_offset": pa.array(number * rows + np.arange(rows)),
            "host": pa.array([fleet.host(_EACH * one) for one in range(nodes)]).take(
                pa.array(host)
            ),
            "kind": pa.array(np.where(xid, "xid", "nvrm")),
            "code": pa.array(np.where(xid, 31, 0), mask=~xid),
            "raw": pa.array([f"NVRM: line {one} of the day" for one in range(rows)]),
            "pci": pa.array(np.where(host % 2 == 0, "0000:19:00", "0000:29:00")),
        }
        for name in ("event_at", "observed_at", "appended_at"):
            columns[name] = pa.array((begin + when).astype(np.int64)).cast(UTC_TIME)
        still: dict[str, object] = {
            "schema": "kernel/1", "kafka_topic": "ringfence.kernel", "kafka_log": _LOG,
            "kafka_partition": 0, "count": 1, "source": "kmsg",
        }  # fmt: skip
        table = _table("kernel", columns, still, rows)
        days[day.isoformat()] = _publish(root, "kernel", day, table, number * rows)
    save(at(root), "kernel", Watermark(days=days))


def _table(
    kind: str, columns: dict[str, pa.Array], still: dict[str, object], rows: int
) -> pa.Table:
    """All columns of the kind: those given, those of one value, and nulls."""

    def column(field: pa.Field) -> pa.Array:
        if field.name in columns:
            return columns[field.name].cast(field.type)
        if field.name in still:
            return pa.repeat(pa.scalar(still[field.name], field.type), rows)
        return pa.nulls(rows, field.type)

    schema = KINDS[kind].schema
    return pa.table([column(field) for field in schema], schema=schema)


def hours(fleet: Fleet) -> Iterator[datetime]:
    """Times in the year, spread over it."""
    begin = datetime.combine(fleet.begin, datetime.min.time(), UTC)
    for part in (0.9, 0.1, 0.5, 0.3, 0.7):
        yield begin + timedelta(seconds=round(part * fleet.days * 86_400))
