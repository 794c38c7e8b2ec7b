"""Keeps what a collector must still know after a restart: small files, whole or not at all."""

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

__all__ = ["SavePace", "load", "save"]

_LOG = logging.getLogger(__name__)

#: Between two writes of a cursor that moved over noise only.
_NOISE_SAVE_S = 10.0

T = TypeVar("T")


def save(file: Path, kept: object) -> None:
    """Write it (as JSON) so that a crash leaves the old file or the new one, never half of one.

    After a loss of power it may be the old one: what it speaks of is read, and sent, again.

    Raises OSError when the folder cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as out:
        out.write(msgspec.json.encode(kept))
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def load(file: Path | None, kind: type[T]) -> T | None:
    """Read back what was kept; None when nothing was. A broken file is logged and ignored."""
    if file is None:
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _LOG.warning("%s is broken and ignored, its source is read again: %s", file, error)
        return None


class SavePace:
    """When a cursor is worth the write: at once behind records, seldom behind mere noise.

    A write waits for the disk; noise that is read again is only counted again.
    """

    def __init__(self) -> None:
        self._records = False
        self._saved_at = 0.0

    def returned(self, records: Sequence[object]) -> None:
        """Told what a read returned."""
        self._records = self._records or bool(records)

    def due(self) -> bool:
        """Whether to write the cursor now, if it moved."""
        return self._records or time.monotonic() - self._saved_at > _NOISE_SAVE_S

    def saved(self) -> None:
        """Told that it was written."""
        self._records = False
        self._saved_at = time.monotonic()
