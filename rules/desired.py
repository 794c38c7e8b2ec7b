"""What the isolation stage remembers: parts acted upon, their holds, the outbox, the budget.

Decoded from a table, a state is `restored`; a stage without one begins from `rebuild`, or holds
every command, as it cannot know what is out already.
"""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from evidence.decisions import DesiredState, Domain, Hold, Level
from evidence.identity import digest
from rules.budget import Spent
from rules.naming import names_of
from rules.outbox import Pending
from rules.racks import Down

__all__ = [
    "LEVELS",
    "IsolationState",
    "Part",
    "desired",
    "forget_oldest",
    "highest",
    "in_service",
    "rebuild",
]

#: Levels, mildest first.
LEVELS = tuple(Level)


class Part(Struct, frozen=True, omit_defaults=True):
    """What the stage knows of one domain that it acted upon.

    ``closed`` are incidents a release ended. ``held`` is why a command waits for a person, and
    ``dry_run`` says that the holds are those of shadow mode, never published.
    """

    domain: Domain
    generation: int = 0
    holds: tuple[Hold, ...] = ()
    level: Level | None = None
    dry_run: bool = False
    held: str | None = None
    released_at: datetime | None = None
    closed: tuple[str, ...] = ()
    lapsed: Hold | None = None
    last_command: str | None = None


class IsolationState(Struct, frozen=True, omit_defaults=True):
    """All domains acted upon, their names, the outbox and the budget; one per cluster.

    ``restored`` False (a fresh object) means that nobody knows what is isolated already: verdicts
    then only give held commands. Start from a stored state, or from `rebuild`. ``down`` are nodes
    that failed as a whole, ``racks_at`` is when to see whether they are a rack.
    """

    restored: bool = False
    parts: dict[str, Part] = {}
    names: dict[str, str] = {}
    outbox: dict[str, Pending] = {}
    spent: tuple[Spent, ...] = ()
    incidents: dict[str, str] = {}
    requests: tuple[str, ...] = ()
    down: tuple[Down, ...] = ()
    racks_at: datetime | None = None
    offsets: dict[str, int] = {}


def rebuild(states: Iterable[DesiredState] = ()) -> IsolationState:
    """A restored state out of the compacted state topic (none at all: a first install)."""
    parts: dict[str, Part] = {}
    names: dict[str, str] = {}
    incidents: dict[str, str] = {}
    for state in states:
        parts[state.domain_id] = Part(
            domain=state.domain,
            generation=state.generation,
            holds=state.holds,
            level=state.level,
            released_at=None if state.isolated else state.at,
        )
        for name in (state.domain_id, *names_of(state.domain), *state.aliases):
            names[name] = state.domain_id
        incidents |= {hold.id: state.domain_id for hold in state.holds}
    return IsolationState(restored=True, parts=parts, names=names, incidents=incidents)


def highest(holds: Iterable[Hold]) -> Level | None:
    """The hardest level that the holds ask for."""
    return max((hold.level for hold in holds), key=LEVELS.index, default=None)


def desired(domain_id: str, part: Part, now: datetime, note: str | None) -> DesiredState:
    """What a domain should be now, for the consumers that reconcile."""
    holds = (hold.id for hold in part.holds)
    return DesiredState(
        id=digest("state", domain_id, part.generation, *holds, now),
        domain_id=domain_id,
        domain=part.domain,
        at=now,
        generation=part.generation,
        isolated=bool(part.holds),
        level=part.level,
        holds=part.holds,
        aliases=tuple(sorted(set(names_of(part.domain)) - {domain_id})),
        note=note,
    )


def in_service(part: Part) -> Part:
    """A part as it really is, without the holds of shadow mode."""
    return replace(part, holds=(), level=None, dry_run=False)


def forget_oldest(parts: dict[str, Part]) -> None:
    """Drop the part that was released longest ago; one that is out is never dropped."""
    idle = [(p.released_at, name) for name, p in parts.items() if p.released_at and not p.holds]
    if idle:
        del parts[min(idle)[1]]
