"""What the topics say of a cluster when a drill is to begin."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from evidence.decisions import Action, Command, DesiredState, Domain, Verdict
from evidence.records import ContextKind, ContextRecord, DrillRecord, InventoryRecord

__all__ = ["TOPICS_READ", "Scene"]

TOPICS_READ = (
    "inventory", "context", "verdicts", "isolation.commands", "isolation.acks", "isolation.state",
    "drills",
)  # fmt: skip

_Thing = tuple[object, ...]


@dataclass(slots=True)
class Scene:
    """The newest of everything, by what it is about; filled record by record with `take`."""

    nodes: dict[str, InventoryRecord] = field(default_factory=dict)
    states: dict[str, DesiredState] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    context: dict[_Thing, ContextRecord] = field(default_factory=dict)
    drills: dict[str, DrillRecord] = field(default_factory=dict)
    incidents: set[str] = field(default_factory=set)

    def take_all(self, records: Iterable[tuple[str, Any]]) -> None:
        """Take what `Reader.past` reads."""
        for _, record in records:
            self.take(record)

    def take(self, record: Any) -> None:  # noqa: ANN401 (a struct of evidence)
        """Take one record; of those about the same thing the last one stays."""
        if isinstance(record, InventoryRecord):
            self.nodes[record.host] = record
        elif isinstance(record, DesiredState):
            self.states[record.domain_id] = record
        elif isinstance(record, Command):
            self.commands[record.id] = record
        elif isinstance(record, Verdict):
            self.incidents.add(record.incident)
        elif isinstance(record, DrillRecord):
            self.drills[record.id] = record
        elif isinstance(record, ContextRecord):
            thing = (
                record.host, record.kind, record.at, record.pci, record.job, record.attempt,
            )  # fmt: skip
            self.context[thing] = record

    @property
    def is_told_of_jobs(self) -> bool:
        """Whether a scheduler has ever told which jobs run where."""
        return any(one.kind is ContextKind.ALLOCATION for one in self.context.values())

    def pool(self, host: str) -> str | None:
        """The pool of a host, as its own agent told it."""
        node = self.nodes.get(host)
        return None if node is None else node.pool

    def hosts(self, pool: str) -> list[str]:
        """The hosts of a pool, by name."""
        return sorted(host for host, node in self.nodes.items() if node.pool == pool)

    def standing(self, host: str, kind: ContextKind, now: datetime) -> list[ContextRecord]:
        """What is planned on a host, or runs there, at a time."""
        return [
            one
            for one in self.context.values()
            if one.host == host
            and one.kind is kind
            and not one.ended
            and (one.until is None or one.until > now)
        ]

    def isolated(self, pool: str) -> list[DesiredState]:
        """Parts of a pool, and parts of no host, that are out now."""
        return [
            one for one in self.states.values() if one.isolated and self._concerns(one.domain, pool)
        ]

    def held(self, pool: str, since: datetime) -> list[Command]:
        """Commands about a pool that wait for a person, of those issued since a time."""
        last: dict[str, Command] = {}
        for command in self.commands.values():
            last[command.domain_id] = command
        return [
            one
            for one in last.values()
            if one.held
            and one.action is Action.ISOLATE
            and one.issued_at >= since
            and self._concerns(one.domain, pool)
        ]

    def taken_out(self, since: datetime) -> list[Command]:
        """Isolations that were commanded for real since a time: they count in the budget."""
        return [
            one
            for one in self.commands.values()
            if one.action is Action.ISOLATE
            and not one.dry_run
            and not one.held
            and one.issued_at >= since
        ]

    def _concerns(self, domain: Domain, pool: str) -> bool:
        return domain.host is None or self.pool(domain.host) in (pool, None)
