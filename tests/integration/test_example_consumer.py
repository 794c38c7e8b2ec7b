"""The example consumer of the docs, as it stands in the repository, against a real broker."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer

from evidence.decisions import AckStatus
from evidence.signing import Signer
from evidence.transport import Kafka
from evidence.wire import decode
from ringfence.keys import new

pytestmark = [pytest.mark.integration, pytest.mark.kafka]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy/examples/consumer.py"


def _command(ident: str, **fields: Any) -> bytes:
    """A command as the contract's page writes it, without our own code."""
    plain: dict[str, Any] = {
        "schema": "command/1",
        "id": ident,
        "action": "isolate",
        "domain": {"kind": "node", "host": "hpc-n041"},
        "domain_id": "node:hpc-n041",
        "level": "drain",
        "cause": "node",
        "reason": "machine check",
        "incident": "i1",
        "generation": 1,
        "issued_at": "2026-11-03T02:14:09Z",
    }
    value = msgspec.json.encode(plain | fields)
    schema = msgspec.json.decode((ROOT / "docs/schemas/command.v1.json").read_bytes())
    jsonschema.validate(msgspec.json.decode(value), schema)
    return value


def test_the_example_consumer_keeps_the_contract(
    apache_kafka: Any, fresh_topics: Callable[..., Kafka], tmp_path: Path
) -> None:
    kafka = fresh_topics(apache_kafka.bootstrap)
    private, public = new(tmp_path, "a")
    ours = Signer.read(private)
    topic = kafka.topic("isolation.commands")
    genuine = _command("c1")
    past = _command("late", act_by="2026-11-03T02:19:09Z")
    back = _command("r1", action="release", generation=2)
    old = _command("old")
    altered = _command("c1", level="evict")
    later = _command("later").replace(b"command/1", b"command/2")
    twice = _command("twice")
    sent = [
        (genuine, ours.headers(topic, genuine)),
        (genuine, ours.headers(topic, genuine)),
        (_command("forged"), []),
        (past, ours.headers(topic, past)),
        (b"\xff no command", []),
        (b"[]", []),
        (back, ours.headers(topic, back)),
        (old, ours.headers(topic, old)),
        (altered, ours.headers(topic, altered)),
        (later, ours.headers(topic, later)),
        (twice, [*ours.headers(topic, twice), *ours.headers(topic, twice)]),
    ]
    producer = KafkaProducer(**kafka.client())
    for value, headers in sent:
        producer.send(topic, value, headers=headers)
    producer.close()
    command = [sys.executable, str(EXAMPLE), kafka.bootstrap, str(public), "state.json"]
    process = subprocess.Popen(
        [*command, kafka.prefix], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        values = _acks(kafka, 8)
    finally:
        process.kill()
        printed, _ = process.communicate()
    schema = msgspec.json.decode((ROOT / "docs/schemas/ack.v1.json").read_bytes())
    for value in values:
        jsonschema.validate(msgspec.json.decode(value), schema)
    acks = [decode("isolation.acks", value) for value in values]
    assert [(ack.command, ack.status) for ack in acks] == [
        ("c1", AckStatus.DONE),
        ("c1", AckStatus.DONE),
        ("forged", AckStatus.REFUSED),
        ("late", AckStatus.EXPIRED),
        ("r1", AckStatus.DONE),
        ("old", AckStatus.REFUSED),
        ("c1", AckStatus.REFUSED),
        ("twice", AckStatus.REFUSED),
    ]
    assert printed.decode().splitlines() == [
        "isolate node:hpc-n041 drain",
        "release node:hpc-n041 drain",
    ]


def _acks(kafka: Kafka, count: int) -> list[bytes]:
    reader = KafkaConsumer(
        kafka.topic("isolation.acks"),
        **kafka.client(),
        group_id=None,
        auto_offset_reset="earliest",
    )
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count:
        assert time.monotonic() < deadline, values
        for messages in reader.poll(timeout_ms=200).values():
            values += [message.value for message in messages]
    reader.close()
    return values
