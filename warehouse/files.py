"""Names and publication of Parquet files: one file a range of offsets, created exclusively.

A file is named by the position its range **starts at**, which is the end of the file before it, so
two sinks that store the same range want the same name and only one of them gets it.
"""

import json
import logging
import os
import re
import secrets
import socket
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse.errors import SinkError
from warehouse.kinds import KINDS, Kind

__all__ = [
    "SEED_DAY",
    "Range",
    "Taken",
    "day_of",
    "last_offset",
    "look",
    "newest",
    "prepare",
    "publish",
    "seed_path",
    "sow",
]

_LOG = logging.getLogger(__name__)

#: The hive day of the empty seed files: a real date, so that every reader still sees a date column.
SEED_DAY = "day=1970-01-01"
_SCRATCH = "_tmp"  # readers of hive layouts skip names that begin with an underscore
_FOOTER = b"ringfence"
#: Tells this process from an earlier one of the same number: in a container it is always 1.
_PROCESS = f"{os.getpid()}-{secrets.token_hex(4)}"
#: A temporary file of another machine is taken for abandoned after a day.
_ABANDONED_S = 86_400

# `kernel-0003-5f3a9c1e-00000000000000001234.parquet`, `gpu-0000-5f3a9c1er1-00...0.parquet`
_NAME = re.compile(
    r"(?P<kind>[a-z]+)-(?P<partition>\d{4,})-(?P<log>[0-9a-f]{8}(?:r\d+)?)-(?P<start>\d{20})\.parquet"
)


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
    def name(self) -> str:
        """The file's name, the same for every sink that starts at ``start``."""
        return f"{self.kind.name}-{self.partition:04d}-{self.log}-{self.start:020d}.parquet"

    def folder(self, root: Path) -> Path:
        """The hive folder the file goes to."""
        return root / self.kind.name / f"day={self.day.isoformat()}"


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

    Raises SinkError where files cannot be created exclusively (no hard links, no permission).
    """
    scratch = root / _SCRATCH
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        _clean(scratch)
        _probe(scratch)
        sow(root, refresh=True)
    except OSError as error:
        raise SinkError(f"cannot store under {root}: {error.strerror or error}") from error


def _probe(scratch: Path) -> None:
    one, two = _temporary(scratch, "probe"), _temporary(scratch, "probe-link")
    try:
        one.write_bytes(b"")
        os.link(one, two)
    finally:
        one.unlink(missing_ok=True)
        two.unlink(missing_ok=True)


def _temporary(scratch: Path, name: str) -> Path:
    return scratch / f"{socket.gethostname()}-{_PROCESS}-{threading.get_ident()}-{name}.tmp"


def _clean(scratch: Path) -> None:
    """Remove temporary files of dead processes of this machine, and old ones of any machine."""
    mine = re.compile(re.escape(socket.gethostname()) + r"-((\d+)-[0-9a-f]{8})-.*\.tmp")
    for path in scratch.iterdir():
        found = mine.fullmatch(path.name)
        try:
            age_s = datetime.now(UTC).timestamp() - path.stat().st_mtime
            if age_s > _ABANDONED_S or (found and not _alive(found[1], int(found[2]))):
                path.unlink()
                _LOG.info("removed the unfinished file %s", path)
        except FileNotFoundError:
            continue  # another sink that starts now was faster


def _alive(process: str, pid: int) -> bool:
    if pid == os.getpid():
        return process == _PROCESS
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
    """Put a file without rows into every kind, so that a view over it has columns from the start.

    Any reader of Parquet sees zero rows there. A seed that lacks a column is replaced; one that has
    more (a newer build's) is left alone. ``refresh`` also replaces one whose types differ.
    """
    for kind in KINDS.values():
        path = seed_path(root, kind)
        if path.exists() and _covers(pq.read_schema(path), kind.schema, types=refresh):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        (root / _SCRATCH).mkdir(exist_ok=True)
        temporary = _temporary(root / _SCRATCH, f"seed-{kind.name}")
        pq.write_table(kind.schema.empty_table(), temporary)
        temporary.replace(path)


def _covers(seed: pa.Schema, ours: pa.Schema, *, types: bool) -> bool:
    names = set(seed.names)
    return all(
        one.name in names and (not types or seed.field(one.name).type == one.type) for one in ours
    )


def publish(root: Path, stored: Range, table: pa.Table, compression: str) -> Path:
    """Write the range's file and make it visible, whole and durable, or not at all.

    Raises Taken when a file of this start is already there, OSError when the disk refuses.
    """
    folder = stored.folder(root)
    final = folder / stored.name
    temporary = _temporary(root / _SCRATCH, stored.name)
    try:
        facts = {"topic": stored.kind.topic, "start": stored.start}
        facts |= {"first": stored.first, "last": stored.last}
        metadata = {_FOOTER: json.dumps(facts).encode()}
        with temporary.open("wb") as file:
            pq.write_table(table.replace_schema_metadata(metadata), file, compression=compression)
            file.flush()
            os.fsync(file.fileno())
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            _sync_folder(folder.parent)
        _link(temporary, final)
        _sync_folder(folder)
    finally:
        temporary.unlink(missing_ok=True)
    return final


def look(root: Path, stored: Range) -> None:
    """Raise Taken when a file of this start exists.

    Where messages are missing at the start, two sinks may have met a different first message, and
    so a different day: then every day is looked at.
    """
    if stored.first == stored.start:
        found = [stored.folder(root) / stored.name]
    else:
        found = list((root / stored.kind.name).glob(f"day=*/{stored.name}"))
    for path in found:
        if path.exists():
            raise Taken(last_offset(path))


def _link(temporary: Path, final: Path) -> None:
    try:
        os.link(temporary, final)
    except FileExistsError:
        # Over NFS a repeated request may answer so although the first one made the link.
        if temporary.stat().st_nlink != 2:  # noqa: PLR2004 (its own name and the link)
            raise Taken(last_offset(final)) from None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def last_offset(path: Path) -> int:
    """The last offset a file holds, from its footer.

    Raises SinkError when the file is damaged: going on would double or lose what it holds.
    """
    try:
        facts = json.loads(pq.read_schema(path).metadata[_FOOTER])
        return int(facts["last"])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise SinkError(f"{path} is damaged, move it away or restore it: {error}") from error


def newest(root: Path, kind: Kind) -> dict[tuple[int, str], Path]:
    """The file with the highest start of every (partition, log) of a kind."""
    found: dict[tuple[int, str], tuple[str, Path]] = {}
    for day in (root / kind.name).glob("day=*"):
        for entry in os.scandir(day):
            name = _NAME.fullmatch(entry.name)
            if name is None:
                continue
            place = (int(name["partition"]), name["log"])
            if place not in found or found[place][0] < name["start"]:
                found[place] = (name["start"], Path(entry.path))
    return {place: path for place, (_, path) in found.items()}
