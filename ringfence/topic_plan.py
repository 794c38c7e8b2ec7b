"""Our topics as they must be in a cluster, and what is different where they are not; asks nobody.

Beside the topics of `evidence.topics` a worker has a changelog a stage, with as many partitions as
the topics that the stage reads.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evidence.topics import TOPICS, Key, Topic
from evidence.transport import Kafka

__all__ = ["Difference", "Plan", "Seen", "Wanted", "differences", "plan_of", "wanted_topics"]

#: A dead letter holds a whole message (1 MiB by default) in base64, and the error.
_DEADLETTER_BYTES = 2 * 1024 * 1024
#: What an agent may send at once (kafka-python's max_request_size), and Kafka's own default.
_MESSAGE_BYTES = 1024 * 1024
#: The history of decisions is small and is what a person asks for months later.
_KEPT_MS = {
    "verdicts": -1,
    "isolation.commands": -1,
    "isolation.acks": -1,
    "requests": -1,
    "drills": -1,
}
_SAFE_REPLICATION = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """One topic: its full name, counts, and the settings it is created with."""

    name: str
    partitions: int
    replication: int
    settings: Mapping[str, str]
    why_partitions: str
    smallest_bytes: int = _MESSAGE_BYTES

    @property
    def compacted(self) -> bool:
        """Whether only the last record of a key is kept."""
        return self.settings.get("cleanup.policy") == "compact"

    @property
    def described(self) -> str:
        """The topic in one line."""
        settings = "".join(f", {name}={value}" for name, value in self.settings.items())
        many = "partition" if self.partitions == 1 else "partitions"
        return f"{self.name}: {self.partitions} {many}, {self.replication} copies{settings}"

    def as_json(self) -> dict[str, Any]:
        """The topic as plain data."""
        return {
            "topic": self.name,
            "partitions": self.partitions,
            "replication": self.replication,
            "settings": dict(self.settings),
        }

    def command(self, kafka: Kafka) -> str:
        """The command line with which an administrator creates it."""
        words = ["kafka-topics.sh", "--bootstrap-server", kafka.bootstrap]
        if kafka.security_protocol != "PLAINTEXT":
            words += ["--command-config", "admin.properties"]
        words += ["--create", "--if-not-exists", "--topic", self.name]
        words += ["--partitions", str(self.partitions)]
        words += ["--replication-factor", str(self.replication)]
        for name, value in self.settings.items():
            words += ["--config", f"{name}={value}"]
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Wanted:
    """All topics of one installation, and where they are to be."""

    kafka: Kafka
    topics: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A topic as the cluster tells of it.

    ``partitions`` None: there is none of this name. ``forbidden``: we may not ask. ``settings`` are
    those in force, the broker's defaults among them; empty where it tells none.
    """

    partitions: int | None = None
    replicas: int = 1
    forbidden: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it must be; ``what`` is its short name."""

    topic: str
    what: str
    sentence: str

    def as_json(self) -> dict[str, str]:
        """The difference as plain data."""
        return {"topic": self.topic, "what": self.what, "sentence": self.sentence}


def plan_of(kafka: Kafka, topic: Topic) -> Plan:
    """The plan of one of the topics of `evidence.topics`."""
    settings = {"message.timestamp.type": "LogAppendTime"}
    if topic.compacted:
        settings["cleanup.policy"] = "compact"
    elif topic.name in _KEPT_MS:
        settings["retention.ms"] = str(_KEPT_MS[topic.name])
    if topic.key is Key.TOPIC:
        settings["max.message.bytes"] = str(_DEADLETTER_BYTES)
    shared = topic.key in (Key.HOST, Key.JOB, Key.SUBNET)
    return Plan(
        topic.full_name(kafka.prefix),
        topic.partitions(kafka.partitions),
        kafka.replication,
        settings | _insync(kafka),
        "the setting kafka.partitions says" if shared else "its records need one order",
        _DEADLETTER_BYTES if topic.key is Key.TOPIC else _MESSAGE_BYTES,
    )


def wanted_topics(
    kafka: Kafka, changelogs: Mapping[str, Sequence[str]], max_message_bytes: int
) -> Wanted:
    """Everything that must be there: the topics, and each changelog by what its stage reads."""
    plans = [plan_of(kafka, topic) for topic in TOPICS.values()]
    for name, inputs in changelogs.items():
        first = TOPICS[inputs[0]]
        plans.append(
            Plan(
                name,
                first.partitions(kafka.partitions),
                kafka.replication,
                {"cleanup.policy": "compact", "max.message.bytes": str(max_message_bytes)}
                | _insync(kafka),
                f"{kafka.topic(first.name)} must have",
                max_message_bytes,
            )
        )
    return Wanted(kafka, tuple(plans))


def _insync(kafka: Kafka) -> dict[str, str]:
    """With three copies, two must have a record before it is acknowledged: one broker may die."""
    if kafka.replication < _SAFE_REPLICATION:
        return {}
    return {"min.insync.replicas": str(kafka.replication - 1)}


def differences(plan: Plan, seen: Seen) -> Iterator[Difference]:
    """What is different about one topic, the gravest first."""
    if seen.forbidden:
        words = f"Topic {plan.name} may not be looked at by us: Describe on it is not allowed."
        yield Difference(plan.name, "forbidden", words)
    elif seen.partitions is None:
        yield Difference(plan.name, "missing", f"Topic {plan.name} does not exist.")
    else:
        if seen.partitions != plan.partitions:
            yield _partitions(plan, seen.partitions)
        for what, words in (*_copies(plan, seen), *_settings(plan, seen.settings)):
            yield Difference(plan.name, what, f"Topic {plan.name} {words}")


def _partitions(plan: Plan, found: int) -> Difference:
    head = f"Topic {plan.name} has {found} partitions"
    if plan.why_partitions.startswith("its"):
        words = f"{head} and must have {plan.partitions}, since {plan.why_partitions}."
    elif plan.why_partitions.startswith("the setting"):
        words = (
            f"{head}, {plan.why_partitions} {plan.partitions}: all host-, job- and subnet-keyed "
            "topics must have that many; changing the count is a migration."
        )
    else:
        words = f"{head} and {plan.why_partitions} {plan.partitions}: changing it is a migration."
    return Difference(plan.name, "partitions", words)


def _copies(plan: Plan, seen: Seen) -> Iterator[tuple[str, str]]:
    if seen.replicas < plan.replication:
        yield (
            "replication",
            f"is kept {seen.replicas} times, the setting kafka.replication says "
            f"{plan.replication}: what the brokers with it lose is lost.",
        )
    told = seen.settings.get("min.insync.replicas")
    if told is None or not told.isdigit():
        return
    least = int(told)
    wanted = int(plan.settings.get("min.insync.replicas", 1))
    if least > 1 and least >= seen.replicas:
        yield (
            "min.insync.replicas",
            f"has min.insync.replicas {least} and {seen.replicas} copies: nothing can be written "
            "to it while one broker is away.",
        )
    elif least < wanted:
        yield (
            "min.insync.replicas",
            f"has min.insync.replicas {least} and should have {wanted}: "
            "an acknowledged record may be lost with one broker.",
        )


def _settings(plan: Plan, told: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if "cleanup.policy" in told:
        policies = set(told["cleanup.policy"].replace(" ", "").split(","))
        if plan.compacted and policies != {"compact"}:
            yield (
                "cleanup.policy",
                f"has cleanup.policy {told['cleanup.policy']} and must have compact: "
                "the last record of a key would be deleted.",
            )
        if not plan.compacted and "compact" in policies:
            yield (
                "cleanup.policy",
                f"has cleanup.policy {told['cleanup.policy']} and must have delete: "
                "of the records of one key all but the last would be dropped.",
            )
    for name, reason in (
        ("message.timestamp.type", "records of several sources are ordered by append time"),
        ("retention.ms", "the history of decisions is asked for months later"),
    ):
        right, found = plan.settings.get(name), told.get(name)
        if right is not None and found is not None and found != right:
            yield name, f"has {name} {found} and must have {right}: {reason}."
    size = told.get("max.message.bytes", "")
    if size.isdigit() and int(size) < plan.smallest_bytes:
        yield (
            "max.message.bytes",
            f"has max.message.bytes {size} and must have {plan.smallest_bytes} at least: "
            "larger records would be refused.",
        )
