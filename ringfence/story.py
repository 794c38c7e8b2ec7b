"""Watches the topics while the demo runs and tells when everything it waits for has come."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Cause,
    Command,
    Domain,
    Level,
    Says,
    Status,
    Verdict,
    Witness,
)
from evidence.transport import Kafka
from evidence.wire import decode
from ringfence.incident import Incident

__all__ = ["Story", "watch"]

_WITNESSES = (Witness.KERNEL, Witness.HEALTH, Witness.COLLECTIVE)
_TOPICS = ("verdicts", "isolation.commands", "isolation.acks")


@dataclass(slots=True)
class Story:
    """What came out of one run, against what was played."""

    incident: Incident
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    acks: dict[str, Ack] = field(default_factory=dict)

    def take(self, record: Verdict | Command | Ack) -> bool:
        """Note one record; False when it was known already (a re-sent command)."""
        if isinstance(record, Verdict):
            known = self.verdicts.get(record.incident)
            if known is not None and known.revision >= record.revision:
                return False
            self.verdicts[record.incident] = record
            return True
        kept: dict[str, Any] = self.commands if isinstance(record, Command) else self.acks
        key = record.id if isinstance(record, Command) else record.command
        if key in kept:
            return False
        kept[key] = record
        return True

    def culprit_verdict(self) -> Verdict | None:
        """The verdict about the card that died, once all three witnesses name it."""
        for verdict in self.verdicts.values():
            accusers = {one.witness for one in verdict.testimony if one.says is Says.ACCUSES}
            if (
                self.is_culprit(verdict.domain)
                and verdict.status is Status.LOCALIZED
                and verdict.cause is Cause.GPU_MEMORY
                and accusers.issuperset(_WITNESSES)
            ):
                return verdict
        return None

    def is_culprit(self, part: Domain) -> bool:
        """Whether a domain is the card that died."""
        incident = self.incident
        return part.host == incident.victim_node.host and part.pci == incident.culprit.pci

    def isolating(self) -> Command | None:
        """The one command there must be: drain that card, for real."""
        for command in self.commands.values():
            if self.is_culprit(command.domain) and command.action is Action.ISOLATE:
                return command
        return None

    def software_verdict(self) -> Verdict | None:
        """The verdict about the job whose rank left."""
        for verdict in self.verdicts.values():
            if verdict.status is Status.SOFTWARE and verdict.job == self.incident.other_job:
                return verdict
        return None

    def reset_verdict(self) -> Verdict | None:
        """The verdict about the card that was reset on purpose, explained by the announcement."""
        incident = self.incident
        for verdict in self.verdicts.values():
            if (
                verdict.explained_by
                and verdict.domain.host == incident.reset_node.host
                and verdict.domain.pci == incident.reset_gpu.pci
            ):
                return verdict
        return None

    def missing(self) -> list[str]:
        """What has not come (or must not have come), each as a sentence; empty when all is well."""
        found = list(self._about_the_culprit())
        if self.software_verdict() is None:
            found.append(f"no software verdict about job {self.incident.other_job}")
        if self.reset_verdict() is None:
            found.append("the announced GPU reset was not recognised")
        found.extend(
            f"a command about an innocent part: {command.domain_id} ({command.reason})"
            for command in self.commands.values()
            if not self.is_culprit(command.domain)
        )
        return found

    def _about_the_culprit(self) -> Iterator[str]:
        verdict, command = self.culprit_verdict(), self.isolating()
        where = f"{self.incident.culprit.pci} on {self.incident.victim_node.host}"
        if verdict is None:
            yield f"no verdict gpu-memory, localized, by three witnesses on {where}"
        else:
            others = 8 * len(self.incident.training) - 1
            if len(verdict.victims) != others:
                yield f"{len(verdict.victims)} victims named, not {others}"
        if command is None:
            yield f"no isolate command for {where}"
            return
        if command.level is not Level.DRAIN or command.dry_run or command.held:
            yield f"the command is not a plain drain: {command.level} {command.held or ''}"
        if len(self.commands) > 1:
            yield f"{len(self.commands)} commands, not one"
        ack = self.acks.get(command.id)
        if ack is None or ack.status is not AckStatus.DONE:
            yield "the command was not acked"


def watch(
    kafka: Kafka,
    story: Story,
    tell: Callable[[Verdict | Command | Ack], None],
    *,
    until: float,
    quiet_s: float = 1.0,
) -> None:
    """Read what the stages say until the story is complete and quiet, or the clock says ``until``.

    ``until`` is a time.monotonic() value. The quiet second at the end is for commands that must
    not come.
    """
    consumer = KafkaConsumer(**kafka.client(), auto_offset_reset="earliest", group_id=None)
    try:
        partitions = [
            TopicPartition(kafka.topic(topic), number)
            for topic in _TOPICS
            for number in sorted(consumer.partitions_for_topic(kafka.topic(topic)) or {0})
        ]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        complete_at: float | None = None
        while time.monotonic() < until:
            for partition, messages in consumer.poll(timeout_ms=200).items():
                topic = partition.topic.removeprefix(kafka.prefix)
                for message in messages:
                    record = decode(topic, message.value)
                    if isinstance(record, Verdict | Command | Ack) and story.take(record):
                        tell(record)
            if story.missing():
                complete_at = None
            elif complete_at is None:
                complete_at = time.monotonic()
            elif time.monotonic() - complete_at >= quiet_s:
                return
    finally:
        consumer.close()
