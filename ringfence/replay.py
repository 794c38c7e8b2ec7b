"""Runs the stages again over the stored history and compares what they say with what was said.

Messages come in the order in which Kafka took them, ticks among them, and each is stepped as the
worker steps it; where that gives not the same, in the order in which the stored verdicts show that
the worker met them (`ringfence.replay_order`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from evidence.decisions import Command, Suspicion, Verdict
from evidence.records import Tick
from ringfence.replay_order import met_later
from rules.stage import Arrived
from rules.tables import Rules
from streams.routing import outgoing
from streams.stage import Stage
from streams.stages import bind, restored
from streams.ticks import StageTime, tick, ticked_at
from warehouse.replay import Place, Stored, desired_states, messages

__all__ = ["Difference", "Period", "Replayed", "replay"]

#: What stages say and other stages read.
_BETWEEN = ("suspicions", "verdicts")
_OUTPUTS = (*_BETWEEN, "isolation.commands")
#: A key whose step failed on a tick is asked again after this, as in the worker.
_RETRY = timedelta(minutes=1)
#: How far back announcements are read: what is planned may have been said long before.
_ANNOUNCED = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Period:
    """Compared is what was said in [since, until]; records are read from ``begin`` on."""

    begin: datetime
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Difference:
    """One decision that is not the same: ``how`` is stored, replayed (only there) or changed."""

    kind: str
    id: str
    how: str
    words: str
    fields: tuple[str, ...] = ()


@dataclass(slots=True)
class Replayed:
    """What came out: how many decisions are the same, and which are not.

    Counted apart are those that rest on records which came late, and verdicts that differ on the
    way to the same conclusion about their part: of records of several topics Kafka does not say
    which the worker met first, and a hard fact is judged at once. A command has no such excuse.
    """

    read: Counter[str] = field(default_factory=Counter)
    same: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    order: Counter[str] = field(default_factory=Counter)
    different: list[Difference] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def unlike(self) -> tuple[int, int]:
        """How many decisions differ, and how many more on the way only."""
        return (len(self.different), self.order.total())

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        plain: dict[str, Any] = {
            name: dict(sorted(getattr(self, name).items()))
            for name in ("read", "same", "late", "order")
        }
        plain["different"] = [msgspec.to_builtins(one) for one in self.different]
        plain["verdicts"] = msgspec.to_builtins(self.verdicts)
        plain["commands"] = msgspec.to_builtins(self.commands)
        return plain | {"failed": self.failed}


def replay(
    root: Path,
    rules: Rules,
    stages: Iterable[str],
    period: Period,
    *,
    host: str | None = None,
    what_if: bool = False,
) -> Replayed:
    """Step through what is stored of a period and compare; ``stages`` are those of the worker.

    Each stage meets what the stages before it said as it is stored; with ``what_if`` (under other
    rules) it meets what they say now, at the stored place where it is the same decision.
    With ``host`` only that host's records are read, and other hosts' verdicts are taken as stored.
    Raises WarehouseError where the history cannot be read.
    """
    said = _Said(root, period)
    names = tuple(stages)
    found = _again(root, rules, names, period, said, host, {}, what_if=what_if)
    if any(found.unlike) and not what_if:
        topics = sorted({topic for stage in bind(names, rules) for topic in stage.topics})
        held = met_later(root, said.verdicts(), topics, period.begin, period.until)
        if held:
            other = _again(root, rules, names, period, said, host, held, what_if=what_if)
            found = min(found, other, key=lambda one: one.unlike)
    return found


def _again(
    root: Path,
    rules: Rules,
    stages: Iterable[str],
    period: Period,
    said: "_Said",
    host: str | None,
    held: Mapping[Place, datetime],
    *,
    what_if: bool,
) -> Replayed:
    run = _Run(_bound(root, rules, stages, period), said, host, what_if=what_if)
    for stored in _known_before(root, period, host):
        run.take(stored)
    topics = list(dict.fromkeys((*run.by_topic, *_BETWEEN)))
    for stored in messages(root, topics, period.begin, period.until, host=host, held=held):
        run.take(stored)
    return _compare(run, said, period, host)


def _bound(root: Path, rules: Rules, stages: Iterable[str], period: Period) -> list[Stage[Any]]:
    """The stages as they began: isolation knows what was out already."""
    states = desired_states(root, period.begin)
    return [
        restored(stage, states) if stage.name == "isolation" else stage
        for stage in bind(stages, rules)
    ]


def _known_before(root: Path, period: Period, host: str | None) -> list[Stored]:
    """What was known when the period began: each node's inventory, and what was announced."""
    before = period.begin - timedelta(microseconds=1)
    epoch = datetime.fromtimestamp(0, before.tzinfo)
    nodes = {
        one.key: one
        for one in messages(root, ["inventory"], epoch, before, host=host)
        if not isinstance(one.record, Tick)
    }
    announced = messages(root, ["context"], max(epoch, before - _ANNOUNCED), before, host=host)
    told = (one for one in announced if not isinstance(one.record, Tick))
    return sorted((*nodes.values(), *told), key=lambda one: (one.at, one.order))


class _Contents:
    """Everything that was said under one id: a command is sent again until it is acked."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[Struct]] = defaultdict(list)

    def add(self, topic: str, name: str, record: Struct) -> None:
        """Remember what was said, once."""
        if record not in self._of[topic, name]:
            self._of[topic, name].append(record)

    def same(self, other: "_Contents", topic: str, name: str) -> bool:
        """Whether both have the same under an id, whatever came first."""
        ours, theirs = self.of(topic, name), other.of(topic, name)
        return len(ours) == len(theirs) and all(one in theirs for one in ours)

    def of(self, topic: str, name: str) -> list[Struct]:
        """What was said under an id."""
        return self._of.get((topic, name), [])


class _Said:
    """What is stored of the stages' own words: the first message and every content of each id."""

    def __init__(self, root: Path, period: Period) -> None:
        self.first: dict[str, dict[str, Stored]] = {topic: {} for topic in _OUTPUTS}
        self.contents = _Contents()
        for one in messages(root, _OUTPUTS, period.begin, period.until):
            if isinstance(one.record, Suspicion | Verdict | Command):
                self.first[one.topic].setdefault(one.record.id, one)
                self.contents.add(one.topic, one.record.id, one.record)

    def verdicts(self) -> list[Verdict]:
        """The stored verdicts, in the order in which they were said."""
        stored = self.first["verdicts"].values()
        return [one.record for one in stored if isinstance(one.record, Verdict)]


class _Keys:
    """One stage's keys in memory, its time, and when each key is due."""

    def __init__(self, stage: Stage[Any]) -> None:
        self.stage = stage
        self._begin = stage.begin or stage.state
        self._time = StageTime(stage.topics)
        self._states: dict[bytes, tuple[int, Any]] = {}
        self._due: dict[int, dict[bytes, datetime]] = defaultdict(dict)

    def step(self, key: bytes, partition: int, arrived: Arrived) -> Iterable[Struct]:
        """Step one key; whatever the step raises is raised, and nothing is changed."""
        partition, state = self._states.get(key) or (partition, self._begin())
        stepped, outputs = self.stage.step(state, arrived)
        outputs = list(outputs)
        if stepped is None:
            self._states.pop(key, None)
            self._due[partition].pop(key, None)
            return outputs
        due = self.stage.due(stepped)
        self._states[key] = partition, stepped
        if due is None:
            self._due[partition].pop(key, None)
        else:
            self._due[partition][key] = due
        return outputs

    def now(self, topic: str, partition: int, at: datetime) -> datetime | None:
        """The stage's new time when a tick moves it."""
        return self._time.advance(topic, partition, at)

    def due(self, partition: int, now: datetime) -> list[bytes]:
        """The keys that want a tick, oldest first."""
        waiting = [(due, key) for key, due in self._due[partition].items() if due <= now]
        return [key for _, key in sorted(waiting)]

    def postpone(self, key: bytes, partition: int, now: datetime) -> None:
        """Ask a key again later."""
        self._due[partition][key] = now + _RETRY


class _Run:
    """The stages wired as in the worker; ``made`` has what they said, by topic and id."""

    def __init__(
        self, stages: list[Stage[Any]], said: _Said, host: str | None, *, what_if: bool
    ) -> None:
        self.by_topic = {topic: keys for keys in map(_Keys, stages) for topic in keys.stage.topics}
        self._said = said
        self._host = host
        self._what_if = what_if
        self._passed: set[tuple[str, str]] = set()
        self.made: dict[str, dict[str, tuple[datetime, Struct]]] = {t: {} for t in _OUTPUTS}
        self.contents = _Contents()
        self.read: Counter[str] = Counter()
        self.failed: list[str] = []

    def take(self, stored: Stored) -> None:
        """Step one stored message; a stored output is only the place where ours is met."""
        keys = self.by_topic.get(stored.topic)
        if keys is None or stored.record is None or stored.key is None:
            return
        if isinstance(stored.record, Tick):
            at = ticked_at(stored.record.at, stored.at)
            self._tick(keys, stored.topic, stored.partition, at)
            return
        self.read[stored.topic] += 1
        record: Struct | None = stored.record
        if stored.topic in _BETWEEN and self._what_if:
            record = self._ours(stored.topic, stored.record)
        if record is not None:
            self._step(keys, stored.topic, stored.key, stored.partition, record, stored.at)

    def _ours(self, topic: str, record: Any) -> Struct | None:  # noqa: ANN401 (a suspicion or verdict)
        """What we said under the same id; None when we did not (yet)."""
        self._passed.add((topic, record.id))
        made = self.made[topic].get(record.id)
        if made is not None:
            return made[1]
        theirs = self._host is not None and topic == "verdicts" and record.host != self._host
        return record if theirs else None

    def _step(
        self,
        keys: _Keys,
        topic: str,
        key: bytes,
        partition: int,
        record: Struct,
        at: datetime,
    ) -> None:
        try:
            outputs = keys.step(key, partition, Arrived(topic, record, at))
        except Exception as error:  # noqa: BLE001 (as the worker: the next record goes on)
            self._fail(keys, key, error)
            return
        self._pass_on(keys, outputs, partition, at)

    def _tick(self, keys: _Keys, topic: str, partition: int, at: datetime) -> None:
        now = keys.now(topic, partition, at)
        if now is None:
            return
        record = tick(now, keys.stage.name, partition)
        for key in keys.due(partition, now):
            try:
                outputs = keys.step(key, partition, Arrived("", record, now))
            except Exception as error:  # noqa: BLE001 (as the worker: the other keys go on)
                keys.postpone(key, partition, now)
                self._fail(keys, key, error)
            else:
                self._pass_on(keys, outputs, partition, now)

    def _fail(self, keys: _Keys, key: bytes, error: Exception) -> None:
        name = key.decode("utf-8", "replace")
        self.failed.append(f"{keys.stage.name} stage, {name}: {type(error).__name__}: {error}")

    def _pass_on(
        self, keys: _Keys, outputs: Iterable[Struct], partition: int, at: datetime
    ) -> None:
        for output in outputs:
            message = outgoing(output, keys.stage.routes)
            if message is None or message.topic not in _OUTPUTS:
                continue
            topic, name = message.topic, str(getattr(output, "id", ""))
            self.made[topic].setdefault(name, (at, output))
            self.contents.add(topic, name, output)
            stored = self._said.first[topic].get(name)
            reader = self.by_topic.get(topic)
            here = stored is None or (topic, name) in self._passed
            if self._what_if and reader is not None and here:
                met = at if stored is None else stored.at
                self._step(reader, topic, message.key, partition, output, met)


def _compare(run: _Run, said: _Said, period: Period, host: str | None) -> Replayed:
    """Hold what was said in the period against what is stored, id by id."""
    found = Replayed(read=run.read, failed=run.failed)
    then = _conclusions(stored.record for stored in said.first["verdicts"].values())
    now = _conclusions(record for _, record in run.made["verdicts"].values())
    for topic, kind in (("verdicts", "verdict"), ("isolation.commands", "command")):
        stored, made = said.first[topic], run.made[topic]
        for name in dict.fromkeys((*stored, *made)):
            old = stored[name].record if name in stored else None
            new = made[name][1] if name in made else None
            at = stored[name].at if name in stored else made[name][0]
            one: Any = new or old
            if not period.since <= at <= period.until or not _concerns(one, host):
                continue
            if isinstance(new, Verdict):
                found.verdicts.append(new)
            elif isinstance(new, Command):
                found.commands.append(new)
            if said.contents.same(run.contents, topic, name):
                found.same[kind] += 1
            elif _late(old, said) or _late(new, said):
                found.late[kind] += 1
            elif kind == "verdict" and then.get(one.domain.id) == now.get(one.domain.id):
                found.order[kind] += 1
            else:
                found.different.append(_difference(kind, name, old, new))
    return found


def _conclusions(verdicts: Iterable[Struct | None]) -> dict[str, tuple[str, ...]]:
    """What was said last of each part."""
    return {
        one.domain.id: (one.status, one.cause, one.recovery)
        for one in verdicts
        if isinstance(one, Verdict)
    }


def _concerns(one: Any, host: str | None) -> bool:  # noqa: ANN401 (a verdict or command)
    return host is None or host in (one.domain.host, getattr(one, "host", None))


def _late(one: Struct | None, said: _Said) -> bool:
    """Whether a decision rests on records that came too late to be taken in order."""
    if isinstance(one, Command) and one.verdict is not None:
        told = said.first["verdicts"].get(one.verdict)
        one = told.record if told is not None else None
    return isinstance(one, Verdict) and one.late > 0


def _difference(kind: str, name: str, old: Any, new: Any) -> Difference:  # noqa: ANN401 (see above)
    one = old or new
    words = f"{one.cause} {one.domain.id}: {one.reason}"
    if new is None:
        return Difference(kind, name, "stored", words)
    if old is None:
        return Difference(kind, name, "replayed", words)
    fields = [
        field
        for field in old.__struct_fields__
        if getattr(old, field, None) != getattr(new, field, None)
    ]
    return Difference(kind, name, "changed", words, tuple(fields))
