"""Verdicts about what is not one GPU: the node, its switches and ports, a job, a rank, a link."""

from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from evidence.decisions import Cause, Domain, DomainKind, Recovery, Says, Status, Witness
from rules.catalog import Role
from rules.causality import KILLED, is_whole_switch, may_be_above
from rules.gathering import root_of
from rules.host_state import Fact, FactKind, Incident
from rules.scene import Judgement, Scene, gpu_domain, node_domain, witness
from rules.verdict_link import blamed_link, judge_link
from rules.widening import NODE_LOST, is_gpu, is_lost, subject_gpus
from rules.witnesses import listed

__all__ = [
    "judge_boots",
    "judge_node",
    "judge_node_lost",
    "judge_port",
    "judge_service",
    "judge_suspicion",
    "judge_switch",
]


def judge_node_lost(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement:
    """All GPUs of a node failing together: the cause is above them, and often somebody's work."""
    root = root_of(facts)
    wait = timedelta(seconds=scene.limits.service_wait_s)
    gpus = sorted({fact.subject for fact in incident.facts})
    over = scene.now - root.at >= wait
    ours = all(fact.name == "nvml-error" for fact in incident.facts)
    stays = (
        over
        and not ours
        and (scene.lasts(NODE_LOST, root.at + wait) or _cannot_come_back(incident, scene))
    )
    minutes = scene.limits.service_wait_s / 60
    tail = f" and still do after {minutes:.0f} minutes" if stays else ""
    return Judgement(
        root=root,
        status=Status.LOCALIZED if stays else Status.SUSPECTED,
        cause=Cause.NODE,
        domain=node_domain(scene.state),
        confidence=0.85 if stays else 0.5,
        reason=f"All {len(gpus)} GPUs of {scene.state.host or 'the node'} failed within a second"
        f"{tail}, so the cause is above them ({_OURS if ours else _ABOVE}): {root.words}.",
        recovery=Recovery.REBOOT_NODE,
        testimony=tuple(witness(fact) for fact in _one_each(facts)),
        victims=tuple(gpu_domain(scene.state, gpu) for gpu in gpus),
        recheck=None if over else root.at + wait,
    )


def _cannot_come_back(incident: Incident, scene: Scene) -> bool:
    """Whether the kernel saw all cards leave the bus on a node whose NVML nobody reads.

    Nothing but a restart of the node brings them back, and nothing will say that they are.
    """
    restarted = any(at >= incident.first for at in scene.state.boots)
    blind = scene.state.frames_at is None
    return blind and not restarted and all(is_lost(fact) for fact in incident.facts)


_ABOVE = "power, PCIe switch, driver"
#: An unknown error of every card at once is what a container gets that lost its device files.
_OURS = "the driver, or the agent's own access to the devices, which a look from the host tells"


def _one_each(facts: Sequence[Fact]) -> list[Fact]:
    """The root-most fact of each witness."""
    by_witness = {fact.witness: fact for fact in sorted(facts, key=lambda f: f.rank)}
    return [by_witness[one] for one in Witness if one in by_witness]


def judge_service(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement:
    """NVML or a service of the node is down: mostly somebody's work, until it lasts.

    An answer that may be about the agent's own place never accuses the node, however long it
    lasts, nor does one of a node on which no GPU was ever seen.
    """
    root = max(facts, key=lambda fact: fact.order)
    first = min(fact.at for fact in facts)
    wait = timedelta(seconds=scene.limits.service_wait_s)
    over = scene.now - first >= wait
    lasts = over and scene.lasts(incident.subject, first + wait)
    ours = scene.state.nvml_error in _OF_THE_AGENT
    stays = lasts and not ours and bool(subject_gpus(scene.state))
    minutes = scene.limits.service_wait_s / 60
    tail = f", for more than {minutes:.0f} minutes" if lasts else ""
    whose = (
        "that may be the agent's own (its rights, its devices, a driver library that it loaded"
        " before an upgrade): look from the host, and start the agent anew"
        if ours
        else "a matter of the driver or a service, not of one GPU"
    )
    return Judgement(
        root=root,
        status=Status.LOCALIZED if stays else Status.SUSPECTED,
        cause=Cause.NODE,
        domain=node_domain(scene.state),
        confidence=0.8 if stays else 0.4,
        reason=f"{scene.state.host or 'The node'}: {root.words}{tail}; {whose}.",
        recovery=Recovery.RESTART_SERVICE,
        testimony=(witness(root),),
        recheck=None if over else first + wait,
    )


#: NVML codes of a whole node that the agent's own process, container or rights can be the reason
#: for. Source: nvml.h: 4 no permission, 12 no library, 13 no such function, 17 operating system
#: (device blocked), 18 library and driver of different versions, 999 unknown (in a container
#: without its device files).
_OF_THE_AGENT = frozenset({4, 12, 13, 17, 18, 999})


def judge_switch(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement:
    """An NVSwitch of the node: sure when GPUs report the same moment from the other side."""
    root = root_of(facts)
    pci = incident.subject.partition(":")[2]
    domain = node_domain(scene.state, switch=pci, port=root.link)
    near = timedelta(seconds=scene.limits.propagation_s)
    beside = _lost_before(incident, root, scene)
    if beside is not None:
        return Judgement(
            root=root,
            status=Status.VICTIM,
            cause=Cause.NVSWITCH,
            domain=domain,
            confidence=0.6,
            reason=f"NVSwitch {pci} only reports its dead end ({root.words}): GPU"
            f" {beside.subject} was lost.",
            testimony=(witness(root),),
            victim_of=beside.id or None,
        )
    gpus = sorted(
        other.subject
        for other in scene.others(incident)
        if is_gpu(other.subject)
        and any(f.role is Role.LINK and abs(f.at - root.at) <= near for f in other.facts)
    )
    unknown = root.kind is FactKind.UNKNOWN_CODE
    status = Status.INSUFFICIENT if unknown else Status.SUSPECTED
    whole = is_whole_switch(incident, scene.state.incidents, scene.limits)
    if root.fatal and gpus and whole:
        status = Status.LOCALIZED
    named = f", and {len(gpus)} of its GPUs saw the link fail" if gpus else ""
    return Judgement(
        root=root,
        status=status,
        cause=root.cause if whole or not gpus else Cause.NVLINK,
        domain=domain,
        confidence=0.7 if status is Status.LOCALIZED else round(0.6 * root.weight, 3),
        reason=f"NVSwitch {pci} of {scene.state.host or 'the node'}: {listed(facts)}{named}.",
        recovery=root.recovery,
        testimony=(witness(root),),
        missing=() if gpus else ("Xid 74 or 144 to 149 of a GPU on that switch",),
        victims=tuple(gpu_domain(scene.state, gpu) for gpu in gpus),
    )


def _lost_before(incident: Incident, root: Fact, scene: Scene) -> Incident | None:
    peer = timedelta(seconds=scene.limits.peer_window_s)
    lag = timedelta(seconds=scene.limits.settle_s)
    for other in scene.others(incident):
        for fact in other.facts if is_gpu(other.subject) else ():
            if is_lost(fact) and -lag <= root.at - fact.at <= peer:
                return other
    return None


def judge_port(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement | None:
    """A PCIe port: silent where the GPU below it is lost, since that verdict names the port."""
    root = root_of(facts)
    after = timedelta(seconds=scene.limits.port_before_lost_s)
    lag = timedelta(seconds=scene.limits.settle_s)
    for other in scene.others(incident):
        for fact in other.facts if is_gpu(other.subject) else ():
            below = may_be_above(incident.subject.partition(":")[2], other.subject)
            if is_lost(fact) and below and -lag <= fact.at - root.at <= after:
                return _port_of(incident, root, other, scene) if incident.revision else None
    return Judgement(
        root=root,
        status=Status.SUSPECTED,
        cause=Cause.PCIE,
        domain=node_domain(scene.state, pci=incident.subject.partition(":")[2]),
        confidence=0.2,
        reason=f"{scene.state.host or 'The node'}: {listed(facts)}; no GPU was lost with it.",
        recovery=Recovery.DIAGNOSE,
        testimony=(witness(root),),
        missing=("which device is below that port",),
    )


def _port_of(incident: Incident, root: Fact, gpu: Incident, scene: Scene) -> Judgement:
    return Judgement(
        root=root,
        status=Status.VICTIM,
        cause=Cause.PCIE,
        domain=node_domain(scene.state, pci=incident.subject.partition(":")[2]),
        confidence=0.6,
        reason=f"{root.words}: told with GPU {gpu.subject}, which left the bus after it.",
        testimony=(witness(root),),
        victim_of=gpu.id or None,
    )


def judge_boots(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement:
    """A node that keeps starting."""
    del incident
    root = max(facts, key=lambda fact: fact.order)
    return Judgement(
        root=root,
        status=Status.SUSPECTED,
        cause=Cause.NODE,
        domain=node_domain(scene.state),
        confidence=0.4,
        reason=f"{scene.state.host or 'The node'} {root.words}, and nobody announced it.",
        recovery=Recovery.DIAGNOSE,
        testimony=(witness(root),),
    )


def judge_node(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement | None:
    """The host itself: machine checks accuse it; a killed process alone is nobody's fault."""
    accused = [fact for fact in facts if fact.weight > 0 and fact.kind is not FactKind.COLLECTIVE]
    stalls = [fact for fact in facts if fact.suspicion is not None]
    if accused:
        root = root_of(accused)
        return Judgement(
            root=root,
            status=Status.SUSPECTED,
            cause=root.cause,
            domain=node_domain(scene.state),
            confidence=round(0.6 * root.weight, 3),
            reason=f"{scene.state.host or 'The node'}: {listed(accused)}.",
            recovery=root.recovery,
            testimony=tuple(witness(fact) for fact in _one_each([*accused, *stalls])),
        )
    if not stalls:
        return None
    told = judge_suspicion(incident, stalls, scene)
    killed = [fact for fact in facts if fact.name in KILLED]
    if told is None or not killed or told.status is Status.VICTIM:
        return told
    why = KILLED[killed[0].name]
    return replace_judgement(told, f"{why}: {killed[0].words}.")


def replace_judgement(told: Judgement, reason: str) -> Judgement:
    """The judgement, taken back to software for the reason given."""
    return Judgement(
        root=told.root,
        status=Status.SOFTWARE,
        cause=Cause.SOFTWARE,
        domain=told.domain,
        confidence=0.8,
        reason=reason,
        recovery=Recovery.RESTART_APP,
        testimony=told.testimony,
        victims=told.victims,
        job=told.job,
    )


def judge_suspicion(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement | None:
    """What another stage concluded about a job, a rank without a card, a host or a link."""
    if any(fact.kind is FactKind.FABRIC for fact in facts):
        return judge_link(incident, facts, scene)
    said = [fact for fact in facts if fact.suspicion is not None]
    last = max(said, key=lambda f: (f.suspicion.observed_at, f.order), default=None)  # type: ignore[union-attr]
    if last is None or last.suspicion is None:
        return None
    one = last.suspicion
    if one.status is Status.VICTIM:
        return None  # named in the culprit's verdict
    if one.domain.kind is DomainKind.LINK:
        if one.says is Says.BLIND and not incident.revision:
            return None  # an end of a path that failed: a word for what its links tell
        link = blamed_link(incident, scene)
        if link is not None and not incident.revision:
            return None  # named in the link's verdict
    status = one.status
    network = one.domain.kind in (DomainKind.LINK, DomainKind.SWITCH)
    if status in (Status.SUSPECTED, Status.LOCALIZED):
        # One witness of a part that no other witness here can see: it must at least say what.
        named = network or one.cause is not Cause.UNKNOWN
        says_so = named and one.says is Says.ACCUSES
        status = Status.SUSPECTED if says_so else Status.INSUFFICIENT
    missing: tuple[str, ...] = ()
    if status is Status.INSUFFICIENT:
        missing = ("kernel log and NVML snapshots of the GPU it ran on",)
        if one.domain.kind is DomainKind.GPU and one.domain.pci is None:
            missing = ("which GPU the rank used (NCCL's init lines)", *missing)
    return Judgement(
        root=last,
        status=status,
        cause=one.cause if status is not Status.SOFTWARE else Cause.SOFTWARE,
        domain=_placed(one.domain, scene),
        confidence=_SUSPICION_CONFIDENCE[status],
        reason=one.reason or last.words,
        recovery=Recovery.RESTART_APP if status is Status.SOFTWARE else Recovery.NONE,
        testimony=(
            replace(witness(last), says=one.says),
            *(replace(witness(f), says=f.suspicion.says) for f in said if f is not last),  # type: ignore[union-attr]
        )[:3],
        missing=missing,
        victims=one.victims,
        job=one.job,
    )


_SUSPICION_CONFIDENCE = {
    Status.SOFTWARE: 0.8,
    Status.SUSPECTED: 0.4,
    Status.INSUFFICIENT: 0.15,
    Status.RECOVERED: 0.5,
}


def _placed(domain: Domain, scene: Scene) -> Domain:
    if domain.kind is DomainKind.JOB or domain.host not in (None, scene.state.host):
        return domain
    return replace(
        domain, host=domain.host or scene.state.host, rack=domain.rack or scene.state.rack
    )
