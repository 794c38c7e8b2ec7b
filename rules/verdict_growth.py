"""The verdict about a card whose memory errors grow, by the daily analysis of the history.

A trend speaks of weeks. It is no second witness of what the kernel log tells now: the errors that
the log prints are the very ones that were counted, and two early warnings are none the more. So it
has an incident of its own, is ``suspected`` and never more, and adds to nobody's weight.
"""

from collections.abc import Sequence

from evidence.decisions import Cause, Domain, Recovery, Says, Status
from rules.host_state import Fact, Incident
from rules.scene import Judgement, Scene, gpu_domain, witness
from rules.widening import is_gpu, last_word

__all__ = ["GROWTH", "judge_growth"]

#: The word of its subject: ``growth:`` and the card's address, else its UUID.
GROWTH = "growth"


def judge_growth(incident: Incident, facts: Sequence[Fact], scene: Scene) -> Judgement | None:
    """What the last analysis says of the card."""
    last = last_word(facts)
    said = last.suspicion
    if said is None or said.says is not Says.ACCUSES or said.status is Status.SOFTWARE:
        return None
    card = incident.subject.partition(":")[2]
    weak = said.status is Status.INSUFFICIENT
    return Judgement(
        root=last,
        status=Status.INSUFFICIENT if weak else Status.SUSPECTED,
        cause=Cause.GPU_MEMORY if said.cause is Cause.UNKNOWN else said.cause,
        domain=_domain(card, said.domain, scene),
        confidence=0.1 if weak else min(0.4, round(0.6 * last.weight, 3)),
        reason=said.reason or last.words,
        recovery=Recovery.DIAGNOSE,
        testimony=(witness(last),),
        missing=("a fault of the card now: an Xid of its memory, a remap failure of NVML",),
    )


def _domain(card: str, told: Domain, scene: Scene) -> Domain:
    """The card with every name that the host knows, else as the analysis names it."""
    known = is_gpu(card) and (card in scene.state.names or card in scene.state.health)
    return gpu_domain(scene.state, card) if known else told
