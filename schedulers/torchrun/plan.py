"""What the marks mean for the agent: the node is out, or some cards are; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evidence.decisions import Level
from schedulers.torchrun.cards import CARDS, Card, card_of
from schedulers.torchrun.memory import Mark

__all__ = ["Plan", "needed", "plan"]

_STOPS = frozenset({Level.DRAIN, Level.EVICT})


@dataclass(frozen=True, slots=True)
class Plan:
    """Marks that take the whole node out, and those that take one card each, by UUID.

    An agent is not started while ``out`` has any, and is started without the cards ``without``.
    """

    out: tuple[Mark, ...] = ()
    without: Mapping[str, Mark] = field(default_factory=dict)


def plan(
    marks: Sequence[Mark], cards: Sequence[Card], mine: Sequence[Card], *, shrink: bool
) -> Plan:
    """Sort marks by what they take out.

    ``cards`` are the node's, ``mine`` those that the job may use. A bad card takes the node where
    the job may not shrink, the card is not known, or none would be left.
    """
    out: list[Mark] = []
    without: dict[str, Mark] = {}
    for mark in marks:
        card = card_of(mark.domain, cards) if mark.domain.kind in CARDS else None
        if card is None or (not shrink and card in mine):
            out.append(mark)
        elif card in mine:
            before = without.get(card.uuid)
            if before is None or before.level not in _STOPS or mark.level is Level.EVICT:
                without[card.uuid] = mark
    if without and len(without) == len(mine):
        return Plan((*out, *without.values()), {})
    return Plan(tuple(out), without)


def needed(wanted: Plan, left_out: frozenset[str], *, rejoin: bool) -> Level | None:
    """How soon an agent that was started without the cards ``left_out`` must stop; None: needn't.

    With ``rejoin`` it also stops, at a checkpoint, to have a card back.
    """
    reasons = [
        *wanted.out,
        *(mark for uuid, mark in wanted.without.items() if uuid not in left_out),
    ]
    levels = {mark.level for mark in reasons} & _STOPS
    if Level.EVICT in levels:
        return Level.EVICT
    back = rejoin and not left_out <= wanted.without.keys()
    return Level.DRAIN if levels or back else None
