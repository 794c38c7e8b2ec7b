"""One incident of one GPU, ready to be weighed: its facts, root, witnesses and repeats."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evidence.decisions import Status, Suspicion, Testimony, Witness
from rules.catalog import Role
from rules.causality import failed_port, with_implied
from rules.degraded import DEGRADED
from rules.gathering import hardware, is_wish, root_of
from rules.host_state import Fact, FactKind, Incident
from rules.repeats import application_repeats, link_repeats
from rules.scene import Scene
from rules.witnesses import Hearing, hear

__all__ = ["OWN_FAULT", "Case", "Sure", "open_case"]

#: Xid 43: a channel stopped after its own software's fault, the GPU healthy.
OWN_FAULT = 43


class Sure(NamedTuple):
    """How far the evidence goes."""

    status: Status
    confidence: float
    hard: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One incident of one GPU; ``accused`` are the facts that speak of hardware at all."""

    incident: Incident
    facts: list[Fact]
    accused: list[Fact]
    root: Fact
    hearing: Hearing
    port: Fact | None
    repeats: str
    one_unit: bool
    link_repeats: str
    link_is_own: bool

    @property
    def suspicion(self) -> Suspicion | None:
        """What the job stage said last of the GPU."""
        said = [fact for fact in self.facts if fact.suspicion is not None]
        last = max(said, key=lambda f: (f.suspicion.observed_at, f.order), default=None)  # type: ignore[union-attr]
        return None if last is None else last.suspicion

    @property
    def has_software(self) -> bool:
        """Whether something positive says that the application did it."""
        if any(f.role is Role.APPLICATION or f.code == OWN_FAULT for f in self.facts):
            return True
        return self.suspicion is not None and self.suspicion.status is Status.SOFTWARE

    @property
    def only_degraded(self) -> bool:
        """Whether all that stands against the GPU is that it is slower than it could be."""
        return bool(self.accused) and all(_degraded(fact) for fact in self.accused)

    @property
    def agreeing(self) -> tuple[Testimony, ...]:
        """The accusers whose words add up: that a card is slow says nothing of why a job broke."""
        health = [fact for fact in self.accused if fact.witness is Witness.HEALTH]
        if not health or not all(_degraded(fact) for fact in health):
            return self.hearing.accusers
        return tuple(one for one in self.hearing.accusers if one.witness is not Witness.HEALTH)


def _degraded(fact: Fact) -> bool:
    return fact.kind is FactKind.HEALTH and fact.name in DEGRADED


def open_case(incident: Incident, heard: Sequence[Fact], scene: Scene) -> Case:
    """Put together what there is to weigh about a GPU; ``heard`` are the facts that count."""
    facts = with_implied(heard, scene.rules)
    accused = [fact for fact in facts if hardware(fact)]
    root = root_of([fact for fact in accused if not is_wish(fact)] or accused or facts)
    subject, state, limits = incident.subject, scene.state, scene.limits
    repeats, unit = ("", False) if accused else application_repeats(subject, facts, state, limits)
    again, own = link_repeats(subject, accused, state, limits)
    hearing = hear(subject, facts, state, root.at, limits, repeats=repeats)
    port = failed_port(incident, root, scene)
    return Case(incident, facts, accused, root, hearing, port, repeats, unit, again, own)
