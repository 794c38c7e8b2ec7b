"""When a line of a job was said, and in which order lines are taken."""

from datetime import datetime, timedelta

from evidence.records import NcclRecord
from rules.stage import reckonable

__all__ = ["begun_at", "elapsed", "order", "said_at"]

#: A longer wait was misread; watchdogs fire after minutes.
_WAIT_MAX_MS = 7 * 86_400_000


def said_at(record: NcclRecord) -> datetime:
    """When a line was said: its own time, or when it was read."""
    return reckonable(record.at or record.observed_at)


def elapsed(record: NcclRecord) -> timedelta:
    """How long a line says that its rank had waited; zero when it does not say."""
    return timedelta(milliseconds=min(record.elapsed_ms or 0, _WAIT_MAX_MS))


def begun_at(record: NcclRecord) -> datetime | None:
    """When the rank began to wait, where its line says for how long it did."""
    return None if record.elapsed_ms is None else said_at(record) - elapsed(record)


def order(record: NcclRecord) -> tuple[datetime, str, str, int, str]:
    """The order in which lines are taken, whatever order they arrived in."""
    return (
        said_at(record),
        record.host or "",
        record.file or record.source,
        record.offset or record.line or 0,
        record.id,
    )
