"""Reads NVML ticks that a recorder wrote down, and ships them as the live collector would.

The file is NDJSON, one GpuTick a line, and may still grow; a line that is no tick is counted, said
in one sentence and left out.
"""

import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

import msgspec

from collectors.cursors import load, save
from collectors.follow import Cursor, Follower, Line
from collectors.gpu.framing import Framer
from evidence.records import GpuFrame, GpuTick

__all__ = ["RecordingCollector"]

_LOG = logging.getLogger(__name__)

#: A tick of 8 GPUs is about 5 kB; 72 GPUs of an NVL72 rack with all reasons stay below this.
_MAX_LINE = 1 << 20

_decode = msgspec.json.Decoder(GpuTick).decode


class RecordingCollector:
    """Follows one node's recorded ticks; ``source`` of its frames is ``recording``.

    ``malformed`` counts the lines left out. With a ``cursor_file`` a restart goes on where the
    last one was saved, else the file is read from its start. ``interval_s`` is the recording's
    pace: a frame that two frames' time did not fill leaves as it is.
    """

    name = "gpu"
    topic = "gpu"

    def __init__(
        self,
        host: str,
        path: Path,
        boot_id: str | None,
        clock: Callable[[], datetime],
        *,
        frame_ticks: int = 5,
        interval_s: float = 1.0,
        driver: str | None = None,
        cursor_file: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` gives aware UTC times; ``driver`` is what the recording was made on."""
        self.latest: GpuTick | None = None
        self.driver = driver
        self.absent = False
        self.malformed = 0
        self._monotonic = monotonic
        self._cursor_file = cursor_file
        self._saved = load(cursor_file, Cursor)
        self._follower = Follower(path, cursor=self._saved, max_line=_MAX_LINE)
        self._framer = Framer(
            host,
            boot_id,
            "recording",
            clock,
            frame_ticks=frame_ticks,
            hold_s=2 * interval_s * frame_ticks,
        )
        #: The line of the oldest tick that is in no frame yet.
        self._oldest: Line | None = None

    def read(self) -> Iterable[GpuFrame]:
        """Return the frames that the lines since the last call fill or force.

        Raises Unavailable while the file is not there.
        """
        now = self._monotonic()
        frames = []
        for line in self._follower.read():
            tick = self._tick(line)
            if tick is None:
                continue
            self.latest = tick
            self._oldest = self._oldest or line
            frame = self._framer.add(tick, now, self.driver)
            if frame is not None:
                self._oldest = None
                frames.append(frame)
        late = self._framer.overdue(now, self.driver)
        if late is not None:
            self._oldest = None
            frames.append(late)
        return frames

    def rest(self) -> Iterable[GpuFrame]:
        """Return the ticks that wait for a full frame, for the end of the process."""
        frame = self._framer.rest(self.driver)
        self._oldest = None
        return [] if frame is None else [frame]

    def saved(self) -> None:
        """Keep the position up to which every tick is in Kafka."""
        cursor = self._framed()
        if self._cursor_file is None or cursor is None or cursor == self._saved:
            return
        save(self._cursor_file, cursor)
        self._saved = cursor

    def close(self) -> None:
        """Close the file."""
        self._follower.close()

    def _framed(self) -> Cursor | None:
        """The position behind the newest frame; None when it lies in a file rotated away."""
        cursor, oldest = self._follower.cursor, self._oldest
        if cursor is None or oldest is None:
            return cursor
        if (oldest.inode, oldest.generation) != (cursor.inode, cursor.generation):
            return None
        return msgspec.structs.replace(
            cursor, offset=oldest.offset, line=oldest.number - 1, skipping=False
        )

    def _tick(self, line: Line) -> GpuTick | None:
        if not line.data.strip():
            return None
        try:
            tick = _decode(line.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._leave_out(line, str(error))
            return None
        if tick.at.tzinfo is None:
            self._leave_out(line, "its time has no zone")
            return None
        return tick

    def _leave_out(self, line: Line, why: str) -> None:
        self.malformed += 1
        _LOG.warning(
            "%s line %d is no GPU tick and is left out: %s", self._follower.path, line.number, why
        )
