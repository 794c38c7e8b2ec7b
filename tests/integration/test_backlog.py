"""Evidence is taken before telemetry when both wait: an Xid does not stand behind frames."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from evidence.decisions import Command, Verdict
from evidence.records import (
    GpuFrame,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    KernelKind,
    KernelRecord,
)
from evidence.transport import Kafka
from evidence.wire import decode, encode
from streams.ticks import TICK_KEY

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
WORKER = """
import sys
from pathlib import Path
from evidence.transport import Kafka
from streams.config import StoreKind
from streams.worker import WorkerConfig, run
kafka = Kafka(bootstrap=sys.argv[1], prefix=sys.argv[2], partitions=2)
run(WorkerConfig(kafka=kafka, state_dir=Path(sys.argv[3]), session_timeout_s=6.0,
                 store=StoreKind.MEMORY, metrics_listen=""))
"""
FRAMES = 20_000
PARTITIONS = 2


def snapshot(seen: GpuStatus, error: int | None) -> GpuSnapshot:
    return GpuSnapshot(
        index=0,
        uuid="GPU-77a5e7d2-0c43-4be0-8f1a-5d2c0e9b6a31",
        pci="0000:5e:00",
        temperature_c=61,
        ecc_volatile_uncorrected=0,
        status=seen,
        error=error,
    )


def frame(host: str, seq: int, at: datetime, *, lost: bool = False) -> bytes:
    seen, error = (GpuStatus.LOST, 15) if lost else (GpuStatus.OK, None)
    return encode(
        GpuFrame(
            id=f"{host}-{seq}",
            host=host,
            observed_at=at,
            seq=seq,
            ticks=(GpuTick(at=at, gpus=(snapshot(seen, error),)),),
        )
    )


def backlog(producer: KafkaProducer, kafka: Kafka) -> None:
    """Frames, behind and before a lost card in each partition."""
    began = datetime.now(UTC) - timedelta(seconds=FRAMES / 100)
    topic = kafka.topic("gpu")

    def mark(place: str) -> None:
        for partition in range(PARTITIONS):
            host = f"{place}-{partition}"
            lost = frame(host, 1, datetime.now(UTC), lost=True)
            producer.send(topic, key=host.encode(), value=lost, partition=partition)

    mark("before")
    for number in range(FRAMES):
        host = f"trn-{number % 50:04d}"
        value = frame(host, number, began + timedelta(milliseconds=10 * number))
        producer.send(topic, key=host.encode(), value=value, partition=number % PARTITIONS)
    mark("behind")
    producer.flush()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Kafka], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def run(kafka: Kafka) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", WORKER, kafka.bootstrap, kafka.prefix, str(tmp_path / "s")]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with (tmp_path / "worker.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    argv, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
                )
            )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_an_xid_does_not_wait_behind_a_backlog_of_gpu_frames(
    apache_kafka: object,
    fresh_topics: Callable[..., Kafka],
    start: Callable[[Kafka], subprocess.Popen[bytes]],
) -> None:
    kafka = fresh_topics(apache_kafka.bootstrap, PARTITIONS)  # type: ignore[attr-defined]
    producer = KafkaProducer(**kafka.client(), acks="all", linger_ms=5, compression_type="lz4")
    backlog(producer, kafka)
    names = {kafka.topic(name): name for name in ("verdicts", "isolation.commands")}
    consumer = KafkaConsumer(
        *names, **kafka.client(), auto_offset_reset="earliest", fetch_max_wait_ms=10
    )
    process = start(kafka)

    said: list[str] = []
    sent = False
    deadline = time.monotonic() + 120
    while {"behind-0", "behind-1"} - set(said):
        assert process.poll() is None
        assert time.monotonic() < deadline, said
        for messages in consumer.poll(timeout_ms=20).values():
            for message in messages:
                if message.key == TICK_KEY:
                    continue
                record = decode(names[message.topic], message.value)
                assert isinstance(record, Verdict | Command)
                kind = "command for " if isinstance(record, Command) else ""
                said.append(f"{kind}{record.domain.host}")
        if not sent and {"before-0", "before-1"} & set(said):
            sent = True  # the worker is in the middle of it
            now = datetime.now(UTC)
            xid = KernelRecord(
                id="x1",
                observed_at=now,
                at=now,
                raw="NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, "
                "GPU has fallen off the bus.",
                kind=KernelKind.XID,
                host="trn-9001",
                code=79,
                pci="0000:9b:00",
                message="GPU has fallen off the bus.",
            )
            producer.send(kafka.topic("kernel"), key=b"trn-9001", value=encode(xid)).get(20)
    producer.close()
    consumer.close()

    through = min(said.index("behind-0"), said.index("behind-1"))
    assert "command for trn-9001" in said[:through]
