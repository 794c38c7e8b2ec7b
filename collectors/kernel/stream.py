"""Turns the lines of a kernel log into records: prefix, grammar, joining, counting.

Nothing is dropped without a trace: a line that is of no interest, too long or not text is a
record, or is counted in one.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from hashlib import blake2b

from collectors.follow import Line
from collectors.kernel.fields import KernelFields, Whence
from collectors.kernel.grammar import LONGEST_MESSAGE, of_interest
from collectors.kernel.host import parse_fabric_manager
from collectors.kernel.identities import GpuIdentities
from collectors.kernel.journal import JournalEntry, read_journal
from collectors.kernel.merge import Coalescer, Joiner
from collectors.kernel.noise import loud_lines
from collectors.kernel.prefix import FABRIC_MANAGER, LinePrefix
from evidence.identity import digest
from evidence.records import KernelKind, KernelRecord

__all__ = ["MAX_LINE", "KernelStream"]

#: Bytes of a line that are read; the rest of a longer one is left out, and the record says so.
MAX_LINE = 65536
#: How far an event may be ahead of our clock before it is clamped to it.
_AHEAD = timedelta(minutes=5)
#: With noise only counted, lines of no known kind up to this kernel level (warning) are kept ...
_WARNING = 4
#: ... but no more of them than this a minute; the rest is counted too.
_RAW_A_MINUTE = 600
# A member access costs as much as a small regular expression in Python 3.11.
_OTHER = KernelKind.OTHER
_XID = KernelKind.XID
_NVRM = KernelKind.NVRM
_SXID = KernelKind.SXID
#: Characters of an over-long line that its message shows.
_SHOWN = 200


class _Noise:
    """How many lines of no interest there were since that was last told."""

    __slots__ = ("count", "raw_left", "told")

    def __init__(self) -> None:
        self.count = 0
        self.raw_left = _RAW_A_MINUTE
        self.told: datetime | None = None


class KernelStream:
    """The way from lines to records for one source; what is ready is collected by `take`.

    ``clock`` gives the time of observation. With ``keep_other`` false, lines of no known kind are
    counted in one record a minute, except those that the kernel marked as a warning or worse.
    Records are held back only while an event may go on; `settle` lets go of them.
    """

    def __init__(
        self,
        *,
        host: str | None,
        clock: Callable[[], datetime],
        source: str = "file",
        file: str | None = None,
        zone: tzinfo | None = UTC,
        year: int | None = None,
        keep_other: bool = True,
        coalesce: bool = False,
        identities: GpuIdentities | None = None,
    ) -> None:
        """Read for ``host``, unless a line names its own; see `LinePrefix` for zone and year.

        ``identities`` is what an earlier run learned about the GPUs.
        """
        self._host = host
        self._clock = clock
        self._source = source
        self._file = file
        self._keep_other = keep_other
        self._prefix = LinePrefix(zone=zone, year=year)
        self._joiner = Joiner()
        self._coalescer = Coalescer() if coalesce else None
        self.identities = GpuIdentities() if identities is None else identities
        self._noise = _Noise()
        self._inode: int | None = None
        self._hash = blake2b(digest_size=12)
        self._out: list[KernelRecord] = []

    def lines(self, batch: list[Line]) -> None:
        """Take several lines at once; much faster than one by one where noise is only counted."""
        if self._keep_other:
            for line in batch:
                self.line(line)
            return
        text = b"\n".join([line.data for line in batch]).decode("utf-8", "backslashreplace")
        texts = text.split("\n")
        if len(texts) != len(batch):  # a line that holds a line break is no line of a file
            for line in batch:
                self.line(line)
            return
        loud = loud_lines(texts)
        self._noise.count += len(batch) - len(loud)
        for index in loud:
            self.line(batch[index])

    def line(self, line: Line) -> None:
        """Take one line as it stands in a file.

        Its record's id is ``digest(host, file, inode, offset, raw)``.
        """
        raw = line.data
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "backslashreplace")
            raw = text.encode()
        origin: LinePrefix | JournalEntry
        unreadable = False
        if text[:1] == "{" and '"MESSAGE"' in text:
            origin = entry = read_journal(raw)
            message = entry.message
            unreadable = not entry.readable
        else:
            origin = self._prefix
            message = origin.split(text).strip()
        fields: KernelFields | None
        if unreadable:
            fields = {"kind": KernelKind.UNREADABLE, "message": message}
        elif origin.fabric_manager:
            fields = self._fabric_manager(message, origin.priority)
        else:
            fields = None if origin.user else of_interest(message)
        if line.cut:
            fields = _cut(fields, message)
        elif fields is None:
            if not self._keep_other and self._counted(origin.priority):
                return
            fields = {"kind": _OTHER, "message": message}
        host = self._host if origin.host is None else self._whose(origin.host)
        self._identify(fields, host, origin.boot_id)
        now = self._clock()
        at = origin.at(now)
        clamped = at is not None and at - now > _AHEAD
        self._pass(
            KernelRecord(
                id=self._id(line.inode, line.offset, raw),
                observed_at=now,
                raw=text,
                host=host,
                at=now if clamped else at,
                uptime_s=origin.uptime_s,
                source=origin.source or self._source,
                file=self._file,
                line=line.number,
                seq=line.offset,
                boot_id=origin.boot_id,
                priority=origin.priority,
                facility=origin.facility,
                clock_clamped=clamped,
                **fields,
            )
        )

    def _whose(self, named: str) -> str:
        """The host a line names; ours as we are called, if it is only a shorter name of ours."""
        ours = self._host
        if ours is not None and named.partition(".")[0] == ours.partition(".")[0]:
            return ours
        return named

    def _fabric_manager(self, message: str, priority: int | None) -> KernelFields | None:
        fields = parse_fabric_manager(message[:LONGEST_MESSAGE])
        routine = "code" not in fields and priority is not None and priority > _WARNING
        return None if routine and not self._keep_other else fields

    def message(
        self, text: str, whence: Whence, *, device_pci: str | None = None, process: str = ""
    ) -> None:
        """Take one message that has no prefix, from the kernel's own buffer or the journal.

        ``device_pci`` is the PCI device that the kernel attached to it; ``process`` the log name
        of the process that wrote it, where that is not the kernel.
        """
        message = text.strip()
        if not process:
            fields = of_interest(message)
        elif FABRIC_MANAGER in process:
            fields = self._fabric_manager(message, whence["priority"])
        else:
            fields = None
        if fields is None:
            if not self._keep_other and self._counted(whence["priority"]):
                return
            fields = {"kind": _OTHER, "message": message}
        elif device_pci is not None and "pci" not in fields:
            fields["pci"] = device_pci
        self._identify(fields, whence["host"], whence["boot_id"])
        self._pass(KernelRecord(**whence, **fields))

    def learn(self, text: str, boot_id: str | None = None) -> None:
        """Take a message that was sent before: only for which GPU has which UUID."""
        if "NVRM:" in text and (fields := of_interest(text.strip())) is not None:
            self.identities.learn(fields, self._host, boot_id)

    def _identify(self, fields: KernelFields, host: str | None, boot_id: str | None) -> None:
        kind = fields["kind"]
        if kind is _XID:
            self.identities.tell(fields, host, boot_id)
        elif kind is _NVRM:
            self.identities.learn(fields, host, boot_id)

    def _pass(self, record: KernelRecord) -> None:
        """Pass a record through joining and coalescing, which nearly none needs."""
        kind = record.kind
        if self._joiner.holds or kind is _NVRM or kind is _SXID:
            for joined in self._joiner.add(record):
                self._ready(joined)
        else:
            self._ready(record)

    def _ready(self, record: KernelRecord) -> None:
        if self._coalescer is None:
            self._out.append(record)
        else:
            self._out.extend(self._coalescer.add(record))

    def _counted(self, priority: int | None) -> bool:
        """Whether a line of no interest is only counted, and count it."""
        noise = self._noise
        if priority is not None and priority <= _WARNING and noise.raw_left > 0:
            noise.raw_left -= 1
            return False
        noise.count += 1
        return True

    def _id(self, inode: int, offset: int, raw: bytes) -> str:
        """``digest(host, file, inode, offset, raw)``, its beginning hashed only once."""
        if inode != self._inode:
            self._inode = inode
            start = f"{self._host}\x00{self._file}\x00{inode}\x00"
            self._hash = blake2b(start.encode("utf-8", "surrogatepass"), digest_size=12)
        hashed = self._hash.copy()
        hashed.update(b"%d\x00%b" % (offset, raw))
        return hashed.hexdigest()

    @property
    def ready(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._out)

    @property
    def unfinished(self) -> bool:
        """Whether an event is held of which a line is still to come."""
        return self._joiner.unfinished

    def take(self) -> list[KernelRecord]:
        """Return the records that are ready, and forget them."""
        out, self._out = self._out, []
        return out

    def settle(self, *, joined: bool = True) -> list[KernelRecord]:
        """End the storms (and with ``joined`` an unfinished event) and return what is ready."""
        joiner = self._joiner
        if joiner.holds:
            for record in joiner.flush() if joined else joiner.release():
                self._ready(record)
        if self._coalescer is not None:
            self._out.extend(self._coalescer.flush())
        return self.take()

    def noise(self, *, at_most_every: timedelta = timedelta(0)) -> KernelRecord | None:
        """The record that stands for the lines of no interest since the last one, if it is due."""
        now = self._clock()
        noise = self._noise
        if noise.told is not None and now - noise.told < at_most_every:
            return None
        count, noise.count, noise.told, noise.raw_left = noise.count, 0, now, _RAW_A_MINUTE
        if not count:
            return None
        return KernelRecord(
            id=digest(self._host, self._source, self._file, "noise", now.isoformat()),
            observed_at=now,
            raw="",
            kind=_OTHER,
            host=self._host,
            source=self._source,
            file=self._file,
            count=count,
            message=f"{count} lines of no interest",
        )


def _cut(fields: KernelFields | None, message: str) -> KernelFields:
    """Say in the record of an over-long line that its end is missing."""
    if fields is None:
        return {
            "kind": KernelKind.UNREADABLE,
            "message": f"a line longer than {MAX_LINE} bytes, the rest is left out: "
            + message[:_SHOWN],
        }
    told = fields.get("message", "")[:LONGEST_MESSAGE]
    fields["message"] = f"{told} [a line longer than {MAX_LINE} bytes, the rest is left out]"
    return fields
