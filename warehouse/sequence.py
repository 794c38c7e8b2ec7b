"""The files of each partition and log, so that its messages come in the order of their offsets.

Small files have that order. A rewritten one is sorted by GPU and time: what is asked of it is
sorted back, in the memory of a batch and with the rest on disk.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from warehouse import footers, listing
from warehouse.backfill.place import is_import
from warehouse.errors import DamagedError, WarehouseError
from warehouse.kinds import Kind
from warehouse.watermark import Part, is_whole

__all__ = ["Log", "logs", "stored_days"]

#: Partition and log.
Log = tuple[int, str]

#: A file's day is that of its first message: the next day's may stand in it.
_DAY = timedelta(days=1)
_BATCH = 50_000
_MEMORY = "1GiB"
_PLACE = ("kafka_partition", "kafka_log")
#: Of the rows of one message.
_WITHIN = ("tick", "index", "guid", "port")


def logs(
    root: Path, kind: Kind, since: datetime, until: datetime, scratch: Path
) -> dict[Log, list[list[Path]]]:
    """By partition and log the files that may hold messages of that time.

    Each list of files is in order of the offsets; between two lists of a log offsets may alternate,
    and no offset is in two files. ``scratch`` is a folder that lives as long as the paths are used.
    What was imported no worker has seen: it is left out. Raises WarehouseError where a file is
    damaged.
    """
    days = (listing.shifted(since.date(), -_DAY), until.date())
    smalls: dict[Log, list[tuple[int, Path]]] = {}
    wholes = []
    # A history with a hole proves nothing: a damaged file stops who reads it.
    for part, path in listing.parts(root, kind.name, days, damaged=True):
        if part.small is not None:
            smalls.setdefault(_log(part.small.place), []).append((part.small.start, path))
        elif is_whole(part.name):
            wholes.append(path)
    found = {log: [[path for _, path in sorted(files)]] for log, files in smalls.items()}
    for log, path in _sorted_back(kind, wholes, since, until, scratch):
        found.setdefault(log, []).append([path])
    return {log: files for log, files in sorted(found.items()) if not is_import(log[0])}


def stored_days(root: Path, kind: Kind) -> set[str]:
    """The days of a kind in which messages are stored that a worker has seen."""
    found = listing.parts(root, kind.name, damaged=True)
    return {part.day for part, path in found if _is_seen(part, path)}


def _is_seen(part: Part, path: Path) -> bool:
    if part.small is not None:
        return not is_import(_log(part.small.place)[0])
    if not is_whole(part.name):
        return False
    try:
        return any(not is_import(_log(place)[0]) for place in footers.covers(path)[1])
    except DamagedError:
        return True


def _log(place: str) -> Log:
    number, _, log = place.partition("-")
    return int(number), log


def _sorted_back(
    kind: Kind, wholes: list[Path], since: datetime, until: datetime, scratch: Path
) -> Iterator[tuple[Log, Path]]:
    """One file a log with the rows of all the rewritten files, from a day before that time on."""
    if not wholes:
        return
    names = (*_PLACE, "kafka_offset", *(one for one in _WITHIN if one in kind.schema.names))
    by = ", ".join(f'"{one}"' for one in names)
    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False})
    try:
        connection.execute("set TimeZone = 'UTC'")
        connection.execute(f"set memory_limit = '{_MEMORY}'")
        connection.execute("set temp_directory = $1", [str(scratch / "spill")])
        relation = connection.sql(
            "select * from read_parquet($files, union_by_name = true, hive_partitioning = false) "  # noqa: S608
            f"where coalesce(appended_at, $since) between $since and $until order by {by}",
            params={
                "files": [str(one) for one in wholes],
                "since": max(listing.shifted(since, -_DAY), datetime.fromtimestamp(0, UTC)),
                "until": until,
            },
        )
        reader = relation.to_arrow_reader(_BATCH)
        runs = (run for batch in reader for run in _runs(batch))
        for log, of_log in groupby(runs, lambda run: run[0]):
            path = scratch / f"{kind.name}-{log[0]}-{log[1]}.parquet"
            _write(path, reader.schema, (rows for _, rows in of_log))
            yield log, path
    except (duckdb.Error, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise WarehouseError(f"rewritten files of {kind.name} cannot be read: {why}") from error
    finally:
        connection.close()


def _write(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[Log, pa.RecordBatch]]:
    """A sorted batch in stretches of one log each."""
    logs_ = zip(*(batch.column(one).to_pylist() for one in _PLACE), strict=True)
    start = 0
    for log, rows in groupby(logs_):
        count = sum(1 for _ in rows)
        yield log, batch.slice(start, count)
        start += count
