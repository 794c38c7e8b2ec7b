"""The rights listed in docs/operations.md, each part with its own and no more, on Apache Kafka.

Over TLS, with a password from a file: so every client is tried with these settings too.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]
from aiokafka.errors import KafkaConnectionError  # type: ignore[import-untyped]
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)
from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from collectors.shipping.shipper import Shipper
from evidence.records import KernelKind, KernelRecord
from evidence.transport import Kafka
from ringfence.cluster import ClusterError, check_topics
from ringfence.embedded import free_port
from streams.app import _credentials

pytestmark = [
    pytest.mark.integration,
    pytest.mark.kafka,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        shutil.which("openssl") is None and "RINGFENCE_REQUIRE_PARTS" not in os.environ,
        reason="openssl makes the certificates",
    ),
]

ROOT = Path(__file__).parents[2]
PREFIX = "ringfence."
PCI = "0000:d8:00"
TABLE = (ROOT / "docs" / "operations.md").read_text().split("\n## Rights\n")[1].split("\n## ")[0]
#: (part, right, resource, names)
LISTED = [
    (part, right, resource, names.split(", "))
    for part, right, resource, names in re.findall(
        r"^\| ([\w-]+) \| (\w+) \| (Topic|Group) \| (.+) \|$", TABLE, re.MULTILINE
    )
]
PARTS = sorted({part for part, *_ in LISTED})
_OPERATIONS = {
    "Read": ACLOperation.READ,
    "Write": ACLOperation.WRITE,
    "Create": ACLOperation.CREATE,
    "Describe": ACLOperation.DESCRIBE,
    "DescribeConfigs": ACLOperation.DESCRIBE_CONFIGS,
}


def acl(part: str, right: str, resource: str, name: str) -> ACL:
    begins = name.endswith("*")
    pattern = ResourcePattern(
        ResourceType.TOPIC if resource == "Topic" else ResourceType.GROUP,
        PREFIX + name.removesuffix("*"),
        ACLResourcePatternType.PREFIXED if begins else ACLResourcePatternType.LITERAL,
    )
    return ACL(f"User:{part}", "*", _OPERATIONS[right], ACLPermissionType.ALLOW, pattern)


def certificates(folder: Path) -> None:
    """ca.pem, and broker.pem (key and certificate for 127.0.0.1 that it signed)."""

    def openssl(*arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-nodes", "-newkey", "rsa:2048")
    openssl("req", "-x509", "-days", "2", *key, "-subj", "/CN=CA", "-keyout", "ca.key",
            "-out", "ca.pem")  # fmt: skip
    openssl("req", *key, "-subj", "/CN=broker", "-keyout", "broker.key", "-out", "broker.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    openssl("x509", "-req", "-in", "broker.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "broker.crt")  # fmt: skip
    pem = (folder / "broker.key").read_text() + (folder / "broker.crt").read_text()
    (folder / "broker.pem").write_text(pem)


class House:
    """A broker that lets each part do what is listed for it; a settings file for each."""

    def __init__(self, secured: str, folder: Path) -> None:
        self.folder = folder
        self.secured = secured
        self.started: list[subprocess.Popen[bytes]] = []
        self.policy = folder / "policy.toml"
        self.policy.write_text(
            'isolation.mode = { value = "enforce", why = "It is acted upon.", source = "test" }\n'
        )

    def kafka(self, part: str) -> Kafka:
        """The way to Kafka as one part's user."""
        password = self.folder / f"{part}.password"
        password.write_text(f"secret of {part}\n")
        return Kafka(
            bootstrap=self.secured,
            prefix=PREFIX,
            security_protocol="SASL_SSL",
            ssl_cafile=str(self.folder / "ca.pem"),
            sasl_mechanism="PLAIN",
            sasl_username=part,
            sasl_password_file=str(password),
        )

    def command(self, part: str, *arguments: str) -> list[str]:
        kafka = self.kafka(part)
        config = self.folder / f"{part}.toml"
        config.write_text(
            f'[kafka]\nbootstrap = "{kafka.bootstrap}"\nsecurity_protocol = "SASL_SSL"\n'
            f'ssl_cafile = "{kafka.ssl_cafile}"\n'
            f'sasl_mechanism = "PLAIN"\nsasl_username = "{part}"\n'
            f'sasl_password_file = "{kafka.sasl_password_file}"\n'
            f'[worker]\npolicy = "{self.policy}"\nmetrics_listen = ""\nsession_timeout_s = 6\n'
            '[sink]\nflush_s = 0.3\nbulk_flush_s = 0.5\nmetrics_listen = ""\n'
        )
        data = str(self.folder / part)
        given = ("--config", str(config), "--data", data, *arguments)
        return [sys.executable, "-m", "ringfence", *given]

    def start(self, part: str, *arguments: str) -> None:
        with (self.folder / f"{part}.log").open("wb") as log:
            self.started.append(
                subprocess.Popen(
                    self.command(part, *arguments), stdout=log, stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
            )  # fmt: skip

    def call(self, part: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(part, *arguments), capture_output=True, text=True, timeout=60,
            check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def logs(self) -> str:
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {file.stem}\n{file.read_text()[-2000:]}" for file in files)

    def stop(self) -> None:
        for process in self.started:
            process.terminate()
        for process in self.started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, apache_kafka: Any) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("rights")
    port = free_port(None)

    class Guarded(type(apache_kafka)):  # type: ignore[misc]
        def _write_properties(self) -> Path:
            path: Path = super()._write_properties()
            text = path.read_text()
            for name in ("listeners", "advertised.listeners"):
                text = text.replace(f"\n{name}=", f"\n{name}=GUARDED://127.0.0.1:{port},")
            path.write_text(text.replace("protocol.map=", "protocol.map=GUARDED:SASL_SSL,"))
            return path

    certificates(folder)
    users = " ".join(f'user_{part}="secret of {part}"' for part in PARTS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # the broker itself, and this test
        "listener.name.guarded.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.guarded.plain.sasl.jaas.config": f"{module} required {users};",
        "listener.name.guarded.ssl.keystore.type": "PEM",
        "listener.name.guarded.ssl.keystore.location": str(folder / "broker.pem"),
    }
    with Guarded(folder / "kafka", heap_mb=256, settings=settings) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        admin.create_acls(
            [
                acl(part, right, resource, name)
                for part, right, resource, names in LISTED
                for name in names
            ]
        )
        admin.close()
        made = House(f"127.0.0.1:{port}", folder)
        yield made
        made.stop()


def wait(done: Any, house: House, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline, house.logs()
        time.sleep(0.2)


def stored(house: House, kind: str) -> list[dict[str, Any]]:
    """The rows of a kind that the sink has stored."""
    files = (house.folder / "sink" / "warehouse" / kind).glob("day=*/*.parquet")
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def test_the_list_names_every_part() -> None:
    assert (
        sorted(
            [
                "admin",
                "agent",
                "desk",
                "drill",
                "fabric-agent",
                "letters",
                "scheduler",
                "sink",
                "worker",
            ]
        )
        == PARTS
    )


def test_each_part_works_with_its_own_rights(house: House) -> None:
    refused = house.call("worker", "worker")
    assert refused.returncode == 2
    assert "does not exist at" in refused.stderr
    assert "user 'worker' may not create it" in refused.stderr
    made = house.call("admin", "topics", "create")
    assert made.returncode == 0, made.stderr
    checked = house.call("admin", "topics", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr

    house.start("worker", "worker")
    house.start("sink", "sink")
    house.start("scheduler", "scheduler", "exec", "cat")
    now = datetime.now(UTC)
    shipper = Shipper(house.kafka("agent"))
    lost = KernelRecord(
        id="lost", observed_at=now, at=now, kind=KernelKind.XID, host="gx-4", code=79, pci=PCI,
        raw=f"NVRM: Xid (PCI:{PCI}): 79, GPU has fallen off the bus.",
    )  # fmt: skip
    shipper.send("kernel", "gx-4", lost)
    assert shipper.flush(20)
    shipper.close()
    fabric = Shipper(house.kafka("fabric-agent"))
    fabric.send("fabric", "default", lost)  # no record of fabric: it becomes a dead letter
    assert fabric.flush(20)
    fabric.close()
    asked = house.call("desk", "isolate", "node:gx-5", "--reason", "by hand")
    assert asked.returncode == 0, asked.stderr

    def acked() -> bool:
        acks = [row for row in stored(house, "acks") if row["schema"] == "ack/1"]
        return {row["domain_id"] for row in acks} == {f"gpu:gx-4/{PCI}", "node:gx-5"}

    wait(acked, house)
    # One of the two is held: the budget is one node an hour.
    assert "done" in {row["status"] for row in stored(house, "acks")}
    listed = house.call("letters", "deadletters", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    (letter,) = [json.loads(line) for line in listed.stdout.splitlines()]
    assert (letter["topic"], letter["stage"]) == ("fabric", "fabric")
    again = house.call("letters", "deadletters", "resend", letter["id"], "--yes")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [process.poll() for process in house.started] == [None, None, None], house.logs()
    assert "Traceback" not in house.logs()


@pytest.mark.parametrize(
    ("part", "topic"),
    [
        ("agent", "isolation.commands"),
        ("agent", "verdicts"),
        ("fabric-agent", "kernel"),
        ("sink", "kernel"),
        ("scheduler", "isolation.commands"),
        ("desk", "isolation.commands"),
        ("letters", "isolation.commands"),
        ("admin", "requests"),
        ("worker", "requests"),
    ],
)
def test_nobody_writes_what_is_not_theirs(house: House, part: str, topic: str) -> None:
    producer = KafkaProducer(
        **house.kafka(part).client(), enable_idempotence=False, max_block_ms=5000
    )
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send(PREFIX + topic, b"{}", key=b"k").get(10)
    producer.close(timeout=2)


@pytest.mark.parametrize(
    ("part", "topic"),
    [("agent", "kernel"), ("scheduler", "context"), ("worker", "deadletters")],
)
def test_nobody_reads_what_is_not_theirs(house: House, part: str, topic: str) -> None:
    consumer = KafkaConsumer(
        **house.kafka(part).client(), group_id=None, auto_offset_reset="earliest"
    )
    consumer.assign([TopicPartition(PREFIX + topic, 0)])
    with pytest.raises(TopicAuthorizationFailedError):
        consumer.poll(timeout_ms=10_000)
    consumer.close()


def test_a_scheduler_does_not_join_the_workers_group(house: House) -> None:
    consumer = KafkaConsumer(
        PREFIX + "isolation.commands", **house.kafka("scheduler").client(),
        group_id=PREFIX + "worker",
    )  # fmt: skip
    with pytest.raises(GroupAuthorizationFailedError):
        consumer.poll(timeout_ms=10_000)
    consumer.close(autocommit=False)


def test_a_wrong_password_is_one_sentence(house: House) -> None:
    command = house.command("desk", "release", "node:gx-5")
    (house.folder / "desk.password").write_text("guessed\n")
    soon = {**os.environ, "PYTHONPATH": str(ROOT), "RINGFENCE_KAFKA_START_WITHIN_S": "3"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=soon
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"Error: No Kafka answers at {house.secured}")
    assert "Traceback" not in done.stderr


def known_by_another_name(house: House, *, check: bool) -> Kafka:
    """The broker under a name that is not in its certificate."""
    kafka = house.kafka("admin")
    return replace(
        kafka,
        bootstrap=kafka.bootstrap.replace("127.0.0.1", "localhost"),
        ssl_check_hostname=check,
        start_within_s=3.0,
    )


def test_a_certificate_of_another_name_is_refused_unless_the_settings_say_otherwise(
    house: House,
) -> None:
    with pytest.raises(ClusterError, match="No Kafka answers at localhost"):
        check_topics(known_by_another_name(house, check=True), timeout_s=3.0)
    assert check_topics(known_by_another_name(house, check=False)) == []


def test_the_workers_client_reads_the_same_settings(house: House) -> None:
    async def ask(kafka: Kafka) -> set[str]:
        given = credentials_to_aiokafka_auth(_credentials(kafka), None)
        client = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, **given)
        try:
            await client.start()
            return set(await client.topics())
        finally:
            await client.stop()

    with pytest.raises(KafkaConnectionError):
        asyncio.run(ask(known_by_another_name(house, check=True)))
    assert PREFIX + "kernel" in asyncio.run(ask(known_by_another_name(house, check=False)))
