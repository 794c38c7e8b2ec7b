"""Our mark is the node's reason: ``ringfence: ID DOMAIN CAUSE [drain@TIME]; ...``.

Ownership is by that prefix. One node may be out for several parts: an entry each, and it returns
when the last one is gone.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from evidence.decisions import Command

__all__ = ["PREFIX", "Mark", "entry", "is_ours", "read", "safe", "written"]

PREFIX = "ringfence:"
# drain@2026-12-01T13:45:00Z
_UNTIL = re.compile(r"drain@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)\Z")
#: What Slurm or we give a meaning in a reason.
_UNSAFE = re.compile(r"[\s;\"'\\\x00-\x1f]+")


@dataclass(frozen=True, slots=True)
class Mark:
    """One part for which a node is out; ``until`` is when its running jobs are to be gone."""

    command: str
    domain_id: str
    cause: str
    until: datetime | None = None


def safe(word: str) -> str:
    """A word that a reason can hold."""
    return _UNSAFE.sub("_", word) or "_"


def entry(command: Command, until: datetime | None = None) -> Mark:
    """The mark of one command."""
    return Mark(safe(command.id), safe(command.domain_id), safe(command.cause), until)


def is_ours(reason: str) -> bool:
    """Whether a reason is one of ours."""
    return reason.startswith(PREFIX)


def read(reason: str) -> tuple[Mark, ...]:
    """The marks in a reason; empty where it is somebody else's."""
    if not is_ours(reason):
        return ()
    marks = []
    for part in reason.removeprefix(PREFIX).split(";"):
        words = part.split()
        if len(words) < 2:  # noqa: PLR2004 (an id and a domain)
            continue
        until = _UNTIL.fullmatch(words[-1])
        at = datetime.fromisoformat(until[1]) if until else None
        cause = words[2] if len(words) > 2 and not words[2].startswith("drain@") else ""  # noqa: PLR2004
        marks.append(Mark(words[0], words[1], cause, at))
    return tuple(marks)


def written(marks: Iterable[Mark]) -> str:
    """The reason that holds these marks."""
    return f"{PREFIX} " + "; ".join(_one(mark) for mark in marks)


def _one(mark: Mark) -> str:
    words = [mark.command, mark.domain_id, *filter(None, [mark.cause])]
    if mark.until is not None:
        words.append(f"drain@{mark.until.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    return " ".join(words)
