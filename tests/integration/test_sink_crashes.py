"""The sink killed at every step of publishing, in a folder and on an object store; damage."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from moto.server import ThreadedMotoServer
from pyarrow import fs

from evidence.records import KernelKind, KernelRecord
from evidence.transport import Kafka
from evidence.wire import encode
from warehouse import listing, quarantine
from warehouse.sink import SinkConfig, run
from warehouse.storage import at

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("sink_process.py")
AT = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)
#: The steps of publishing a file; the last three come after its name is visible, or may be.
STEPS = ("file-opened", "file-written", "file-synced", "file-published", "file-checked")


def _kernel(number: int) -> bytes:
    return encode(
        KernelRecord(id=f"k{number}", observed_at=AT, raw="NVRM", kind=KernelKind.XID, code=31)
    )


def _producer(kafka: Kafka) -> KafkaProducer:
    return KafkaProducer(**kafka.client(), linger_ms=5, acks="all")


class Feed:
    """Sends records k0, k1 ..., some hundred a second, until it is stopped or its block ends."""

    def __init__(self, kafka: Kafka) -> None:
        self.sent = 0
        self._topic = kafka.topic("kernel")
        self._producer = _producer(kafka)
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """How many it sent."""
        self._enough.set()
        self._thread.join()
        return self.sent

    def _send(self) -> None:
        while not self._enough.wait(0.1):
            for number in range(self.sent, self.sent + 40):
                key = b"host-%d" % (number % 7)
                self._producer.send(self._topic, _kernel(number), key=key)
            self.sent += 40
        self._producer.close()


def _each(count: int) -> Counter[str]:
    return Counter(f"k{number}" for number in range(count))


def _ids(root: Path) -> Counter[str]:
    """What a reader sees; every file it is told must be whole."""
    found = Counter[str]()
    for path in listing.visible(root, "kernel"):
        found.update(pq.ParquetFile(path).read(["id"]).column("id").to_pylist())
    return found


def _wait(done: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "the sink did not store everything in time"
        time.sleep(0.1)


class Sinks:
    """Sink processes of one test, all on one root."""

    def __init__(self, kafka: Kafka, root: Path) -> None:
        self.kafka = kafka
        self.root = root
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, **settings: object) -> subprocess.Popen[bytes]:
        soon = {"flush_s": 0.1, "bulk_flush_s": 0.2, "tick_flush_s": 0.2, "discover_s": 0.5}
        arguments = [f"{name}={value}" for name, value in (soon | settings).items()]
        place = [self.kafka.bootstrap, self.kafka.prefix, str(self.root)]
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *place, *arguments], stderr=subprocess.DEVNULL
        )
        self.running.append(process)
        return process

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.terminate()
        for process in self.running:
            process.wait(timeout=30)


@pytest.fixture
def sinks() -> Iterator[Callable[[Kafka, Path], Sinks]]:
    made: list[Sinks] = []

    def make(kafka: Kafka, root: Path) -> Sinks:
        made.append(Sinks(kafka, root))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root on a real S3 server."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"scheme": "http", "endpoint_override": f"{host}:{port}"}
    fs.S3FileSystem(allow_bucket_creation=True, **options).create_dir("history")
    yield Path(f"s3://history/root?endpoint_override={host}:{port}&scheme=http")
    server.stop()


@pytest.mark.chaos
def test_a_sink_killed_at_each_step_of_publishing_stores_every_record_once(
    kafka: Kafka, sinks: Any, tmp_path: Path
) -> None:
    mine = sinks(kafka, tmp_path / "warehouse")
    with Feed(kafka) as feed:
        for step in STEPS:
            assert mine.start(flush_records=100, die_at=step).wait(timeout=60) < 0, step
            assert set(_ids(mine.root).values()) <= {1}
        sent = feed.stop()
    mine.start()
    _wait(lambda: sum(_ids(mine.root).values()) >= sent)
    mine.stop()
    assert _ids(mine.root) == _each(sent)
    assert list((mine.root / "_tmp").iterdir()) == []


@pytest.mark.chaos
def test_two_sinks_of_the_same_partitions_killed_on_an_object_store_lose_and_double_nothing(
    kafka: Kafka, sinks: Any, bucket: Path
) -> None:
    mine = sinks(kafka, bucket)
    mine.start(flush_records=170, flush_s=0.4)
    with Feed(kafka) as feed:
        for step in ("file-synced", "file-published"):
            dying = mine.start(flush_records=230, flush_s=0.4, die_at=step)
            assert dying.wait(timeout=60) < 0, step
            assert set(_ids(bucket).values()) <= {1}
        sent = feed.stop()
    _wait(lambda: sum(_ids(bucket).values()) >= sent)
    mine.stop()
    assert _ids(bucket) == _each(sent)


def _run(kafka: Kafka, root: Path, done: Callable[[], bool]) -> None:
    """Run a sink in this process until ``done``."""
    stop = threading.Event()
    config = SinkConfig(
        kafka=kafka, root=root, flush_s=0.1, bulk_flush_s=0.1, tick_flush_s=0.1, discover_s=0.3
    )
    thread = threading.Thread(target=run, args=(config, stop))
    thread.start()
    try:
        _wait(done)
    finally:
        stop.set()
        thread.join(timeout=30)
    assert not thread.is_alive()


def _stored(kafka: Kafka, root: Path) -> list[Path]:
    """Three files of one partition, in order of their offsets."""
    producer = _producer(kafka)
    for third in range(3):
        for number in range(third * 10, third * 10 + 10):
            producer.send(kafka.topic("kernel"), _kernel(number), partition=0)
        producer.flush()
        _run(kafka, root, lambda: sum(_ids(root).values()) == third * 10 + 10)  # noqa: B023
    producer.close()
    return sorted(root.glob("kernel/day=*/kernel-0000-*.parquet"))


def test_what_a_damaged_file_held_is_read_from_kafka_again(kafka: Kafka, tmp_path: Path) -> None:
    files = _stored(kafka, tmp_path)
    middle = files[len(files) // 2]
    os.truncate(middle, middle.stat().st_size - 50)
    storage = at(tmp_path)
    with storage.only("kernel"):
        (damage,) = quarantine.inspect(storage, "kernel")
    assert sum(_ids(tmp_path).values()) < 30
    _run(kafka, tmp_path, lambda: sum(_ids(tmp_path).values()) == 30)
    assert _ids(tmp_path) == _each(30)
    (after,) = quarantine.damages(storage, "kernel")
    assert after.refilled == damage.missing
    assert after.lost == {}


def test_a_sink_started_again_does_not_take_a_batch_of_many_for_a_log_that_was_cut_back(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    producer = _producer(kafka)
    for number in range(10):
        producer.send(kafka.topic("kernel"), _kernel(number), partition=0)
    producer.flush()
    _run(kafka, tmp_path, lambda: sum(_ids(tmp_path).values()) == 10)
    producer.send(kafka.topic("kernel"), _kernel(10), partition=0)
    producer.close()
    _run(kafka, tmp_path, lambda: "k10" in _ids(tmp_path))
    assert _ids(tmp_path) == _each(11)
    assert "cut back" not in caplog.text


@pytest.mark.kafka
def test_what_kafka_has_no_more_is_said_to_be_lost(
    apache_kafka: Any, fresh_topics: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = fresh_topics(apache_kafka.bootstrap)
    files = _stored(kafka, tmp_path)
    first = files[0]
    os.truncate(first, first.stat().st_size - 50)
    storage = at(tmp_path)
    with storage.only("kernel"):
        (damage,) = quarantine.inspect(storage, "kernel")
    admin = KafkaAdminClient(**kafka.client())
    admin.delete_records({TopicPartition(kafka.topic("kernel"), 0): 4})
    admin.close()
    ((place, ((_, end),)),) = damage.missing.items()
    _run(kafka, tmp_path, lambda: sum(_ids(tmp_path).values()) == 26)
    (after,) = quarantine.damages(storage, "kernel")
    assert after.lost == {place: [(0, 4)]}
    assert after.refilled == {place: [(4, end)]}
    said = [one.getMessage() for one in caplog.records if "has them no more" in one.getMessage()]
    assert len(said) == 1
    assert "offsets 0 to 3 were in the damaged" in said[0]
    _run(kafka, tmp_path, lambda: True)
    assert len([one for one in caplog.records if "has them no more" in one.getMessage()]) == 1
