"""Collects what the kernel logs from the log files that grow on a node."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import msgspec

from collectors.collector import Unavailable
from collectors.follow import Cursor, Follower, load_cursor, save_cursor, write_atomic
from collectors.kernel.identities import GpuIdentities, HostCards
from collectors.kernel.pace import HELD_S, IDLE_S, SavePace
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

    def __init__(self, path: Path, cursor_file: Path | None, stream: KernelStream) -> None:
        self.path = path
        self.cursor_file = cursor_file
        self.saved = None if cursor_file is None else load_cursor(cursor_file)
        self.follower = Follower(path, cursor=self.saved, max_line=MAX_LINE)
        self.stream = stream
        #: What is kept of the GPUs the lines spoke of.
        self.saved_cards = stream.identities.copy()
        self.safe: Cursor | None = self.saved
        self.pace = SavePace()
        #: Why it could not be read at the last look.
        self.missing = ""

    def read(self) -> list[KernelRecord]:
        lines = self.follower.read()
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
        try:
            if self.stream.identities.known != self.saved_cards:
                self.saved_cards = self.stream.identities.copy()
                write_atomic(cards_file(self.cursor_file), msgspec.json.encode(self.saved_cards))
            save_cursor(self.cursor_file, self.safe)
        except OSError as error:
            _LOG.warning("cursor %s cannot be written: %s", self.cursor_file, error)
        else:
            self.saved = self.safe
            self.pace.saved()


def cards_file(cursor_file: Path) -> Path:
    """Where what the drivers said of their GPUs is kept, beside the cursor of the file."""
    return cursor_file.with_suffix(".gpus.json")


def _load_cards(cursor_file: Path | None) -> GpuIdentities:
    if cursor_file is None or not cursor_file.exists():
        return GpuIdentities()
    try:
        known = msgspec.json.decode(cards_file(cursor_file).read_bytes(), type=dict[str, HostCards])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return GpuIdentities()
    return GpuIdentities(known)


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
            self._files.append(_Followed(path, cursor_file, stream))

    def read(self) -> Sequence[KernelRecord]:
        """Return the records of the lines the files gained since the last call.

        Raises Unavailable when none of the files is there; a missing one among others is asked
        again each time.
        """
        records: list[KernelRecord] = []
        missing: list[str] = []
        for file in self._files:
            why = ""
            try:
                records += file.read()
            except Unavailable as error:
                records += file.stream.settle()
                why = str(error)
                missing.append(why)
            self._tell(file, why)
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

    def next_due(self, now: float) -> float:
        """When a file is worth the next look (monotonic seconds, as ``now``)."""
        return min((file.next_due(now) for file in self._files), default=now + IDLE_S)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.follower.close()


def _cursor_file(folder: Path | None, path: Path) -> Path | None:
    if folder is None:
        return None
    return folder / f"kernel-{path.name}-{digest(str(path))[:8]}.json"
