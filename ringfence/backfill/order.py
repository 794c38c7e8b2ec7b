"""What an import was told about its files, and what it could not read in them."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

__all__ = ["Bad", "Order", "Unreadable"]

#: Places of one file that are named; further ones are counted.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Order:
    """How files are read.

    ``host`` is that of lines and series that name none (without it the log's folder or name);
    ``year`` that of a file's first line without one, ``boot_time`` when the machine was booted
    whose lines tell only seconds since; ``zone`` that of times without one. Records before
    ``since`` or after ``until`` are left out. ``now`` is the time of the import.
    """

    now: datetime
    host: str | None = None
    year: int | None = None
    boot_time: datetime | None = None
    zone: tzinfo = UTC
    since: datetime | None = None
    until: datetime | None = None

    def wants(self, when: datetime) -> bool:
        """Whether a time is within the bounds."""
        return (self.since is None or when >= self.since) and (
            self.until is None or when <= self.until
        )


@dataclass(frozen=True, slots=True)
class Bad:
    """Something that could not be read: the file, its first line (None: all of it), and why.

    ``more`` counts the further lines of the file that could not be read for the same reason.
    """

    file: str
    line: int | None
    reason: str
    more: int = 0

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.reason}" + (f" (and {self.more} more)" if self.more else "")


@dataclass(slots=True)
class Unreadable:
    """Collects what could not be read, without growing with a file that is all rubbish."""

    _first: dict[tuple[str, str], list[int | None]] = field(default_factory=dict)
    _count: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, file: str, line: int | None, reason: str) -> None:
        """Note one place."""
        key = (file, reason)
        named = self._first.setdefault(key, [])
        if len(named) < _NAMED:
            named.append(line)
        self._count[key] += 1

    def __bool__(self) -> bool:
        return bool(self._count)

    @property
    def count(self) -> int:
        """How many places there are."""
        return self._count.total()

    def told(self) -> list[Bad]:
        """Each file and reason: the first places, the last of them with how many more there are."""
        found = []
        for (file, reason), lines in self._first.items():
            more = self._count[file, reason] - len(lines)
            last = len(lines) - 1
            found += [
                Bad(file, line, reason, more if number == last else 0)
                for number, line in enumerate(lines)
            ]
        return found
