"""Samples of GPUs out of the series of many exports: one record a GPU and time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from evidence.records import GpuFrame, GpuSnapshot
from ringfence.backfill.cards import frame
from ringfence.backfill.order import Order
from ringfence.backfill.prometheus import Identity, Series

__all__ = ["Scrapes"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SOURCE = "dcgm"
#: Values that came, in one row of the history: those of all series of one time.
_KINDS = get_type_hints(GpuSnapshot)


class Scrapes:
    """Takes series as they come out of files; gives frames when all files were read.

    ``spool`` is a `warehouse.backfill.spool.Spool`: this side knows names, that side numbers.
    """

    def __init__(self, spool: Any) -> None:  # noqa: ANN401 (a part that comes when needed)
        self._spool = spool
        self._gpus: dict[Identity, int] = {}
        self._fields: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._gpus)

    def add(self, found: Series) -> None:
        """Take one series, or a part of it."""
        gpu = self._gpus.setdefault(found.gpu, len(self._gpus))
        field = self._fields.setdefault(found.field, len(self._fields))
        self._spool.add(gpu, field, found.at_us, found.values)

    def frames(self, order: Order) -> Iterator[GpuFrame]:
        """A frame for each GPU and time, in order of time."""
        gpus, fields = list(self._gpus), list(self._fields)
        for at_us, thing, told in self._spool.samples():
            at = _EPOCH + timedelta(microseconds=at_us)
            if not order.wants(at):
                continue
            who = gpus[thing]
            values = {fields[field]: value for field, value in told.items()}
            yield frame(who.host, _SOURCE, at, _snapshot(who, values), order, driver=who.driver)


def _snapshot(who: Identity, told: dict[str, float]) -> GpuSnapshot:
    values: dict[str, Any] = {}
    for name, value in told.items():
        whole, _, part = name.partition(".")
        if part:
            values.setdefault(whole, {})[part] = int(value)
        else:
            values[name] = _kind(name)(value)
    pages = (values.get("retired_pages_sbe"), values.get("retired_pages_dbe"))
    if None not in pages:
        values["retired_pages"] = sum(pages)
    return GpuSnapshot(
        index=who.index, uuid=who.uuid, serial=who.serial, pci=who.pci, name=who.name, **values
    )


def _kind(name: str) -> type:
    """Whether a reading is a whole number, a fraction or a yes."""
    hint = _KINDS[name]
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return next(kind for kind in (bool, int, float) if kind in kinds)
