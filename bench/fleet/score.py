"""How what was commanded stands to what is true.

A command is right when it isolates exactly the part that an incident's truth names. One for
something inside that part is `narrow` when the whole part is isolated too, or when the evidence
does not suffice to see the whole: counted apart, neither right nor wrong. Everything else that
takes hardware out of service is a false isolation, also when it takes out more than the part.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from evidence.decisions import Action, Command, Domain, Verdict
from fleet.cast import Cast
from fleet.sampled import AFTER_S

__all__ = ["Row", "Score", "Told", "score"]

#: How long after an incident's last step something may first be said about it.
_AFTER = timedelta(seconds=AFTER_S)
_BEFORE = timedelta(seconds=120)
_OF_A_NODE = {"gpu", "mig", "nvlink"}
_ORDER = ("localized", "software", "suspected", "insufficient", "victim", "recovered")


@dataclass(frozen=True)
class Told:
    """One incident, the last word on each thing concluded about it, and what was commanded."""

    cast: Cast
    verdicts: tuple[Verdict, ...] = ()
    commands: tuple[Command, ...] = ()
    held: tuple[Command, ...] = ()

    @cached_property
    def right(self) -> tuple[Command, ...]:
        """Commands that isolate exactly the part at fault."""
        if not self.cast.truth.isolate:
            return ()
        return tuple(one for one in self.commands if is_part(self.cast, one.domain))

    @cached_property
    def narrow(self) -> tuple[Command, ...]:
        """Commands for something inside the part at fault.

        They are excused where that is isolated as a whole, or nobody can know of the whole.
        """
        if not self.cast.truth.isolate or (self.cast.truth.sufficient and not self.right):
            return ()
        return tuple(one for one in self.commands if _is_inside(self.cast, one.domain))

    @cached_property
    def false(self) -> tuple[Command, ...]:
        """Commands that isolate anything else."""
        known = {one.id for one in (*self.right, *self.narrow)}
        return tuple(one for one in self.commands if one.id not in known)

    @property
    def due(self) -> bool:
        """Whether the part should have been isolated, the evidence being enough."""
        return self.cast.truth.isolate and self.cast.truth.sufficient

    @cached_property
    def verdict(self) -> Verdict | None:
        """The surest verdict; one about the part at fault before any other."""
        return min(
            self.verdicts,
            key=lambda one: (
                not is_part(self.cast, one.domain),
                _ORDER.index(one.status),
                -one.confidence,
            ),
            default=None,
        )

    @property
    def undecided(self) -> bool:
        """Whether nothing was concluded."""
        return self.verdict is None or self.verdict.status == "insufficient"

    def wrong(self) -> Iterator[str]:
        """Each wrong answer in one line, with the reason that was given for it."""
        variant = f" ({self.cast.variant.name})" if self.cast.variant else ""
        head = f"{self.cast.scenario.name}{variant} #{self.cast.number}"
        for command in self.false:
            yield f"{head}: isolated {command.domain_id} for {command.cause}: {command.reason}"
        if not self.due or self.right:
            return
        held = [one for one in self.held if is_part(self.cast, one.domain)]
        if held:
            yield f"{head}: held {self.cast.domain()}: {held[0].held}"
        elif self.verdict is None:
            yield f"{head}: missed {self.cast.domain()}: nothing was said"
        else:
            said = f"{self.verdict.domain.id} {self.verdict.status}: {self.verdict.reason}"
            yield f"{head}: missed {self.cast.domain()}: {said}"


@dataclass(slots=True)
class Row:
    """The sums of one kind of part: incidents of it, and commands for it."""

    incidents: int = 0
    due: int = 0
    found: int = 0
    undecided: int = 0
    right: int = 0
    narrow: int = 0
    false: int = 0

    @property
    def precision(self) -> float | None:
        """Share of the commands that are right; None where there was none."""
        decided = self.right + self.false
        return self.right / decided if decided else None

    @property
    def recall(self) -> float | None:
        """Share of the incidents with enough evidence that were found; None where none is due."""
        return self.found / self.due if self.due else None


@dataclass(slots=True)
class Score:
    """Many incidents; ``stray`` are commands that are about none of them."""

    told: list[Told] = field(default_factory=list)
    stray: list[Command] = field(default_factory=list)

    def by_part(self) -> dict[str, Row]:
        """The sums by kind of domain: incidents by what is true, commands by what they name."""
        rows: dict[str, Row] = defaultdict(Row)
        for one in self.told:
            row = rows[one.cast.truth.part]
            row.incidents += 1
            row.due += one.due
            row.found += bool(one.due and one.right)
            row.undecided += one.undecided
            for command in one.right:
                rows[str(command.domain.kind)].right += 1
            for command in one.narrow:
                rows[str(command.domain.kind)].narrow += 1
        for command in self.false:
            rows[str(command.domain.kind)].false += 1
        return dict(sorted(rows.items()))

    @property
    def false(self) -> list[Command]:
        """Every command that isolates what is not at fault."""
        return [command for one in self.told for command in one.false] + self.stray

    def confusion(self) -> Counter[tuple[str, str]]:
        """How often a cause was called what: (true cause, cause and status of the verdict)."""
        return Counter((str(one.cast.truth.cause), _called(one.verdict)) for one in self.told)

    @property
    def precision(self) -> float:
        """Share of the isolating commands that are right."""
        right = sum(len(one.right) for one in self.told)
        return right / (right + len(self.false)) if right + len(self.false) else 1.0

    @property
    def recall(self) -> float:
        """Share of the incidents with enough evidence whose part was isolated."""
        due = [one for one in self.told if one.due]
        return sum(bool(one.right) for one in due) / len(due) if due else 1.0

    @property
    def insufficient(self) -> float:
        """Share of all incidents of which nothing was concluded."""
        return sum(one.undecided for one in self.told) / len(self.told) if self.told else 0.0

    @property
    def cause_right(self) -> float:
        """Share of the incidents found whose cause was named rightly too."""
        found = [one for one in self.told if one.due and one.right]
        named = sum(
            any(one.cast.truth.cause == command.cause for command in one.right) for one in found
        )
        return named / len(found) if found else 1.0

    def wrong(self) -> list[str]:
        """Every wrong answer in one line."""
        lines = [line for one in self.told for line in one.wrong()]
        return lines + [f"for nothing: isolated {c.domain_id}: {c.reason}" for c in self.stray]


def _called(verdict: Verdict | None) -> str:
    return "nothing said" if verdict is None else f"{verdict.cause} ({verdict.status})"


def is_part(cast: Cast, domain: Domain) -> bool:
    """Whether a domain is the part at fault: also by its UUID, and a link by its other end."""
    if domain.kind == "link" and cast.truth.part == "link":
        ends = ((cast.port.switch, cast.port.number), (cast.port.hca_guid, 1))
        return (domain.switch, domain.port) in ends
    if domain.kind == "gpu" and cast.truth.part == "gpu" and domain.pci is None:
        return domain.uuid == cast.it.uuid
    return domain.id == cast.domain()


def _is_inside(cast: Cast, domain: Domain) -> bool:
    it = cast.it
    match cast.truth.part:
        case "gpu":
            return domain.kind in _OF_A_NODE - {"gpu"} and (domain.host, domain.pci) == (
                it.host,
                it.pci,
            )
        case "node":
            return domain.kind in _OF_A_NODE and domain.host == it.host
        case "rack":
            hosts = {host.name for host in cast.plant.racks[cast.host.rack]}
            return domain.kind in {*_OF_A_NODE, "node"} and domain.host in hosts
        case "switch":
            return domain.kind == "link" and domain.switch == cast.port.switch
        case _:
            return False


class _Index:
    """Which incidents something can be about, by its names and its time."""

    def __init__(self, casts: Sequence[Cast]) -> None:
        self._named: dict[str, list[Cast]] = defaultdict(list)
        for cast in casts:
            names = {host.name for host in cast.hosts} | {cast.host.rack, cast.job}
            ends = {guid for port in cast.host.ports for guid in (port.switch, port.hca_guid)}
            for name in names | ends:
                self._named[name].append(cast)

    def about(self, domain: Domain, host: str | None, at: datetime) -> list[Cast]:
        names = (host, domain.host, domain.switch, domain.rack, domain.job)
        found = {cast.number: cast for name in names if name for cast in self._named.get(name, ())}
        return [cast for cast in found.values() if _is_during(cast, at)]


def _is_during(cast: Cast, at: datetime) -> bool:
    end = cast.begin + timedelta(seconds=cast.scenario.lasts_s)
    return cast.begin - _BEFORE <= at <= end + _AFTER


def score(casts: Sequence[Cast], verdicts: Iterable[Verdict], commands: Iterable[Command]) -> Score:
    """Put each verdict and command to the incident it is about.

    What is concluded later about the same evidence belongs to when it was first spoken of, and
    that a part is well again does not unsay what it had.
    """
    index = _Index(casts)
    first: dict[str, datetime] = {}
    last: dict[str, Verdict] = {}
    for verdict in verdicts:
        first.setdefault(verdict.incident, verdict.decided_at)
        if verdict.status != "recovered" or verdict.incident not in last:
            last[verdict.incident] = verdict
    heard: dict[int, list[Verdict]] = defaultdict(list)
    for verdict in last.values():
        for cast in index.about(verdict.domain, verdict.host, first[verdict.incident]):
            heard[cast.number].append(verdict)
    given: dict[int, list[Command]] = defaultdict(list)
    result = Score()
    for command in commands:
        if command.action is not Action.ISOLATE:
            continue
        at = first.get(command.incident, command.issued_at)
        about = index.about(command.domain, command.domain.host, at)
        wanted = [cast for cast in about if is_part(cast, command.domain)]
        for cast in (wanted or about)[:1]:
            given[cast.number].append(command)
        if not about and not command.held:
            result.stray.append(command)
    for cast in casts:
        acted = tuple(one for one in given[cast.number] if not one.held)
        held = tuple(one for one in given[cast.number] if one.held)
        result.told.append(Told(cast, tuple(heard[cast.number]), acted, held))
    return result
