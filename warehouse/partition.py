"""One partition on its way into files: its buffer, when that is due, where the next file starts.

``start`` is the end of the last file, whoever wrote it; the buffer always continues it.
"""

import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from warehouse.files import Range, Taken, day_of, look, publish
from warehouse.kinds import Kind
from warehouse.logs import log_name
from warehouse.tables import Fetched, build, read

__all__ = ["Partition", "Policy"]

_LOG = logging.getLogger(__name__)

#: Samples come without end, and each alone is of little interest within seconds.
_SAMPLES = frozenset({"gpu", "fabric"})
#: What people wait for, and few: never held back to save files.
_DECISIONS = frozenset(
    {"verdicts", "requests", "isolation.commands", "isolation.state", "isolation.acks"}
)
#: How a Tick begins on the wire: the schema tag comes first.
_TICK = b'{"schema":"tick/'


@dataclass(frozen=True, slots=True)
class Policy:
    """When a buffer becomes a file; see SinkConfig. ``at_point``: see `warehouse.files.publish`."""

    root: Path
    flush_records: int
    flush_s: float
    bulk_flush_s: float
    tick_flush_s: float
    flush_bytes: int
    compression: str
    at_point: Callable[[str], None] = lambda _point: None


class Partition:
    """One partition of one log.

    ``topic`` is its name in Kafka; ``base`` and ``rounds`` tell the log from an earlier one of that
    name (see `warehouse.logs`); ``start`` is the first position not in a file.
    """

    def __init__(
        self,
        *,
        kind: Kind,
        topic: str,
        base: str,
        rounds: int,
        number: int,
        start: int,
        policy: Policy,
    ) -> None:
        self.kind = kind
        self.topic = topic
        self.log_id = log_name(base, rounds)
        self.rounds = rounds
        self.number = number
        self.start = start
        self.size = 0
        self.stored_rows = 0
        self._policy = policy
        self._buffer: list[Fetched] = []
        self._since: float | None = None
        self._record_since: float | None = None
        self._flushed_at: float | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def next(self) -> int:
        """The next offset to fetch."""
        return self._buffer[-1].offset + 1 if self._buffer else self.start

    def add(self, fetched: Iterable[Fetched], now: float) -> None:
        """Take messages in, in order of their offsets; those taken or stored before are skipped.

        They stay bytes until they are stored: a hundred thousand decoded records would keep the
        cycle collector busy.
        """
        expected = self.next
        for one in fetched:
            if one.offset < expected:
                continue
            expected = one.offset + 1
            self._buffer.append(one)
            self.size += len(one.value or b"")
            if self._since is None:
                self._since = now
            if self._record_since is None and not (one.value or b"").startswith(_TICK):
                self._record_since = now

    def due_in_s(self, now: float) -> float | None:
        """Seconds until the buffer should become a file (zero or less: now); None when empty."""
        if self._since is None:
            return None
        policy = self._policy
        if len(self._buffer) >= policy.flush_records or self.size >= policy.flush_bytes:
            return 0.0
        if self._record_since is None:
            return self._since + policy.tick_flush_s - now
        soon = self._record_since + policy.flush_s
        if self.kind.topic in _SAMPLES:
            soon = max(soon, self._record_since + policy.bulk_flush_s)
        elif self.kind.topic not in _DECISIONS and self._flushed_at is not None:
            # The first record after a pause is stored soon, those of a busy log together.
            soon = max(soon, self._flushed_at + policy.bulk_flush_s)
        return min(soon, self._since + max(policy.tick_flush_s, policy.bulk_flush_s)) - now

    def waited_s(self, now: float) -> float:
        """How long the oldest message in the buffer has waited; 0 when it is empty."""
        since = self._since
        return 0.0 if since is None else max(0.0, now - since)

    def flush(self, now: float) -> Path | None:
        """Store the buffer as one file; None when there was nothing left to store.

        What another sink has stored meanwhile is dropped from the buffer first. Raises OSError
        when the disk refuses; the buffer is then kept.
        """
        while self._buffer:
            stored = self._range()
            try:
                look(self._policy.root, stored)
                with _no_collection():
                    table = self._table()
                policy = self._policy
                path = publish(policy.root, stored, table, policy.compression, policy.at_point)
            except Taken as taken:
                _LOG.info(
                    "%s from offset %d on was stored by another sink, going on at %d",
                    self,
                    stored.start,
                    taken.last + 1,
                )
                self._go_on(taken.last + 1)
                continue
            self.stored_rows += table.num_rows
            self._flushed_at = now
            self._go_on(stored.last + 1)
            return path
        return None

    def _table(self) -> pa.Table:
        messages = [read(self.kind, one) for one in self._buffer]
        return build(self.kind, self.topic, self.log_id, self.number, messages)

    def _range(self) -> Range:
        first, last = self._buffer[0], self._buffer[-1]
        return Range(
            kind=self.kind,
            log=self.log_id,
            partition=self.number,
            start=self.start,
            first=first.offset,
            last=last.offset,
            day=day_of(first.timestamp),
        )

    def _go_on(self, start: int) -> None:
        """Go on at ``start``: drop what lies before it; the rest is due as soon as it was."""
        self.start = start
        self._buffer = [one for one in self._buffer if one.offset >= start]
        self.size = sum(len(one.value or b"") for one in self._buffer)
        if not self._buffer:
            self._since = self._record_since = None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hold the cycle collector: it would walk fresh records again and again, and find nothing.

    They are gone, by their reference counts, before it runs again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
