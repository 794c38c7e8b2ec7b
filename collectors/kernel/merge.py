"""Makes one record of several lines: of an event printed in pieces, and of a storm of equal ones.

A storm's record counts lines that say the same thing; two lines that would be decided differently
(other reset flags, another link, another recovery action) never meet in one.
"""

import re
from collections import deque
from collections.abc import Sequence
from datetime import datetime

from msgspec import structs

from collectors.kernel.nvidia import SXID_DETAIL
from evidence.records import KernelKind, KernelRecord

__all__ = ["Coalescer", "Joiner"]

# A member access costs as much as a small regular expression in Python 3.11.
_XID = KernelKind.XID
_SXID = KernelKind.SXID
_NVRM = KernelKind.NVRM
_OTHER = KernelKind.OTHER

#: Lines of other origin that may stand between the pieces of one event (other CPUs print too).
_BETWEEN = 8
#: Calls of `Joiner.release` that an unfinished event is held for.
_CALLS = 5
#: Seconds without a further equal line that end a storm: the window of NCSA Delta's Xid study
#: (arXiv 2503.11901) for equal errors of one GPU.
_QUIET_S = 5.0
#: Seconds after which a storm that goes on gets a new record, so that times stay readable.
_LONGEST_S = 60.0
#: Where a source has no times, lines instead of seconds.
_QUIET_LINES = 200
#: Storms open at once; a flood of different lines must not eat the memory.
_OPEN = 4096

# The NVIDIA GPU 0000:b3:00.0   (its sentence goes on in the next lines, or follows at once)
_PROBE_HEAD = re.compile(r"The NVIDIA GPU \S+(?:\Z| .*not responding to commands)")
# (PCI ID: 10de:26b5) installed in this system has
_PROBE_NEXT = re.compile(r"\(PCI ID: |installed in this system|fallen off the bus and is not")
# A GPU crash dump has been created. If possible, please run
_DUMP_HEAD = re.compile(r"A GPU crash dump has been created\.")
# nvidia-bug-report.sh as root to collect this data before
_DUMP_NEXT = re.compile(r"nvidia-bug-report\.sh as root|the NVIDIA kernel module is unloaded")
# ... fallen off the bus and is not responding to commands.   /   ... kernel module is unloaded.
_LAST = re.compile(r"not responding to commands|module is unloaded")
_XID_FALLEN_OFF = 79

#: Codes whose storms merge whatever unit they name: an application fault walks over the card.
_ANY_UNIT = frozenset({13, 31, 43, 45})
#: Codes that never merge: each is a transition, and the order of transitions is the fact.
_TRANSITIONS = frozenset({154})
#: Kinds whose lines are states (link up, link down): merged only when nothing else came between.
_STATES = (
    KernelKind.PCIEHP,
    KernelKind.DPC,
    KernelKind.MLX5,
    KernelKind.EFA,
    KernelKind.FABRIC_MANAGER,
)

_Key = tuple[object, ...]


class _Head:
    """The first line of an event: its place among those that wait, and how long it waits."""

    __slots__ = ("calls", "index", "lines")

    def __init__(self, index: int) -> None:
        self.index = index
        self.lines = self.calls = 0


class Joiner:
    """Joins the lines of one event that the driver prints with several calls.

    These are a SXid with its Severity and Data lines, the probe message of a lost GPU, and the
    crash-dump notice. `add` returns what is complete, in the order of arrival.
    """

    def __init__(self) -> None:
        self._waiting: list[KernelRecord] = []
        self._heads: dict[_Key, _Head] = {}

    @property
    def holds(self) -> bool:
        """Whether an event may still go on."""
        return bool(self._waiting)

    @property
    def unfinished(self) -> bool:
        """Whether an event is held of which a line is still to come."""
        return any(map(self._lacks, self._heads.values()))

    def add(self, record: KernelRecord) -> list[KernelRecord]:
        """Take the next record and return those that no later line can add to."""
        kind = record.kind
        key: _Key | None = None
        if kind is _SXID or kind is _NVRM or kind is _XID:
            if self._heads and self._joined(record):
                return []
            key = _head(record)
        if key is None and not self._waiting:
            return [record]
        for head in self._heads.values():
            head.lines += 1
        if key is not None:
            self._heads[key] = _Head(len(self._waiting))
        self._waiting.append(record)
        buried = [key for key, head in self._heads.items() if head.lines > _BETWEEN]
        for one in buried:
            del self._heads[one]
        return self._give(self._first()) if buried else []

    def flush(self) -> list[KernelRecord]:
        """Return everything that is held: nothing more is to come for now."""
        held, self._waiting, self._heads = self._waiting, [], {}
        return held

    def release(self) -> list[KernelRecord]:
        """Return everything but events of which a line is still to come: more will be added soon.

        Nothing waits behind such an event, and it waits for a few calls only.
        """
        heads = {key: head for key, head in self._heads.items() if self._lacks(head)}
        kept = sorted(head.index for head in heads.values())
        keep = set(kept)
        out = [one for index, one in enumerate(self._waiting) if index not in keep]
        self._waiting = [self._waiting[index] for index in kept]
        for head in heads.values():
            head.index = kept.index(head.index)
            head.calls += 1
        self._heads = heads
        return out

    def _lacks(self, head: _Head) -> bool:
        return head.calls < _CALLS and not _complete(self._waiting[head.index])

    def _first(self) -> int:
        """Where the first event that may go on stands."""
        return min((head.index for head in self._heads.values()), default=len(self._waiting))

    def _give(self, count: int) -> list[KernelRecord]:
        out, self._waiting = self._waiting[:count], self._waiting[count:]
        for head in self._heads.values():
            head.index -= count
        return out

    def _joined(self, record: KernelRecord) -> bool:
        message = record.message or ""
        if record.kind is _XID:
            place = self._heads.get(("probe", record.host))
            # The same loss, told by an Xid in the very next line: one event.
            if (
                record.code != _XID_FALLEN_OFF
                or place is None
                or place.lines
                or self._waiting[place.index].pci != record.pci
            ):
                return False
            head = self._waiting[place.index]
            self._waiting[place.index] = structs.replace(
                record, id=head.id, raw=f"{head.raw}\n{record.raw}", seq=head.seq, line=head.line
            )
            return True
        key: _Key
        if record.kind is _SXID:
            if record.severity is not None or SXID_DETAIL.match(message) is None:
                return False
            key = ("sxid", record.host, record.pci, record.code)
        elif _PROBE_NEXT.match(message):
            key = ("probe", record.host)
        elif _DUMP_NEXT.match(message):
            key = ("dump", record.host)
        else:
            return False
        place = self._heads.get(key)
        if place is None:
            return False
        self._waiting[place.index] = _appended(self._waiting[place.index], record)
        return True


def _head(record: KernelRecord) -> _Key | None:
    message = record.message or ""
    if record.kind is _SXID:
        if record.severity is not None and "\n" not in message:
            return ("sxid", record.host, record.pci, record.code)
    elif record.kind is _NVRM:
        if _PROBE_HEAD.match(message):
            return ("probe", record.host)
        if _DUMP_HEAD.match(message):
            return ("dump", record.host)
    return None


def _complete(head: KernelRecord) -> bool:
    """Whether the last line of an event has come, as far as its lines are known."""
    if head.kind is _SXID:
        return bool(head.registers)
    return head.kind is not _NVRM or _LAST.search(head.message or "") is not None


def _appended(head: KernelRecord, record: KernelRecord) -> KernelRecord:
    message = head.message
    if record.kind is _NVRM:
        message = f"{head.message} {record.message}"
    return structs.replace(
        head,
        raw=f"{head.raw}\n{record.raw}",
        message=message,
        unit=head.unit or record.unit,
        registers=head.registers + record.registers,
    )


class _Storm:
    """Equal records so far: the first one, how many, and when the last came."""

    __slots__ = ("count", "first_s", "key", "last_at", "last_s", "record")

    def __init__(self, key: _Key, record: KernelRecord, now_s: float) -> None:
        self.key = key
        self.record = record
        self.count = record.count
        self.last_at: datetime | None = record.last_at
        self.first_s = self.last_s = now_s

    def close(self) -> KernelRecord:
        if self.count == self.record.count:
            return self.record
        return structs.replace(self.record, count=self.count, last_at=self.last_at)


class Coalescer:
    """Merges equal records that follow each other within seconds of **event** time.

    `add` returns the records whose storm is over, in the order in which the storms began;
    `flush` the rest. Equal means: same host, kind, code, device, process and everything a decision
    may rest on; for kinds without such fields, the same message.
    """

    def __init__(self) -> None:
        self._order: deque[_Storm] = deque()
        self._open: dict[_Key, _Storm] = {}
        self._state: dict[_Key, _Key] = {}
        self._lines = 0

    def add(self, record: KernelRecord) -> Sequence[KernelRecord]:
        """Take the next record and return those of storms that are over."""
        self._lines += 1
        quiet_s, longest_s = _QUIET_S, _LONGEST_S
        if record.at is not None:
            now_s = record.at.timestamp()
        elif record.uptime_s is not None:
            now_s = record.uptime_s
        else:
            now_s, quiet_s, longest_s = float(self._lines), _QUIET_LINES, _QUIET_LINES
        key = _key(record)
        storm = self._open.get(key)
        if (
            storm is not None
            and -quiet_s <= now_s - storm.last_s <= quiet_s
            and -longest_s <= now_s - storm.first_s <= longest_s
            and (record.kind not in _STATES or self._state.get(_device(record)) == key)
            and (record.kind is not _XID or record.code not in _TRANSITIONS)
        ):
            storm.count += record.count
            storm.last_s = now_s
            storm.last_at = record.last_at or record.at
        else:
            storm = _Storm(key, record, now_s)
            self._order.append(storm)
            self._open[key] = storm
            if record.kind in _STATES:
                self._remember(record, key)
        first = self._order[0]
        if -quiet_s <= now_s - first.last_s <= quiet_s and len(self._order) <= _OPEN:
            return ()
        return self._over(now_s, quiet_s)

    def flush(self) -> list[KernelRecord]:
        """Close every storm."""
        closed = [storm.close() for storm in self._order]
        self._order.clear()
        self._open.clear()
        self._state.clear()
        return closed

    def _remember(self, record: KernelRecord, key: _Key) -> None:
        if len(self._state) >= _OPEN:
            self._state.clear()
        self._state[_device(record)] = key

    def _over(self, now_s: float, quiet_s: float) -> Sequence[KernelRecord]:
        order = self._order
        over: list[KernelRecord] = []
        while order and (abs(now_s - order[0].last_s) > quiet_s or len(order) > _OPEN):
            storm = order.popleft()
            if self._open.get(storm.key) is storm:
                del self._open[storm.key]
            over.append(storm.close())
        return over


# The value and not the member stands in a key: an enum's hash is a Python function.
def _device(record: KernelRecord) -> _Key:
    return (record.host, record.kind.value, record.pci, record.device)


def _key(record: KernelRecord) -> _Key:
    kind = record.kind
    if kind is _OTHER:
        return (record.host, record.message)
    if kind is not _XID and kind is not _SXID:
        return (record.host, kind.value, record.pci, record.device, record.pid, record.message)
    loose = kind is _XID and record.code in _ANY_UNIT
    return (
        record.code, record.pci, record.host, record.pid, record.process, record.message is None,
        record.link, record.severity, record.reset, record.drain_reset, record.caused_by,
        record.peer_pci, record.mig, record.registers, record.device, record.function,
        record.boot_id, None if loose else record.unit, None if loose else record.address,
    )  # fmt: skip
