"""Where a stage's table lies on this machine: in memory, or in RocksDB.

Either is a copy of the changelog as far as its mark says, partition by partition, and may be lost
at any time: the changelog is the truth. What is on disk is believed only where it is proven to be
such a copy; everything else is thrown away and read anew.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from streams.config import StateFolderError

__all__ = ["KEPT_FOR", "Mark", "MemoryShelf", "RocksShelf", "Shelf"]

#: A copy that was not followed for longer may lack deletions: Kafka forgets tombstones after
#: delete.retention.ms (24 h unless set), and the changelog then no longer tells of them.
KEPT_FOR = timedelta(hours=12)
_CLOCK_SLACK = timedelta(minutes=5)
#: Changes with every change of what is written below.
_FORMAT = 1
_IDENTITY = b"i"
_MARK, _VALUE = b"m", b"v"
_NUMBER_BYTES = 4


class Mark(Struct, frozen=True):
    """How far a partition's copy goes: the last changelog offset in it, the last writer's epoch.

    ``at`` is when that was last known to be all there was.
    """

    offset: int
    epoch: int
    at: datetime


class Shelf(Protocol):
    """The copies of one table's partitions. Both implementations raise StateFolderError only."""

    def mark(self, partition: int) -> Mark | None:
        """How far the copy goes; None where there is none."""

    def write(self, partition: int, changes: Mapping[bytes, bytes | None], mark: Mark) -> None:
        """Put keys (None: delete) and the mark that goes with them: all of it or nothing."""

    def items(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """All keys of a partition with their values."""

    def drop(self, partition: int) -> None:
        """Forget a partition."""

    def leave(self, partition: int) -> None:
        """The partition is another worker's now."""

    def close(self) -> None:
        """Let go of the files."""


class MemoryShelf:
    """Copies in dicts, gone with the process."""

    def __init__(self) -> None:
        self._marks: dict[int, Mark] = {}
        self._values: dict[int, dict[bytes, bytes]] = {}

    def mark(self, partition: int) -> Mark | None:
        """See `Shelf`."""
        return self._marks.get(partition)

    def write(self, partition: int, changes: Mapping[bytes, bytes | None], mark: Mark) -> None:
        """See `Shelf`."""
        values = self._values.setdefault(partition, {})
        for key, value in changes.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        self._marks[partition] = mark

    def items(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """See `Shelf`."""
        yield from self._values.get(partition, {}).items()

    def drop(self, partition: int) -> None:
        """See `Shelf`."""
        self._marks.pop(partition, None)
        self._values.pop(partition, None)

    leave = drop

    def close(self) -> None:
        """See `Shelf`."""


class RocksShelf:
    """Copies in one RocksDB of the stage, found again by the next worker on this machine.

    ``identity`` names what it is a copy of (cluster, topic, its id): a database of another is
    removed, as is one that does not open or in which any block fails its checksum; all blocks are
    read once at the start. It is written without fsync: after kill -9 it has all writes, after a
    power cut a first part of them with the mark that goes with that part. Its own `items` are not
    used: they end silently at a damaged block. Raises StateFolderError where the folder cannot be
    had or is another worker's.
    """

    def __init__(
        self,
        folder: Path,
        identity: bytes,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._folder = folder
        self._clock = clock
        #: Why what was found was not believed, for the log; None when it was, or nothing was there.
        self.removed: str | None = None
        self._marks: dict[int, Mark] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateFolderError(f"The state folder {folder} cannot be used: {error}.") from error
        try:
            self._db = self._open()
            self._read(identity)
        except _UnbelievableError as error:
            self.removed = str(error)
            self._begin(identity)

    def mark(self, partition: int) -> Mark | None:
        """See `Shelf`; a copy that was left alone for too long is dropped here."""
        mark = self._marks.get(partition)
        if mark is None:
            return None
        age = self._clock() - mark.at
        if -_CLOCK_SLACK <= age <= KEPT_FOR:
            return mark
        self.drop(partition)
        return None

    def write(self, partition: int, changes: Mapping[bytes, bytes | None], mark: Mark) -> None:
        """See `Shelf`."""
        batch = _batch()
        prefix = _VALUE + _number(partition)
        for key, value in changes.items():
            if value is None:
                batch.delete(prefix + key)
            else:
                batch.put(prefix + key, value)
        batch.put(_MARK + _number(partition), msgspec.json.encode(mark))
        self._write(batch)
        self._marks[partition] = mark

    def items(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """See `Shelf`; raises StateFolderError at a damaged block, and drops the partition."""
        prefix = _VALUE + _number(partition)
        try:
            for key, value in self._from(prefix):
                if not key.startswith(prefix):
                    return
                yield key[len(prefix) :], value
        except _UnbelievableError as error:
            self.drop(partition)
            raise StateFolderError(
                f"The tables in {self._folder} are damaged and are read anew: {error}."
            ) from error

    def drop(self, partition: int) -> None:
        """See `Shelf`."""
        batch = _batch()
        batch.delete(_MARK + _number(partition))
        batch.delete_range(_VALUE + _number(partition), _VALUE + _number(partition + 1))
        self._write(batch)
        self._marks.pop(partition, None)

    def leave(self, partition: int) -> None:
        """See `Shelf`: the copy stays, and is followed again when the partition comes back."""

    def close(self) -> None:
        """See `Shelf`; what could not be written then is in the changelog."""
        with suppress(Exception):
            self._db.close()

    def _write(self, batch: Any) -> None:  # noqa: ANN401 (rocksdict's)
        try:
            self._db.write(batch)
        except Exception as error:
            raise StateFolderError(
                f"The state folder {self._folder} cannot be written: {_words(error)}."
            ) from error

    def _open(self) -> Any:  # noqa: ANN401 (rocksdict's)
        """Open the database; raises _UnbelievableError where it is there and does not open."""
        try:
            import rocksdict  # noqa: PLC0415 (a worker with its tables in memory needs none)
        except ImportError as error:
            raise StateFolderError(
                "worker.store is rocksdb and rocksdict is not installed: install it, or set "
                "worker.store to memory."
            ) from error
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(16 << 20)
        options.set_max_open_files(128)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(1 << 20)
        try:
            return rocksdict.Rdict(str(self._folder), options)
        except Exception as error:
            words = _words(error)
            if "LOCK" in words or "lock " in words:
                raise StateFolderError(
                    f"The state folder {self._folder} is in use by another worker: "
                    "give each worker a state_dir of its own."
                ) from error
            if any(sign in words for sign in _NOT_DAMAGE):
                raise StateFolderError(
                    f"The state folder {self._folder} cannot be used: {words}."
                ) from error
            raise _UnbelievableError(words) from error

    def _read(self, identity: bytes) -> None:
        """Read everything once; raises _UnbelievableError where it is not what it should be."""
        found = False
        for key, value in self._from(b""):
            if key == _IDENTITY:
                found = True
                if value != _signed(identity):
                    raise _UnbelievableError("they are of another cluster, topic or release")
            elif key.startswith(_MARK):
                try:
                    mark = msgspec.json.decode(value, type=Mark)
                except msgspec.MsgspecError as error:
                    raise _UnbelievableError(f"a mark cannot be read: {error}") from error
                self._marks[int.from_bytes(key[1:], "big")] = mark
            elif not found:
                raise _UnbelievableError("they do not say what they are of")
        if not found:
            self._sign(identity)

    def _begin(self, identity: bytes) -> None:
        """Remove what is there and begin with nothing."""
        self._marks.clear()
        if hasattr(self, "_db"):
            self.close()
        try:
            shutil.rmtree(self._folder)
            self._folder.mkdir(parents=True)
        except OSError as error:
            raise StateFolderError(
                f"The damaged tables in {self._folder} cannot be removed: {error}."
            ) from error
        try:
            self._db = self._open()
            self._sign(identity)
        except _UnbelievableError as error:
            raise StateFolderError(
                f"The state folder {self._folder} cannot be used: {error}."
            ) from error

    def _sign(self, identity: bytes) -> None:
        batch = _batch()
        batch.put(_IDENTITY, _signed(identity))
        self._write(batch)

    def _from(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Everything from a key on; raises _UnbelievableError where a block cannot be read."""
        cursor = self._db.iter()
        try:
            cursor.seek(start)
            while cursor.valid():
                yield cursor.key(), cursor.value()
                cursor.next()
            cursor.status()  # raises where the end is one of damage
        except Exception as error:
            raise _UnbelievableError(_words(error)) from error
        finally:
            del cursor  # it holds the database open, for as long as a traceback holds it


class _UnbelievableError(Exception):
    """What is on disk is not proven to be a copy of the changelog."""


#: Words of RocksDB's errors that speak of the machine and not of the data.
_NOT_DAMAGE = (
    "No space left",
    "Permission denied",
    "Read-only file system",
    "Too many open files",
    "Disk quota exceeded",
)


def _signed(identity: bytes) -> bytes:
    return b"%d " % _FORMAT + identity


def _number(partition: int) -> bytes:
    return partition.to_bytes(_NUMBER_BYTES, "big")


def _batch() -> Any:  # noqa: ANN401 (rocksdict's)
    import rocksdict  # noqa: PLC0415 (see above)

    return rocksdict.WriteBatch(raw_mode=True)


def _words(error: Exception) -> str:
    return str(error).strip().rstrip(".")
