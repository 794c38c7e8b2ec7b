"""Takes GPU snapshots from a dcgm-exporter, where NVML may not be touched; the same record out.

The exporter reads the GPUs at a pace of its own (30 s unless it is told otherwise): asking it more
often gives the same sample again.
"""

import http.client
import logging
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from collectors.collector import CollectorError, Unavailable
from collectors.deadline import Caller
from collectors.gpu.dcgm_page import DcgmPage, read_page
from collectors.gpu.framing import Framer
from evidence.records import GpuEvent, GpuEventKind, GpuFrame, GpuSnapshot, GpuStatus, GpuTick

__all__ = ["DcgmCollector"]

_LOG = logging.getLogger(__name__)

#: Three times a page of 16 GPUs with every field and MIG instance; it is read every interval.
_MOST_BYTES = 8 << 20
_CHUNK = 64 * 1024
# The codes of NVML (nvml.h) that say the same of the exporter.
_TIMEOUT, _NO_DATA, _UNKNOWN = 10, 21, 999
#: Four times the exporter's default pace.
_STALE_S = 120.0


class _FailedError(CollectorError):
    """The exporter gave no page: a code in NVML's sense and one sentence."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class DcgmCollector:
    """One page of a dcgm-exporter every ``interval_s``, fetched on a thread of its own.

    Until the exporter has answered once, its absence is Unavailable; after that it is a fact, a
    tick with ``error`` and ``error_text``, and it is asked again every ``frame_ticks`` intervals.
    A page that breaks off is no page. A GPU that left the page has status ``error`` and the reason
    in ``unread["status"]``. A change of a GPU's last Xid is an event at the time of the tick; the
    same Xid a second time cannot be told. A sample that repeats itself for two minutes, though it
    has an energy counter, is stale: that is a fact too.
    """

    name = "gpu"
    topic = "gpu"

    def __init__(
        self,
        host: str,
        boot_id: str | None,
        url: str,
        clock: Callable[[], datetime],
        *,
        interval_s: float = 1.0,
        frame_ticks: int = 5,
        deadline_s: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` gives aware UTC times; the whole answer must be there in ``deadline_s``.

        Raises ValueError where ``url`` is not http or https with a host.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not the address of a dcgm-exporter: {url!r}")
        self.latest: GpuTick | None = None
        self.driver: str | None = None
        self.absent = False
        self._url = url
        self._clock = clock
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._retry_s = interval_s * frame_ticks
        self._deadline_s = deadline_s
        self._framer = Framer(
            host,
            boot_id,
            "dcgm",
            clock,
            frame_ticks=frame_ticks,
            hold_s=2 * interval_s * frame_ticks,
        )
        self._caller: Caller[tuple[str, DcgmPage]] = Caller("dcgm", monotonic)
        self._asked_at: datetime | None = None
        self._due = 0.0
        self._told_s = 0.0
        self._cards: dict[object, GpuSnapshot] = {}
        self._xids: dict[str | None, int] = {}
        self._text = ""
        self._changed_at = 0.0

    def read(self) -> Iterable[GpuFrame]:
        """Return the frames that are due; never waits for the exporter.

        Raises Unavailable while the exporter has not answered once.
        """
        now = self._monotonic()
        tick = self._tick(now)
        if not self._caller.busy and now >= self._due:
            self._due = now + self._interval_s
            self._told_s = 0.0
            self._asked_at = self._clock()
            self._caller.start(partial(_page, self._url, self._deadline_s))
        if tick is None:
            frame = self._framer.overdue(now, self.driver)
        else:
            self.latest = tick
            frame = self._framer.add(tick, now, self.driver)
        return [] if frame is None else [frame]

    def rest(self) -> Iterable[GpuFrame]:
        """Return the ticks that wait for a full frame, for the end of the process."""
        frame = self._framer.rest(self.driver)
        return [] if frame is None else [frame]

    def saved(self) -> None:
        """An exporter keeps no position to move on."""

    def close(self) -> None:
        """Let the thread go; it ends with its answer or its deadline."""
        self._caller.close()

    def _tick(self, now: float) -> GpuTick | None:
        answer = self._caller.answer()
        if answer is None:
            return self._silent(now)
        if answer.error is not None:
            if not isinstance(answer.error, _FailedError):
                raise answer.error
            return self._failed(answer.error, now)
        assert answer.value is not None
        text, page = answer.value
        if not page.gpus:
            return self._failed(_FailedError(_NO_DATA, "the page shows no GPU"), now)
        if text != self._text or not page.moving:
            self._text, self._changed_at = text, now
        elif now - self._changed_at >= _STALE_S:
            since = f"{now - self._changed_at:.0f} s"
            words = f"it has repeated the same sample for {since}"
            return self._failed(_FailedError(_NO_DATA, words), now)
        self.absent = False
        self.driver = page.driver or self.driver
        assert self._asked_at is not None
        return self._told(page, self._asked_at)

    def _silent(self, now: float) -> GpuTick | None:
        """The thread keeps its own deadline; where even that is stuck (a name look-up), tell."""
        silent_s = now - self._caller.started_at
        if not self._caller.busy or silent_s < 2 * self._deadline_s + self._told_s:
            return None
        self._told_s = silent_s
        return self._failed(_FailedError(_TIMEOUT, f"no answer for {silent_s:.0f} s"), now)

    def _failed(self, why: _FailedError, now: float) -> GpuTick:
        self._due = now + self._retry_s
        words = f"dcgm-exporter at {self._url}: {why}"
        if self.latest is None:
            self.absent = True
            raise Unavailable(words)
        if self.latest.error is None:
            _LOG.warning("%s", words)
        return GpuTick(at=self._clock(), error=why.code, error_text=words)

    def _told(self, page: DcgmPage, at: datetime) -> GpuTick:
        shown = {_key(gpu): gpu for gpu in page.gpus}
        slots = {gpu.pci for gpu in page.gpus if gpu.pci is not None}
        gone = [
            _gone(card)
            for key, card in self._cards.items()
            if key not in shown and card.pci not in slots
        ]
        self._cards = {_key(card): card for card in (*gone, *page.gpus)}
        events = [event for gpu in page.gpus if (event := self._xid(gpu, page, at)) is not None]
        gpus = tuple(sorted((*page.gpus, *gone), key=lambda gpu: gpu.index))
        return GpuTick(at=at, gpus=gpus, events=tuple(events))

    def _xid(self, gpu: GpuSnapshot, page: DcgmPage, at: datetime) -> GpuEvent | None:
        """The event of a last Xid that is another; what stood there at first sight is old."""
        xid = page.xids.get(gpu.index)
        if xid is None:
            return None
        known = self._xids.get(gpu.uuid)
        self._xids[gpu.uuid] = xid
        if known is None or xid in (0, known):
            return None
        return GpuEvent(
            at=at,
            kind=GpuEventKind.XID,
            index=gpu.index,
            uuid=gpu.uuid,
            pci=gpu.pci,
            data=xid,
        )


def _key(gpu: GpuSnapshot) -> object:
    return gpu.uuid or gpu.pci or gpu.index


def _gone(card: GpuSnapshot) -> GpuSnapshot:
    """A card that the page does not show any more: who it is, and nothing else of it."""
    who = {name: getattr(card, name) for name in ("index", "uuid", "serial", "pci", "name")}
    return GpuSnapshot(status=GpuStatus.ERROR, unread={"status": "not exported any more"}, **who)


#: Straight to the exporter: a proxy of the environment has no business between the two.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _page(url: str, deadline_s: float) -> tuple[str, DcgmPage]:
    """The page's text and what it says, read where nobody waits for it."""
    text = _fetch(url, deadline_s)
    return text, read_page(text)


def _fetch(url: str, deadline_s: float) -> str:
    """Return the page, whole and in time; raises _FailedError otherwise."""
    until = time.monotonic() + deadline_s
    request = urllib.request.Request(url, headers={"Accept": "text/plain"})  # noqa: S310 (checked)
    data = bytearray()
    try:
        with _OPENER.open(request, timeout=deadline_s) as answer:
            while chunk := answer.read1(_CHUNK):
                data += chunk
                if len(data) > _MOST_BYTES:
                    raise _FailedError(_UNKNOWN, f"the page is longer than {_MOST_BYTES >> 20} MiB")
                if time.monotonic() >= until:
                    raise _FailedError(_TIMEOUT, f"the page was not there after {deadline_s:g} s")
            expected = answer.headers.get("Content-Length", "")
    except urllib.error.HTTPError as error:
        raise _FailedError(_UNKNOWN, f"HTTP {error.code}") from error
    except TimeoutError as error:
        raise _FailedError(_TIMEOUT, f"no answer in {deadline_s:g} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        code = _TIMEOUT if isinstance(cause, TimeoutError) else _UNKNOWN
        raise _FailedError(code, str(cause) or type(cause).__name__) from error
    if (expected.isdecimal() and len(data) < int(expected)) or not data.endswith(b"\n"):
        raise _FailedError(_UNKNOWN, f"the page broke off after {len(data)} bytes")
    return data.decode("utf-8", "replace")
