"""When several GPUs of a node fail together, and when one of them explains all the others.

All failing within a second have a cause above them; what only shows that a neighbour is gone (a
dead link, a call that hangs in the driver) never makes a node's fault out of one card's.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta

from msgspec.structs import replace

from rules.catalog import Role
from rules.host_state import Fact, FactKind, HostState, Incident
from rules.thresholds import Thresholds

__all__ = [
    "LINK_DOWN",
    "NODE_DARK",
    "NODE_LOST",
    "NODE_SILENT",
    "SHARED_HEALTH",
    "darken",
    "in_company",
    "is_gpu",
    "is_lost",
    "last_word",
    "links_down",
    "subject_gpus",
    "widen",
]

#: The subject of all GPUs of a node failing together, and of a node that went dark.
NODE_LOST = "node:gpus"
NODE_DARK = "node:dark"
#: The subject of a node of which nothing is heard.
NODE_SILENT = "node:silent"
#: Facts that a node's incident shows.
_FACTS_MAX = 32
_WORDS = frozenset({"node", "switch", "port", "job", "rank", "link", "growth"})
#: What the fabric calls a link that is down.
LINK_DOWN = "ib-down"
#: GPUs that must be lost together to be called a node's where nobody told how many it has.
_ENOUGH = 4

_OWN = frozenset({Role.LOST, Role.HARDWARE})
_OWN_HEALTH = frozenset({"gpu-lost", "reset-required"})
#: What one broken card does to the others: the driver's lock is held in its calls, its links die.
SHARED_HEALTH = frozenset({"unresponsive", "nvml-error", "driver-reset-required"})


def is_gpu(subject: str) -> bool:
    """Whether a subject is a GPU (``0000:3b:00``, a UUID, an index) and not ``word:``."""
    return subject.partition(":")[0] not in _WORDS


def is_lost(fact: Fact) -> bool:
    """Whether the fact says that the GPU left the bus."""
    return fact.role is Role.LOST or fact.name in ("gpu-lost", "nvrm-lost")


def subject_gpus(state: HostState) -> frozenset[str]:
    """The GPUs a node is known to have, by inventory and NVML; empty when nobody told.

    The driver's banners do not tell: it prints one only for a GPU that has an Xid.
    """
    if state.inventory is not None and state.names:
        return frozenset(state.names)
    return frozenset(filter(is_gpu, state.health))


def in_company(state: HostState, facts: Sequence[Fact], limits: Thresholds) -> frozenset[str]:
    """Of GPUs that newly failed for sure, those beside which another one did within the second.

    One card off the bus is acted upon at once; with a second one it is worth the time to see
    whether all of them go.
    """
    within = timedelta(seconds=limits.node_window_s)
    lost = [fact for fact in facts if _failed(fact)]
    if not lost:
        return frozenset()
    known = [fact for incident in state.incidents for fact in incident.facts]
    beside = [fact for fact in (*lost, *known, *state.pending) if _failed(fact)]
    return frozenset(
        fact.subject
        for fact in lost
        if any(o.subject != fact.subject and abs(o.at - fact.at) <= within for o in beside)
    )


def _failed(fact: Fact) -> bool:
    return is_lost(fact) or (fact.hard is not None and is_gpu(fact.subject))


def widen(incidents: list[Incident], state: HostState, limits: Thresholds) -> None:
    """All GPUs failing within a second: one incident of the node, its cause is above them."""
    severe = [
        fact
        for incident in incidents
        if is_gpu(incident.subject)
        for fact in incident.facts
        if _own(fact) or _shared(fact)
    ]
    together = _all_together(severe, subject_gpus(state), limits)
    if not together or _by_a_switch(together, incidents, limits):
        return
    end = max(fact.at for fact in together)
    window = timedelta(seconds=limits.incident_window_s)
    facts = tuple(sorted(together, key=lambda one: one.order))[:_FACTS_MAX]
    for number, incident in enumerate(incidents):
        if incident.subject == NODE_LOST and abs(incident.last - end) <= window:
            if facts != incident.facts:
                incidents[number] = replace(incident, facts=facts, news=True)
            return
    incidents.append(Incident(subject=NODE_LOST, first=facts[0].at, last=facts[-1].at, facts=facts))


def darken(incidents: list[Incident], state: HostState) -> None:
    """All links of a node going down while nothing is heard of it: one incident of the node."""
    down = links_down(incidents)
    if not state.adapters or len(down) < state.adapters:
        return
    facts = tuple(sorted(down.values(), key=lambda one: one.order))[:_FACTS_MAX]
    heard_at = state.heard_at
    if heard_at is None or heard_at > facts[-1].at:
        return
    for number, incident in enumerate(incidents):
        if incident.subject == NODE_DARK and incident.last == facts[-1].at:
            if facts != incident.facts:
                incidents[number] = replace(incident, facts=facts, news=True)
            return
    incidents.append(Incident(subject=NODE_DARK, first=facts[0].at, last=facts[-1].at, facts=facts))


def last_word(facts: Iterable[Fact]) -> Fact:
    """What another stage said last: the time of its event may be that of an earlier word."""
    return max(facts, key=lambda fact: (fact.arrived, fact.order))


def links_down(incidents: Iterable[Incident]) -> dict[str, Fact]:
    """The links of a node that are down now, each with the last word about it."""
    found = {}
    for incident in incidents:
        if not incident.subject.startswith("link:") or incident.recovered_at is not None:
            continue
        last = last_word(incident.facts)
        if last.suspicion is not None and last.suspicion.kind == LINK_DOWN:
            found[incident.subject] = last
    return found


def _by_a_switch(
    together: Sequence[Fact], incidents: Sequence[Incident], limits: Thresholds
) -> bool:
    """Whether the GPUs only lost their links, and an NVSwitch of the node failed just then."""
    near = timedelta(seconds=limits.propagation_s)
    first = min(fact.at for fact in together)
    return all(_shared(fact) for fact in together) and any(
        fact.fatal and abs(fact.at - first) <= near
        for incident in incidents
        if incident.subject.startswith("switch:")
        for fact in incident.facts
    )


def _all_together(
    severe: Sequence[Fact], gpus: frozenset[str], limits: Thresholds
) -> Sequence[Fact]:
    """One fact of each GPU of the node, when their failing at once has no cause among them."""
    within = timedelta(seconds=limits.node_window_s)
    own = [fact for fact in severe if _own(fact)]
    if not gpus:
        # Nobody told the node's GPUs: those that its log names at all, when many are lost.
        lost = [fact for fact in own if is_lost(fact)]
        named = frozenset(fact.subject for fact in severe)
        return _together(lost, named, within) if len(named) >= _ENOUGH else ()
    if len(gpus) < 2:  # noqa: PLR2004 (one GPU is not a node)
        return ()
    mine = [fact for fact in severe if fact.subject in gpus]
    if alone := _together([fact for fact in mine if _own(fact)], gpus, within):
        return alone
    together = _together(mine, gpus, within)
    if not together:
        return ()
    first = min(fact.at for fact in together)
    lead = timedelta(seconds=limits.incident_window_s)
    broken = any(first - lead <= fact.at <= first + within for fact in own)
    return () if broken else together


def _together(facts: Iterable[Fact], gpus: frozenset[str], within: timedelta) -> list[Fact]:
    """The first fact of each GPU in the first window of that length that holds all GPUs."""
    ordered = sorted(facts, key=lambda one: one.order)
    for number, start in enumerate(ordered):
        first: dict[str, Fact] = {}
        for fact in ordered[number:]:
            if fact.at - start.at > within:
                break
            first.setdefault(fact.subject, fact)
        if len(first) == len(gpus):
            return list(first.values())
    return []


def _own(fact: Fact) -> bool:
    """Whether a fact speaks of its own card failing."""
    if fact.kind is FactKind.HEALTH:
        return fact.name in _OWN_HEALTH
    return fact.role in _OWN


def _shared(fact: Fact) -> bool:
    """Whether a fact may be the doing of another card, a switch or the driver."""
    if fact.kind is FactKind.HEALTH:
        return fact.name in SHARED_HEALTH
    return fact.role is Role.LINK or (fact.role is Role.RECOVERY and fact.hard is not None)
