"""What nvidia-smi printed into files, as samples of single GPUs at their own times."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from collectors import nvidia_smi
from collectors.nvidia_smi.card import Look
from collectors.nvidia_smi.looks import Looks
from collectors.nvidia_smi.rows import CsvRows, Messages
from evidence.identity import digest
from evidence.records import GpuFrame, GpuSnapshot, GpuTick
from ringfence.backfill.order import Order, Unreadable
from ringfence.logs import Log

__all__ = ["frame", "frames"]

_SOURCE = "nvidia-smi"
_NO_TIME = "the output has no timestamp: add it to --query-gpu, or read -q"
_AHEAD = timedelta(days=1)
#: Columns of the queries whose rows are processes or retired pages.
_NO_GPUS = ("pid", "process_name", "retired_pages.address", "retired_pages.cause")


def frames(log: Log, order: Order, bad: Unreadable) -> Iterator[GpuFrame]:
    """A frame for each GPU at each of its times; what has no time is named in ``bad``.

    A row of CSV has the time that stands in it, not that of the first GPU of its round: a file that
    is cut in a round then gives the same samples. An error of the file is raised at its end.
    """
    yield from _rows(log, order, bad) if _is_csv(log) else _looks(log, order, bad)


def frame(
    host: str,
    source: str,
    at: datetime,
    gpu: GpuSnapshot | None,
    order: Order,
    *,
    driver: str | None = None,
    file: str | None = None,
    error: tuple[int | None, str | None] = (None, None),
) -> GpuFrame:
    """One tick of one GPU, its id made of what it says."""
    tick = GpuTick(at=at, gpus=() if gpu is None else (gpu,), error=error[0], error_text=error[1])
    said = msgspec.json.encode(tick).decode()
    return GpuFrame(
        id=digest("import", "gpu", host, source, driver, said),
        host=host,
        observed_at=order.now,
        seq=0,
        ticks=(tick,),
        driver=driver,
        source=source,
        file=file,
    )


def _is_csv(log: Log) -> bool:
    for line in log.lines():
        text = line.decode("utf-8", "replace").strip()
        if text and not Messages.begins(text):
            return CsvRows.begins(text)
    return False


def _rows(log: Log, order: Order, bad: Unreadable) -> Iterator[GpuFrame]:
    table = _Table(log, order, bad)
    for number, line in enumerate(log.lines(), start=1):
        text = line.decode("utf-8", "replace").strip("\ufeff\r\n")
        if CsvRows.begins(text):
            table.header(text, number)
        elif text.strip():
            table.take(text, number, whole=line.endswith(b"\n") or number == 1)
            yield from table.samples(number)


class _Table:
    """CSV, each row a look of its own."""

    def __init__(self, log: Log, order: Order, bad: Unreadable) -> None:
        self._log, self._order, self._bad = log, order, bad
        self._looks = Looks(order.zone)
        self._csv, self._messages = CsvRows(self._looks), Messages(self._looks)
        self._last: dict[str, datetime] = {}
        #: Whether the rows below the header are GPUs with times.
        self._of_use = False

    def header(self, text: str, number: int) -> None:
        columns = [cell.strip().partition(" ")[0].casefold() for cell in text.split(",")]
        others = any(name in columns for name in _NO_GPUS)
        self._of_use = "timestamp" in columns and not others
        if not self._of_use:
            self._bad.add(self._log.file, number, "its rows are no GPUs" if others else _NO_TIME)
        self._csv.header(text)

    def take(self, text: str, number: int, *, whole: bool) -> None:
        if not self._of_use:
            return
        if Messages.begins(text):
            self._messages.take(text)
        elif not whole:
            self._bad.add(self._log.file, number, "the file ends in this row")
        elif not self._csv.take(text, cut=False):
            self._bad.add(self._log.file, number, "the row does not fit its header")

    def samples(self, number: int) -> Iterator[GpuFrame]:
        """What the row at ``number`` gave; a message has the time of the row before it."""
        self._looks.finish()
        for look in self._looks.done():
            host = self._order.host or look.host or self._log.host
            at = look.at or (self._last.get(host) if not _answered(look) else None)
            if at is None:
                self._bad.add(self._log.file, number, "the row has no time")
                continue
            self._last[host] = at
            yield from _samples(look, host, at, number, self._log, self._order, self._bad)


def _answered(look: Look) -> bool:
    return any(card.answered for card in look.cards)


def _looks(log: Log, order: Order, bad: Unreadable) -> Iterator[GpuFrame]:
    """Outputs of other shapes: all GPUs of a look have its time."""
    undated = 0
    host = order.host or log.host
    for found in nvidia_smi.parse_stream(
        log.lines(), host=host, now=order.now, file=log.file, zone=order.zone
    ):
        (tick,) = found.ticks
        if tick.at == order.now:
            undated += 1
            continue
        look = _Told(tick.gpus, found.driver, (tick.error, tick.error_text))
        yield from _samples(look, found.host, tick.at, None, log, order, bad)
    if undated:
        bad.add(log.file, None, f"{undated} outputs of nvidia-smi have no time")


class _Told:
    """A tick in the shape of a look."""

    def __init__(
        self,
        gpus: tuple[GpuSnapshot, ...],
        driver: str | None,
        error: tuple[int | None, str | None],
    ) -> None:
        self._gpus = gpus
        self.driver = driver
        self.error, self.error_text = error

    def snapshots(self) -> tuple[GpuSnapshot, ...]:
        return self._gpus


def _samples(
    look: Look | _Told,
    host: str,
    at: datetime,
    number: int | None,
    log: Log,
    order: Order,
    bad: Unreadable,
) -> Iterator[GpuFrame]:
    if at - order.now > _AHEAD:
        bad.add(log.file, number, "the time lies in the future: is --timezone right?")
        return
    if not order.wants(at):
        return
    # A GPU that was only listed says nothing: a lost one is listed like any other.
    gpus = [gpu for gpu in look.snapshots() if "status" not in gpu.unread]
    unknown = [gpu for gpu in gpus if gpu.index < 0 and not (gpu.uuid or gpu.serial or gpu.pci)]
    if unknown:
        bad.add(log.file, number, "nothing says which GPU it is: ask for uuid or index")
    alone: list[GpuSnapshot | None] = [gpu for gpu in gpus if gpu not in unknown]
    if look.error is not None:
        alone = [None]
    for gpu in alone:
        error = (look.error, look.error_text)
        yield frame(host, _SOURCE, at, gpu, order, driver=look.driver, file=log.file, error=error)
