"""The state of every key of one stage: live objects in memory, a Faust table behind them.

The table is written by `write`, after the outputs that go with a state are acknowledged; what is
in memory may be ahead of it. A key belongs to the partition its records came from.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappop, heappush
from typing import Any

import msgspec
from msgspec import Raw, Struct

from streams.stage import Stage

__all__ = ["Kept", "Live", "StateTooLargeError", "States", "read_kept"]

_LOG = logging.getLogger(__name__)
_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder["Kept"]
#: A key whose step failed on a tick is asked again after this long, not on every tick.
_RETRY = timedelta(seconds=60)
#: The heap is made anew when more of it does not hold any more than this.
_STALE_FEW, _STALE_TIMES = 256, 8


class StateTooLargeError(ValueError):
    """A step made a state that no changelog message can hold."""


class Kept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key in the table: its state, its partition, and what it has seen of each topic.

    ``seen`` has the offset last applied per input topic (short name): a record at or below it is
    a redelivery.
    """

    partition: int
    state: Raw
    seen: dict[str, int] = {}


_DECODER = msgspec.json.Decoder(Kept)


def read_kept(value: bytes) -> Kept:
    """Decode one table value; raises msgspec.MsgspecError."""
    return _DECODER.decode(value)


@dataclass(slots=True)
class Live:
    """One key in memory."""

    partition: int
    state: Any
    seen: dict[str, int] = field(default_factory=dict)


class States:
    """All keys of one stage in this worker's partitions, and when each wants a tick."""

    def __init__(self, stage: Stage[Any], max_bytes: int) -> None:
        self._stage = stage
        self._begin = stage.begin or stage.state
        self._max_bytes = max_bytes
        self._read_state = msgspec.json.Decoder(stage.state).decode
        self._live: dict[bytes, Live] = {}
        self._due: dict[int, dict[bytes, datetime]] = defaultdict(dict)
        #: The same as a heap, with entries that do not hold any more among them.
        self._order: dict[int, list[tuple[datetime, bytes]]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._live)

    def items(self) -> Iterable[tuple[bytes, Live]]:
        """Every key with its live state, to be read and not changed."""
        return self._live.items()

    def of(self, key: bytes, partition: int) -> Live:
        """The state of a key, empty when it has none yet (and then not remembered)."""
        live = self._live.get(key)
        return Live(partition, self._begin()) if live is None else live

    def advance(self, key: bytes, live: Live, state: Any) -> bytes | None:  # noqa: ANN401
        """Make ``state`` the key's own and note when it is due.

        Returns the table's value for it, or None for a state of None: the key is forgotten. Raises
        StateTooLargeError and changes nothing when it cannot be kept.
        """
        if state is None:
            self.forget(key, live.partition)
            return None
        self._stage.due(state)  # a state that cannot say when it is due is refused here
        value = _ENCODER.encode(
            Kept(partition=live.partition, state=Raw(_ENCODER.encode(state)), seen=live.seen)
        )
        if len(value) > self._max_bytes:
            raise StateTooLargeError(
                f"the state of {key!r} has {len(value)} bytes, {self._max_bytes} can be kept"
            )
        live.state = state
        self.remember(key, live)
        return value

    def remember(self, key: bytes, live: Live) -> None:
        """Keep a key in memory and note when it is due (also when its state did not change).

        A key that is new and of which nothing is known yet is not kept: each job has its own.
        """
        new = key not in self._live and self._stage.begin is None
        if new and live.state == self._stage.state():
            return
        self._live[key] = live
        self._want(key, live.partition, self._stage.due(live.state))

    def forget(self, key: bytes, partition: int) -> None:
        """Drop a key from memory."""
        self._live.pop(key, None)
        self._due[partition].pop(key, None)

    def due(self, partition: int, now: datetime) -> list[bytes]:
        """Take the keys of a partition that want a tick at ``now``, oldest first.

        Each is to be remembered, advanced, forgotten or postponed then: that says when it is due
        next.
        """
        found = []
        while (at := self.next_due(partition)) is not None and at <= now:
            _, key = heappop(self._order[partition])
            del self._due[partition][key]
            found.append(key)
        return found

    def next_due(self, partition: int) -> datetime | None:
        """When the first key of a partition wants a tick; None when none does."""
        order, waiting = self._order[partition], self._due[partition]
        while order and waiting.get(order[0][1]) != order[0][0]:
            heappop(order)
        return order[0][0] if order else None

    def postpone(self, key: bytes, partition: int, now: datetime) -> None:
        """Ask a key again in a minute: its step failed on a tick and would on the next one."""
        self._want(key, partition, now + _RETRY)

    def _want(self, key: bytes, partition: int, due: datetime | None) -> None:
        """Note when a key is due."""
        waiting = self._due[partition]
        if due is None:
            waiting.pop(key, None)
        elif waiting.get(key) != due:
            waiting[key] = due
            order = self._order[partition]
            heappush(order, (due, key))
            if len(order) > _STALE_FEW + _STALE_TIMES * len(waiting):
                order[:] = sorted((at, one) for one, at in waiting.items())

    def restore(self, rows: Iterable[tuple[int, bytes, bytes]]) -> None:
        """Fill memory from the recovered table: partition, key and value of everything in it."""
        self._live.clear()
        self._due.clear()
        self._order.clear()
        for partition, key, value in rows:
            try:
                kept = _DECODER.decode(value)
                state = self._read_state(kept.state)
                self.remember(key, Live(partition, state, kept.seen))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                _LOG.error(
                    "%s stage: the kept state of %r cannot be read and starts anew: %s",
                    self._stage.name,
                    key,
                    error,
                )

    def newest_seen(self) -> dict[tuple[str, int], int]:
        """The highest offset that any key has seen of each (short topic name, partition)."""
        newest: dict[tuple[str, int], int] = {}
        for live in self._live.values():
            for topic, offset in live.seen.items():
                place = topic, live.partition
                if offset > newest.get(place, -1):
                    newest[place] = offset
        return newest

    def forget_beyond(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Forget the offsets seen in topics that were deleted and made anew since.

        ``ends`` has the end offset of each (short topic name, partition): one seen at or beyond it
        is not held against the records of the new topic.
        """
        for key, live in self._live.items():
            gone = [
                topic
                for topic, offset in live.seen.items()
                if offset >= ends.get((topic, live.partition), offset + 1)
            ]
            if gone:
                _LOG.warning(
                    "%s stage: topics of %r were made anew since its state was kept: %s",
                    self._stage.name,
                    key,
                    ", ".join(sorted(gone)),
                )
            for topic in gone:
                del live.seen[topic]
