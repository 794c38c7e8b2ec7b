"""A spool whose failures never stop the shipper: said once, tried again later, or done without."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from collectors.shipping.backlog import Parcel
from collectors.shipping.spool import Spool, SpoolDamagedError, SpoolError, SpoolInUseError
from collectors.shipping.spool_loss import Loss

__all__ = ["SpoolKeeper"]

_LOG = logging.getLogger(__name__)

#: How long a disk that refused something is left alone.
_REST_S = 30.0
#: How often a damaged file is set aside and a new one begun; a disk that does it again is broken.
_DAMAGES = 2


class SpoolKeeper:
    """The spool of one shipper, used by its thread; ``path`` None keeps everything in memory.

    ``damaged`` is told what was lost with a damaged file, before it is used again.
    Raises SpoolInUseError when another agent has it.
    """

    def __init__(
        self, path: Path | None, max_bytes: int, damaged: Callable[[list[Loss]], None]
    ) -> None:
        """Take the spool's lock and look at what an agent before this one left."""
        self._damaged = damaged
        self._damages = 0
        self._rest_until = 0.0
        self._read_rest_until = 0.0
        self._said = ""
        self.spool = None if path is None else Spool(path, max_bytes)
        if self.spool is not None:
            self._try(self.spool.open)
            if self.spool.rows:
                _LOG.info("%d records wait in the spool %s", self.spool.rows, self.spool.path)

    @property
    def resting_until(self) -> float:
        """When the disk is tried again (monotonic seconds)."""
        return self._rest_until

    @property
    def reads_again_at(self) -> float | None:
        """When a disk that could not be read is tried again (monotonic seconds)."""
        return self._read_rest_until or None

    def usable(self, now: float) -> bool:
        """Whether there is a spool, and its disk did not refuse anything lately."""
        return self.spool is not None and now >= self._rest_until

    def write(self, parcels: Sequence[Parcel], in_memory: Iterable[int]) -> bool:
        """Put parcels on the disk; False when it has none of them."""
        spool = self.spool
        return spool is not None and self._try(lambda: spool.write(parcels, in_memory))

    def load(self, topic: str, max_bytes: int) -> list[Parcel]:
        """Read the oldest unread parcels of a topic."""
        found: list[Parcel] = []
        spool = self.spool
        if spool is None or time.monotonic() < self._read_rest_until:
            return found
        rest_until = self._rest_until
        if not self._try(lambda: found.extend(spool.load(topic, max_bytes))):
            # A disk that cannot be read may be written, and the other way round.
            self._read_rest_until, self._rest_until = self._rest_until, rest_until
        else:
            self._read_rest_until = 0.0
        return found

    def delete(self, parcels: Sequence[Parcel]) -> bool:
        """Forget parcels that Kafka has; False when the disk still has them."""
        spool = self.spool
        return spool is None or self._try(lambda: spool.delete(parcels))

    def keep(self, losses: Sequence[Loss]) -> bool:
        """Keep losses on the disk; False when they were not."""
        spool = self.spool
        return spool is not None and self._try(lambda: spool.keep(losses))

    def close(self) -> None:
        """Close the file and give its lock back."""
        if self.spool is not None:
            self.spool.close()

    def _try(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except SpoolDamagedError as error:
            self._set_aside(error)
        except (SpoolError, SpoolInUseError) as error:
            self._rest_until = time.monotonic() + _REST_S
            self._say(f"{error}; records wait in memory")
        else:
            self._said = ""
            return True
        return False

    def _set_aside(self, error: SpoolDamagedError) -> None:
        assert self.spool is not None
        aside, lost = self.spool.set_aside()
        self._damages += 1
        if self._damages > _DAMAGES:
            self._rest_until = self._read_rest_until = float("inf")
            self._say(f"{error}; it is damaged again and again, records wait in memory from now on")
        else:
            self._say(f"{error}; set aside as {aside}, a new spool is begun")
        self._damaged(lost)

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            _LOG.warning("%s", sentence)
