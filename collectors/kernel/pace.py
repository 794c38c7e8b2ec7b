"""Paces what the kernel's collectors do besides reading, so that an idle node costs nothing."""

import time
from collections.abc import Sequence

__all__ = ["HELD_S", "IDLE_S", "SavePace"]

#: Until the rest of an event that was cut in two by our reading is looked for.
HELD_S = 0.02
#: Until the next look without anything to read: the count of noise may be due.
IDLE_S = 60.0
#: Between two writes of a cursor that moved over noise only.
_NOISE_SAVE_S = 10.0


class SavePace:
    """When a cursor is worth the write: at once behind records, seldom behind mere noise.

    A write waits for the disk twice; noise that is read again is only counted again.
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
