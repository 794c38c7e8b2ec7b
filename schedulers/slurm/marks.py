"""Our mark is the node's reason: ``ringfence: ID DOMAIN CAUSE [drain@TIME]; ...``.

Ours is a reason that has that prefix and says nothing but what we wrote: to which a person added a
word is theirs. One node may be out for several parts: an entry each, and it returns when the last
one is gone.
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
#: What slurmctld adds to any reason when the node is rebooted.
REBOOTED = r"(?: : reboot (?:requested|issued|complete|timed out))*"
_REBOOTED = re.compile(rf"{REBOOTED}\Z")
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
    """Whether a reason is one of ours, word for word."""
    return bool(read(reason))


def read(reason: str) -> tuple[Mark, ...]:
    """The marks in a reason; empty where it is somebody else's."""
    if not reason.startswith(PREFIX):
        return ()
    reason = _REBOOTED.sub("", reason)
    marks = []
    for part in reason.removeprefix(PREFIX).split(";"):
        words = part.split()
        if len(words) < 3 or ":" not in words[1]:  # noqa: PLR2004 (an id, a domain and a cause)
            continue
        until = _UNTIL.fullmatch(words[-1])
        at = datetime.fromisoformat(until[1]) if until else None
        marks.append(Mark(words[0], words[1], words[2], at))
    return tuple(marks) if written(marks) == reason else ()


def written(marks: Iterable[Mark]) -> str:
    """The reason that holds these marks."""
    return f"{PREFIX} " + "; ".join(_one(mark) for mark in marks)


def _one(mark: Mark) -> str:
    words = [mark.command, mark.domain_id, mark.cause]
    if mark.until is not None:
        words.append(f"drain@{mark.until.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    return " ".join(words)
