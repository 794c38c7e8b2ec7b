"""Turns nvidia-smi's lines into looks at a node: sorts them by shape, joins what is one look."""

from collections.abc import Iterator
from datetime import datetime, tzinfo

from collectors.nvidia_smi.card import Card, Look
from collectors.nvidia_smi.value import moment

__all__ = ["Looks"]

#: More GPUs than any node has: a look that grows beyond is told in pieces.
_MOST_CARDS = 1024


class Looks:
    """The look under construction, and those that are complete."""

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone
        self.current = Look()
        self._done: list[Look] = []
        #: A date that stands alone before a table.
        self._announced: datetime | None = None
        self._messages_only = True

    def begin(self) -> Look:
        """Start a new look; what messages alone told just before belongs to it."""
        if not (self._messages_only and self.current.cards):
            self._close()
        self._messages_only = False
        if self._announced is not None:
            self.current.at, self._announced = self._announced, None
        return self.current

    def begin_by_message(self) -> Look:
        """Start a look that so far rests on messages."""
        self._close()
        return self.current

    def announce(self, said: str) -> bool:
        """Take a line that is a date and nothing else; False when it is none."""
        at = moment(said, self.zone)
        if at is not None:
            self._announced = at
        return at is not None

    def add(self, card: Card, *, by_message: bool = False) -> None:
        """Add a card to the current look."""
        if len(self.current.cards) >= _MOST_CARDS:
            at = self.current.at
            self._close()
            self.current.at = at
        self._messages_only = self._messages_only and by_message
        self.current.cards.append(card)

    def done(self) -> Iterator[Look]:
        """The complete looks since this was last asked."""
        done, self._done = self._done, []
        yield from done

    def finish(self) -> None:
        """The input is at its end."""
        self._close()

    def _close(self) -> None:
        if not self.current.empty:
            self._done.append(self.current)
        self.current = Look()
        self._messages_only = True
