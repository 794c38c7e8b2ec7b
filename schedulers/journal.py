"""What this scheduler has begun and finished, on disk, so that a restart does not act twice.

An entry is written before the adapter acts and completed after; one that was begun and never
finished was interrupted, and is carried out again (adapters are idempotent).
"""

import fcntl
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from evidence.decisions import AckStatus
from schedulers.adapter import Outcome, SchedulerError

__all__ = ["Entry", "Journal"]

_SCHEMA = """
create table if not exists commands (
    id text primary key,
    attempt integer not null,       -- of the last begun try, from 1
    begun_at text not null,         -- ISO 8601, of the first try
    finished_at text,               -- null: begun, never finished
    status text,
    detail text,
    exit_code integer,
    took_ms integer
) strict
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One command as remembered; ``status`` None means begun and never finished."""

    id: str
    attempt: int
    begun_at: datetime
    finished_at: datetime | None = None
    status: AckStatus | None = None
    detail: str = ""
    exit_code: int | None = None
    took_ms: int | None = None


class Journal:
    """The memory of one scheduler, a SQLite file that only one process has open.

    Raises SchedulerError when the folder cannot be used or another process uses it.
    """

    def __init__(self, folder: Path, name: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / f"{name}.lock").open("w")
        except OSError as error:
            raise SchedulerError(f"The state folder {folder} cannot be used: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._database = sqlite3.connect(folder / f"{name}.sqlite", isolation_level=None)
            # Each entry must be on disk before the adapter acts.
            self._database.execute("pragma synchronous = full")
            self._database.execute(_SCHEMA)
        except BlockingIOError as error:
            self._lock.close()
            raise SchedulerError(
                f"Another scheduler {name!r} runs with the state folder {folder}."
            ) from error
        except sqlite3.Error as error:
            self._lock.close()
            raise SchedulerError(f"The journal in {folder} cannot be used: {error}") from error

    def find(self, command: str) -> Entry | None:
        """What is remembered of a command, by its id."""
        query = (
            "select id, attempt, begun_at, finished_at, status, detail, exit_code, took_ms "
            "from commands where id = ?"
        )
        with closing(self._database.execute(query, (command,))) as rows:
            row = rows.fetchone()
        if row is None:
            return None
        ident, attempt, begun, finished, status, detail, exit_code, took_ms = row
        return Entry(
            id=ident,
            attempt=attempt,
            begun_at=datetime.fromisoformat(begun),
            finished_at=datetime.fromisoformat(finished) if finished else None,
            status=AckStatus(status) if status else None,
            detail=detail or "",
            exit_code=exit_code,
            took_ms=took_ms,
        )

    def begin(self, command: str, attempt: int, at: datetime) -> None:
        """Write that an attempt begins, before it does."""
        self._database.execute(
            "insert into commands (id, attempt, begun_at) values (?, ?, ?) "
            "on conflict (id) do update set attempt = excluded.attempt, status = null, "
            "finished_at = null",
            (command, attempt, at.isoformat()),
        )

    def finish(self, command: str, outcome: Outcome, at: datetime, took_ms: int) -> None:
        """Write how the last attempt went; what is done is never carried out again."""
        self._database.execute(
            "update commands set finished_at = ?, status = ?, detail = ?, exit_code = ?, "
            "took_ms = ? where id = ?",
            (
                at.isoformat(),
                outcome.status.value,
                outcome.detail,
                outcome.exit_code,
                took_ms,
                command,
            ),
        )

    def close(self) -> None:
        """Close the file and let another process have it."""
        self._database.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
