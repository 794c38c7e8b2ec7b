"""A worker with a key, as a process over a real broker: what it commands is signed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from evidence.records import KernelRecord
from evidence.signing import SIGNATURE, Keyring
from evidence.transport import Kafka
from evidence.wire import encode
from ringfence.keys import new

pytestmark = [pytest.mark.integration, pytest.mark.kafka]
PROCESS = Path(__file__).with_name("worker_process.py")
TOPICS = ("verdicts", "isolation.commands", "isolation.state")


def _worker(kafka: Kafka, folder: Path, key: Path) -> subprocess.Popen[bytes]:
    arguments = [kafka.bootstrap, kafka.prefix, str(kafka.partitions), str(folder / "state")]
    return subprocess.Popen(
        [sys.executable, str(PROCESS), *arguments, f"signing_key={key}"], stderr=subprocess.PIPE
    )


def test_commands_and_desired_states_are_signed_and_nothing_else(
    apache_kafka: Any, fresh_topics: Callable[..., Kafka], tmp_path: Path
) -> None:
    kafka = fresh_topics(apache_kafka.bootstrap)
    private, public = new(tmp_path, "a")
    at = datetime(2026, 11, 3, 2, 14, 9, tzinfo=UTC)
    record = KernelRecord(id="k1", observed_at=at, raw="line", kind="xid", host="node-a")
    producer = KafkaProducer(**kafka.client())
    producer.send(kafka.topic("kernel"), encode(record), key=b"node-a").get(30)
    producer.close()
    reader = KafkaConsumer(
        *(kafka.topic(name) for name in TOPICS),
        **kafka.client(),
        group_id=None,
        auto_offset_reset="earliest",
    )
    read: dict[str, Any] = {}
    worker = _worker(kafka, tmp_path, private)
    try:
        deadline = time.monotonic() + 60
        while set(read) != set(TOPICS):
            assert time.monotonic() < deadline, read
            for messages in reader.poll(timeout_ms=200).values():
                read |= {one.topic.removeprefix(kafka.prefix): one for one in messages}
    finally:
        os.kill(worker.pid, signal.SIGTERM)
        worker.communicate()
        reader.close()
    keyring = Keyring(public)
    for name in ("isolation.commands", "isolation.state"):
        message = read[name]
        assert keyring.flaw(message.topic, message.value, message.headers) is None
    assert SIGNATURE not in dict(read["verdicts"].headers)


def test_a_worker_without_the_key_it_is_told_of_does_not_start(
    apache_kafka: Any, fresh_topics: Callable[..., Kafka], tmp_path: Path
) -> None:
    kafka = fresh_topics(apache_kafka.bootstrap)
    worker = _worker(kafka, tmp_path, tmp_path / "nowhere.key")
    _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 3
    last = errors.decode().splitlines()[-1]
    assert last == f"signing_key: {tmp_path}/nowhere.key cannot be read: No such file or directory."
