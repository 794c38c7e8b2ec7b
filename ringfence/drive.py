"""Drives the decision steps without a broker: triage and replay feed it records in any order.

The steps are the ones the stream runs; only where the time comes from differs: here it is the
event time, and after the last record it runs on until every window is settled.
"""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec import Struct

from evidence.decisions import Command, DesiredState, Status, Suspicion, Verdict
from evidence.identity import digest
from evidence.records import Tick
from rules import fabric, host, isolation, job
from rules.desired import rebuild
from rules.stage import Arrived
from rules.tables import Rules

__all__ = ["Driver", "Outcome"]

#: More windows than one key has in a log of months; a stage that is never done is a bug, not an
#: endless loop.
_MOST_TICKS = 100_000
_STEP = timedelta(microseconds=1)


@dataclass(slots=True)
class Outcome:
    """What came out: every verdict revision, suspicion, command and desired state, in order."""

    suspicions: list[Suspicion] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    states: list[DesiredState] = field(default_factory=list)

    def latest(self) -> list[Verdict]:
        """The last revision of each incident, the surest first."""
        last = {verdict.incident: verdict for verdict in self.verdicts}
        order = tuple(Status)
        return sorted(last.values(), key=lambda one: (order.index(one.status), -one.confidence))


class Driver:
    """All stages wired as the stream wires them, on one thread.

    ``live`` says that what is fed is all that is heard, so that a host of which nothing more comes
    fell silent; logs that were collected end where they end, and so does what is fed at last.
    """

    def __init__(self, rules: Rules, *, live: bool = False) -> None:
        self._rules = rules
        self._live = live
        self._hosts: dict[str, host.HostState] = defaultdict(host.HostState)
        self._jobs: dict[str, job.JobState] = defaultdict(job.JobState)
        self._subnets: dict[str, fabric.FabricState] = defaultdict(fabric.FabricState)
        self._isolation = rebuild()  # triage knows of nothing isolated before
        self._queue: list[tuple[datetime, int, str, str, Struct]] = []
        self._due: dict[tuple[str, str], datetime] = {}
        self._ticks: list[tuple[datetime, str, str]] = []  # every time that was ever due, a heap
        self._ticked: Counter[tuple[str, str]] = Counter()
        self._commanded: set[str] = set()
        self._order = itertools.count()
        self.outcome = Outcome()

    def add(self, topic: str, key: str, record: Struct, at: datetime) -> None:
        """Queue one record of a topic under its key, arriving at ``at``."""
        heapq.heappush(self._queue, (at, next(self._order), topic, key, record))

    def run(self) -> Outcome:
        """Step through everything queued in order of time, then until all windows are settled."""
        if self._live and self._queue:
            self.advance(max(self._queue)[0] + _STEP)
        self._live = False
        for key, state in self._hosts.items():
            self._due.pop(("host", key), None)
            if (settles := host.settles(state)) is not None:
                self._wait("host", key, settles, settles - _STEP)
        return self.advance(None)

    def advance(self, until: datetime | None) -> Outcome:
        """Step through what is queued or due before ``until``; nothing earlier may be added then.

        So a month can be driven without holding a month of records: the outcome is the same.
        """
        while (stage := self._next()) or self._queue:
            due = self._due[stage] if stage else None
            if due is None or (self._queue and self._queue[0][0] <= due):
                if until is not None and self._queue[0][0] >= until:
                    break
                at, _, topic, key, record = heapq.heappop(self._queue)
                self._deliver(topic, key, Arrived(topic, record, at))
                continue
            if until is not None and due >= until:
                break
            assert stage is not None
            self._ticked[stage] += 1
            if self._ticked[stage] > _MOST_TICKS:
                raise RuntimeError(f"{stage[0]} stage of {stage[1]} is never done")
            del self._due[stage]
            self._deliver(*stage, Arrived("", Tick(id=digest("tick", due), at=due), due))
        return self.outcome

    def _next(self) -> tuple[str, str] | None:
        """Who is to be ticked next; times that no longer hold are dropped on the way."""
        while self._ticks:
            at, stage, key = self._ticks[0]
            if self._due.get((stage, key)) == at:
                return stage, key
            heapq.heappop(self._ticks)
        return None

    def _deliver(self, topic: str, key: str, arrived: Arrived) -> None:
        if topic == "nccl":
            self._jobs[key], suspicions = job.step(self._jobs[key], arrived, self._rules)
            self._wait("nccl", key, job.due(self._jobs[key]), arrived.at)
            self._pass_on(key, suspicions, arrived.at)
        elif topic == "fabric":
            self._subnets[key], outputs = fabric.step(self._subnets[key], arrived, self._rules)
            self._wait("fabric", key, fabric.due(self._subnets[key]), arrived.at)
            self._pass_on(key, outputs, arrived.at)
        elif topic == "verdicts":
            self._isolate(arrived)
        else:
            self._hosts[key], verdicts = host.step(self._hosts[key], arrived, self._rules)
            due = host.due if self._live else host.settles
            self._wait("host", key, due(self._hosts[key]), arrived.at)
            self._pass_on(key, verdicts, arrived.at)

    def _pass_on(self, key: str, outputs: Sequence[Suspicion | Verdict], at: datetime) -> None:
        """Send what a stage said on: a suspicion to its host, a verdict to isolation."""
        for output in outputs:
            if isinstance(output, Suspicion):
                self.outcome.suspicions.append(output)
                self.add("suspicions", output.host or key, output, at)
            else:
                self.outcome.verdicts.append(output)
                self.add("verdicts", "", output, at)

    def _wait(self, stage: str, key: str, due: datetime | None, now: datetime) -> None:
        """Remember when a stage wants a tick; never before what it has just been told."""
        if due is None:
            self._due.pop((stage, key), None)
        else:
            at = max(due, now + _STEP)
            if self._due.get((stage, key)) != at:
                self._due[stage, key] = at
                heapq.heappush(self._ticks, (at, stage, key))

    def _isolate(self, arrived: Arrived) -> None:
        """Nobody acks here, so the outbox would repeat itself: each command counts once."""
        self._isolation, outputs = isolation.step(self._isolation, arrived, self._rules)
        if (settles := isolation.settles(self._isolation)) is not None:
            self._wait("verdicts", "", settles, arrived.at)
        for output in outputs:
            if isinstance(output, DesiredState):
                self.outcome.states.append(output)
            elif isinstance(output, Verdict):
                self._pass_on("", [output], arrived.at)
            elif output.id not in self._commanded:
                self._commanded.add(output.id)
                self.outcome.commands.append(output)
