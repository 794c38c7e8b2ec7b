"""Parcels on disk while Kafka is away: one SQLite file, bounded, read back in order.

It is there only while it holds something: nothing is written as long as Kafka answers, and an
emptied file is removed. What `write` returned from is on the disk (WAL, synchronous=FULL); what
`delete` forgot may come back after a power cut, and is then sent again with the same id.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from collectors.shipping.backlog import Parcel
from collectors.shipping.spool_loss import Loss, Losses
from collectors.shipping.spool_rows import parcel_of, row_of, text_of, time_of

__all__ = ["Spool", "SpoolDamagedError", "SpoolError", "SpoolInUseError"]

#: Version of the tables below, kept in the file (PRAGMA user_version).
_VERSION = 1
_TABLES = """
CREATE TABLE parcel (
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, telemetry INTEGER NOT NULL,
    at TEXT, key BLOB NOT NULL, value BLOB NOT NULL, size INTEGER NOT NULL);
CREATE INDEX lane ON parcel (topic, telemetry, number);
CREATE TABLE lost (
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, count INTEGER NOT NULL, at TEXT, last_at TEXT);
"""
_UNREAD = """
SELECT number, topic, telemetry, at, key, value, size FROM parcel
    WHERE topic = ?1 AND telemetry = 0 AND number > ?2
UNION ALL
SELECT number, topic, telemetry, at, key, value, size FROM parcel
    WHERE topic = ?1 AND telemetry = 1 AND number > ?2
ORDER BY number
"""
#: Rows forgotten in one look for room, and how far below its bound a full spool is brought.
_TRIM_ROWS = 256
_TRIM_TO = 0.97


#: SQLite's names for a file that is none of ours; SQLITE_ERROR is a table or column that is gone.
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_MISMATCH", "SQLITE_SCHEMA")


class SpoolError(Exception):
    """The disk does not take or give records for now; the message is one sentence."""


class SpoolDamagedError(SpoolError):
    """What the file holds cannot be read by this build, and never will be."""


class SpoolInUseError(Exception):
    """Another agent has this spool; the message is one sentence."""


class Spool:
    """A file of parcels, ``max_bytes`` of it at most; used by one thread at a time.

    ``unread`` counts, by topic, rows that nobody has in memory; ``position`` is the number up to
    which a topic's rows are in memory. ``dropped`` counts what had to go for want of room, and
    ``losses`` what of that was not told yet; both are on disk with the same commit.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Take the lock; raises SpoolInUseError when another process has it."""
        self.path = path
        self.max_bytes = max_bytes
        self.rows = 0
        self.bytes = 0
        self.last_number = 0
        self.unread: Counter[str] = Counter()
        self.position: dict[str, int] = {}
        self.dropped: Counter[str] = Counter()
        self.losses = Losses()
        self._telling: set[int] = set()
        self._db: sqlite3.Connection | None = None
        self._lock_file: int | None = None
        with contextlib.suppress(OSError):
            self._lock()

    def open(self) -> None:
        """Read how much there is, if there is a file; raises SpoolError."""
        with self._speaking("it cannot be looked at"):
            there = self._db is not None or self.path.exists()
        if there:
            self._connect()

    def write(self, parcels: Sequence[Parcel], in_memory: Iterable[int]) -> None:
        """Put parcels on the disk, for good; the oldest telemetry goes if there is no room.

        ``in_memory``: numbers of those that stay in memory too, and need not be read back.
        Raises SpoolError, and then the disk has none of them.
        """
        stay = set(in_memory)
        rows = [row_of(one) for one in parcels]
        facts = {one.number for one in parcels if one.fact}
        with self._speaking("records cannot be kept"):
            db = self._connect()
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT OR REPLACE INTO parcel VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            db.executemany("DELETE FROM lost WHERE number = ?", [(one,) for one in facts])
            db.execute("COMMIT")
        self._telling -= facts
        for parcel, row in zip(parcels, rows, strict=True):
            parcel.stored = row[6]
            self.bytes += parcel.stored
            if parcel.number in stay:
                self.position[parcel.topic] = max(self.position.get(parcel.topic, 0), parcel.number)
            else:
                self.unread[parcel.topic] += 1
        self.rows += len(rows)
        self.last_number = max(self.last_number, parcels[-1].number)
        if self.bytes > self.max_bytes:
            with contextlib.suppress(SpoolError):  # the records are safe; the next look tells
                self._trim()

    def load(self, topic: str, max_bytes: int) -> list[Parcel]:
        """Read the oldest unread parcels of a topic, ``max_bytes`` and one more at most."""
        found: list[Parcel] = []
        harmed: list[tuple[int, str, str | None, int]] = []
        taken = 0
        with self._speaking("records cannot be read back"):
            cursor = self._connect().execute(_UNREAD, (topic, self.position.get(topic, 0)))
            with contextlib.closing(cursor):
                for row in cursor:
                    parcel = parcel_of(row)
                    if parcel is None:  # what is left of it is its place
                        harmed.append(
                            (row[0], topic, None, row[6] if isinstance(row[6], int) else 0)
                        )
                        continue
                    found.append(parcel)
                    taken += parcel.size
                    if taken >= max_bytes:
                        break
            if harmed:
                self._forget(harmed)
        if found:
            self.position[topic] = found[-1].number
            self.unread[topic] -= len(found)
        elif not harmed:
            self.unread[topic] = 0
        return found

    def delete(self, parcels: Sequence[Parcel]) -> None:
        """Forget parcels that Kafka has; the last one takes the file with it."""
        rows = self.rows - sum(1 for one in parcels if one.stored)
        told = {one.number for one in parcels if one.fact}
        if rows or len(self.losses) or self._telling - told:
            with self._speaking("records that Kafka has cannot be forgotten"):
                db = self._connect()
                db.execute("BEGIN IMMEDIATE")
                numbers = [(one.number,) for one in parcels]
                db.executemany("DELETE FROM parcel WHERE number = ?", numbers)
                db.executemany("DELETE FROM lost WHERE number = ?", [(one,) for one in told])
                db.execute("COMMIT")
            self.rows = rows
            self.bytes -= sum(one.stored for one in parcels)
        else:
            self._remove()
        self._telling -= told

    def take_loss(self, before: int | None) -> Loss | None:
        """Take the first untold loss out, if its place is before a number; `delete` forgets it."""
        loss = self.losses.take(before)
        if loss is not None:
            self._telling.add(loss.number)
        return loss

    def keep(self, losses: Iterable[Loss]) -> None:
        """Count losses that happened in memory, on the disk."""
        found = list(losses)
        with self._speaking("what was lost cannot be kept"):
            self._note(found)

    def set_aside(self) -> tuple[Path, list[Loss]]:
        """Move the file away for a person to look at, and start empty.

        Returns where it is now, and what was lost with it as far as that is known.
        """
        self._disconnect()
        aside = self.path.with_name(self.path.name + ".damaged")
        for tail in ("", "-wal", "-shm"):
            there = Path(f"{self.path}{tail}")
            with contextlib.suppress(OSError):
                there.replace(f"{aside}{tail}")
        lost = list(self.losses)
        lost += [
            Loss(self.position.get(topic, 0) + 1, topic, count)
            for topic, count in self.unread.items()
            if count
        ]
        for loss in lost[len(self.losses) :]:
            self.dropped[loss.topic] += loss.count
        self._empty()
        return aside, lost

    def close(self) -> None:
        """Close the file and give the lock back."""
        self._disconnect()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _lock(self) -> None:
        """Take the lock beside the file, which the kernel gives back however we end."""
        if self._lock_file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise SpoolInUseError(
                f"another agent has {self.path}: one state folder serves one agent"
            ) from error
        self._lock_file = lock

    def _connect(self) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        with self._speaking("it cannot be used"):
            self._lock()
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            db.text_factory = _utf8
            try:
                self._prepare(db)
            except BaseException:
                db.close()
                raise
        self._db = db
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and version != _VERSION:
            raise SpoolDamagedError(f"{self.path} was written by another version ({version})")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA cache_size = -2048")
        db.execute("PRAGMA journal_size_limit = 8388608")
        if not tables:
            db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
        self._count(db)

    def _count(self, db: sqlite3.Connection) -> None:
        """Learn what an agent before this one left."""
        db.execute("DELETE FROM lost WHERE number IN (SELECT number FROM parcel)")
        by_topic = "SELECT topic, count(*), sum(CAST(size AS INTEGER)) FROM parcel GROUP BY topic"
        found = db.execute(by_topic).fetchall()
        self.unread = Counter({topic: count for topic, count, _ in found})
        self.position = {}
        self.rows = sum(count for _, count, _ in found)
        self.bytes = sum(size for _, _, size in found)
        lost = db.execute("SELECT number, topic, count, at, last_at FROM lost").fetchall()
        self.losses = Losses(
            Loss(number, topic, count, time_of(at), time_of(last_at))
            for number, topic, count, at, last_at in lost
        )
        last = db.execute("SELECT max(number) FROM parcel").fetchone()[0] or 0
        self.last_number = max(self.last_number, last, *(loss.number for loss in self.losses), 0)

    def _trim(self) -> None:
        """Forget the oldest unread telemetry, then the oldest unread evidence, until it fits."""
        target = int(self.max_bytes * _TRIM_TO)
        with self._speaking("room cannot be made"):
            for telemetry in (1, 0):
                while self.bytes > target:
                    rows = self._oldest(telemetry, self.bytes - target)
                    if not rows:
                        break
                    self._forget(rows)

    def _oldest(self, telemetry: int, too_much: int) -> list[tuple[int, str, str | None, int]]:
        """The oldest unread rows of a worth, no more than what is too much."""
        query = (
            "SELECT number, topic, at, size FROM parcel "
            "WHERE topic = ? AND telemetry = ? AND number > ? ORDER BY number LIMIT ?"
        )
        db = self._connect()
        found: list[tuple[int, str, str | None, int]] = []
        for topic, count in self.unread.items():
            if count:
                place = self.position.get(topic, 0)
                found += db.execute(query, (topic, telemetry, place, _TRIM_ROWS))
        kept: list[tuple[int, str, str | None, int]] = []
        for row in sorted(found)[:_TRIM_ROWS]:
            if too_much <= 0:
                break
            kept.append(row)
            too_much -= row[3]
        return kept

    def _forget(self, rows: Sequence[tuple[int, str, str | None, int]]) -> None:
        db = self._connect()
        db.execute("BEGIN IMMEDIATE")
        db.executemany("DELETE FROM parcel WHERE number = ?", [(row[0],) for row in rows])
        times = [(number, topic, time_of(at)) for number, topic, at, _ in rows]
        self._note([Loss(number, topic, 1, at, at) for number, topic, at in times])
        for _, topic, _, size in rows:
            self.rows -= 1
            self.bytes -= size
            self.unread[topic] -= 1
            self.dropped[topic] += 1

    def _note(self, losses: Sequence[Loss]) -> None:
        """Count losses in a transaction, begun here unless it is under way; commits it."""
        db = self._connect()
        if not db.in_transaction:
            db.execute("BEGIN IMMEDIATE")
        before = {loss.number for loss in self.losses}
        for loss in losses:
            self.losses.note(loss)
        now = [
            (loss.number, loss.topic, loss.count, text_of(loss.at), text_of(loss.last_at))
            for loss in self.losses
        ]
        gone = before - {row[0] for row in now}
        db.executemany("DELETE FROM lost WHERE number = ?", [(number,) for number in gone])
        db.executemany("INSERT OR REPLACE INTO lost VALUES (?, ?, ?, ?, ?)", now)
        db.execute("COMMIT")

    def _remove(self) -> None:
        """Remove the emptied file: it gives its room back, and no old page is ever met again."""
        self._disconnect()
        for tail in ("-wal", "-shm", ""):
            with contextlib.suppress(OSError):
                Path(f"{self.path}{tail}").unlink(missing_ok=True)
        self._empty()

    def _empty(self) -> None:
        self.rows = self.bytes = 0
        self.unread = Counter()
        self.position = {}
        self.losses = Losses()
        self._telling = set()

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    @contextlib.contextmanager
    def _speaking(self, what: str) -> Iterator[None]:
        """Turn what SQLite and the file system raise into one sentence."""
        try:
            yield
        except SpoolError:
            raise
        except (sqlite3.Error, OSError, OverflowError, TypeError, ValueError) as error:
            if self._db is not None and self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            if _is_damage(error):
                raise SpoolDamagedError(f"{self.path} is damaged: {error}") from error
            raise SpoolError(f"the spool {self.path}: {what}: {error}") from error


def _is_damage(error: Exception) -> bool:
    """Whether an error is about what the file holds: no other day makes it readable."""
    name = getattr(error, "sqlite_errorname", "") or ""
    return isinstance(error, TypeError | ValueError) or name.startswith(_DAMAGED)


def _utf8(data: bytes) -> str:
    """A text that is damaged harms its own row and no other."""
    return data.decode("utf-8", "replace")
