"""Exports of a Prometheus or VictoriaMetrics that scraped dcgm-exporters, series by series.

JSON of `/api/v1/query_range` and `/api/v1/query`, lines of VictoriaMetrics' `/api/v1/export`, and
CSV with a header: long (a metric and its value a row) or wide (a metric a column).
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

import msgspec
from msgspec import Struct

from collectors.gpu.dcgm_page import reading, value_of
from evidence.identity import normalise_pci
from ringfence.backfill.order import Order, Unreadable
from ringfence.logs import READ_ERRORS, Log

__all__ = ["Identity", "Series", "recognise", "series"]

_PREFIX = b"DCGM_FI_"
#: Bytes of one JSON document or line that are read; each takes several times that in memory.
_MOST_BYTES = 64 << 20
_HOST = ("Hostname", "hostname", "node", "kubernetes_node", "exported_instance", "instance")
_DRIVER = ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION")
_METRIC, _TIME = ("__name__", "metric", "name"), ("timestamp", "time", "ts", "__timestamp__")
_VALUE = ("value", "__value__")
#: Seconds since 1970 are below it until the year 5138, milliseconds above since 1973.
_MILLISECONDS = 1e11
_ROWS = 20_000


class _Answer(Struct):
    """What Prometheus answers; ``result`` holds a series each."""

    status: str = ""
    error: str = ""
    data: "_Data | None" = None


class _Data(Struct):
    result: list["_Result"] = []


class _Result(Struct):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Exported(Struct):
    """A line of `/api/v1/export`: times in milliseconds; a value may be null."""

    metric: dict[str, str]
    values: list[Any]
    timestamps: list[int]


_ANSWERS = msgspec.json.Decoder(_Answer)
_EXPORTS = msgspec.json.Decoder(_Exported)


@dataclass(frozen=True, slots=True)
class Identity:
    """The GPU that a series is of, by its labels; ``index`` -1 where they do not tell."""

    host: str
    index: int
    uuid: str | None
    serial: str | None
    pci: str | None
    name: str | None
    driver: str | None


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one reading of one GPU: times in microseconds since 1970, values as numbers."""

    gpu: Identity
    field: str
    at_us: list[int]
    values: list[float]


def recognise(head: Sequence[bytes]) -> bool:
    """Whether the first lines of a file are such an export."""
    first = next((line for line in head if line.strip()), b"").lstrip(b"\xef\xbb\xbf \t")
    whole = b"".join(head)
    if first[:1] == b"{":
        told = b'"metric"' in whole and (b'"timestamps"' in whole or b'"resultType"' in whole)
        return told or (b'"status"' in first[:64] and b'"error"' in whole)
    return _PREFIX in whole and _columns(first.decode("utf-8", "replace")) is not None


def series(log: Log, order: Order, bad: Unreadable) -> Iterator[Series]:
    """The series of GPUs in an export; what cannot be read is named in ``bad``.

    Other metrics are passed over. An error of the file is raised after what came before it.
    """
    head = b""
    for chunk in log.chunks():
        head += chunk
        if head.strip():
            break
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        yield from _json(log, order, bad)
    else:
        yield from _csv(log, order, bad)


def _json(log: Log, order: Order, bad: Unreadable) -> Iterator[Series]:
    for number, line in _documents(log.chunks()):
        if line is None:
            bad.add(log.file, number, f"longer than {_MOST_BYTES >> 20} MiB: export shorter ranges")
            continue
        if not line.strip():
            continue
        try:
            if b'"timestamps"' in line:
                found = _EXPORTS.decode(line)
                at = [float(one) / 1000 for one in found.timestamps]
                said = ["NaN" if one is None else str(one) for one in found.values]
                yield from _one(found.metric, at, said, (log, number), order, bad)
                continue
            answer = _ANSWERS.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            bad.add(log.file, number, f"no export of a Prometheus ({error})")
            continue
        if answer.error or answer.data is None:
            bad.add(log.file, number, f"Prometheus answered: {answer.error or answer.status}")
            continue
        for result in answer.data.result:
            pairs = result.values or ([result.value] if result.value else [])
            at = [one for one, _ in pairs]
            said = [one for _, one in pairs]
            yield from _one(result.metric, at, said, (log, number), order, bad)


def _documents(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Each JSON document: a line, or where that is none the whole rest; None for one too long."""
    held, number, pretty = b"", 1, False
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > _MOST_BYTES:
            yield number, None
            return
        if pretty or b"\n" not in chunk:
            continue
        *lines, held = b"".join(parts).split(b"\n")
        for place, line in enumerate(lines):
            if number == 1 and not line.rstrip().endswith(b"}"):  # laid out over many lines
                held = b"\n".join([*lines[place:], held])
                pretty = True
                break
            yield number, line
            number += 1
        parts, size = [held], len(held)
    yield number, b"".join(parts)


def _one(
    labels: Mapping[str, str],
    at: Sequence[float],
    said: Sequence[str],
    where: tuple[Log, int],
    order: Order,
    bad: Unreadable,
) -> Iterator[Series]:
    log, number = where
    known = reading(labels.get("__name__", ""))
    if known is None:
        return
    field, kind = known
    if labels.get("GPU_I_ID"):
        return  # a MIG instance's, not the card's
    gpu = _identity(labels, order.host or log.host)
    if gpu is None:
        bad.add(log.file, number, f"{labels['__name__']}: no label says which GPU it is")
        return
    times, values = [], []
    for when, text in zip(at, said, strict=False):
        value, _ = value_of(text)
        if value is not None and 0 <= when < _MILLISECONDS:
            times.append(round(when * 1000) * 1000)
            values.append(float(kind(value)))
    if times:
        yield Series(gpu, field, times, values)


def _identity(labels: Mapping[str, str], host: str) -> Identity | None:
    index = labels.get("gpu", "")
    uuid = labels.get("UUID") or labels.get("uuid") or None
    told = index.isdecimal() and len(index) <= 4  # noqa: PLR2004 (no node has as many)
    if not told and uuid is None:
        return None
    named = next((labels[one] for one in _HOST if labels.get(one)), host)
    return Identity(
        host=named.rsplit(":", 1)[0] if named.rsplit(":", 1)[-1].isdecimal() else named,
        index=int(index) if told else -1,
        uuid=uuid,
        serial=labels.get("DCGM_FI_DEV_SERIAL") or None,
        pci=_pci(labels.get("pci_bus_id", "")),
        name=labels.get("modelName") or None,
        driver=next((labels[one] for one in _DRIVER if labels.get(one)), None),
    )


def _pci(text: str) -> str | None:
    try:
        return normalise_pci(text)[0]
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where a row of CSV has what; ``metrics`` of a wide one are columns of their own."""

    names: list[str]
    time: int
    value: int | None
    metric: int | None
    metrics: dict[int, str]


def _columns(header: str) -> _Columns | None:
    names = [one.strip('"') for one in header.rstrip("\r\n").split(",")]
    lower = [one.casefold() for one in names]

    def place(known: Sequence[str]) -> int | None:
        return next((lower.index(one) for one in known if one in lower), None)

    time, value, metric = place(_TIME), place(_VALUE), place(_METRIC)
    wide = {number: one for number, one in enumerate(names) if reading(one) is not None}
    if time is None or not (wide or (value is not None and metric is not None)):
        return None
    return _Columns(names, time, value, metric, wide)


def _csv(log: Log, order: Order, bad: Unreadable) -> Iterator[Series]:
    lines = (line.decode("utf-8", "replace").lstrip("\ufeff") for line in log.lines())
    columns: _Columns | None = None
    held: dict[tuple[Identity, str], Series] = {}
    rows = 0
    broken: Exception | None = None
    try:
        for number, cells in enumerate(csv.reader(_without_nul(lines)), start=1):
            if not cells:
                continue
            if columns is None:
                columns = _columns(",".join(cells))
                if columns is None:
                    bad.add(log.file, number, "the header names no time, or no metric of DCGM")
                    return
                continue
            if cells == columns.names:  # exports one behind the other
                continue
            _row(cells, columns, (log, number), order, bad, held)
            rows += 1
            if rows % _ROWS == 0:
                yield from held.values()
                held = {}
    except (*READ_ERRORS, csv.Error) as error:
        broken = error
    yield from held.values()
    if isinstance(broken, csv.Error):
        bad.add(log.file, None, f"no CSV: {broken}")
    elif broken is not None:
        raise broken


def _without_nul(lines: Iterable[str]) -> Iterator[str]:
    return (line.replace("\0", "") for line in lines)


def _row(
    cells: Sequence[str],
    columns: _Columns,
    where: tuple[Log, int],
    order: Order,
    bad: Unreadable,
    held: dict[tuple[Identity, str], Series],
) -> None:
    log, number = where
    if len(cells) != len(columns.names):
        bad.add(log.file, number, "the row does not fit its header")
        return
    when = _time(cells[columns.time], order.zone)
    if when is None:
        bad.add(log.file, number, "the row has no time")
        return
    labels = dict(zip(columns.names, cells, strict=True))
    told = {name: cells[place] for place, name in columns.metrics.items()}
    if columns.value is not None and columns.metric is not None:
        told = {cells[columns.metric]: cells[columns.value]}
    for metric, said in told.items():
        for one in _one(labels | {"__name__": metric}, [when], [said], where, order, bad):
            into = held.setdefault((one.gpu, one.field), Series(one.gpu, one.field, [], []))
            into.at_us.extend(one.at_us)
            into.values.extend(one.values)


def _time(said: str, zone: tzinfo) -> float | None:
    """Seconds since 1970 of a number of seconds or milliseconds, or of a time as text."""
    said = said.strip().strip('"')
    try:
        number = float(said)
    except ValueError:
        try:
            when = datetime.fromisoformat(said)
            return (when if when.tzinfo else when.replace(tzinfo=zone)).timestamp()
        except (ValueError, OverflowError):
            return None
    return number / 1000 if number >= _MILLISECONDS else number
