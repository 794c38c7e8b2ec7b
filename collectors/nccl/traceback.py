"""Follows Python tracebacks, each rank's apart, to the exception that ends them.

An exception has any name (`StopIteration`, `queue.Empty`, `subprocess.TimeoutExpired: ...`): what
tells it is that it stands unindented after the frames, not how it is spelled.
"""

import re
from dataclasses import dataclass, field

from collectors.nccl.prefix import Prefixed
from collectors.nccl.shape import Fields
from evidence.records import NcclKind

__all__ = ["Tracebacks"]

#: Lines after a header within which its exception is expected.
_LINES_MAX = 200
# `StopIteration`, `queue.Empty`, `subprocess.TimeoutExpired: Command 'sync' timed out after 60 s`
_ENDING = re.compile(r"(?P<name>[A-Za-z_][\w.]{0,199})(?:: (?P<words>[^\n]{0,400}))?\s*\Z")


_Key = tuple[int | None, str | None]


@dataclass(slots=True)
class Tracebacks:
    """Which ranks are in the middle of a traceback; lines of other ranks may stand between."""

    _begun: dict[_Key, int] = field(default_factory=dict)
    _framed: set[_Key] = field(default_factory=set)

    @property
    def open(self) -> bool:
        """Whether an exception is awaited after frames: no line may be passed over."""
        return bool(self._begun)

    def follow(self, line: Prefixed, number: int, source: str | None = None) -> Fields | None:
        """Look at line ``number``; the exception when this line ends its rank's traceback.

        ``source`` tells ranks apart where only a launcher's label does.
        """
        message, rank = line.message, (line.rank, source)
        if source is not None and rank not in self._begun:
            self._adopt(rank)
        if message.startswith("Traceback (most recent"):
            self._begun[rank] = number
            self._framed.discard(rank)
            return None
        begun = self._begun.get(rank)
        if begun is None:
            return None
        if number - begun > _LINES_MAX:
            self._end(rank)
        elif message.lstrip().startswith('File "'):
            self._framed.add(rank)
        elif rank in self._framed and (ending := _ENDING.match(message)):
            self._end(rank)
            words = (ending["words"] or "").strip()
            text = f"{ending['name']}: {words}" if words else ending["name"]
            return {"kind": NcclKind.PYTHON_ERROR, "message": text}
        return None

    def _adopt(self, rank: _Key) -> None:
        """Take over a traceback that began before its label was known to be one."""
        unlabelled = (rank[0], None)
        if unlabelled in self._begun:
            self._begun[rank] = self._begun.pop(unlabelled)
            if unlabelled in self._framed:
                self._framed.discard(unlabelled)
                self._framed.add(rank)

    def _end(self, rank: _Key) -> None:
        del self._begun[rank]
        self._framed.discard(rank)
