"""What became of a collector's reads: when it last worked, how long it took, why it does not.

One thread reads and another one looks: every field is one value, set in one step.
"""

import logging
import time
from collections.abc import Callable
from typing import Self

__all__ = ["Attempts"]

_LOG = logging.getLogger(__name__)

#: First and longest rest after a read that found no source, or failed.
_FIRST_REST_S = 1.0
_LONGEST_REST_S = 60.0
#: Collectors promise not to block; a read that takes this long is told, once a minute at most.
_SLOW_S = 1.0
_SLOW_AGAIN_S = 60.0


class Attempts:
    """The reads of one collector; ``with attempts:`` around each of them takes its time.

    ``reads``, ``failures`` and ``slow`` (reads longer than a second) only grow. ``unavailable`` and
    ``error`` say why the last read gave nothing, None when it worked; ``worked_at`` is the wall
    clock's seconds of the last one that did; ``reading_since`` is monotonic, None between reads.
    """

    def __init__(
        self,
        name: str,
        *,
        longest_rest_s: float = _LONGEST_REST_S,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``longest_rest_s`` is how long a source that stays away is left alone at most."""
        self.name = name
        self.reads = 0
        self.failures = 0
        self.slow = 0
        self.unavailable: str | None = None
        self.error: str | None = None
        self.worked_at: float | None = None
        self.took_s = 0.0
        self.busy_s = 0.0
        self.reading_since: float | None = None
        self._longest_rest_s = longest_rest_s
        self._monotonic = monotonic
        self._wall = wall
        self._rest_s = _FIRST_REST_S
        self._told_slow_at: float | None = None

    def __enter__(self) -> Self:
        self.reading_since = self._monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        now = self._monotonic()
        began, self.reading_since = self.reading_since, None
        self.took_s = now - (now if began is None else began)
        self.busy_s += self.took_s
        self.reads += 1
        if kind is None:
            self.worked_at = self._wall()
            self.unavailable = self.error = None
            self._rest_s = _FIRST_REST_S
        if self.took_s > _SLOW_S:
            self._was_slow(now)

    def absent(self, why: str) -> float:
        """Note that there is no source; return for how many seconds to leave it alone."""
        self.unavailable, self.error = why, None
        return self._rest()

    def failed(self, why: str) -> float:
        """Note that a read failed; return for how many seconds to leave it alone."""
        self.failures += 1
        self.unavailable, self.error = None, why
        return self._rest()

    def _rest(self) -> float:
        rest_s = min(self._rest_s, self._longest_rest_s)
        self._rest_s = 2 * rest_s
        return rest_s

    def _was_slow(self, now: float) -> None:
        self.slow += 1
        if self._told_slow_at is None or now - self._told_slow_at >= _SLOW_AGAIN_S:
            self._told_slow_at = now
            _LOG.warning(
                "%s took %.1f s to be read; all others waited for it", self.name, self.took_s
            )
