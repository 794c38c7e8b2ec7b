"""What the isolation stage remembers: parts acted upon, their holds, the outbox, the budget.

Decoded from a table, a state is `restored`; a stage without one begins from `rebuild`, or holds
every command, as it cannot know what is out already.
"""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from evidence.decisions import DesiredState, Domain, Hold, Level, Verdict
from evidence.identity import digest
from rules.budget import Spent, spending
from rules.naming import names_of
from rules.outage import Outage
from rules.outbox import Pending
from rules.racks import Down
from rules.surge import CommonCauses

__all__ = [
    "LEVELS",
    "OURSELVES",
    "IsolationState",
    "Part",
    "Standing",
    "desired",
    "forget_oldest",
    "highest",
    "in_service",
    "rebuild",
]

#: Levels, mildest first.
LEVELS = tuple(Level)
#: Who the holds of verdicts belong to.
OURSELVES = "ringfence"


class Part(Struct, frozen=True, omit_defaults=True):
    """What the stage knows of one domain that it acted upon.

    ``closed`` are incidents a release ended. ``held`` is why a command waits for a person, since
    ``held_at``, and ``dry_run`` says that the holds are those of shadow mode, never published.
    ``released_at`` is the last return to service, ``passed_at`` the last by a person's word.
    ``waits`` is the hold of a held command. ``over`` are the incidents of holds that were said to
    be over, and since when it is clean; ``proposed_at`` is when a release was proposed for that.
    ``note`` is why a scheduler refused the last command.
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
    held_at: datetime | None = None
    passed_at: datetime | None = None
    waits: Hold | None = None
    over: dict[str, datetime] = {}
    proposed_at: datetime | None = None
    note: str | None = None


class Standing(Struct, frozen=True, omit_defaults=True):
    """A verdict that shadow answered: acted upon when the policy lets it, while it stands.

    ``heard_at`` is when its last revision arrived.
    """

    verdict: Verdict
    heard_at: datetime


class IsolationState(Struct, frozen=True, omit_defaults=True):
    """All domains acted upon, their names, the outbox and the budget; one per cluster.

    ``restored`` False (a fresh object) means that nobody knows what is isolated already: verdicts
    then only give held commands. Start from a stored state, or from `rebuild`. ``down`` are nodes
    that failed as a whole, ``racks_at`` is when to see whether they are a rack. ``waiting`` are
    verdicts that are acted upon together at ``settles_at``, in an order of their own; ``standing``
    are those that shadow answered, to be looked at again at ``standing_at``. ``outage`` are the
    hosts that fell silent, told at ``outage_at`` where few did; ``common`` is what fails alike, and
    ``recovers_at`` when the next part may have been clean for long enough.
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
    waiting: tuple[Verdict, ...] = ()
    settles_at: datetime | None = None
    standing: tuple[Standing, ...] = ()
    standing_at: datetime | None = None
    offsets: dict[str, int] = {}
    outage: Outage = Outage()
    outage_at: datetime | None = None
    common: CommonCauses = CommonCauses()
    recovers_at: datetime | None = None


def rebuild(states: Iterable[DesiredState] = ()) -> IsolationState:
    """A restored state out of the compacted state topic (none at all: a first install).

    What is out counts in the budget as of its last state. What is lost: commands not yet answered
    (consumers reconcile from the states), verdicts that waited, and commands held for a person.
    """
    parts: dict[str, Part] = {}
    names: dict[str, str] = {}
    incidents: dict[str, str] = {}
    spent: list[Spent] = []
    for state in states:
        # A state of an older build does not tell when the part returned.
        back = state.released_at or (state.at if state.generation and not state.isolated else None)
        parts[state.domain_id] = Part(
            domain=state.domain,
            generation=state.generation,
            holds=state.holds,
            level=state.level,
            released_at=back,
            passed_at=state.passed_at or (None if state.released_at else back),
        )
        if state.isolated:
            spent.append(spending(state.domain, state.domain_id, state.at, command=state.id))
        for name in (state.domain_id, *names_of(state.domain), *state.aliases):
            names[name] = state.domain_id
        incidents |= {hold.id: state.domain_id for hold in state.holds}
    return IsolationState(
        restored=True, parts=parts, names=names, incidents=incidents, spent=tuple(spent)
    )


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
        note=note or part.note,
        released_at=part.released_at,
        passed_at=part.passed_at,
    )


def in_service(part: Part) -> Part:
    """A part as it really is, without what shadow mode put on it."""
    return replace(
        part,
        holds=(),
        level=None,
        dry_run=False,
        held=None,
        held_at=None,
        waits=None,
        over={},
        proposed_at=None,
        note=None,
    )


def forget_oldest(parts: dict[str, Part], names: dict[str, str]) -> None:
    """Drop the part that was released longest ago; one that is out is never dropped."""
    idle = [(p.released_at, name) for name, p in parts.items() if p.released_at and not p.holds]
    if not idle:
        return
    oldest = min(idle)[1]
    del parts[oldest]
    for name in [name for name, of in names.items() if of == oldest]:
        del names[name]
