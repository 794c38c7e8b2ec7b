"""The worker with the shipped rules: from a kernel line to a command, over a real broker."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer

from evidence.decisions import Action, Cause, Command, DomainKind, Status, Verdict
from evidence.records import KernelKind, KernelRecord
from evidence.transport import Kafka
from evidence.wire import encode
from streams.ticks import TICK_KEY

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
WORKER = """
import sys
from pathlib import Path
from evidence.transport import Kafka
from streams.worker import WorkerConfig, run
kafka = Kafka(bootstrap=sys.argv[1], prefix=sys.argv[2])
run(WorkerConfig(kafka=kafka, state_dir=Path(sys.argv[3]), session_timeout_s=6.0))
"""


@pytest.fixture
def worker(any_kafka: Kafka, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                WORKER,
                any_kafka.bootstrap,
                any_kafka.prefix,
                str(tmp_path / "state"),
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    yield process
    process.kill()
    process.wait()


def first_of(consumer: KafkaConsumer, within_s: float = 60.0) -> bytes:
    """The first message that is no tick."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for messages in consumer.poll(timeout_ms=100).values():
            for message in messages:
                if message.key != TICK_KEY:
                    return bytes(message.value)
    raise AssertionError("no message came")


def test_a_gpu_that_fell_off_the_bus_becomes_a_command_for_that_gpu(
    any_kafka: Kafka, worker: subprocess.Popen[bytes]
) -> None:
    now = datetime.now(UTC)
    record = KernelRecord(
        id="lost-gpu",
        observed_at=now,
        at=now,
        raw="NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, "
        "GPU has fallen off the bus.",
        kind=KernelKind.XID,
        host="trn-0417",
        code=79,
        pci="0000:9b:00",
        message="GPU has fallen off the bus.",
        seq=9071,
    )
    producer = KafkaProducer(**any_kafka.client(), acks="all")
    producer.send(any_kafka.topic("kernel"), key=b"trn-0417", value=encode(record)).get(20)
    producer.close()
    listen = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 10}
    verdicts = KafkaConsumer(any_kafka.topic("verdicts"), **any_kafka.client(), **listen)
    commands = KafkaConsumer(any_kafka.topic("isolation.commands"), **any_kafka.client(), **listen)

    verdict = msgspec.json.decode(first_of(verdicts), type=Verdict)
    command = msgspec.json.decode(first_of(commands), type=Command)

    assert (verdict.status, verdict.cause) == (Status.LOCALIZED, Cause.GPU_LOST)
    assert (verdict.domain.kind, verdict.domain.pci) == (DomainKind.GPU, "0000:9b:00")
    assert (command.action, command.domain_id) == (Action.ISOLATE, "gpu:trn-0417/0000:9b:00")
    assert command.dry_run  # a first installation is in shadow
    verdicts.close()
    commands.close()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
