"""What a supervisor must know after it was killed: what its node is out for, and its cards."""

import fcntl
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evidence.decisions import Domain, Level
from schedulers.adapter import SchedulerError
from schedulers.torchrun.cards import Card

__all__ = ["Mark", "Memory"]

_LEVELS = tuple(Level)


class Mark(Struct, frozen=True, kw_only=True):
    """One domain that is out, and by which command."""

    command: str
    domain: Domain
    domain_id: str
    generation: int
    level: Level
    reason: str
    at: datetime


class _Kept(Struct, frozen=True, kw_only=True, tag_field="schema", tag="torchrun/1"):
    """The file; ``cleared`` has the generation up to which a person cleared each domain."""

    marks: tuple[Mark, ...] = ()
    cleared: dict[str, int] = {}
    cards: tuple[Card, ...] = ()
    job: str = ""
    attempt: int = -1


class Memory:
    """The file ``NAME.agent.json``, written whole or not at all; one process has it.

    Raises SchedulerError where it is damaged, cannot be used, or another supervisor has it.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.agent.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / f"{name}.agent.lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = self.path.read_bytes() if self.path.exists() else b""
            self._kept = msgspec.json.decode(content, type=_Kept) if content else _Kept()
        except BlockingIOError as error:
            self._lock.close()
            raise SchedulerError(f"Another supervisor {name!r} runs with {folder}.") from error
        except OSError as error:
            raise SchedulerError(f"The state folder {folder} cannot be used: {error}") from error
        except msgspec.DecodeError as error:
            self._lock.close()
            raise SchedulerError(
                f"{self.path} is damaged, so nobody knows what this node is out for ({error}); "
                "remove it to start without."
            ) from error

    @property
    def marks(self) -> tuple[Mark, ...]:
        """What is out, oldest first."""
        return self._kept.marks

    @property
    def cards(self) -> tuple[Card, ...]:
        """The cards as last listed in full."""
        return self._kept.cards

    @property
    def attempt(self) -> int:
        """How often the agent of this job was started here before."""
        return self._kept.attempt

    def take(self, mark: Mark) -> Mark:
        """Keep a mark; one of its domain keeps its place, and the harder level stands."""
        before = next((one for one in self.marks if one.domain_id == mark.domain_id), None)
        if before is not None:
            mark = replace(mark, level=max(before.level, mark.level, key=_LEVELS.index))
        if mark != before:
            rest = tuple(one for one in self.marks if one is not before)
            self._write(replace(self._kept, marks=(*rest, mark)))
        return mark

    def drop(self, domain_ids: Iterable[str]) -> bool:
        """Forget marks of these domains; whether there were any."""
        gone = set(domain_ids)
        rest = tuple(one for one in self.marks if one.domain_id not in gone)
        if rest == self.marks:
            return False
        self._write(replace(self._kept, marks=rest))
        return True

    def clear(self) -> tuple[Mark, ...]:
        """Forget all marks by a person's word; today's desired states do not bring them back."""
        marks = self.marks
        cleared = self._kept.cleared | {one.domain_id: one.generation for one in marks}
        self._write(replace(self._kept, marks=(), cleared=cleared))
        return marks

    def was_cleared(self, domain_id: str, generation: int) -> bool:
        """Whether a person cleared what that generation of a domain asks for."""
        return generation <= self._kept.cleared.get(domain_id, -1)

    def starts(self, job: str) -> int:
        """Count a start of a job's agent; returns which it is, from 0."""
        attempt = self.attempt + 1 if job == self._kept.job else 0
        self._write(replace(self._kept, job=job, attempt=attempt))
        return attempt

    def has(self, cards: tuple[Card, ...]) -> tuple[Card, ...]:
        """Keep cards as listed now, unless there were more: a lost one is not listed any more."""
        if len(cards) >= len(self.cards) and cards != self.cards:
            self._write(replace(self._kept, cards=cards))
        return self.cards

    def close(self) -> None:
        """Let another supervisor have it."""
        self._lock.close()

    def _write(self, kept: _Kept) -> None:
        beside = self.path.with_suffix(".new")
        with beside.open("wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._kept = kept
