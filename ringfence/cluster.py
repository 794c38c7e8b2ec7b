"""Our topics in a cluster: created as they must be, and checked where they already are.

A wrong partition count is the one mistake Faust does not forgive: it fails at the first table
write, not at the start. So it is checked before.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, KafkaTimeoutError

from evidence.topics import TOPICS
from evidence.transport import Kafka
from ringfence.settings import Settings, SettingsError, load
from ringfence.topic_plan import (
    Difference,
    Plan,
    Seen,
    Wanted,
    differences,
    plan_of,
    wanted_topics,
)

__all__ = [
    "ClusterError",
    "check_topics",
    "create",
    "ensure_topics",
    "found_different",
    "main",
    "missing",
    "wanted",
]

_LOG = logging.getLogger(__name__)
# Kafka protocol error codes.
_UNKNOWN_TOPIC = 3
_TOPIC_FORBIDDEN, _CLUSTER_FORBIDDEN = 29, 31
_TOPIC_EXISTS = 36
_INVALID_CONFIG = 40


class ClusterError(Exception):
    """Kafka is not there or refuses our topics; the message is one sentence for the operator."""


def ensure_topics(kafka: Kafka, *, timeout_s: float | None = None) -> list[str]:
    """Create the topics that are missing and wait until they can be used; returns their names.

    ``timeout_s`` None is ``kafka.start_within_s``. Idempotent, and safe when two processes do it
    at once. Topics that exist are left as they are: `check_topics` says what is wrong with them;
    those that we may not ask for are others' concern. A topic setting the broker refuses is left
    out, with a line at debug level. Raises ClusterError when Kafka is not there, or a topic is
    missing and may not be created.
    """
    timeout_s = kafka.start_within_s if timeout_s is None else timeout_s
    plans = [plan_of(kafka, topic) for topic in TOPICS.values()]
    with _admin(kafka, timeout_s) as admin:
        created = _create_missing(admin, kafka, plans, timeout_s)
        _say_refused(admin, plans)
    if created:
        names = ", ".join(plan.name for plan in created)
        _LOG.info("created %d topics at %s: %s", len(created), kafka.bootstrap, names)
    return [plan.name for plan in created]


def check_topics(kafka: Kafka, *, timeout_s: float = 30.0) -> list[str]:
    """What keeps a worker from starting, one sentence each: topics missing or miscounted.

    Raises ClusterError when Kafka is not there.
    """
    plans = [plan_of(kafka, topic) for topic in TOPICS.values()]
    with _admin(kafka, timeout_s) as admin:
        seen = _seen(admin, plans)
    return [
        one.sentence
        for plan in plans
        for one in differences(plan, seen[plan.name])
        if one.what in ("missing", "partitions")
    ]


def wanted(settings: Settings) -> Wanted:
    """Every topic of this installation: ours, and the changelogs of its workers.

    Raises SettingsError for a wrong setting of the worker.
    """
    from rules.tables import load as rules  # noqa: PLC0415 (only here; other parts need neither)
    from streams.config import WorkerConfig  # noqa: PLC0415
    from streams.stages import bind  # noqa: PLC0415

    kafka = settings.kafka
    worker = settings.build(WorkerConfig, "worker", kafka=kafka)
    stages = bind(worker.stages, rules())
    changelogs = {worker.changelog(stage.name): stage.topics for stage in stages}
    return wanted_topics(kafka, changelogs, worker.max_message_bytes)


def missing(wanted: Wanted, *, timeout_s: float) -> list[Plan]:
    """The topics that do not exist; raises ClusterError."""
    with _admin(wanted.kafka, timeout_s) as admin:
        seen = _seen(admin, wanted.topics)
    return [plan for plan in wanted.topics if _is_missing(seen[plan.name])]


def create(wanted: Wanted, *, timeout_s: float) -> list[Plan]:
    """Create the topics that do not exist, and no more; returns them. Raises ClusterError."""
    with _admin(wanted.kafka, timeout_s) as admin:
        return _create_missing(admin, wanted.kafka, wanted.topics, timeout_s)


def found_different(wanted: Wanted, *, timeout_s: float) -> list[Difference]:
    """What is not as it must be, in the order of the topics; raises ClusterError."""
    with _admin(wanted.kafka, timeout_s) as admin:
        seen = _seen(admin, wanted.topics)
        there = [plan for plan in wanted.topics if seen[plan.name].partitions is not None]
        told = _told(admin, there, "all")
    for name, settings in told.items():
        one = seen[name]
        seen[name] = Seen(one.partitions, one.replicas, settings=settings)
    return [one for plan in wanted.topics for one in differences(plan, seen[plan.name])]


def _is_missing(seen: Seen) -> bool:
    return seen.partitions is None and not seen.forbidden


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


def _seen(admin: KafkaAdminClient, plans: Sequence[Plan]) -> dict[str, Seen]:
    """What the cluster tells of each topic, without its settings."""
    found = {plan.name: Seen() for plan in plans}
    for one in admin.describe_topics(list(found)):
        if one["error_code"] == 0:
            copies = [len(part["replica_nodes"]) for part in one["partitions"]]
            found[one["name"]] = Seen(len(one["partitions"]), min(copies, default=1))
        elif one["error_code"] != _UNKNOWN_TOPIC:
            found[one["name"]] = Seen(forbidden=one["error_code"] == _TOPIC_FORBIDDEN)
    return found


def _told(admin: KafkaAdminClient, plans: Sequence[Plan], which: str) -> dict[str, dict[str, str]]:
    """The settings of each topic as far as the broker tells them: "all", or only "modified"."""
    if not plans:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, plan.name) for plan in plans]
    try:
        told = admin.describe_configs(resources, config_filter=which).get("topic", {})
    except KafkaError as error:
        _LOG.debug("the broker does not tell its topic settings: %s", error)
        return {}
    return {
        name: {key: one["value"] for key, one in kept.items() if one.get("value") is not None}
        for name, kept in told.items()
    }


def _create_missing(
    admin: KafkaAdminClient, kafka: Kafka, plans: Sequence[Plan], timeout_s: float
) -> list[Plan]:
    seen = _seen(admin, plans)
    created = [
        plan for plan in plans if _is_missing(seen[plan.name]) and _create(admin, kafka, plan)
    ]
    # KRaft says yes before clients can see it: wait until every partition has a leader.
    names = [plan.name for plan in plans if not seen[plan.name].forbidden]
    admin.wait_for_topics(names, timeout_ms=int(timeout_s * 1000))
    return created


def _create(admin: KafkaAdminClient, kafka: Kafka, plan: Plan) -> bool:
    """Create one topic; False when somebody else was faster."""
    asked = {"num_partitions": plan.partitions, "replication_factor": plan.replication}
    for settings in (dict(plan.settings), {}):
        reply = admin.create_topics({plan.name: asked | {"configs": settings}}, raise_errors=False)
        answer = reply["topics"][0]
        if answer["error_code"] == _INVALID_CONFIG and settings:
            _LOG.debug("topic %s without its settings: %s", plan.name, answer["error_message"])
            continue
        break
    if answer["error_code"] == _TOPIC_EXISTS:
        return False
    if answer["error_code"] in (_TOPIC_FORBIDDEN, _CLUSTER_FORBIDDEN):
        who = f"user {kafka.sasl_username!r}" if kafka.sasl_username else "we"
        raise ClusterError(
            f"Topic {plan.name} does not exist at {kafka.bootstrap} and {who} may not create it: "
            "`ringfence topics create --dry-run` prints the commands for somebody who may."
        )
    if answer["error_code"] != 0:
        reason = answer.get("error_message") or f"error code {answer['error_code']}"
        raise ClusterError(f"Kafka at {kafka.bootstrap} refused topic {plan.name}: {reason}")
    return True


def _say_refused(admin: KafkaAdminClient, plans: Iterable[Plan]) -> None:
    """Say at debug which settings the broker took without keeping them (Tansu keeps none)."""
    if not _LOG.isEnabledFor(logging.DEBUG):
        return
    plans = list(plans)
    kept = _told(admin, plans, "modified")
    short = dict(zip((plan.name for plan in plans), TOPICS, strict=True))
    differing: dict[str, list[str]] = {}
    for plan in plans:
        for setting, value in plan.settings.items():
            if kept.get(plan.name, {}).get(setting) != value:
                differing.setdefault(setting, []).append(short[plan.name])
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
