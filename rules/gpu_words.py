"""The sentence of a verdict about one GPU: who accuses it of what, and who does not."""

from evidence.decisions import Says, Status
from rules.gpu_case import Case, Sure
from rules.host_state import FactKind
from rules.scene import Scene, gpu_domain
from rules.witnesses import SPOKEN, Hearing, listed

__all__ = ["gpu_name", "reason_of"]


def gpu_name(case: Case, scene: Scene) -> str:
    """``GPU 0000:3b:00 (index 1) on node7``, as far as it is known."""
    subject = case.incident.subject
    index = (scene.state.names.get(subject) or gpu_domain(scene.state, subject)).index
    number = "" if index is None else f" (index {index})"
    host = f" on {scene.state.host}" if scene.state.host else ""
    return f"GPU {subject}{number}{host}"


def reason_of(case: Case, sure: Sure, scene: Scene) -> str:
    """One sentence for an operator."""
    hearing = case.hearing
    name = gpu_name(case, scene)
    accused = "; ".join(
        f"{SPOKEN[one.witness]}: {one.words.rstrip('.')}" for one in hearing.accusers
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
    return f"Not enough to judge {name}{why}: {words}{asks}."


def _software_reason(case: Case, name: str, sure: Sure) -> str:
    words = listed(fact for fact in case.facts if fact.kind is FactKind.XID)
    if case.suspicion is not None:
        words = "; ".join(filter(None, (words, sure.why, case.suspicion.reason)))
    return f"The application, not {name}, is to blame: {words.rstrip('.')}."


def _cleared(hearing: Hearing) -> str:
    clears = [SPOKEN[one.witness] for one in hearing.testimony if one.says is Says.CLEARS]
    return f"; {' and '.join(clears)} found nothing against it" if clears else ""
