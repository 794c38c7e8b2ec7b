"""The verdict about one GPU: root cause, three witnesses, and how sure they make us.

In this order: who else explains it, the driver's own words, hard facts, agreement; what is left is
suspected, insufficient, or, with positive evidence only, software.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from evidence.decisions import Cause, Domain, DomainKind, Recovery, Says, Status, Suspicion, Witness
from rules.catalog import Role
from rules.causality import (
    chain_confirmed,
    culprit_beside,
    failed_port,
    killed_process,
    with_implied,
)
from rules.context import allocation
from rules.gathering import hardware, root_of
from rules.host_state import Fact, FactKind, Incident
from rules.scene import Judgement, Scene, gpu_domain
from rules.widening import NODE_LOST
from rules.witnesses import Hearing, hear, listed

__all__ = ["judge_gpu"]

_ALL = 3
#: Weights are rounded to three digits; sums of them are compared with this much room.
_ROOM = 1e-6
#: A job names who was missing, not why: beside that, the card's own evidence must be of a fault.
#: An early warning (63), an unknown code or a driver's error is none, and ranks hang in software.
_OF_A_FAULT = 0.4
#: Below this weight a kernel fact alone (an unknown code, a driver error) only asks for more.
_SUSPECT_WEIGHT = 0.25


class _Sure(NamedTuple):
    """How far the evidence goes."""

    status: Status
    confidence: float
    hard: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Case:
    """One incident of one GPU, ready to be weighed."""

    incident: Incident
    facts: list[Fact]
    root: Fact
    hearing: Hearing
    port: Fact | None
    repeats: str

    @property
    def accused(self) -> list[Fact]:
        return [fact for fact in self.facts if hardware(fact)]

    @property
    def suspicion(self) -> Suspicion | None:
        said = [fact for fact in self.facts if fact.suspicion is not None]
        last = max(said, key=lambda f: (f.suspicion.observed_at, f.order), default=None)  # type: ignore[union-attr]
        return None if last is None else last.suspicion

    @property
    def has_software(self) -> bool:
        """Whether something positive says that the application did it."""
        if any(f.role is Role.APPLICATION or f.code == _OWN_FAULT for f in self.facts):
            return True
        return self.suspicion is not None and self.suspicion.status is Status.SOFTWARE


#: Xid 43: a channel stopped after its own software's fault, the GPU healthy.
_OWN_FAULT = 43


def judge_gpu(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement | None:
    """Judge the facts (all or some of the incident's) about one GPU; None: nothing to tell."""
    heard = [fact for fact in facts if fact.role is not Role.INFO]
    if not heard:
        return None
    beside = culprit_beside(incident, with_implied(heard, scene.rules), scene)
    case = _case(incident, heard, scene)
    if beside is not None:
        if beside[0].subject == NODE_LOST and not incident.revision:
            return None  # named in the node's verdict
        return _victim(case, scene, *beside)
    if not case.accused and not case.has_software and not case.repeats:
        only_victim = case.suspicion is not None and case.suspicion.status is Status.VICTIM
        if only_victim:
            return _suffers(case, scene)
    sure = _weigh(case, scene)
    if sure is None:
        return None
    cause = _cause(case, sure.status)
    reason = _reason(case, sure, scene)
    suspicion = case.suspicion
    port_refs = () if case.port is None else (case.port.ref,)
    return Judgement(
        root=case.root,
        status=sure.status,
        cause=cause,
        domain=_domain(case, cause, sure.status, scene),
        confidence=sure.confidence,
        reason=reason,
        recovery=_recovery(case, sure.status),
        hard=sure.hard,
        testimony=case.hearing.testimony,
        missing=case.hearing.missing if sure.status is not Status.SOFTWARE else (),
        victims=() if suspicion is None else suspicion.victims,
        job=_job(case, scene),
        refs=(*case.hearing.refs, *port_refs),
    )


def _case(incident: Incident, heard: Sequence[Fact], scene: Scene) -> _Case:
    facts = with_implied(heard, scene.rules)
    accused = [fact for fact in facts if hardware(fact)]
    root = root_of(accused or facts)
    repeats = "" if accused else _repeats(incident.subject, facts, scene)
    hearing = hear(incident.subject, facts, scene.state, root.at, scene.limits, repeats=repeats)
    return _Case(incident, facts, root, hearing, failed_port(incident, root, scene), repeats)


def _repeats(subject: str, facts: Sequence[Fact], scene: Scene) -> str:
    """Words for application errors that follow the GPU rather than the application."""
    if not any(fact.role is Role.APPLICATION for fact in facts):
        return ""
    event = max(fact.at for fact in facts)
    errors = [error for error in scene.state.app_errors if error.at <= event]
    own = [error for error in errors if error.pci == subject]
    elsewhere = {(e.job, e.attempt) for e in errors if e.pci != subject}
    users = {error.user for error in own if (error.job, error.attempt) not in elsewhere}
    if len(users) < scene.limits.repeats_distinct:
        return ""
    return (
        f"application errors under {len(users)} different users or images on this GPU,"
        " its neighbours clean"
    )


# --- Weighing -------------------------------------------------------------------------------------


def _weigh(case: _Case, scene: Scene) -> _Sure | None:
    others = [f for f in case.accused if not f.peer and f.role is not Role.RECOVERY]
    if case.root.peer and not others:
        return _Sure(Status.INSUFFICIENT, 0.2)
    return _certain(case, scene) or _uncertain(case, scene)


def _certain(case: _Case, scene: Scene) -> _Sure | None:
    """Enough to act on, or a threshold of ours with a better explanation."""
    hearing, accused = case.hearing, case.accused
    accusers = hearing.accusers
    hard = [fact for fact in accused if fact.hard is not None]
    if hard:
        why = root_of(hard).words
        return _Sure(Status.LOCALIZED, _bonus(0.9, hearing), hard=True, why=why)
    if chain_confirmed(case.facts):
        return _Sure(
            Status.LOCALIZED,
            _bonus(0.85, hearing),
            why="the driver reported it from two of its units",
        )
    if len(accusers) == _ALL:
        return _Sure(Status.LOCALIZED, 0.97, why="three witnesses agree")
    crossing = next((fact for fact in accused if fact.crossing), None)
    if crossing is not None:
        return _over_threshold(crossing, hearing, scene)
    together = sum(one.weight for one in accusers) >= scene.limits.agree_weight - _ROOM
    own = (one.weight for one in accusers if one.witness is not Witness.COLLECTIVE)
    together = together and max(own, default=0.0) >= _OF_A_FAULT - _ROOM
    if len(accusers) == _ALL - 1 and together and not hearing.anyone_clears:
        return _Sure(Status.LOCALIZED, 0.8, why="two witnesses agree and none clears")
    return None


def _uncertain(case: _Case, scene: Scene) -> _Sure | None:
    """Not enough to act on: suspected, software, or what is missing."""
    hearing = case.hearing
    if Says.ACCUSES in (hearing.kernel.says, hearing.health.says):
        return _suspect(case)
    if hearing.collective.says is Says.ACCUSES:
        return _collective_alone(case, scene)
    if case.has_software:
        return _Sure(Status.SOFTWARE, 0.8 if case.suspicion is not None else 0.7)
    if any(fact.code == _CLEANED_UP for fact in case.facts):
        return _Sure(Status.SOFTWARE, 0.5)
    if case.suspicion is not None and case.suspicion.status is Status.INSUFFICIENT:
        return _Sure(Status.INSUFFICIENT, 0.1)
    return None


#: Xid 45: a channel was torn down, which every end of a process does.
_CLEANED_UP = 45


def _bonus(base: float, hearing: Hearing) -> float:
    """More sure with each further accuser, less with each that clears."""
    others = len(hearing.accusers) - 1
    clearing = sum(one.says is Says.CLEARS for one in hearing.testimony)
    return round(min(0.99, max(0.5, base + 0.05 * others - 0.05 * clearing)), 3)


def _over_threshold(crossing: Fact, hearing: Hearing, scene: Scene) -> _Sure:
    if crossing.name == "over-temperature":
        others = [h for pci, h in scene.state.health.items() if pci != crossing.subject]
        hot = sum(health.hot_since is not None for health in others)
        if hot and 2 * hot >= len(others):
            why = f"{hot} of {len(others)} other GPUs are too hot as well: cooling of the node"
            return _Sure(Status.SUSPECTED, 0.4, why=why)
    return _Sure(Status.LOCALIZED, _bonus(0.75, hearing), why="above the limit set for it")


def _suspect(case: _Case) -> _Sure:
    weight = max(one.weight for one in case.hearing.accusers)
    kernel_only = case.hearing.health.says is not Says.ACCUSES
    if kernel_only and len(case.hearing.accusers) == 1 and _asks_for_more(case):
        return _Sure(Status.INSUFFICIENT, 0.15)
    clearing = sum(one.says is Says.CLEARS for one in case.hearing.testimony)
    return _Sure(Status.SUSPECTED, round(max(0.1, 0.6 * weight - 0.05 * clearing), 3))


def _asks_for_more(case: _Case) -> bool:
    if case.repeats:
        return False
    kinds = {(fact.kind, fact.role) for fact in case.accused}
    return all(
        kind is FactKind.UNKNOWN_CODE or (role is Role.DRIVER) for kind, role in kinds
    ) and all(fact.weight < _SUSPECT_WEIGHT for fact in case.accused)


def _collective_alone(case: _Case, scene: Scene) -> _Sure:
    hearing = case.hearing
    if any(f.role is Role.APPLICATION or f.code == _OWN_FAULT for f in case.facts):
        return _Sure(Status.SOFTWARE, 0.75, why="its own application fault came first")
    if (killed := killed_process(case.incident, case.suspicion, scene)) is not None:
        return _Sure(Status.SOFTWARE, 0.7, why=killed.words)
    if hearing.collective.weight >= scene.limits.strong_collective - _ROOM:
        return _Sure(Status.SUSPECTED, 0.45)
    if hearing.anyone_clears:
        return _Sure(Status.SUSPECTED, 0.15)
    return _Sure(Status.INSUFFICIENT, 0.15)


# --- What it says ---------------------------------------------------------------------------------


def _cause(case: _Case, status: Status) -> Cause:
    if status is Status.SOFTWARE:
        return Cause.SOFTWARE
    if case.accused:
        return _hardware_cause(case, status)
    if case.repeats:
        return Cause.GPU_COMPUTE
    return Cause.UNKNOWN if case.suspicion is None else case.suspicion.cause


def _hardware_cause(case: _Case, status: Status) -> Cause:
    if case.port is not None:
        return Cause.PCIE
    if case.root.name == "over-temperature" and status is Status.SUSPECTED:
        return Cause.FACILITY
    named = [fact for fact in case.accused if fact.cause is not Cause.UNKNOWN]
    if named:
        return root_of(named).cause
    # Out of order until it is reset, whatever the reason: to its users it is lost.
    hard = any(fact.hard is not None for fact in case.accused)
    return Cause.GPU_LOST if hard else Cause.UNKNOWN


def _domain(case: _Case, cause: Cause, status: Status, scene: Scene) -> Domain:
    suspicion = case.suspicion
    rank = None if suspicion is None else suspicion.domain.rank
    domain = gpu_domain(scene.state, case.incident.subject, rank=rank)
    root = case.root
    if root.mig is not None and (status is Status.SOFTWARE or root.role is Role.CONTAINED):
        return replace(domain, kind=DomainKind.MIG, mig=root.mig)
    links = {fact.link for fact in case.facts if fact.role is Role.LINK}
    if cause is Cause.NVLINK and len(links) == 1 and (link := links.pop()) is not None:
        return replace(domain, kind=DomainKind.NVLINK, link=link)
    return domain


def _recovery(case: _Case, status: Status) -> Recovery:
    """What brings it back: replacement first, then the driver's own wish, then the catalog's."""
    if status is Status.SOFTWARE:
        return Recovery.RESTART_APP
    if {fact.hard or fact.name for fact in case.accused} & _REPLACED:
        return Recovery.REPLACE
    if (asked := _asked(case)) is not None:
        return asked
    codes = {fact.code for fact in case.facts if fact.kind is FactKind.XID}
    if _DBE in codes and codes & _REMAPPED:
        return Recovery.DRAIN_RESET
    if case.accused:
        return Recovery.REBOOT_NODE if case.port is not None else case.root.recovery
    return Recovery.DIAGNOSE if status is Status.SUSPECTED else Recovery.NONE


def _asked(case: _Case) -> Recovery | None:
    """The driver's last word about the action (Xid 154), else its flags of 94 or 95."""
    asked = [f for f in case.facts if f.role is Role.RECOVERY and f.recovery is not Recovery.NONE]
    if asked:
        return max(asked, key=lambda fact: fact.order).recovery
    flagged = [f for f in case.accused if f.hard == "driver-reset-required"]
    return root_of(flagged).recovery if flagged else None


_REPLACED = frozenset({"remap-failure", "sram-threshold"})
_REMAPPED = frozenset({63, 64})
_DBE = 48


def _job(case: _Case, scene: Scene) -> str | None:
    if case.suspicion is not None and case.suspicion.job is not None:
        return case.suspicion.job
    user = allocation(scene.state, case.incident.subject, case.root.at)
    return None if user is None else user.job


def _name(case: _Case, scene: Scene) -> str:
    subject = case.incident.subject
    index = (scene.state.names.get(subject) or gpu_domain(scene.state, subject)).index
    number = "" if index is None else f" (index {index})"
    host = f" on {scene.state.host}" if scene.state.host else ""
    return f"GPU {subject}{number}{host}"


_SPOKEN = {Witness.KERNEL: "kernel", Witness.HEALTH: "NVML", Witness.COLLECTIVE: "collective"}


def _reason(case: _Case, sure: _Sure, scene: Scene) -> str:
    hearing = case.hearing
    name = _name(case, scene)
    accused = "; ".join(
        f"{_SPOKEN[one.witness]}: {one.words.rstrip('.')}" for one in hearing.accusers
    )
    why = f" ({sure.why})" if sure.why else ""
    if sure.status is Status.LOCALIZED:
        port = f"; {case.port.words} failed with it" if case.port is not None else ""
        return f"{name} is at fault{why}: {accused}{port}."
    if sure.status is Status.SUSPECTED:
        return f"{name} is suspected{why}: {accused}{_cleared(hearing)}."
    if sure.status is Status.SOFTWARE:
        return _software_reason(case, name, sure)
    missing = ", ".join(hearing.missing)
    asks = f"; it would take the {missing}" if missing else ""
    words = accused or (case.suspicion.reason.rstrip(".") if case.suspicion else case.root.words)
    return f"Not enough to judge {name}: {words}{asks}."


def _software_reason(case: _Case, name: str, sure: _Sure) -> str:
    words = listed(fact for fact in case.facts if fact.kind is FactKind.XID)
    if case.suspicion is not None:
        words = "; ".join(filter(None, (words, sure.why, case.suspicion.reason)))
    return f"The application, not {name}, is to blame: {words.rstrip('.')}."


def _cleared(hearing: Hearing) -> str:
    clears = [_SPOKEN[one.witness] for one in hearing.testimony if one.says is Says.CLEARS]
    return f"; {' and '.join(clears)} found nothing against it" if clears else ""


# --- Victims --------------------------------------------------------------------------------------


def _victim(case: _Case, scene: Scene, culprit: Incident, words: str) -> Judgement:
    said = listed(f for f in case.facts if f.kind is not FactKind.COLLECTIVE)
    return Judgement(
        root=case.root,
        status=Status.VICTIM,
        cause=case.root.cause,
        domain=gpu_domain(scene.state, case.incident.subject),
        confidence=0.6,
        reason=f"{_name(case, scene)} only suffers ({said}): {words}.",
        testimony=case.hearing.testimony,
        victim_of=culprit.id or None,
        job=_job(case, scene),
        refs=(*case.hearing.refs, *(fact.ref for fact in culprit.facts if hardware(fact))),
    )


def _suffers(case: _Case, scene: Scene) -> Judgement | None:
    """A GPU that its job calls a victim: said only where its own log shows what it suffered."""
    said = [f for f in case.facts if f.kind is not FactKind.COLLECTIVE]
    if not said or case.suspicion is None:
        return None
    return Judgement(
        root=case.root,
        status=Status.VICTIM,
        cause=Cause.UNKNOWN,
        domain=gpu_domain(scene.state, case.incident.subject, rank=case.suspicion.domain.rank),
        confidence=0.6,
        reason=f"{_name(case, scene)} only suffers ({listed(said)}): {case.suspicion.reason}",
        testimony=case.hearing.testimony,
        job=_job(case, scene),
        refs=case.hearing.refs,
    )
