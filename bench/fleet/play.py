"""Plays one incident: every line, sample and announcement with its time, true and as written.

Texts are written first and parsed by the collectors' own parsers, as in life; what arrives carries
the time at which it would be in Kafka.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from collectors import kernel, nccl
from evidence.identity import digest
from evidence.records import ContextKind, ContextRecord
from fleet import native
from fleet.cast import Cast
from fleet.plant import Card
from fleet.sampled import BEFORE_S, frames, inventory, looks, sweeps
from fleet.scenario import (
    SAYINGS,
    CardStep,
    ContextStep,
    KernelStep,
    NodeStep,
    PortStep,
    RankStep,
    ScenarioError,
    Step,
)
from fleet.world import World

__all__ = ["Played", "Timed", "play"]

#: From the event to Kafka: what a collector, its batch and the network take.
_DELAY_S = {"kernel": 0.05, "nccl": 0.15, "gpu": 0.1, "fabric": 0.4, "context": 0.1}
_OF_A_CARD = ("{pci}", "{index}", "{root_port}", "{uuid}", "{serial}")
_OF_ONE_CARD = (ContextKind.GPU_RESET, ContextKind.MIG_CHANGE)


@dataclass(frozen=True, slots=True)
class Timed:
    """A record as it arrives in Kafka."""

    at: datetime
    topic: str
    key: str
    record: Struct


@dataclass(slots=True)
class Played:
    """Everything one incident wrote: the records in order of arrival, and the texts by file."""

    cast: Cast
    records: list[Timed] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the texts as an operator would collect them: a folder a host, one a job."""
        for name, lines in self.texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a text: when it was really written, when it is read, as its own clock says."""

    at: datetime
    read_at: datetime
    text: str


def play(cast: Cast, *, with_looks: bool = False) -> Played:
    """Play an incident to its end; raises ScenarioError for a step that cannot be taken.

    ``with_looks`` adds what nvidia-smi logged on every node to the texts.
    """
    player = _Player(cast)
    played = player.play()
    if with_looks and "gpu" not in cast.without:
        for host in cast.hosts:
            played.texts[f"{host.name}/nvidia-smi.csv"] = looks(player.world, host)
    return played


class _Player:
    def __init__(self, cast: Cast) -> None:
        self.world = World(cast)
        self._cast = cast
        self._dice = random.Random(cast.seed)
        self._played = Played(cast)
        self._kernel: dict[str, list[_Line]] = defaultdict(list)
        self._ranks: dict[tuple[int, str], list[_Line]] = defaultdict(list)
        self._sent: dict[tuple[str, ...], datetime] = {}

    def play(self) -> Played:
        cast = self._cast
        if cast.scenario.job is not None and cast.scenario.job.logs:
            self._joined()
        for step in cast.scenario.steps():
            for turn in range(step.times):
                after_s = step.after_s + turn * step.every_s
                self._take(step, cast.begin + timedelta(seconds=after_s))
        self._texts()
        for topic, sampled in (
            ("inventory", inventory(self.world)),
            ("gpu", frames(self.world, self._dice)),
            ("fabric", sweeps(self.world)),
        ):
            if topic not in cast.without:
                for at, key, record in sampled:
                    self._send(topic, key, record, at)
        self._played.records.sort(key=lambda one: one.at)
        return self._played

    # --- Steps ----------------------------------------------------------------------------------

    def _take(self, step: Step, at: datetime) -> None:
        cards = self._cast.cards(step.on)
        match step:
            case KernelStep():
                self._print(step, cards, at)
            case RankStep():
                self._say(step, at)
            case CardStep():
                for card in cards:
                    self.world.show(step, card, self._when(at, step))
            case PortStep():
                self.world.port(step, at)
            case ContextStep():
                self._announce(step, cards, at)
            case NodeStep():
                for host in self._cast.hosts_of(cards):
                    self.world.turn(step, host, self._when(at, step))
                if step.swap:
                    self.world.swap(self._cast.it, at)

    def _when(self, at: datetime, step: Step) -> datetime:
        if not step.spread_s:
            return at
        return at + timedelta(seconds=self._dice.uniform(0, step.spread_s))

    def _print(self, step: KernelStep, cards: list[Card], at: datetime) -> None:
        if not any(name in step.line for name in _OF_A_CARD):
            cards = [host.cards[0] for host in self._cast.hosts_of(cards)]
        for number, card in enumerate(cards):
            when = self._when(at, step) + timedelta(microseconds=137 * number)
            text = self._filled(step.line, card)
            line = _Line(when, when + timedelta(seconds=step.read_s), text)
            self._kernel[card.host].append(line)

    def _filled(self, text: str, card: Card) -> str:
        try:
            return text.format_map(self._cast.names(card))
        except (KeyError, IndexError, ValueError) as error:
            raise ScenarioError(f"{self._cast.scenario.name}: {error} in {text!r}") from error

    def _say(self, step: RankStep, at: datetime) -> None:
        for rank, card in self._cast.playing(step.on):
            when = self._when(at, step) + timedelta(milliseconds=rank % 97)
            self._rank_lines(rank, card, step.texts(), when)

    def _joined(self) -> None:
        at = self._cast.begin - timedelta(seconds=BEFORE_S / 2)
        for rank, card in self._cast.playing("job"):
            self._rank_lines(rank, card, SAYINGS["joined"], at + timedelta(milliseconds=rank))

    def _rank_lines(self, rank: int, card: Card, texts: list[str], at: datetime) -> None:
        clock = at + self.world.skew(card.host)
        names = self._cast.names(card)
        for number, text in enumerate(texts):
            try:
                filled = native.rank_line(clock, text, names)
            except (KeyError, IndexError, ValueError) as error:
                raise ScenarioError(f"{self._cast.scenario.name}: {error} in {text!r}") from error
            when = at + timedelta(microseconds=number)
            self._ranks[rank, card.host].append(_Line(when, when, filled))

    def _announce(self, step: ContextStep, cards: list[Card], at: datetime) -> None:
        cast = self._cast
        if "context" in cast.without:
            return
        job = cast.job if step.owner is None else f"{cast.job}-{step.owner}"
        for host in cast.hosts_of(cards):
            record = ContextRecord(
                id=digest("sim-context", cast.job, cast.number, host.name, step.kind, at),
                host=host.name,
                observed_at=at,
                kind=step.kind,
                at=at,
                until=at + timedelta(seconds=step.for_s) if step.for_s else None,
                pci=cards[0].pci if step.kind in _OF_ONE_CARD and len(cards) == 1 else None,
                job=job if step.kind is ContextKind.ALLOCATION else None,
                hosts=tuple(one.name for one in cast.job_hosts),
                image=step.image,
                owner=step.owner,
                by="simulator",
            )
            self._send("context", host.name, record, at)

    # --- What is written ------------------------------------------------------------------------

    def _send(self, topic: str, key: str, record: Struct, at: datetime) -> None:
        delay = timedelta(seconds=_DELAY_S.get(topic, 0.1) * self._dice.uniform(0.5, 1.5))
        late = self.world.late(str(getattr(record, "host", None) or key))
        # What comes from one file or device stays in order, as one sender writes it.
        source = topic, *(str(getattr(record, name, "")) for name in ("host", "file", "guid"))
        arrives = max(at + delay + late, self._sent.get(source, at))
        self._sent[source] = arrives
        self._played.records.append(Timed(arrives, topic, key, record))

    def _texts(self) -> None:
        cast = self._cast
        quiet = cast.begin - timedelta(seconds=BEFORE_S)
        if "kernel" not in cast.without:
            for host in cast.hosts:
                noise = _Line(quiet, quiet, "perf: interrupt took too long (2513 > 2500)")
                self._kernel_log(host.name, [noise, *self._kernel[host.name]])
        if "nccl" not in cast.without:
            for (rank, host_name), lines in self._read_ranks():
                kept = [one for one in lines if self.world.on(host_name, one.at)]
                kept.sort(key=lambda one: one.at)
                self._rank_log(f"{cast.job}/{host_name}-{rank}.log", host_name, kept)

    def _read_ranks(self) -> Iterator[tuple[tuple[int, str], list[_Line]]]:
        """The ranks whose logs are read: all, or so many others as a variant has it."""
        found = sorted(self._ranks.items())
        variant = self._cast.variant
        if variant is not None and variant.ranks is not None:
            own = self._cast.ranks.get(self._cast.it.uuid)
            others = [one for one in found if one[0][0] != own]
            found = self._dice.sample(others, min(variant.ranks, len(others)))
        return iter(found)

    def _kernel_log(self, host: str, lines: list[_Line]) -> None:
        kept = sorted((one for one in lines if self.world.on(host, one.at)), key=lambda one: one.at)
        skew = self.world.skew(host)
        file = f"{host}/dmesg.log"
        texts = [native.kernel_line(one.at + skew, one.text) for one in kept]
        self._played.texts[file] = texts
        if kept:
            now = max(one.read_at for one in kept) + skew
            for record in kernel.parse_stream(_raw(texts), host=host, now=now, file=file):
                at = _written(kept, record.line).read_at
                if self.world.heard(host, at):
                    self._send("kernel", host, replace(record, observed_at=at), at)

    def _rank_log(self, file: str, host: str, lines: list[_Line]) -> None:
        texts = [one.text for one in lines]
        self._played.texts[file] = texts
        if not lines:
            return
        now = lines[-1].at + self.world.skew(host)
        for record in nccl.parse_stream(
            _raw(texts), job=self._cast.job, host=host, now=now, file=file
        ):
            at = _written(lines, record.line).read_at
            if self.world.heard(host, at):
                self._send("nccl", record.job, replace(record, observed_at=at), at)


def _raw(texts: list[str]) -> list[bytes]:
    return [f"{text}\n".encode() for text in texts]


def _written(lines: list[_Line], number: int | None) -> _Line:
    return lines[min(number or 1, len(lines)) - 1]
