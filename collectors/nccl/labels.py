"""Whose line it is where a launcher labels each: pdsh's ``gpu7: ``, srun's ``12: ``.

A number may as well count lines (grep, a viewer): it is a task only once it stands there twice in
a row, which no line number does.
"""

from dataclasses import dataclass, field

from collectors.nccl.prefix import Prefixed

__all__ = ["Labels"]

_NODES_MAX = 65536
_OWN_WORDS = ("Traceback (most recent", "Failures:", "Root Cause (first")


@dataclass(slots=True)
class Labels:
    """The labels of one file."""

    _tasks: bool = False
    _last: str | None = None
    _nodes: set[str] = field(default_factory=set)

    def source(self, line: Prefixed) -> str | None:
        """What tells lines of one process from others'; None where the line has no such label."""
        label = line.label
        if label is None:
            return None
        if not label.isdecimal():
            # A word before a colon is a host only where a rank's own line follows it.
            known = line.c10d or line.elastic or line.rank is not None or line.level is not None
            known = known or line.message.startswith(_OWN_WORDS)
            if known and len(self._nodes) < _NODES_MAX:
                self._nodes.add(label)
            return label
        self._tasks |= label == self._last
        self._last = label
        return label if self._tasks else None

    def host(self, line: Prefixed) -> str | None:
        """The node that printed a line, where its label is one."""
        return line.label if line.label in self._nodes else None
