"""What the stream needs to know of a stage: its topics, its state, its pure step, its outputs.

A step that returns the **same** state object says that nothing worth keeping changed: the table is
not written. One that returns None forgets the key.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from msgspec import Struct

from rules.stage import Arrived
from streams.routing import ROUTES, Route

__all__ = ["Stage"]

State = TypeVar("State", bound=Struct)


@dataclass(frozen=True, slots=True)
class Stage(Generic[State]):
    """One stage, bound to its topics.

    ``topics`` are short names, all with equal partition counts and the same keys; ``state`` is the
    struct kept for each key, and ``begin`` makes the state of a key that has none (None: ``state``
    without arguments); ``due`` is when a state wants to be stepped with a tick, None for never.
    """

    name: str
    topics: tuple[str, ...]
    state: type[State]
    step: Callable[[State, Arrived], tuple[State | None, Iterable[Struct]]]
    due: Callable[[State], datetime | None]
    routes: Mapping[type[Struct], Route] = field(default_factory=lambda: ROUTES)
    begin: Callable[[], State] | None = None
