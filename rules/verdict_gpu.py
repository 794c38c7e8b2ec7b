"""The verdict about one GPU: root cause, three witnesses, and how sure they make us.

In this order: who else explains it, the driver's own words, hard facts, agreement; what is left is
suspected, insufficient, or, with positive evidence only, software.
"""

from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from evidence.decisions import Cause, Domain, DomainKind, Recovery, Says, Status, Testimony, Witness
from evidence.records import Mig
from rules.catalog import Role
from rules.causality import chain_confirmed, culprit_beside, killed_process, peer_at_fault
from rules.context import allocation
from rules.gathering import hardware, is_wish, root_of
from rules.gpu_case import OWN_FAULT, Case, Sure, open_case
from rules.gpu_words import gpu_name, reason_of
from rules.health_flags import OVER
from rules.host_state import Fact, FactKind, Incident
from rules.scene import Judgement, Scene, gpu_domain
from rules.widening import NODE_LOST, SHARED_HEALTH, is_gpu
from rules.witnesses import Hearing, listed

__all__ = ["judge_gpu"]

_ALL = 3
#: Weights are rounded to three digits; sums of them are compared with this much room.
_ROOM = 1e-6
#: A job names who was missing, not why: beside that, the card's own evidence must be of a fault.
#: An early warning (63), an unknown code or a driver's error is none, and ranks hang in software.
_OF_A_FAULT = 0.4
#: Below this weight a kernel fact alone (an unknown code, a driver error) only asks for more.
_SUSPECT_WEIGHT = 0.25


def judge_gpu(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement | None:
    """Judge the facts (all or some of the incident's) about one GPU; None: nothing to tell."""
    heard = [fact for fact in facts if fact.role is not Role.INFO]
    if not heard:
        return None
    case = open_case(incident, heard, scene)
    beside = culprit_beside(incident, case.facts, scene) or _at_the_other_end(case, scene)
    if beside is not None:
        if beside[0].subject == NODE_LOST and not incident.revision:
            return None  # named in the node's verdict
        return _victim(case, scene, *beside)
    if not case.accused and not case.has_software and not case.repeats:
        only_victim = case.suspicion is not None and case.suspicion.status is Status.VICTIM
        if only_victim:
            return _suffers(case, scene)
    return _weighed(case, scene)


def _weighed(case: Case, scene: Scene) -> Judgement | None:
    if case.only_degraded and not case.incident.revision and _all_alike(case, scene):
        return None
    sure = _weigh(case, scene)
    if sure is None:
        return None
    cause = _cause(case, sure.status)
    reason = reason_of(case, sure, scene)
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


# --- Weighing -------------------------------------------------------------------------------------


def _weigh(case: Case, scene: Scene) -> Sure | None:
    if _only_of_its_peer(case):
        end = case.root.peer_pci
        why = f"GPU {end} is at the other end" if end else "which device that is, is not known"
        return Sure(Status.INSUFFICIENT, 0.2, why=why)
    return _certain(case, scene) or _uncertain(case, scene)


def _only_of_its_peer(case: Case) -> bool:
    """Whether the GPU only reports a fault of the device at the other end of a link."""
    return case.root.peer and all(fact.peer or is_wish(fact) for fact in case.accused)


def _at_the_other_end(case: Case, scene: Scene) -> tuple[Incident, str] | None:
    return peer_at_fault(case.incident, case.root, scene) if _only_of_its_peer(case) else None


def _all_alike(case: Case, scene: Scene) -> bool:
    """Whether half of the other GPUs are degraded alike: so is the node built, or so it is fed."""
    names = {fact.name for fact in case.accused}
    others = [h for pci, h in scene.state.health.items() if pci != case.incident.subject]
    alike = sum(any(fact.name in names for fact in health.standing) for health in others)
    return bool(others) and 2 * alike >= len(others)


def _certain(case: Case, scene: Scene) -> Sure | None:
    """Enough to act on, or a threshold of ours with a better explanation."""
    hearing, accused = case.hearing, case.accused
    accusers = _independent(case, scene)
    hard = [fact for fact in accused if fact.hard is not None]
    if hard:
        why = root_of(hard).words
        return Sure(Status.LOCALIZED, _bonus(0.9, hearing), hard=True, why=why)
    if (told := _confirmed(case, accusers)) is not None:
        base, why = told
        return Sure(Status.LOCALIZED, _bonus(base, hearing), why=why)
    crossing = next((fact for fact in accused if fact.crossing), None)
    if crossing is not None:
        return _over_threshold(crossing, hearing, scene)
    together = sum(one.weight for one in accusers) >= scene.limits.agree_weight - _ROOM
    own = (one.weight for one in accusers if one.witness is not Witness.COLLECTIVE)
    # What stands against a card from an earlier day is not what broke this job.
    together = together and bool(accused) and max(own, default=0.0) >= _OF_A_FAULT - _ROOM
    if len(accusers) == _ALL - 1 and together and not hearing.anyone_clears:
        return Sure(Status.LOCALIZED, 0.8, why="two witnesses agree and none clears")
    return None


def _independent(case: Case, scene: Scene) -> tuple[Testimony, ...]:
    """The accusers that do not repeat one another's cause.

    A call that hangs in the driver holds its lock: NVML then stands still on every card, so beside
    a card that failed before, its silence tells nothing of this one.
    """
    health = [fact for fact in case.accused if fact.witness is Witness.HEALTH]
    if not health or not all(fact.name in SHARED_HEALTH for fact in health):
        return case.agreeing
    window = timedelta(seconds=scene.limits.incident_window_s)
    failed_before = any(
        fact.witness is Witness.KERNEL
        and fact.role in (Role.LOST, Role.HARDWARE)
        and timedelta(0) < case.root.at - fact.at <= window
        for other in scene.others(case.incident)
        if is_gpu(other.subject)
        for fact in other.facts
    )
    if not failed_before:
        return case.agreeing
    return tuple(one for one in case.agreeing if one.witness is not Witness.HEALTH)


def _confirmed(case: Case, accusers: Sequence[Testimony]) -> tuple[float, str] | None:
    """How sure several voices make us that say the same, and which."""
    if chain_confirmed(case.facts):
        return 0.85, "the driver reported it from two of its units"
    if case.link_is_own:
        return 0.75, case.link_repeats
    if case.one_unit:
        return 0.75, case.repeats
    if len(accusers) == _ALL:
        return 0.87, "three witnesses agree"
    return None


def _uncertain(case: Case, scene: Scene) -> Sure | None:
    """Not enough to act on: suspected, software, or what is missing."""
    hearing = case.hearing
    if Says.ACCUSES in (hearing.kernel.says, hearing.health.says):
        return _suspect(case)
    if hearing.collective.says is Says.ACCUSES:
        return _collective_alone(case, scene)
    if case.has_software:
        return Sure(Status.SOFTWARE, 0.8 if case.suspicion is not None else 0.7)
    if any(fact.code == _CLEANED_UP for fact in case.facts):
        return Sure(Status.SOFTWARE, 0.5)
    if case.suspicion is not None and case.suspicion.status is Status.INSUFFICIENT:
        return Sure(Status.INSUFFICIENT, 0.1)
    return None


#: Xid 45: a channel was torn down, which every end of a process does.
_CLEANED_UP = 45


def _bonus(base: float, hearing: Hearing) -> float:
    """More sure with each further accuser, less with each that clears."""
    others = len(hearing.accusers) - 1
    clearing = sum(one.says is Says.CLEARS for one in hearing.testimony)
    return round(min(0.99, max(0.5, base + 0.05 * others - 0.05 * clearing)), 3)


def _over_threshold(crossing: Fact, hearing: Hearing, scene: Scene) -> Sure:
    others = [h for pci, h in scene.state.health.items() if pci != crossing.subject]
    if crossing.name == OVER:
        alike = sum(any(fact.name == OVER for fact in health.standing) for health in others)
        if alike and 2 * alike >= len(others):
            why = f"{alike} of {len(others)} other GPUs count as many: they are counted anew"
            return Sure(Status.SUSPECTED, 0.4, why=why)
    if crossing.name == "over-temperature":
        hot = sum(health.hot_since is not None for health in others)
        if hot and 2 * hot >= len(others):
            why = f"{hot} of {len(others)} other GPUs are too hot as well: cooling of the node"
            return Sure(Status.SUSPECTED, 0.4, why=why)
    return Sure(Status.LOCALIZED, _bonus(0.75, hearing), why="above the limit set for it")


def _suspect(case: Case) -> Sure:
    weight = max(one.weight for one in case.hearing.accusers)
    if case.link_repeats:
        return Sure(Status.SUSPECTED, 0.5, why=case.link_repeats)
    kernel_only = case.hearing.health.says is not Says.ACCUSES
    if kernel_only and len(case.hearing.accusers) == 1 and _asks_for_more(case):
        return Sure(Status.INSUFFICIENT, 0.15)
    clearing = sum(one.says is Says.CLEARS for one in case.hearing.testimony)
    return Sure(Status.SUSPECTED, round(max(0.1, 0.6 * weight - 0.05 * clearing), 3))


def _asks_for_more(case: Case) -> bool:
    if case.repeats:
        return False
    kinds = {(fact.kind, fact.role) for fact in case.accused}
    return all(
        kind is FactKind.UNKNOWN_CODE or role in (Role.DRIVER, Role.LINK) for kind, role in kinds
    ) and all(fact.weight < _SUSPECT_WEIGHT for fact in case.accused)


def _collective_alone(case: Case, scene: Scene) -> Sure:
    hearing = case.hearing
    if any(f.role is Role.APPLICATION or f.code == OWN_FAULT for f in case.facts):
        return Sure(Status.SOFTWARE, 0.75, why="its own application fault came first")
    if (killed := killed_process(case.incident, case.suspicion, scene)) is not None:
        return Sure(Status.SOFTWARE, 0.7, why=killed.words)
    if hearing.collective.weight >= scene.limits.strong_collective - _ROOM:
        return Sure(Status.SUSPECTED, 0.45)
    if hearing.anyone_clears:
        return Sure(Status.SUSPECTED, 0.15)
    return Sure(Status.INSUFFICIENT, 0.15)


# --- What it says ---------------------------------------------------------------------------------


def _cause(case: Case, status: Status) -> Cause:
    if status is Status.SOFTWARE:
        return Cause.SOFTWARE
    if case.accused:
        return _hardware_cause(case, status)
    if case.repeats:
        return Cause.GPU_COMPUTE
    return Cause.UNKNOWN if case.suspicion is None else case.suspicion.cause


def _hardware_cause(case: Case, status: Status) -> Cause:
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


def _domain(case: Case, cause: Cause, status: Status, scene: Scene) -> Domain:
    suspicion = case.suspicion
    rank = None if suspicion is None else suspicion.domain.rank
    domain = gpu_domain(scene.state, case.incident.subject, rank=rank)
    if _stays_in_an_instance(case, status) and (mig := _instance(case, scene)) is not None:
        return replace(domain, kind=DomainKind.MIG, mig=mig)
    links = {fact.link for fact in case.facts if fact.role is Role.LINK}
    if cause is Cause.NVLINK and len(links) == 1 and (link := links.pop()) is not None:
        return replace(domain, kind=DomainKind.NVLINK, link=link)
    return domain


def _stays_in_an_instance(case: Case, status: Status) -> bool:
    """Whether a fault can be of one MIG instance alone: an application's, or a contained one.

    A contained error that the driver wants drained and reset is its instance's too, unless the
    driver says that the GPU must be reset now.
    """
    root = case.root
    if status is Status.SOFTWARE or root.role is Role.CONTAINED:
        return True
    others = [fact for fact in case.accused if not is_wish(fact) and fact.code != _CONTAINED]
    return root.code == _CONTAINED and root.recovery is Recovery.DRAIN_RESET and not others


#: Xid 94: an uncorrectable error that stayed with one application.
_CONTAINED = 94


def _instance(case: Case, scene: Scene) -> Mig | None:
    """The MIG instance of the fault: the line's or NVML's own word, else that of its process.

    None where facts of other instances, or of the whole GPU, stand beside it.
    """
    health = scene.state.health.get(case.incident.subject)
    known = {} if health is None else health.instances
    named = {
        fact.order: fact.mig or known.get(str(fact.pid))
        for fact in case.facts
        if fact.kind is FactKind.XID and (fact.role in _OF_AN_INSTANCE or fact.code == _CONTAINED)
    }
    found = [mig for mig in named.values() if mig is not None]
    mine = named.get(case.root.order)
    return mine if mine is not None and all(mig.gi == mine.gi for mig in found) else None


_OF_AN_INSTANCE = frozenset({Role.APPLICATION, Role.CONTAINED, Role.CONSEQUENCE})


def _recovery(case: Case, status: Status) -> Recovery:
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


def _asked(case: Case) -> Recovery | None:
    """The driver's last word about the action (Xid 154), else its flags of 94 or 95."""
    asked = [f for f in case.facts if f.role is Role.RECOVERY and f.recovery is not Recovery.NONE]
    if asked:
        return max(asked, key=lambda fact: fact.order).recovery
    flagged = [f for f in case.accused if f.hard == "driver-reset-required"]
    return root_of(flagged).recovery if flagged else None


_REPLACED = frozenset({"remap-failure", "sram-threshold"})
_REMAPPED = frozenset({63, 64})
_DBE = 48


def _job(case: Case, scene: Scene) -> str | None:
    if case.suspicion is not None and case.suspicion.job is not None:
        return case.suspicion.job
    user = allocation(scene.state, case.incident.subject, case.root.at)
    return None if user is None else user.job


# --- Victims --------------------------------------------------------------------------------------


def _victim(case: Case, scene: Scene, culprit: Incident, words: str) -> Judgement:
    said = listed(f for f in case.facts if f.kind is not FactKind.COLLECTIVE)
    return Judgement(
        root=case.root,
        status=Status.VICTIM,
        cause=case.root.cause,
        domain=gpu_domain(scene.state, case.incident.subject),
        confidence=0.6,
        reason=f"{gpu_name(case, scene)} only suffers ({said}): {words}.",
        testimony=case.hearing.testimony,
        victim_of=culprit.id or None,
        job=_job(case, scene),
        refs=(*case.hearing.refs, *(fact.ref for fact in culprit.facts if hardware(fact))),
    )


def _suffers(case: Case, scene: Scene) -> Judgement | None:
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
        reason=f"{gpu_name(case, scene)} only suffers ({listed(said)}): {case.suspicion.reason}",
        testimony=case.hearing.testimony,
        job=_job(case, scene),
        refs=case.hearing.refs,
    )
