"""Scenario files: one incident as its nodes write it, and the truth about it.

A file is TOML. ``[truth]`` says what is at fault and whether the evidence that is written suffices
to say so. Every other table writes something some seconds after the incident begins:

``[[kernel]]``   a line of a kernel log; with the name of a card in it one a card, else one a host
``[[nccl]]``     a line of a rank's log, or ``say`` a text by name (sayings.toml)
``[[gpu]]``      what NVML reads of a card from then on (fields of GpuSnapshot), or with ``nvml``
                 the code with which it answers for the whole node (0: it is well again)
``[[fabric]]``   what is added to the counters of a port, or what it is from then on
``[[context]]``  what a scheduler or an operator announces
``[[node]]``     ``power`` (``on`` is a new boot), ``agent``, or ``swap`` (a spare card in its slot)

``on`` says which cards, hosts or ranks: ``it`` (the part drawn), ``siblings`` (the other cards of
its node), ``node`` (all of them), ``peer`` (the next card of its node), ``others`` (the job's other
cards), ``rail`` (those of its own rail), ``rest`` (those on other nodes), ``job`` (all of the
job's), ``rack``, ``leaf`` (all behind its switch), ``pick:N`` (N others of the job, drawn).
``{names}`` in a line are filled in by `cast.Cast.names`.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from evidence.decisions import Cause, DomainKind
from evidence.records import ContextKind

__all__ = [
    "CardStep",
    "ContextStep",
    "Job",
    "KernelStep",
    "NodeStep",
    "PortStep",
    "RankStep",
    "Scenario",
    "ScenarioError",
    "Step",
    "Truth",
    "Variant",
    "load",
    "load_all",
]

_SAYINGS = Path(__file__).with_name("sayings.toml")
#: Texts of a rank by name, each of one or more lines.
SAYINGS: dict[str, list[str]] = tomllib.loads(_SAYINGS.read_text(encoding="utf-8"))

_TABLES = ("kernel", "nccl", "gpu", "fabric", "context", "node")
_SOURCES = {"kernel", "nccl", "gpu", "fabric", "inventory", "context"}
_ON = re.compile(r"(?:it|peer|siblings|node|others|rail|rest|job|rack|leaf|pick:[1-9]\d?)\Z")


class ScenarioError(ValueError):
    """A scenario file that cannot be used; one sentence with its name."""


class Truth(Struct, frozen=True, forbid_unknown_fields=True):
    """What is really at fault.

    ``part`` is the kind of domain (``none``: no part of the hardware), ``isolate`` whether it
    should be taken out, ``sufficient`` whether what is written is enough to know; ``why`` says it
    where it is not plain.
    """

    cause: Cause
    part: str = "gpu"
    isolate: bool = True
    sufficient: bool = True
    why: str = ""

    def __post_init__(self) -> None:
        if self.part not in {"none", *DomainKind} - {"job"}:
            raise ValueError(f"there is no part {self.part!r}")
        if self.part == "none" and self.isolate:
            raise ValueError("nothing can be isolated where no part is at fault")


class Job(Struct, frozen=True, forbid_unknown_fields=True):
    """The job that runs on the part: on how many nodes, and whether its ranks' logs are read."""

    nodes: int = 2
    logs: bool = True


class Step(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that is written: when, by whom, how often; ``spread_s`` draws a later moment."""

    after_s: float
    on: str = "it"
    times: int = 1
    every_s: float = 1.0
    spread_s: float = 0.0

    def __post_init__(self) -> None:
        if not _ON.match(self.on):
            raise ValueError(f"nobody is called {self.on!r}")

    @property
    def heard_s(self) -> float:
        """When it first comes to anybody's knowledge."""
        return self.after_s


class KernelStep(Step, frozen=True, kw_only=True):
    """A line of a kernel log; an agent reads it only ``read_s`` after it was written."""

    line: str
    read_s: float = 0.0

    @property
    def heard_s(self) -> float:
        """When the line is first read."""
        return self.after_s + self.read_s


class RankStep(Step, frozen=True, kw_only=True):
    """A line of a rank's log, or a text by its name."""

    line: str | None = None
    say: str | None = None

    def __post_init__(self) -> None:
        Step.__post_init__(self)
        if (self.line is None) == (self.say is None):
            raise ValueError("a step of [[nccl]] has either a line or something to say")
        if self.say is not None and self.say not in SAYINGS:
            raise ValueError(f"nobody can say {self.say!r}")

    def texts(self) -> list[str]:
        """The lines, not yet filled in."""
        return SAYINGS[self.say] if self.say is not None else [self.line or ""]


class CardStep(Step, frozen=True, kw_only=True):
    """What NVML reads of a card from now on, or the code with which it answers for the node."""

    set: dict[str, Any] = field(default_factory=dict)
    nvml: int | None = None


class PortStep(Step, frozen=True, kw_only=True):
    """What becomes of the ports of some nodes: the switch's, the adapter's, or both ends.

    Of the card's own rail, or with ``rails = "all"`` of every rail. ``gone``: the switch itself
    answers no more, or again.
    """

    add: dict[str, int] = field(default_factory=dict)
    set: dict[str, Any] = field(default_factory=dict)
    rails: Literal["own", "all"] = "own"
    end: Literal["switch", "hca", "both"] = "switch"
    gone: bool | None = None


class ContextStep(Step, frozen=True, kw_only=True):
    """What is announced, for how long, and for whom."""

    kind: ContextKind
    for_s: float = 0.0
    image: str | None = None
    owner: str | None = None


class NodeStep(Step, frozen=True, kw_only=True):
    """What becomes of nodes as a whole: their power, their agent, the card in a slot."""

    power: Literal["on", "off"] | None = None
    agent: Literal["on", "off"] | None = None
    swap: bool = False


class Variant(Struct, frozen=True, forbid_unknown_fields=True):
    """The same incident seen worse: without some sources, with a wrong clock, or late.

    ``without`` names sources (kernel, nccl, gpu, fabric, inventory, context), ``skew_s`` is how far
    the clock of the part's node is ahead, ``late_s`` how late its records arrive, ``ranks`` of how
    many ranks the logs are read, ``truth`` what of the truth is then different.
    """

    name: str
    without: tuple[str, ...] = ()
    skew_s: float = 0.0
    late_s: float = 0.0
    ranks: int | None = None
    weight: float = 1.0
    truth: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := set(self.without) - _SOURCES:
            raise ValueError(f"there is no source {min(unknown)!r}")


class Scenario(Struct, frozen=True, forbid_unknown_fields=True):
    """One file. ``weight`` is how often it is drawn among the others of its ``group``.

    ``card`` is what NVML calls the cards, ``mig`` whether the drawn one is cut into instances,
    ``sample_s`` how far apart its nodes and switches are sampled.
    """

    title: str
    truth: Truth
    source: str
    group: Literal["fault", "chatter"] = "fault"
    weight: float = 1.0
    lasts_s: float = 60.0
    sample_s: float = 10.0
    card: str = "NVIDIA H100 80GB HBM3"
    mig: bool = False
    job: Job | None = None
    kernel: tuple[KernelStep, ...] = ()
    nccl: tuple[RankStep, ...] = ()
    gpu: tuple[CardStep, ...] = ()
    fabric: tuple[PortStep, ...] = ()
    context: tuple[ContextStep, ...] = ()
    node: tuple[NodeStep, ...] = ()
    variant: tuple[Variant, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        last_s = max((s.after_s + (s.times - 1) * s.every_s for s in self.steps()), default=0.0)
        if last_s > self.lasts_s:
            raise ValueError(f"it lasts {self.lasts_s:g} s, and something happens after that")
        if self.group == "chatter" and self.truth.isolate:
            raise ValueError("nothing is to be isolated in chatter")

    def steps(self) -> Iterator[Step]:
        """Every step of all tables, in the order in which they are taken."""
        found: list[Step] = [step for table in _TABLES for step in getattr(self, table)]
        return iter(sorted(found, key=lambda step: step.after_s))

    def told(self, variant: Variant | None) -> Truth:
        """The truth as far as a variant lets it be known."""
        if variant is None or not variant.truth:
            return self.truth
        return msgspec.convert(msgspec.to_builtins(self.truth) | variant.truth, Truth)


def load(path: Path) -> Scenario:
    """Read one scenario file; raises ScenarioError."""
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
        scenario = msgspec.convert(plain | {"name": path.stem}, Scenario)
        told = (scenario.told(variant) for variant in scenario.variant)
        for truth in (scenario.truth, *told):
            Cause.known(truth.cause)  # a record may name a cause of tomorrow, a truth may not
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise ScenarioError(f"{path.name}: {error}") from error
    return scenario


def load_all(folder: Path) -> list[Scenario]:
    """Every scenario of a folder, by name; raises ScenarioError where there is none."""
    found = [load(path) for path in sorted(folder.rglob("*.toml"))]
    if not found:
        raise ScenarioError(f"{folder}: no scenario file")
    return found
