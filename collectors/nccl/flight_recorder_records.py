"""Turns a flight recorder dump into records: one for the dump, one for each process group."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Any

from collectors.nccl.flight_recorder_dump import Dump, Group
from evidence.identity import digest
from evidence.ranks import to_ranges
from evidence.records import NcclKind, NcclRecord

__all__ = ["Origin", "records_of", "unreadable"]

#: Groups that become records; those with something unfinished first.
_GROUPS_MAX = 128
#: Longest list of members in a record; a group that is no range of ranks has none.
_MEMBERS_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a dump comes from; ``content`` is a hash of its bytes, ``written_at`` the file's."""

    job: str
    host: str | None
    file: str
    rank: int | None
    attempt: int
    content: str
    written_at: datetime | None

    def record(self, kind: NcclKind, place: int, now: datetime, **fields: Any) -> NcclRecord:  # noqa: ANN401 (fields of the record)
        """Return one record of this dump; ``place`` is its number in it."""
        at = self.written_at
        return NcclRecord(
            id=digest("flight-recorder", self.host, self.file, self.content, place),
            observed_at=now,
            at=None if at is None else min(at, now),
            kind=kind,
            raw=fields["message"],
            job=self.job or str(PurePath(self.file).parent),
            attempt=self.attempt,
            host=self.host,
            source="flight-recorder",
            file=self.file,
            offset=place,
            rank=self.rank,
            **fields,
        )


def records_of(dump: Dump, origin: Origin, now: datetime) -> list[NcclRecord]:
    """Return the records of a dump: bounded, however large it is."""
    groups = sorted(dump.groups, key=lambda group: group.incomplete == 0)
    records = [
        origin.record(
            NcclKind.FLIGHT_RECORDER,
            0,
            now,
            phase="dump",
            comm_size=dump.world_size,
            incomplete=sum(group.incomplete for group in groups),
            message="; ".join(_summary(dump)),
        )
    ]
    records += [
        origin.record(NcclKind.FLIGHT_RECORDER, place, now, **_group(group, origin.rank))
        for place, group in enumerate(groups[:_GROUPS_MAX], 1)
    ]
    return records


def unreadable(origin: Origin, why: str, now: datetime) -> NcclRecord:
    """Return the record of a dump that cannot be read; ``why`` is one sentence."""
    return origin.record(NcclKind.UNREADABLE, 0, now, phase="dump", message=why)


def _summary(dump: Dump) -> Iterator[str]:
    yield f"flight recorder dump, version {dump.version[:40]}"
    if dump.library:
        yield f"NCCL {dump.library[:40]}"
    yield f"{dump.total} operations in {len(dump.groups)} groups"
    if len(dump.groups) > _GROUPS_MAX:
        yield f"{len(dump.groups) - _GROUPS_MAX} groups left out"
    if dump.unnamed:
        yield f"counters of {dump.unnamed} groups left out, as no operation tells their names"


def _group(group: Group, rank: int | None) -> dict[str, Any]:
    members, oldest = group.members, group.oldest
    told = to_ranges(members) if members else ""
    fields: dict[str, Any] = {
        "phase": "group",
        "group": group.name,
        "group_desc": group.desc,
        "comm_size": len(members) or None,
        "comm_rank": members.index(rank) if rank is not None and rank in members else None,
        "members": told if 0 < len(told) <= _MEMBERS_CHARS else None,
        "last_enqueued": group.last_enqueued,
        "last_started": group.last_started,
        "last_completed": group.last_completed,
        "incomplete": group.incomplete,
        "entries": group.entries,
        "frames": group.frames,
    }
    message = f"{group.incomplete} of {group.total} operations not completed"
    if oldest is not None:
        kind = "point-to-point operation" if oldest.p2p else "collective"
        message += f"; the oldest is {kind} {oldest.seq}, {oldest.op or 'unnamed'}, {oldest.state}"
        for name in ("seq", "op", "state", "numel_in", "numel_out", "timeout_ms"):
            fields[name] = getattr(oldest, name)
    return fields | {"message": message}
