"""Joins the messages in which one rank says that it waited in vain for one collective.

The watchdog prints the operation in one line and the group with its counters in another, then both
again in the text of the exception that ends the process.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from collectors.nccl.prefix import Prefixed
from collectors.nccl.shape import Fields

__all__ = ["Held", "Position", "Waits", "names_work"]

#: Lines that a wait is held for the message that completes it.
_HOLD_LINES = 64
#: Waits remembered, to know their repetitions.
_WAITS_MAX = 20000

_COUNTERS = ("last_enqueued", "last_started", "last_completed")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a line stands: its offset and number, and which successive file of that name it is."""

    offset: int
    number: int
    stamp: str = ""


@dataclass(slots=True)
class Held:
    """A classified line, or several that belong together, on its way to be a record.

    ``lines`` counts the physical lines of a hard-wrapped one, ``part`` the records of a block.
    """

    fields: Fields
    line: Prefixed
    position: Position
    raw: str
    count: int = 1
    lines: int = 1
    part: int = 0


@dataclass(slots=True)
class _Wait:
    held: Held
    group: str | None
    operation: tuple[Any, ...] | None
    counters: tuple[int | None, ...]
    born: int = 0
    sent: bool = False

    def same(self, other: "_Wait") -> bool:
        """Tell whether two messages can be about one wait: nothing that both tell differs."""
        if self.operation and other.operation and self.operation != other.operation:
            return False
        return self.group == other.group or None in (self.group, other.group)

    def take(self, other: "_Wait") -> bool:
        """Merge another message; false when it tells nothing new."""
        news = any(
            new is not None and new != old
            for new, old in zip(other.counters, self.counters, strict=True)
        )
        news |= self.operation is None and other.operation is not None
        news |= self.group is None and other.group is not None
        told = {
            name: value
            for name, value in other.held.fields.items()
            if value is not None and name != "phase"
        }
        fields = {"_time": self.held.line.text} | self.held.fields | told
        if other.operation is not None and fields.get("phase") == "status":
            del fields["phase"]
        self.held.fields = fields
        if self.group is None:
            self.held.line = other.held.line
        self.group = self.group or other.group
        self.operation = self.operation or other.operation
        self.counters = tuple(fields.get(name) for name in _COUNTERS)
        return news

    @property
    def complete(self) -> bool:
        return (
            self.operation is not None
            and self.group is not None
            and None
            not in (
                self.counters[0],
                self.counters[2],
            )
        )


@dataclass(slots=True)
class Waits:
    """Every wait that one file spoke of; ``waiting`` of them are not sent yet."""

    waiting: int = 0
    _lines: int = 0
    _open: deque[_Wait] = field(default_factory=deque)
    _known: dict[tuple[Any, ...], list[_Wait]] = field(default_factory=dict)
    _prefixed: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)

    def offer(self, held: Held) -> list[Held]:
        """Take one message; returns what is complete now (nothing for a mere repetition)."""
        line, fields = held.line, held.fields
        key = (line.rank, line.pid, line.comm_rank, fields.get("seq"))
        if line.rank is None and key not in self._known:
            # An exception's text (`what():`) has lost the prefix of the line that it repeats.
            key = self._prefixed.get(key[2:], key)
        self._prefixed[key[2:]] = key
        operation = None
        if fields.get("op") is not None:
            operation = (fields["op"], fields.get("numel_in"), fields.get("numel_out"))
        new = _Wait(held, line.group, operation, tuple(fields.get(name) for name in _COUNTERS))
        known = self._known.setdefault(key, [])
        for wait in known:
            if wait.same(new):
                return self._repeated(wait, new)
        new.born = self._lines
        known.append(new)
        self._open.append(new)
        self.waiting += 1
        self._forget()
        return []

    def _repeated(self, wait: _Wait, new: _Wait) -> list[Held]:
        news = wait.take(new)
        if wait.sent:
            if not news:
                return []
            # Sent too early: the whole goes out again, under the later line's place.
            held = wait.held
            return [Held(held.fields, held.line, new.held.position, new.held.raw)]
        if news:
            wait.held.raw = f"{wait.held.raw}\n{new.held.raw}"
        else:
            wait.held.count += 1
        return self._send(wait) if wait.complete else []

    def aged(self) -> list[Held]:
        """Told that one more line went by; returns the waits that were held long enough."""
        self._lines += 1
        old: list[Held] = []
        while self._open and (self._open[0].sent or self._lines - self._open[0].born > _HOLD_LINES):
            old += self._send(self._open.popleft())
        return old

    def flush(self) -> list[Held]:
        """Return all that is held."""
        held: list[Held] = []
        while self._open:
            held += self._send(self._open.popleft())
        return held

    def clear(self) -> None:
        """Forget what was said, so that it may be said again."""
        self._known.clear()
        self._prefixed.clear()
        self._open.clear()
        self.waiting = 0

    def _send(self, wait: _Wait) -> list[Held]:
        if wait.sent:
            return []
        wait.sent = True
        self.waiting -= 1
        return [wait.held]

    def _forget(self) -> None:
        if len(self._known) > _WAITS_MAX:
            self._known = {k: waits for k, waits in self._known.items() if not waits[-1].sent}
            self._prefixed.clear()


def names_work(fields: Fields) -> bool:
    """Whether a timeout says which collective it waited for (gloo's does not)."""
    return fields.get("phase") != "gloo" and (
        fields.get("seq") is not None or fields.get("op") is not None
    )
