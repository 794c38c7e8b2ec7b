"""Notices that nothing moves, and spares the log what repeats itself while a broker is gone."""

import logging
import time
from collections.abc import Callable, Mapping

__all__ = ["Sparing", "Stall"]


class Stall:
    """Tells which of some counters have stood still for ``after_s`` seconds."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._seen: dict[str, tuple[object, float]] = {}

    def stuck(self, now: float, progress: Mapping[str, object]) -> list[str]:
        """Names whose value has been the same for too long; a name that is left out is forgotten.

        ``now`` is of a clock that never goes back, in seconds.
        """
        self._seen = {
            name: known
            if (known := self._seen.get(name)) is not None and known[0] == value
            else (value, now)
            for name, value in progress.items()
        }
        return [name for name, (_, since) in self._seen.items() if now - since > self._after_s]


class Sparing(logging.Filter):
    """Lets each kind of line through once in ``every_s``, and says then how many were left out."""

    def __init__(self, every_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s = every_s
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is logged; the template tells its kind, not what is filled in."""
        kind = str(record.msg)
        now = self._clock()
        at, left_out = self._said.get(kind, (None, 0))
        if at is not None and now - at < self._every_s:
            self._said[kind] = (at, left_out + 1)
            return False
        self._said[kind] = (now, 0)
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like it)"
            record.args = ()
        return True
