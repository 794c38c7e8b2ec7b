"""The topics as they must be before Faust starts: inputs with equal counts, changelogs that match.

Faust fails at the first table write, not at the start, where the counts differ; and a changelog
that it creates itself while it joins may be left out of its first assignment.
"""

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from evidence.topics import TOPICS, Key
from streams.config import TopicsError, WorkerConfig
from streams.stage import Stage

__all__ = ["Prepared", "prepare"]

_LOG = logging.getLogger(__name__)
_TOPIC_EXISTS, _INVALID_CONFIG = 36, 40  # Kafka protocol error codes
_ASK_AGAIN_S = 0.3


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the start check found: partitions of every topic, and Kafka's ids of the changelogs.

    A topic that is deleted and made anew has another id; a broker older than 2.8 gives none.
    """

    counts: Mapping[str, int]
    ids: Mapping[str, str]


def prepare(config: WorkerConfig, stages: Iterable[Stage[Any]]) -> Prepared:
    """Check the stages' input topics and create their changelogs.

    Waits up to ``start_timeout_s`` for topics that are missing (whoever creates them may be
    starting too). Raises TopicsError with one sentence when they stay missing, when the inputs of
    one stage differ in their partition counts, or when a changelog has another count.
    """
    stages = list(stages)
    wanted = {config.kafka.topic(name) for stage in stages for name in stage.topics}
    deadline = time.monotonic() + config.start_timeout_s
    with _admin(config, deadline) as admin:
        counts = _counts(admin, wanted)
        while missing := sorted(wanted - counts.keys()):
            if time.monotonic() > deadline:
                raise TopicsError(f"Topic {missing[0]} does not exist at {config.kafka.bootstrap}.")
            time.sleep(_ASK_AGAIN_S)
            counts = _counts(admin, wanted)
        for stage in stages:
            _check(config, stage, counts)
        changelogs = {config.changelog(stage.name): _inputs(config, stage) for stage in stages}
        found = _counts(admin, changelogs.keys())
        created = sorted(changelogs.keys() - found.keys())
        for name in created:
            _create(admin, config, name, counts[changelogs[name][0]])
        if created:
            _LOG.info("created %s", ", ".join(created))
            admin.wait_for_topics(created, timeout_ms=int(config.start_timeout_s * 1000))
        described = _described(admin, changelogs.keys())
    for name, inputs in changelogs.items():
        right, has = counts[inputs[0]], len(described[name]["partitions"])
        if has != right:
            raise TopicsError(
                f"Changelog {name} has {has} partitions and {inputs[0]} has {right}: "
                "the partition count was changed, which is a migration."
            )
    return Prepared(
        counts | {name: len(one["partitions"]) for name, one in described.items()},
        {name: _id(one) for name, one in described.items()},
    )


def _inputs(config: WorkerConfig, stage: Stage[Any]) -> list[str]:
    return [config.kafka.topic(name) for name in stage.topics]


def _check(config: WorkerConfig, stage: Stage[Any], counts: Mapping[str, int]) -> None:
    inputs = _inputs(config, stage)
    for name, full in zip(stage.topics, inputs, strict=True):
        if TOPICS[name].key is Key.CLUSTER and counts[full] != 1:
            raise TopicsError(
                f"Topic {full} must have 1 partition and has {counts[full]}: "
                "what concerns the whole cluster is decided in one place."
            )
    if len({counts[name] for name in inputs}) > 1:
        listed = ", ".join(f"{name} {counts[name]}" for name in inputs)
        raise TopicsError(
            f"The input topics of the {stage.name} stage must have equal partition counts, "
            f"but have: {listed}."
        )


@contextmanager
def _admin(config: WorkerConfig, deadline: float) -> Iterator[KafkaAdminClient]:
    milliseconds = max(1, int((deadline - time.monotonic()) * 1000))
    try:
        admin = KafkaAdminClient(
            **config.kafka.client(),
            client_id=f"{config.group}-start",
            bootstrap_timeout_ms=milliseconds,
        )
    except (KafkaError, OSError) as error:
        raise TopicsError(f"No Kafka answers at {config.kafka.bootstrap}: {error}") from error
    try:
        yield admin
    except KafkaError as error:
        raise TopicsError(f"Kafka at {config.kafka.bootstrap} refused: {error}") from error
    finally:
        admin.close()


def _described(admin: KafkaAdminClient, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What Kafka says of the topics that exist."""
    described = admin.describe_topics(sorted(names))
    return {found["name"]: found for found in described if found["error_code"] == 0}


def _counts(admin: KafkaAdminClient, names: Iterable[str]) -> dict[str, int]:
    return {name: len(found["partitions"]) for name, found in _described(admin, names).items()}


def _id(described: Mapping[str, Any]) -> str:
    """Kafka's id of a topic; empty where it gives none."""
    given = str(described.get("topic_id") or "")
    return "" if given == str(uuid.UUID(int=0)) else given


def _create(admin: KafkaAdminClient, config: WorkerConfig, name: str, partitions: int) -> None:
    asked = {"num_partitions": partitions, "replication_factor": config.kafka.replication}
    size = {"max.message.bytes": str(config.max_message_bytes)}
    for settings in ({"cleanup.policy": "compact"} | size, {"cleanup.policy": "compact"}, {}):
        reply = admin.create_topics({name: asked | {"configs": settings}}, raise_errors=False)
        answer = reply["topics"][0]
        if answer["error_code"] != _INVALID_CONFIG:
            break
    if answer["error_code"] not in {0, _TOPIC_EXISTS}:
        reason = answer.get("error_message") or f"error code {answer['error_code']}"
        raise TopicsError(f"Kafka at {config.kafka.bootstrap} refused topic {name}: {reason}")
