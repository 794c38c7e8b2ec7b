"""Names and publication of Parquet files: one file a range of offsets, each offset seen once.

In a folder a file is named by the position its range **starts at**, which is the end of the file
before it, so two sinks that store the same range want the same name and only one of them gets it.
On an object store the name says the range's end, too: files may overlap, and readers resolve that
(see `warehouse.watermark`).
"""

import io
import logging
import os
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse import quarantine
from warehouse.errors import DamagedError, SinkError
from warehouse.folder import PROCESS, temporary
from warehouse.footers import last_offset, metadata
from warehouse.kinds import KINDS, Kind
from warehouse.storage import Storage, at, is_remote
from warehouse.watermark import load, seen

__all__ = [
    "SEED_DAY",
    "Range",
    "Taken",
    "day_of",
    "ends",
    "last_offset",
    "look",
    "prepare",
    "publish",
    "seed_path",
    "sow",
]

_LOG = logging.getLogger(__name__)

#: The hive day of the empty seed files: a real date, so that every reader still sees a date column.
SEED_DAY = "day=1970-01-01"
#: A temporary file of another machine is taken for abandoned after a day.
_ABANDONED_S = 86_400


class Taken(Exception):  # noqa: N818 (a state: somebody else stored this range first)
    """The range that starts here is already stored; ``last`` is its last offset."""

    def __init__(self, last: int) -> None:
        super().__init__(f"already stored up to offset {last}")
        self.last = last


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one partition of one log, from the position ``start`` to offset ``last``.

    ``log`` tells a topic from an earlier one of the same name. ``start`` may lie before the first
    message, where retention or compaction removed some. ``day`` is that of the first message.
    """

    kind: Kind
    log: str
    partition: int
    start: int
    first: int
    last: int
    day: date

    @property
    def place(self) -> str:
        """Partition and log, as file names and watermarks write them."""
        return f"{self.partition:04d}-{self.log}"

    @property
    def name(self) -> str:
        """The file's name, the same for every sink that starts at ``start``."""
        return f"{self.kind.name}-{self.place}-{self.start:020d}.parquet"

    @property
    def key(self) -> str:
        """The file's path under the root."""
        return f"{self.kind.name}/day={self.day.isoformat()}/{self.name}"

    @property
    def whole_key(self) -> str:
        """The path where the name must tell the range's end, too."""
        return self.key.replace(".parquet", f"-{self.last + 1:020d}.parquet")


def day_of(timestamp_ms: int) -> date:
    """The UTC day of a message's Kafka time; the first of 1970 where that time is none or absurd.

    It depends on the message alone, so that storing it again gives the same path.
    """
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).date()
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, UTC).date()


def prepare(root: Path) -> None:
    """Make the root ready: its folders and seeds, and no leftovers of a sink that was killed.

    Raises SinkError where files cannot be created exclusively (no hard links, no permission), or an
    object store does not let us in.
    """
    try:
        scratch = at(root).scratch()
        _clean(scratch)
        if not is_remote(root):
            _probe(scratch)
        sow(root, refresh=True)
    except OSError as error:
        raise SinkError(f"cannot store under {root}: {error.strerror or error}") from error


def _probe(scratch: Path) -> None:
    one, two = temporary(scratch, "probe"), temporary(scratch, "probe-link")
    try:
        one.write_bytes(b"")
        os.link(one, two)
    finally:
        one.unlink(missing_ok=True)
        two.unlink(missing_ok=True)


def _clean(scratch: Path) -> None:
    """Remove temporary files of dead processes of this machine, and old ones of any machine."""
    mine = re.compile(re.escape(socket.gethostname()) + r"-((\d+)-[0-9a-f]{8})-.*\.tmp")
    for path in scratch.iterdir():
        found = mine.fullmatch(path.name)
        try:
            age_s = datetime.now(UTC).timestamp() - path.stat().st_mtime
            if age_s > _ABANDONED_S or (found and not _alive(found[1], int(found[2]))):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
                _LOG.info("removed the unfinished file %s", path)
        except FileNotFoundError:
            continue  # another sink that starts now was faster


def _alive(process: str, pid: int) -> bool:
    if pid == os.getpid():
        return process == PROCESS
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def seed_path(root: Path, kind: Kind) -> Path:
    """The kind's file without rows."""
    return root / kind.name / SEED_DAY / "seed.parquet"


def sow(root: Path, *, refresh: bool = False) -> None:
    """Put a file without rows into every kind, so that a reader over it has columns from the start.

    Any reader of Parquet sees zero rows there. A seed that lacks a column is replaced; one that has
    more (a newer build's) is left alone. ``refresh`` also replaces one whose types differ.
    """
    storage = at(root)
    for kind in KINDS.values():
        key = f"{kind.name}/{SEED_DAY}/seed.parquet"
        if not _covers(storage.read(key), kind.schema, types=refresh):
            sink = pa.BufferOutputStream()
            pq.write_table(kind.schema.empty_table(), sink)
            storage.write(key, sink.getvalue().to_pybytes())


def _covers(content: bytes | None, ours: pa.Schema, *, types: bool) -> bool:
    if content is None:
        return False
    try:
        seed = pq.read_schema(io.BytesIO(content))
    except pa.ArrowException:
        return False  # damaged: it holds nothing, so it is simply made anew
    names = set(seed.names)
    return all(
        one.name in names and (not types or seed.field(one.name).type == one.type) for one in ours
    )


def publish(
    root: Path,
    stored: Range,
    table: pa.Table,
    compression: str,
    at_point: Callable[[str], None] = lambda _point: None,
) -> Path:
    """Write the range's file and make it visible, whole and durable, or not at all.

    ``at_point`` is told each step that is done. Raises Taken when a file of this start is already
    there, or was, before its day was rewritten; OSError when the disk or the store refuses.
    """
    storage = at(root)
    key = stored.key if storage.exclusive else stored.whole_key
    made = temporary(storage.scratch(), stored.name)
    try:
        footer = metadata(stored.kind.topic, stored.start, stored.first, stored.last)
        with made.open("wb") as file:
            at_point("file-opened")
            pq.write_table(table.replace_schema_metadata(footer), file, compression=compression)
            file.flush()
            at_point("file-written")
            os.fsync(file.fileno())
        at_point("file-synced")
        try:
            storage.publish(made, key)
        except FileExistsError:
            raise Taken(_last_of(storage, key)) from None
        at_point("file-published")
        _not_rewritten(storage, stored, key)
        at_point("file-checked")
    finally:
        made.unlink(missing_ok=True)
    return root / key


def _last_of(storage: Storage, key: str) -> int:
    """The last offset of a file that is there already.

    A damaged one is set aside: then OSError says to store the range again.
    """
    path = storage.local(quarantine.entry_of(key))
    try:
        return last_offset(path)
    except DamagedError as error:
        quarantine.set_aside(storage, key, str(error))
        raise OSError(
            f"{path.name} was damaged and is set aside, its range is stored again"
        ) from error


def _not_rewritten(storage: Storage, stored: Range, key: str) -> None:
    """Take back a file whose start lies in what is rewritten, or gone, already.

    A sink that slept for so long that its rival's small file was rewritten and deleted finds the
    name free. Readers do not see such a file: its start is covered.
    """
    if not storage.exclusive:
        return  # readers take from it what nothing else has
    try:
        _look_at_covered(storage, stored)
    except Taken:
        storage.remove(key)
        raise


def _look_at_covered(storage: Storage, stored: Range) -> None:
    spans = load(storage, stored.kind.name).covered().get(stored.place, [])
    for start, end in spans:
        if start <= stored.start < end:
            raise Taken(end - 1)


def look(root: Path, stored: Range) -> None:
    """Raise Taken when the start of this range is stored already.

    Where messages are missing at the start, two sinks may have met a different first message, and
    so a different day: then every day is looked at. On an object store nothing is looked at: the
    answer could be another one a moment later, and readers resolve what overlaps.
    """
    storage = at(root)
    if not storage.exclusive:
        return
    _look_at_covered(storage, stored)
    if stored.first == stored.start:
        found = [root / stored.key]
    else:
        found = list((root / stored.kind.name).glob(f"day=*/{stored.name}"))
    for path in found:
        if path.exists():
            raise Taken(_last_of(storage, path.relative_to(root).as_posix()))


def ends(root: Path, kind: Kind) -> dict[tuple[int, str], int]:
    """The first position not stored yet of every (partition, log) of a kind.

    From the small files that are seen, from what the rewritten days cover, and from what retention
    took. A newest file that is damaged is set aside; the place then goes on where that one started.
    """
    storage = at(root)
    watermark = load(storage, kind.name)
    found = {place: spans[-1][1] for place, spans in watermark.covered().items()}
    smalls: dict[str, list[tuple[int, int | None, str]]] = {}
    for part in seen(watermark, storage.entries(kind.name)):
        if part.small is not None:
            one = part.small
            smalls.setdefault(one.place, []).append((one.start, one.end, part.entry.key))
    for place, files in smalls.items():
        found[place] = max(found.get(place, 0), _end(storage, files))
    return {_split(place): end for place, end in sorted(found.items()) if end}


def _end(storage: Storage, files: list[tuple[int, int | None, str]]) -> int:
    for _, end, key in sorted(files, reverse=True):
        if end is not None:
            return max(one[1] or 0 for one in files)
        try:
            return last_offset(storage.local(quarantine.entry_of(key))) + 1
        except FileNotFoundError:
            continue  # its day was rewritten since it was listed
        except DamagedError as error:
            quarantine.set_aside(storage, key, str(error))
    return 0


def _split(place: str) -> tuple[int, str]:
    partition, log = place.split("-")
    return int(partition), log
