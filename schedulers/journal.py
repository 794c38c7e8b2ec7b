"""What this scheduler has begun and finished, on disk, so that a restart does not act twice.

An entry is written before the adapter acts and completed after; one that was begun and never
finished was interrupted, and is carried out again (adapters are idempotent).
"""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from evidence.decisions import AckStatus, Action, Command, Domain, DomainKind
from schedulers.adapter import Outcome, SchedulerError

__all__ = ["Entry", "Journal"]

_TABLES = (
    """
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
""",
    # The newest generation of a domain, and in which topic: one made anew counts from the start.
    """
create table if not exists generations (
    domain_id text primary key,
    generation integer not null,
    topic text not null
) strict
""",
    # What the scheduler said last: parts out of service (kind `out`), context (kind `context`).
    """
create table if not exists told (
    kind text not null,
    id text not null,
    record blob not null,
    primary key (kind, id)
) strict
""",
)
#: Columns of `commands` that came later; null in older rows.
_LATER = {
    "content": "text",  # digest of what was asked: the same id with another content is a forgery
    "domain_id": "text",
    "domain": "blob",  # JSON
    "action": "text",
    "place": "text",  # the host, or the domain without one: what the budget counts
    "nodes": "integer",
    "took": "text",  # what was really taken out, where the adapter knows
    "last_begun_at": "text",  # UTC, ISO 8601 with microseconds: sorts as text
}


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
    content: str | None = None
    took: DomainKind | None = None


class Journal:
    """The memory of one scheduler, a SQLite file that only one process has open.

    ``fresh`` says that there was no file. Raises SchedulerError when the folder cannot be used,
    another process uses it, or the file is damaged: without a memory nothing may be carried out.
    """

    def __init__(self, folder: Path, name: str, *, shared: bool = False) -> None:
        self._path = folder / f"{name}.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.fresh = not self._path.exists()
            self._lock = (folder / f"{name}.lock").open("w")
        except OSError as error:
            raise SchedulerError(f"The state folder {folder} cannot be used: {error}") from error
        try:
            if not shared:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._database = sqlite3.connect(self._path, isolation_level=None)
            self._prepare()
        except BlockingIOError as error:
            self._lock.close()
            raise SchedulerError(
                f"Another scheduler {name!r} runs with the state folder {folder}."
            ) from error
        except sqlite3.Error as error:
            self._lock.close()
            raise SchedulerError(f"The journal {self._path} cannot be used: {error}") from error

    def _prepare(self) -> None:
        run = self._database.execute
        with closing(run("pragma quick_check(1)")) as rows:
            found = rows.fetchone()
        if found != ("ok",):
            raise sqlite3.DatabaseError(f"it is damaged ({found[0] if found else 'no answer'})")
        # Each entry must be on disk before the adapter acts; a log costs one sync a transaction.
        run("pragma journal_mode = wal")
        run("pragma synchronous = full")
        for table in _TABLES:
            run(table)
        with closing(run("select name from pragma_table_info('commands')")) as rows:
            there = {name for (name,) in rows}
        for name, kind in _LATER.items():
            if name not in there:
                run(f"alter table commands add column {name} {kind}")
        run("create index if not exists by_time on commands (last_begun_at)")
        run("create index if not exists by_domain on commands (domain_id, last_begun_at)")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Several writes as one: all are on disk after it, or none."""
        self._database.execute("begin immediate")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):
                self._database.execute("rollback")
            raise
        self._database.execute("commit")

    def find(self, command: str) -> Entry | None:
        """What is remembered of a command, by its id."""
        row = self._one(
            "select id, attempt, begun_at, finished_at, status, detail, exit_code, took_ms, "
            "content, took from commands where id = ?",
            command,
        )
        if row is None:
            return None
        ident, attempt, begun, finished, status, detail, exit_code, took_ms, content, took = row
        return Entry(
            id=ident,
            attempt=attempt,
            begun_at=datetime.fromisoformat(begun),
            finished_at=datetime.fromisoformat(finished) if finished else None,
            status=AckStatus(status) if status else None,
            detail=detail or "",
            exit_code=exit_code,
            took_ms=took_ms,
            content=content,
            took=DomainKind(took) if took else None,
        )

    def begin(
        self,
        command: Command,
        attempt: int,
        at: datetime,
        *,
        content: str | None = None,
        nodes: int = 1,
    ) -> None:
        """Write that an attempt begins, before it does; ``nodes`` is what it takes out."""
        self._database.execute(
            "insert into commands (id, attempt, begun_at, content, domain_id, domain, action, "
            "place, nodes, last_begun_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "on conflict (id) do update set attempt = excluded.attempt, status = null, "
            "finished_at = null, last_begun_at = excluded.last_begun_at, "
            "content = coalesce(content, excluded.content), domain_id = excluded.domain_id, "
            "domain = excluded.domain, action = excluded.action, place = excluded.place, "
            "nodes = excluded.nodes",
            (
                command.id,
                attempt,
                at.isoformat(),
                content,
                command.domain_id,
                msgspec.json.encode(command.domain),
                command.action.value,
                command.domain.host or command.domain_id,
                nodes,
                _sortable(at),
            ),
        )

    def finish(self, command: str, outcome: Outcome, at: datetime, took_ms: int) -> None:
        """Write how the last attempt went; what is done is never carried out again."""
        self._database.execute(
            "update commands set finished_at = ?, status = ?, detail = ?, exit_code = ?, "
            "took_ms = ?, took = ? where id = ?",
            (
                at.isoformat(),
                outcome.status.value,
                outcome.detail,
                outcome.exit_code,
                took_ms,
                outcome.took.value if outcome.took else None,
                command,
            ),
        )

    def taken_out(self, since: datetime) -> dict[str, int]:
        """Nodes by place that isolations begun since then took out, done or not."""
        query = (
            "select place, max(nodes) from commands "
            "where last_begun_at >= ? and action = ? group by place"
        )
        return dict(self._all(query, _sortable(since), Action.ISOLATE.value))

    def begun_since(self, since: datetime, *, but: str) -> int:
        """Isolations begun since then, one of them left out."""
        query = "select count(*) from commands where last_begun_at >= ? and action = ? and id <> ?"
        return int(self._all(query, _sortable(since), Action.ISOLATE.value, but)[0][0])

    def kept_out(self) -> dict[str, str]:
        """Command ids by domain that we isolated and did not release since."""
        query = (
            "select domain_id, id, action from commands where status = 'done' and "
            "domain_id is not null order by rowid"  # as first begun: a clock may have gone back
        )
        last = {domain: (command, action) for domain, command, action in self._all(query)}
        return {
            domain: command
            for domain, (command, action) in last.items()
            if action == Action.ISOLATE.value
        }

    def domain_of(self, command: str) -> str | None:
        """The id of the domain that a command was about, where it is known."""
        row = self._one("select domain_id from commands where id = ?", command)
        return None if row is None else row[0]

    def domain(self, command: str) -> Domain | None:
        """The domain that a command was about, where it is known."""
        row = self._one("select domain from commands where id = ?", command)
        return None if row is None or row[0] is None else msgspec.json.decode(row[0], type=Domain)

    def newest(self, domain_id: str, topic: str) -> int | None:
        """The newest generation of a domain that was seen in this topic."""
        row = self._one(
            "select generation from generations where domain_id = ? and topic = ?",
            domain_id,
            topic,
        )
        return None if row is None else int(row[0])

    def saw(self, domain_id: str, topic: str, generation: int) -> None:
        """Remember a domain's newest generation; a topic made anew replaces the old one's."""
        self._database.execute(
            "insert into generations values (?, ?, ?) on conflict (domain_id) do update set "
            "generation = case when topic = excluded.topic then max(generation, "
            "excluded.generation) else excluded.generation end, topic = excluded.topic",
            (domain_id, generation, topic),
        )

    def outdate(self, domain_id: str, host: str | None) -> int:
        """Make what is known of a domain (of a host: of its parts too) old; its new generation."""
        mine = [
            known
            for (known,) in self._all("select domain_id from generations")
            if known == domain_id
            or (host is not None and known.partition(":")[2].partition("/")[0] == host)
        ]
        for known in mine:
            self._database.execute(
                "update generations set generation = generation + 1 where domain_id = ?", (known,)
            )
        row = self._one("select generation from generations where domain_id = ?", domain_id)
        return 0 if row is None else int(row[0])

    def told(self, kind: str) -> dict[str, bytes]:
        """What was published of what the scheduler says, by id."""
        return dict(self._all("select id, record from told where kind = ?", kind))

    def tell(self, kind: str, ident: str, record: bytes | None) -> None:
        """Remember what was published; None forgets it."""
        if record is None:
            self._database.execute("delete from told where kind = ? and id = ?", (kind, ident))
        else:
            self._database.execute(
                "insert or replace into told values (?, ?, ?)", (kind, ident, record)
            )

    def close(self) -> None:
        """Close the file and let another process have it."""
        self._database.close()
        self._lock.close()

    def _one(self, query: str, *values: object) -> Any:  # noqa: ANN401 (a row)
        with closing(self._database.execute(query, values)) as rows:
            return rows.fetchone()

    def _all(self, query: str, *values: object) -> list[Any]:
        with closing(self._database.execute(query, values)) as rows:
            return rows.fetchall()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _sortable(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")
