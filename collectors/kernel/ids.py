"""One id for one kernel message, whether the ring, the journal or both show it."""

from evidence.identity import digest

__all__ = ["MessageIds"]

#: Messages of one microsecond follow each other closely: so many are remembered to number them.
_REMEMBERED = 64


class MessageIds:
    """The ids of one host's kernel messages, asked for in the order of the log.

    The kernel's microsecond and the text are the same in the ring and in the journal (its
    ``_SOURCE_MONOTONIC_TIMESTAMP``); the ring's sequence number is not in the journal. Messages
    that are equal in both are numbered. ``seen`` goes on from an earlier run.
    """

    def __init__(self, host: str, seen: dict[str, int] | None = None) -> None:
        self._host = host
        self._seen = dict(seen or {})

    @property
    def seen(self) -> dict[str, int]:
        """How often each of the latest messages came: to be kept with the cursor."""
        return dict(self._seen)

    def of(self, boot_id: str | None, uptime_us: int, text: str) -> str:
        """The id of the next message; ``uptime_us`` counts from the kernel's start."""
        first = digest(self._host, boot_id, uptime_us, text.strip())
        before = self._seen.pop(first, 0)
        self._seen[first] = before + 1
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return first if before == 0 else digest(first, before)
