"""Our topics in a cluster: created as they must be, and checked where they already are.

A wrong partition count is the one mistake Faust does not forgive: it fails at the first table
write, not at the start. So it is checked before.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, KafkaTimeoutError

from evidence.topics import TOPICS, Key, Topic
from evidence.transport import Kafka
from ringfence.settings import SettingsError, load

__all__ = ["ClusterError", "check_topics", "ensure_topics", "main"]

_LOG = logging.getLogger(__name__)
# Kafka protocol error codes.
_TOPIC_EXISTS = 36
_INVALID_CONFIG = 40
#: A dead letter holds a whole message (1 MiB by default) in base64, and the error.
_DEADLETTER_BYTES = 2 * 1024 * 1024
#: The history of decisions is small and is what a person asks for months later.
_KEPT_MS = {"verdicts": -1, "isolation.commands": -1, "isolation.acks": -1, "requests": -1}


class ClusterError(Exception):
    """Kafka is not there or refuses our topics; the message is one sentence for the operator."""


def ensure_topics(kafka: Kafka, *, timeout_s: float | None = None) -> list[str]:
    """Create the topics that are missing and wait until they can be used; returns their names.

    ``timeout_s`` None is ``kafka.start_within_s``. Idempotent, and safe when two processes do it
    at once. Topics that exist are left as they are:
    `check_topics` says what is wrong with them. A topic setting the broker refuses is left out,
    with a line at debug level. Raises ClusterError when Kafka is not there or refuses a topic.
    """
    timeout_s = kafka.start_within_s if timeout_s is None else timeout_s
    with _admin(kafka, timeout_s) as admin:
        there = {found["name"] for found in _described(admin, kafka)}
        missing = [topic for topic in TOPICS.values() if topic.full_name(kafka.prefix) not in there]
        created = [
            topic.full_name(kafka.prefix) for topic in missing if _create(admin, kafka, topic)
        ]
        _wait(admin, kafka, timeout_s)
        _say_refused(admin, kafka)
    if created:
        _LOG.info("created %d topics at %s: %s", len(created), kafka.bootstrap, ", ".join(created))
    return created


def check_topics(kafka: Kafka, *, timeout_s: float = 30.0) -> list[str]:
    """What is wrong with our topics, one sentence each; empty when a worker may start.

    Raises ClusterError when Kafka is not there.
    """
    with _admin(kafka, timeout_s) as admin:
        counts = {found["name"]: len(found["partitions"]) for found in _described(admin, kafka)}
    return list(_complaints(kafka, counts))


def _complaints(kafka: Kafka, counts: Mapping[str, int]) -> Iterator[str]:
    for topic in TOPICS.values():
        name = topic.full_name(kafka.prefix)
        right = topic.partitions(kafka.partitions)
        found = counts.get(name)
        if found is None:
            yield f"Topic {name} does not exist."
        elif found != right and topic.key in (Key.HOST, Key.JOB, Key.SUBNET):
            yield (
                f"Topic {name} has {found} partitions, the setting kafka.partitions says {right}: "
                "all host-, job- and subnet-keyed topics must have that many; changing the count "
                "is a migration."
            )
        elif found != right:
            yield (
                f"Topic {name} has {found} partitions and must have {right}, "
                "since its records need one order."
            )


@contextmanager
def _admin(kafka: Kafka, timeout_s: float) -> Iterator[KafkaAdminClient]:
    """An admin client, closed afterwards; any Kafka error comes out as ClusterError."""
    milliseconds = int(timeout_s * 1000)
    try:
        admin = KafkaAdminClient(
            **kafka.client(),
            client_id="ringfence-admin",
            bootstrap_timeout_ms=milliseconds,
            reconnect_backoff_max_ms=1000,  # the default backs off past the time there is
        )
    except KafkaTimeoutError as error:
        raise ClusterError(
            f"No Kafka answers at {kafka.bootstrap} within {timeout_s:g} s."
        ) from error
    except (KafkaError, OSError) as error:
        raise ClusterError(f"Kafka at {kafka.bootstrap} cannot be used: {error}") from error
    try:
        yield admin
    except KafkaError as error:
        raise ClusterError(f"Kafka at {kafka.bootstrap} refused: {error}") from error
    finally:
        admin.close()


def _described(admin: KafkaAdminClient, kafka: Kafka) -> list[dict[str, Any]]:
    """The metadata of those of our topics that exist."""
    names = [topic.full_name(kafka.prefix) for topic in TOPICS.values()]
    return [found for found in admin.describe_topics(names) if found["error_code"] == 0]


def _settings(topic: Topic) -> dict[str, str]:
    """The topic's own settings: input order goes by the broker's append time."""
    settings = {"message.timestamp.type": "LogAppendTime"}
    if topic.compacted:
        settings["cleanup.policy"] = "compact"
    elif topic.name in _KEPT_MS:
        settings["retention.ms"] = str(_KEPT_MS[topic.name])
    if topic.key is Key.TOPIC:
        settings["max.message.bytes"] = str(_DEADLETTER_BYTES)
    return settings


def _create(admin: KafkaAdminClient, kafka: Kafka, topic: Topic) -> bool:
    """Create one topic; False when somebody else was faster."""
    name = topic.full_name(kafka.prefix)
    asked = {
        "num_partitions": topic.partitions(kafka.partitions),
        "replication_factor": kafka.replication,
    }
    for settings in (_settings(topic), {}):
        reply = admin.create_topics({name: asked | {"configs": settings}}, raise_errors=False)
        answer = reply["topics"][0]
        if answer["error_code"] == _INVALID_CONFIG and settings:
            _LOG.debug("topic %s without its settings: %s", name, answer["error_message"])
            continue
        break
    if answer["error_code"] == _TOPIC_EXISTS:
        return False
    if answer["error_code"] != 0:
        reason = answer.get("error_message") or f"error code {answer['error_code']}"
        raise ClusterError(f"Kafka at {kafka.bootstrap} refused topic {name}: {reason}")
    return True


def _wait(admin: KafkaAdminClient, kafka: Kafka, timeout_s: float) -> None:
    """Wait until every partition has a leader: KRaft says yes before clients can see it."""
    names = [topic.full_name(kafka.prefix) for topic in TOPICS.values()]
    admin.wait_for_topics(names, timeout_ms=int(timeout_s * 1000))


def _say_refused(admin: KafkaAdminClient, kafka: Kafka) -> None:
    """Say at debug which settings the broker took without keeping them (Tansu keeps none)."""
    if not _LOG.isEnabledFor(logging.DEBUG):
        return
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, topic.full_name(kafka.prefix))
        for topic in TOPICS.values()
    ]
    try:
        kept = admin.describe_configs(resources).get("topic", {})
    except KafkaError as error:
        _LOG.debug("the broker does not tell its topic settings: %s", error)
        return
    differing: dict[str, list[str]] = {}
    for topic in TOPICS.values():
        found = kept.get(topic.full_name(kafka.prefix), {})
        for setting, value in _settings(topic).items():
            if found.get(setting, {}).get("value") != value:
                differing.setdefault(setting, []).append(topic.name)
    for setting, names in differing.items():
        _LOG.debug("the broker does not keep %s for %s", setting, ", ".join(names))


def main() -> int:
    """Check the topics of the Kafka in RINGFENCE_KAFKA_*: for health checks, 0 is right."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it logs each refused connection
    try:
        complaints = check_topics(load(None, None).kafka, timeout_s=10.0)
    except (ClusterError, SettingsError) as error:
        complaints = [str(error)]
    for complaint in complaints:
        sys.stderr.write(complaint + "\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
