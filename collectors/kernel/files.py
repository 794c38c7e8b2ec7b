"""Collects what the kernel logs from the log files that grow on a node."""

import logging
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from collectors.collector import Unavailable
from collectors.cursors import SavePace, load, save
from collectors.follow import Cursor, Follower
from collectors.inotify import Ear
from collectors.kernel.identities import GpuIdentities, HostCards
from collectors.kernel.pace import HELD_S, IDLE_S
from collectors.kernel.stream import MAX_LINE, KernelStream
from evidence.identity import digest
from evidence.records import KernelRecord

__all__ = ["FileCollector"]

_LOG = logging.getLogger(__name__)

_NOISE_EVERY = timedelta(minutes=1)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class _Followed:
    """One log file: its follower, the way of its lines, and the cursor that is safe to save."""

    def __init__(
        self, path: Path, cursor_file: Path | None, stream: KernelStream, ear: Ear
    ) -> None:
        self.path = path
        self.cursor_file = cursor_file
        self.saved = load(cursor_file, Cursor)
        self.follower = Follower(path, cursor=self.saved, max_line=MAX_LINE, ear=ear)
        self.stream = stream
        #: What is kept of the GPUs the lines spoke of.
        self.saved_cards = stream.identities.copy()
        self.safe: Cursor | None = self.saved
        self.pace = SavePace()
        #: Whether the last look found lines.
        self.gained = False
        #: Why it could not be read at the last look.
        self.missing = ""

    def read(self) -> list[KernelRecord]:
        self.gained = False
        lines = self.follower.read()
        self.gained = bool(lines)
        if self.follower.lost_place:
            self.follower.lost_place = False
            self.stream.identities.forget()
        self.stream.lines(lines)
        # An event cut in two by our reading waits until no more comes, and the cursor with it.
        waits = bool(lines) and self.stream.unfinished
        records = self.stream.settle(joined=not waits)
        if not waits:
            self.safe = self.follower.cursor
        if (noise := self.stream.noise(at_most_every=_NOISE_EVERY)) is not None:
            records.append(noise)
        self.pace.returned(records)
        return records

    def next_due(self, now: float) -> float:
        held = self.stream.unfinished
        return now + HELD_S if held else self.follower.next_due(now)

    def save(self) -> None:
        if self.cursor_file is None or self.safe is None or not self.pace.due():
            return
        if self.safe == self.saved:
            return
        if self.stream.identities.known != self.saved_cards:
            cards = self.stream.identities.copy()
            save(cards_file(self.cursor_file), cards)
            self.saved_cards = cards
        save(self.cursor_file, self.safe)
        self.saved = self.safe
        self.pace.saved()


def cards_file(cursor_file: Path) -> Path:
    """Where what the drivers said of their GPUs is kept, beside the cursor of the file."""
    return cursor_file.with_suffix(".gpus.json")


def _load_cards(cursor_file: Path | None) -> GpuIdentities:
    if cursor_file is None or not os.path.lexists(cursor_file):
        return GpuIdentities()
    return GpuIdentities(load(cards_file(cursor_file), dict[str, HostCards]))


class FileCollector:
    """Kernel log files as they grow: kern.log, a journal as text or JSON, fabricmanager.log.

    A line that names another host than ours belongs to that host: the file may be that of a log
    server. Each line's record has the same id however often the line is read.
    """

    name = "kernel"
    topic = "kernel"

    def __init__(
        self,
        host: str,
        paths: Sequence[Path],
        cursor_dir: Path | None,
        clock: Callable[[], datetime] = _utc_now,
        *,
        zone: tzinfo | None = None,
        keep_other: bool = False,
    ) -> None:
        """Follow ``paths``; times without a zone are of ``zone`` (None: of this machine).

        Cursors are kept in ``cursor_dir``; without one each start reads the files anew.
        """
        self._files: list[_Followed] = []
        self._ear = Ear()
        for path in paths:
            cursor_file = _cursor_file(cursor_dir, path)
            stream = KernelStream(
                host=host,
                clock=clock,
                file=str(path),
                zone=zone,
                keep_other=keep_other,
                coalesce=True,
                identities=_load_cards(cursor_file),
            )
            self._files.append(_Followed(path, cursor_file, stream, self._ear))

    def read(self) -> Sequence[KernelRecord]:
        """Return the records of the lines the files gained since the last call.

        Raises Unavailable when none of the files is there; a missing one among others is asked
        again each time.
        """
        records: list[KernelRecord] = []
        missing: list[str] = []
        self._ear.listen()
        for file in self._files:
            why = ""
            try:
                records += file.read()
            except Unavailable as error:
                records += file.stream.settle()
                why = str(error)
                missing.append(why)
            self._tell(file, why)
        self._ear.rest(found=any(file.gained for file in self._files))
        if len(missing) == len(self._files) and not records:
            raise Unavailable("; ".join(missing) or "no kernel log file is configured")
        return records

    def _tell(self, file: _Followed, why: str) -> None:
        """Say once that one file among several cannot be read, and once that it can again.

        Of an only file the caller hears by Unavailable.
        """
        if why != file.missing and len(self._files) > 1:
            if why:
                _LOG.warning("%s", why)
            else:
                _LOG.info("%s is read again", file.path)
        file.missing = why

    def saved(self) -> None:
        """Move the cursors behind everything that was returned."""
        for file in self._files:
            file.save()

    def fileno(self) -> int | None:
        """Readable when a file changed; None while that is not listened for."""
        return self._ear.fileno()

    def next_due(self, now: float) -> float:
        """When a file is worth the next look (monotonic seconds, as ``now``)."""
        due = min((file.next_due(now) for file in self._files), default=now + IDLE_S)
        return min(due, self._ear.rests_until) if self._ear.rests_until else due

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.follower.close()
        self._ear.close()


def _cursor_file(folder: Path | None, path: Path) -> Path | None:
    if folder is None:
        return None
    return folder / f"kernel-{path.name}-{digest(str(path))[:8]}.json"
