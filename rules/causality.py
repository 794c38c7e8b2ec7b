"""Cause before victim on one host: which event explains which, across the GPUs of a node.

A GPU that only shows what a broken neighbour, port or switch does to it is never accused.
"""

from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from evidence.decisions import Cause, Suspicion
from rules.catalog import Role
from rules.gathering import hardware, is_wish, root_of
from rules.host_state import Fact, FactKind, Incident
from rules.scene import Culprit, Scene
from rules.tables import Rules
from rules.thresholds import Thresholds
from rules.widening import NODE_LOST, is_gpu, is_lost

__all__ = [
    "KILLED",
    "chain_confirmed",
    "culprit_beside",
    "culprits",
    "failed_port",
    "is_whole_switch",
    "killed_process",
    "may_be_above",
    "peer_at_fault",
    "with_implied",
]

#: How a process can die without its card's doing, by the fact that tells of it.
KILLED = {
    "oom": "The host ran out of memory and killed a process",
    "segfault": "A process on the host died of a fault of its own",
}
#: What the neighbours of a lost GPU see: dead links, poison, faults on its memory.
_FROM_LOST = frozenset(
    {Role.LINK, Role.CONTAINED, Role.CONSEQUENCE, Role.APPLICATION, Role.RECOVERY}
)
#: What the neighbours of a GPU with broken memory see: its poison.
_FROM_MEMORY = frozenset({Role.CONTAINED, Role.CONSEQUENCE, Role.APPLICATION})
#: What the GPUs on a broken switch see.
_FROM_SWITCH = frozenset({Role.LINK, Role.CONSEQUENCE, Role.APPLICATION, Role.RECOVERY})

_NOTHING: frozenset[Role] = frozenset()

#: The driver saw the memory error and acted on it: nothing later takes that back.
_SEEN = frozenset({48, 171, 172})
_ACTED = frozenset({63, 64, 94, 95, 171, 172})


def chain_confirmed(facts: Sequence[Fact]) -> bool:
    """Whether the driver reported one memory fault by two of its units on this GPU."""
    codes = {fact.code for fact in facts if fact.kind is FactKind.XID}
    return any(codes & (_ACTED - {seen}) for seen in codes & _SEEN)


def with_implied(facts: Sequence[Fact], rules: Rules) -> list[Fact]:
    """Facts, with those that name a cause whose own line is missing standing in for it."""
    codes = {fact.code for fact in facts if fact.kind is FactKind.XID}
    out = []
    for fact in facts:
        row = None if fact.caused_by is None else rules.xids.get(fact.caused_by)
        if row is None or row.code in codes or row.weight <= fact.weight:
            out.append(fact)
            continue
        codes.add(row.code)
        words = f"Xid {row.code} ({row.title}), which Xid {fact.code} names as its cause"
        implied = replace(
            fact,
            words=words,
            role=row.role,
            rank=row.rank,
            weight=row.weight,
            cause=row.cause,
            recovery=row.recovery,
        )
        out.append(implied)
    return out


def failed_port(incident: Incident, root: Fact, scene: Scene) -> Fact | None:
    """The PCIe port whose error came shortly before this GPU left the bus, when it is its alone.

    Which port is above which GPU is not in the records: with several GPUs lost at that time, or
    ports of several domains failing, nobody can say, and the GPU keeps the blame.
    """
    if not is_lost(root):
        return None
    before = timedelta(seconds=scene.limits.port_before_lost_s)
    lag = timedelta(seconds=scene.limits.settle_s)
    for other in scene.others(incident):
        if is_gpu(other.subject) and any(
            is_lost(fact) and abs(fact.at - root.at) <= before for fact in other.facts
        ):
            return None
    ports = [
        fact
        for other in scene.others(incident)
        if other.subject.startswith("port:")
        and may_be_above(other.subject.removeprefix("port:"), incident.subject)
        for fact in other.facts
        if root.at - before <= fact.at <= root.at + lag
    ]
    return min(ports, key=lambda fact: fact.order, default=None)


def may_be_above(port: str, gpu: str) -> bool:
    """Whether a port can be above a GPU at all: in its PCI domain, on a bus of a lower number.

    A bridge numbers the buses behind it after its own.
    """
    domain, bus = _bus(port)
    below, below_bus = _bus(gpu)
    return domain == below and bus < below_bus


def _bus(address: str) -> tuple[str, str]:
    """Domain and bus of ``0000:3b:00``; two hex digits of one case compare as numbers do."""
    domain, _, bus = address.rpartition(":")[0].rpartition(":")
    return domain, bus


def killed_process(incident: Incident, suspicion: Suspicion | None, scene: Scene) -> Fact | None:
    """The process that died on the host before a rank was missed, if its kernel tells of one.

    What a rank threw about its own card is not taken back by it.
    """
    if suspicion is None or suspicion.cause is not Cause.UNKNOWN:
        return None
    before = timedelta(seconds=scene.limits.collective_before_s)
    ended = [
        fact
        for other in scene.others(incident)
        if other.subject == "node:"
        for fact in other.facts
        if fact.name in KILLED and suspicion.at - before <= fact.at <= suspicion.observed_at
    ]
    return max(ended, key=lambda fact: fact.order, default=None)


def is_whole_switch(incident: Incident, incidents: Sequence[Incident], limits: Thresholds) -> bool:
    """Whether an NVSwitch is at fault, and not the one link that it and a GPU complain of.

    An error of one port and that of the GPU at its other end do not tell which end it was.
    """
    fatal = [fact for fact in incident.facts if fact.fatal]
    if any(fact.own for fact in fatal) or len({fact.link for fact in fatal}) > 1:
        return True
    near = timedelta(seconds=limits.propagation_s)
    saw = {
        other.subject
        for other in incidents
        if is_gpu(other.subject)
        and any(
            fact.role is Role.LINK and any(abs(fact.at - one.at) <= near for one in fatal)
            for fact in other.facts
        )
    }
    return len(saw) > 1


def culprits(incidents: Sequence[Incident], limits: Thresholds) -> tuple[Culprit, ...]:
    """The incidents of a host that can make victims of its other GPUs."""
    found = []
    for incident in incidents:
        accused = [fact for fact in incident.facts if hardware(fact)]
        if not accused:
            continue
        root = root_of(accused)
        if incident.subject == NODE_LOST:
            found.append(Culprit(incident, root, _NOTHING, "all GPUs of the node failed together"))
        elif incident.subject.startswith("switch:"):
            if not root.fatal or not is_whole_switch(incident, incidents, limits):
                continue
            words = f"{root.words} on NVSwitch {incident.subject.partition(':')[2]}"
            found.append(Culprit(incident, root, _FROM_SWITCH, words))
        elif not is_gpu(incident.subject):
            continue
        elif is_lost(root):
            found.append(
                Culprit(incident, root, _FROM_LOST, f"GPU {incident.subject} was lost first")
            )
        elif root.role is Role.HARDWARE and (root.cause is Cause.GPU_MEMORY or root.own):
            words = f"GPU {incident.subject} had the memory fault whose poison arrived here"
            found.append(Culprit(incident, root, _FROM_MEMORY, words))
    return tuple(found)


def culprit_beside(
    incident: Incident, facts: Sequence[Fact], scene: Scene
) -> tuple[Incident, str] | None:
    """The incident whose victim this GPU is, with words for it; None when it speaks for itself."""
    if not scene.culprits:
        return None
    for culprit in scene.culprits:
        if culprit.incident.subject == NODE_LOST and any(
            fact.subject == incident.subject for fact in culprit.incident.facts
        ):
            return culprit.incident, culprit.words
    roles = {fact.role for fact in facts if fact.kind is FactKind.XID}
    if not roles or any(_of_its_own(fact) for fact in facts):
        return None
    first = min(fact.at for fact in facts)
    for culprit in scene.culprits:
        if culprit.incident is not incident and roles <= culprit.reaches:
            gap = (first - culprit.root.at).total_seconds()
            if _reached(culprit, roles, gap, scene.limits):
                return culprit.incident, culprit.words
    return None


def _of_its_own(fact: Fact) -> bool:
    """Whether a GPU has something against it that no neighbour does to it.

    A wish of the driver for a reset is what a victim gets too.
    """
    return hardware(fact) and fact.kind is not FactKind.XID and not is_wish(fact)


def peer_at_fault(incident: Incident, root: Fact, scene: Scene) -> tuple[Incident, str] | None:
    """Who is meant where a GPU reports a fault of the device at the other end of its link.

    It is the one the line names, else the only GPU or NVSwitch of the node with a fault of its own
    at that moment; None where none or several had one.
    """
    near = timedelta(seconds=scene.limits.propagation_s)
    found = [
        other
        for other in scene.others(incident)
        if (is_gpu(other.subject) or other.subject.startswith("switch:"))
        and root.peer_pci in (None, other.subject)
        and any(_own_fault(fact) and abs(fact.at - root.at) <= near for fact in other.facts)
    ]
    if len(found) != 1:
        return None
    subject = found[0].subject
    name = f"GPU {subject}" if is_gpu(subject) else f"NVSwitch {subject.partition(':')[2]}"
    return found[0], f"{name}, at the other end, reported a fault of its own"


def _own_fault(fact: Fact) -> bool:
    if fact.peer or not hardware(fact):
        return False
    own_end = fact.role is Role.LINK and fact.weight >= _CLEARLY
    return (
        fact.role in (Role.LOST, Role.HARDWARE)
        or fact.name == "gpu-lost"
        or own_end
        or (fact.kind is FactKind.SWITCH and fact.fatal)
    )


#: A link error of this weight is about the link itself, not what followed from elsewhere.
_CLEARLY = 0.4


def _reached(culprit: Culprit, roles: set[Role | None], gap_s: float, limits: Thresholds) -> bool:
    if culprit.reaches is _FROM_SWITCH:
        return Role.LINK in roles and abs(gap_s) <= limits.propagation_s
    lost = culprit.reaches is _FROM_LOST
    return -limits.settle_s <= gap_s <= (limits.peer_window_s if lost else limits.propagation_s)
