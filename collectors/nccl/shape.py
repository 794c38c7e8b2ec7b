"""What a line grammar is made of: a cheap needle, a regular expression, and its fields; blocks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from collectors.nccl.prefix import Prefixed

__all__ = ["Block", "Fields", "Shape", "Take", "first_match", "integers"]

#: Fields of an NcclRecord, and ``_open`` when the message seems to go on in the next line.
Fields = dict[str, Any]

#: Longest list of ranks a line may name; beyond it the rest is left out.
_RANKS_MAX = 65536


@dataclass(frozen=True, slots=True)
class Shape:
    """One way a line can look. ``needle`` must stand in the message before the pattern is tried.

    ``build`` turns a match into fields, or None when a closer look says it is something else.
    """

    needle: str
    pattern: re.Pattern[str]
    build: Callable[[re.Match[str], Prefixed], Fields | None]


class Take(Enum):
    """What a block did with a line: took it, took it as its last, let it pass, or ended before."""

    TAKEN = 1
    LAST = 2
    PASSED = 3
    CLOSED = 4


class Block(Protocol):
    """An open message of several lines."""

    def take(self, line: Prefixed) -> Take:
        """Look at the next line."""

    def fields(self) -> list[Fields]:
        """What the message says, one dict a record; called once, at its end."""


def first_match(shapes: tuple[Shape, ...], line: Prefixed) -> Fields | None:
    """The fields of the first shape that fits; the order of ``shapes`` is their priority."""
    message = line.message
    for shape in shapes:
        if shape.needle in message:
            found = shape.pattern.search(message)
            if found is not None:
                fields = shape.build(found, line)
                if fields is not None:
                    return fields
    return None


def integers(text: str) -> tuple[int, ...]:
    """The numbers of a printed list: ``"4, 5, 6"`` gives ``(4, 5, 6)``."""
    return tuple(map(int, re.findall(r"\d{1,9}", text)))[:_RANKS_MAX]
