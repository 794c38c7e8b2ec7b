"""The adapter ``slurm``: DRAIN, never DOWN; returns only what it drained; looks before it writes.

Slurm has no compare-and-set: a drain that somebody else sets between our look and our write is
overwritten. What is written is looked at again.
"""

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

from evidence.decisions import AckStatus, Action, Command, Domain, DomainKind, Level
from schedulers.adapter import Outcome, SchedulerError, View
from schedulers.slurm import looks, marks
from schedulers.slurm.config import SlurmConfig
from schedulers.slurm.jobs import Job, Jobs
from schedulers.slurm.nodes import Node, Nodes
from schedulers.slurm.rest import RestNodes
from schedulers.slurm.tools import Tools, ToolsError

__all__ = ["SlurmAdapter", "adapter"]

_LOG = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


def adapter(config: SlurmConfig, *, stop: Event, folder: Path) -> "SlurmAdapter":  # noqa: ARG001 (one shape of factory)
    """The adapter of one cluster; it keeps nothing, since Slurm keeps the marks."""
    return SlurmAdapter(config)


@dataclass(slots=True)
class _Turn:
    """What one call of the adapter knows: nodes as last seen, and the jobs on them."""

    nodes: dict[str, Node]
    jobs: dict[str, list[Job]]


class SlurmAdapter:
    """One Slurm cluster; see `SlurmConfig` for what becomes of running jobs."""

    def __init__(self, config: SlurmConfig, clock: Callable[[], datetime] = _now) -> None:
        self._config = config
        self._clock = clock
        self._tools = Tools(config)
        self._nodes = RestNodes(config) if config.rest_url else Nodes(self._tools)
        self._jobs = Jobs(self._tools, config)

    def apply(self, command: Command) -> Outcome:
        """Carry out one command: a look, a write and a look again."""
        return self.apply_all([command])[0]

    def apply_all(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry out many, an outcome each: two looks at all nodes, and a write for each."""
        try:
            turn = self._look(commands)
        except ToolsError as error:
            return [Outcome(AckStatus.FAILED, str(error), retry=error.retry)] * len(commands)
        begun = [self._begin(command, turn) for command in commands]
        try:
            after = self._nodes.some(name for name in turn.nodes)
        except ToolsError as error:
            words = f"not seen whether it stands: {error}"
            return [
                one if one.status is AckStatus.FAILED else Outcome(AckStatus.FAILED, words)
                for one in begun
            ]
        return [
            self._seen(command, outcome, after)
            for command, outcome in zip(commands, begun, strict=True)
        ]

    def nodes(self, domain: Domain) -> int | None:
        """How many nodes a rack has, by their feature."""
        try:
            names = self._rack(domain, self._nodes.all())
        except ToolsError:
            return None
        return len(names) or None

    def observe(self) -> View:
        """What Slurm says now; jobs whose patience is over are requeued on the way."""
        try:
            # First: a controller that starts anew meanwhile is then seen to be another next time.
            started = self._tools.started()
            nodes = self._nodes.all()
            jobs = self._jobs.running()
            self._end_patience(nodes, jobs)
            self._jobs.hasten()
        except ToolsError as error:
            raise SchedulerError(f"Slurm does not answer: {error}") from error
        view = looks.view(self._clock(), nodes, jobs)

        def epoch(domain: Domain) -> object:
            return started, any(name in nodes for name in self._named(domain))

        return dataclasses.replace(view, epoch=epoch)

    # --- One command --------------------------------------------------------------------------

    def _look(self, commands: Sequence[Command]) -> _Turn:
        racks = any(command.domain.kind is DomainKind.RACK for command in commands)
        named = {name for command in commands for name in self._named(command.domain)}
        nodes = self._nodes.all() if racks else self._nodes.some(named)
        if not racks and any(
            command.action is Action.RELEASE and not self._names(command, nodes)
            for command in commands
        ):
            nodes = self._nodes.all()  # its node is called otherwise by now, or is gone
        jobs: dict[str, list[Job]] = defaultdict(list)
        if any(one.action is Action.ISOLATE and one.level is not Level.CORDON for one in commands):
            for job in self._jobs.running() if nodes else ():
                for name in job.nodes:
                    jobs[name].append(job)
        return _Turn(nodes, jobs)

    def _named(self, domain: Domain) -> tuple[str, ...]:
        """The node that a part belongs to; none for racks, switches and links without a host."""
        if domain.host is None or domain.kind in {DomainKind.RACK, DomainKind.SWITCH}:
            return ()
        short = domain.host.partition(".")[0]
        return (self._config.node_name.format(host=domain.host, short=short),)

    def _rack(self, domain: Domain, nodes: dict[str, Node]) -> tuple[str, ...]:
        if domain.rack is None:
            return ()
        feature = self._config.rack_feature.format(rack=domain.rack)
        return tuple(name for name, node in sorted(nodes.items()) if feature in node.features)

    def _names(self, command: Command, nodes: dict[str, Node]) -> tuple[str, ...]:
        """The nodes that a command is about: what is returned, wherever its mark stands by now."""
        if command.domain.kind is DomainKind.RACK:
            names = self._rack(command.domain, nodes)
        else:
            names = tuple(name for name in self._named(command.domain) if name in nodes)
        if command.action is Action.ISOLATE:
            return names
        domain_id = marks.safe(command.domain_id)
        marked = (
            name
            for name, node in sorted(nodes.items())
            if any(one.domain_id == domain_id for one in node.marks)
        )
        return tuple(dict.fromkeys((*names, *marked)))

    def _begin(self, command: Command, turn: _Turn) -> Outcome:
        names = self._names(command, turn.nodes)
        if not names:
            return _unknown(command, turn)
        act = self._isolate if command.action is Action.ISOLATE else self._release
        words = []
        for name in names:
            try:
                words.append(act(command, name, turn))
            except ToolsError as error:
                return Outcome(AckStatus.FAILED, f"{name}: {error}", retry=error.retry)
        took = DomainKind.NODE if command.action is Action.ISOLATE else None
        return Outcome(AckStatus.DONE, "; ".join(filter(None, words)), took=took)

    def _isolate(self, command: Command, name: str, turn: _Turn) -> str:
        node = turn.nodes[name]
        if node.foreign:
            return (
                f"{name} is out already, by {node.by or 'somebody'} ({node.reason}): left as it is"
            )
        jobs = [job for job in turn.jobs.get(name, ()) if not self._jobs.is_left(job)]
        until = None
        if command.level is Level.DRAIN and jobs:
            until = self._clock() + timedelta(seconds=self._config.drain_patience_s)
        mark = marks.entry(command, until)
        others = [one for one in node.marks if one.domain_id != mark.domain_id]
        same = next((one for one in node.marks if one.command == mark.command), None)
        words = f"{name} drained"
        if same is not None:
            words = f"{name} is drained for this already"
        else:
            turn.nodes[name] = self._nodes.drain(node, [*others, mark])
            if command.level is Level.DRAIN:
                self._jobs.ask(jobs)
        return ", ".join(filter(None, [words, self._fate(command.level, jobs, turn, until)]))

    def _fate(self, level: Level, jobs: list[Job], turn: _Turn, until: datetime | None) -> str:
        """Do to running jobs what the level says, and say what that was."""
        if not jobs:
            return ""
        if level is Level.EVICT:
            for name in turn.jobs:
                turn.jobs[name] = [job for job in turn.jobs[name] if job not in jobs]
            return self._jobs.requeue(jobs, cancel=self._config.cancel_at_evict)
        listed = ", ".join(job.id for job in jobs)
        if until is not None:
            return f"jobs {listed} have until {until:%H:%M:%S} UTC, then they are requeued"
        return f"jobs {listed} run on"

    def _release(self, command: Command, name: str, turn: _Turn) -> str:
        node = turn.nodes[name]
        domain_id = marks.safe(command.domain_id)
        if not any(one.domain_id == domain_id for one in node.marks):
            if node.foreign:
                return f"{name} is out by {node.by or 'somebody'} ({node.reason}): left as it is"
            return f"{name} is not out for {command.domain_id}"
        others = [one for one in node.marks if one.domain_id != domain_id]
        if others:
            turn.nodes[name] = self._nodes.drain(node, others)
            words = f"{name} stays drained for {', '.join(one.domain_id for one in others)}"
        else:
            turn.nodes[name] = self._nodes.undrain(node)
            words = f"{name} resumed"
        return words

    def _seen(self, command: Command, outcome: Outcome, after: dict[str, Node]) -> Outcome:
        """The outcome, unless the nodes are not as it says they are."""
        if outcome.status is not AckStatus.DONE:
            return outcome
        domain_id = marks.safe(command.domain_id)
        for name in self._names(command, after):
            node = after[name]
            marked = any(one.domain_id == domain_id for one in node.marks)
            if command.action is Action.ISOLATE and not (marked or node.foreign):
                reason = f"{name} is {'+'.join(node.flags)} after it was drained ({node.reason})"
                return Outcome(AckStatus.FAILED, reason)
            if command.action is Action.RELEASE and marked:
                return Outcome(AckStatus.FAILED, f"{name} is still drained after it was resumed")
        return outcome

    # --- Patience -----------------------------------------------------------------------------

    def _end_patience(self, nodes: dict[str, Node], jobs: Sequence[Job]) -> None:
        """Requeue what still runs on nodes whose drain said until when."""
        now = self._clock()
        over = {
            name
            for name, node in nodes.items()
            if any(one.until is not None and one.until <= now for one in node.marks)
        }
        late = [
            job
            for job in jobs
            if over & set(job.nodes) and not (job.ending or self._jobs.is_left(job))
        ]
        if late:
            _LOG.warning("drained nodes: %s", self._jobs.requeue(late, cancel=False))


def _unknown(command: Command, turn: _Turn) -> Outcome:
    """Slurm knows no node for the part: nothing to do for a switch, an error for a node.

    A release has been looked for at all nodes by now.
    """
    kind = command.domain.kind
    if kind in {DomainKind.SWITCH, DomainKind.LINK, DomainKind.JOB}:
        return Outcome(AckStatus.SKIPPED, f"Slurm knows no {kind}es" if kind is DomainKind.SWITCH
                       else f"Slurm knows no {kind}s without a host", retry=False)  # fmt: skip
    what = command.domain.rack if kind is DomainKind.RACK else command.domain.host
    if command.action is Action.RELEASE and turn.nodes:
        return Outcome(
            AckStatus.DONE, f"Slurm has no node of {kind} {what}, and none is out for it"
        )
    return Outcome(AckStatus.FAILED, f"Slurm knows no node of {kind} {what}", retry=False)
