"""The one interface of this folder: a collector returns what is new since it was last asked."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

__all__ = ["Collector", "CollectorError", "Unavailable"]


class CollectorError(Exception):
    """A collector cannot do its work; the message is one sentence for the operator."""


class Unavailable(CollectorError):  # noqa: N818 (a state, as operators say it)
    """The source is not there (no /dev/kmsg, no NVML): not an error, asked again slowly."""


class Collector(Protocol):
    """One source of records on this node."""

    name: str
    #: Short name of the topic its records go to.
    topic: str

    def read(self) -> Iterable[Struct]:
        """Return the records that are new since the last call; never block.

        Raises Unavailable when the source is not there.
        """

    def saved(self) -> None:
        """Told when everything returned so far is safely in Kafka: the cursor may move on."""

    def close(self) -> None:
        """Release files and threads."""
