"""`ringfence topics`: what is missing or different in a cluster, and the commands that mend it."""

import json
import shlex
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka import KafkaAdminClient

from evidence.topics import TOPICS
from evidence.transport import Kafka
from ringfence.cli import main

pytestmark = pytest.mark.integration

CHANGELOGS = ("host", "job", "fabric", "isolation")


@pytest.fixture
def mine(any_kafka: Kafka) -> Kafka:
    """A prefix under which there is no topic yet."""
    return replace(any_kafka, prefix=f"t{uuid.uuid4().hex[:10]}.")


@pytest.fixture
def topics(mine: Kafka, tmp_path: Path) -> Callable[..., Result]:
    """The command line, with settings that name the test's prefix."""
    config = tmp_path / "ringfence.toml"
    config.write_text(f'[kafka]\nbootstrap = "{mine.bootstrap}"\nprefix = "{mine.prefix}"\n')

    def call(*arguments: str) -> Result:
        result = CliRunner().invoke(main, ["--config", str(config), "topics", *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


def make(kafka: Kafka, name: str, partitions: int, **settings: str) -> None:
    admin = KafkaAdminClient(**kafka.client())
    configs = {key.replace("_", "."): value for key, value in settings.items()}
    asked = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
    admin.create_topics({name: asked}, wait_for_metadata=True)
    admin.close()


def names(kafka: Kafka) -> list[str]:
    changelogs = [f"worker-{stage}-changelog" for stage in CHANGELOGS]
    return [kafka.topic(name) for name in (*TOPICS, *changelogs)]


def test_what_is_missing_is_said_and_created_with_the_changelogs_of_the_worker(
    mine: Kafka, topics: Callable[..., Result]
) -> None:
    absent = topics("check")
    assert absent.exit_code == 1
    assert absent.stdout.splitlines() == [f"Topic {one} does not exist." for one in names(mine)]

    made = topics("create")
    assert made.exit_code == 0
    lines = made.stdout.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"created {one}" for one in names(mine)]
    changelog = next(line for line in lines if "worker-host-changelog" in line)
    assert changelog.endswith(
        ": 4 partitions, 1 copies, cleanup.policy=compact, max.message.bytes=8388608"
    )
    assert "worker-isolation-changelog: 1 partition, " in made.stdout

    right = topics("check")
    assert (right.exit_code, right.stdout) == (
        0, f"All {len(names(mine))} topics at {mine.bootstrap} are as they must be.\n",
    )  # fmt: skip
    assert topics("create").stdout == "No topic is missing.\n"


def test_a_dry_run_prints_commands_for_who_may_and_creates_nothing(
    mine: Kafka, topics: Callable[..., Result]
) -> None:
    make(mine, mine.topic("gpu"), 4)
    dry = topics("create", "--dry-run")
    assert dry.exit_code == 0
    commands = [shlex.split(line) for line in dry.stdout.splitlines()]
    assert [one[one.index("--topic") + 1] for one in commands] == [
        one for one in names(mine) if one != mine.topic("gpu")
    ]
    assert commands[0] == [
        "kafka-topics.sh", "--bootstrap-server", mine.bootstrap, "--create", "--if-not-exists",
        "--topic", mine.topic("kernel"), "--partitions", "4", "--replication-factor", "1",
        "--config", "message.timestamp.type=LogAppendTime",
    ]  # fmt: skip
    assert len(topics("check").stdout.splitlines()) >= len(commands)


def test_a_wrong_count_is_said_and_never_changed(
    mine: Kafka, topics: Callable[..., Result]
) -> None:
    make(mine, mine.topic("gpu"), 2, message_timestamp_type="LogAppendTime")
    make(mine, mine.topic("worker-host-changelog"), 3, cleanup_policy="compact",
         max_message_bytes="8388608")  # fmt: skip
    made = topics("create", "--json")
    assert made.exit_code == 1
    told = [json.loads(line) for line in made.stdout.splitlines()]
    wrong = [one for one in told if "what" in one]
    changelog = mine.topic("worker-host-changelog")
    assert wrong == [
        {
            "topic": mine.topic("gpu"),
            "what": "partitions",
            "sentence": f"Topic {mine.topic('gpu')} has 2 partitions, the setting kafka.partitions "
            "says 4: all host-, job- and subnet-keyed topics must have that many; changing the "
            "count is a migration.",
        },
        {
            "topic": changelog,
            "what": "partitions",
            "sentence": f"Topic {changelog} has 3 partitions and {mine.topic('kernel')} must have "
            "4: changing it is a migration.",
        },
    ]
    admin = KafkaAdminClient(**mine.client())
    found = {one["name"]: len(one["partitions"]) for one in admin.describe_topics(names(mine))}
    admin.close()
    assert (found[mine.topic("gpu")], found[changelog]) == (2, 3)


@pytest.mark.kafka
def test_wrong_settings_are_said_one_sentence_each(apache_kafka: Any, tmp_path: Path) -> None:
    mine = Kafka(bootstrap=apache_kafka.bootstrap, prefix=f"t{uuid.uuid4().hex[:10]}.")
    make(mine, mine.topic("kernel"), 4)
    make(mine, mine.topic("gpu"), 4, message_timestamp_type="LogAppendTime",
         cleanup_policy="compact", max_message_bytes="65536")  # fmt: skip
    make(mine, mine.topic("inventory"), 4, message_timestamp_type="LogAppendTime")
    make(mine, mine.topic("verdicts"), 1, message_timestamp_type="LogAppendTime",
         min_insync_replicas="2")  # fmt: skip
    config = tmp_path / "ringfence.toml"
    config.write_text(
        f'[kafka]\nbootstrap = "{mine.bootstrap}"\nprefix = "{mine.prefix}"\nreplication = 3\n'
    )
    found = CliRunner().invoke(main, ["--config", str(config), "topics", "check", "--json"])
    assert found.exit_code == 1
    told = [json.loads(line) for line in found.stdout.splitlines()]
    said = {(one["topic"].removeprefix(mine.prefix), one["what"]): one["sentence"] for one in told}
    other = [place for place in said if place[1] not in ("missing", "replication")]
    assert sorted(other) == [
        ("gpu", "cleanup.policy"),
        ("gpu", "max.message.bytes"),
        ("gpu", "min.insync.replicas"),
        ("inventory", "cleanup.policy"),
        ("inventory", "min.insync.replicas"),
        ("kernel", "message.timestamp.type"),
        ("kernel", "min.insync.replicas"),
        ("verdicts", "min.insync.replicas"),
        ("verdicts", "retention.ms"),
    ]
    copies = [name for name, what in said if what == "replication"]
    assert copies == ["kernel", "gpu", "inventory", "verdicts"]
    assert said["gpu", "cleanup.policy"].endswith("all but the last would be dropped.")
    assert "has min.insync.replicas 1 and should have 2" in said["kernel", "min.insync.replicas"]
    assert "nothing can be written" in said["verdicts", "min.insync.replicas"]
    assert "has max.message.bytes 65536 and must have 1048576" in said["gpu", "max.message.bytes"]
