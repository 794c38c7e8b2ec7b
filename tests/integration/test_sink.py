"""The sink on a real broker: every record once, whatever is killed."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from evidence.identity import digest
from evidence.records import GpuFrame, GpuSnapshot, GpuTick, KernelKind, KernelRecord, Tick
from evidence.transport import Kafka
from evidence.wire import encode
from warehouse.files import Range, prepare, publish
from warehouse.kinds import KINDS
from warehouse.query import query
from warehouse.sink import SinkConfig, run

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("sink_process.py")
AT = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)


def _kernel(number: int) -> bytes:
    raw = f"NVRM: Xid (PCI:0000:4c:00): 31, pid={number}"
    return encode(
        KernelRecord(
            id=f"k{number}", observed_at=AT, raw=raw, kind=KernelKind.XID, code=31, host="trn-1"
        )
    )


def _frame(number: int) -> bytes:
    gpus = tuple(GpuSnapshot(index=index, uuid=f"GPU-{index}") for index in range(8))
    at = AT + timedelta(seconds=number)
    return encode(
        GpuFrame(
            id=f"f{number}",
            host="trn-1",
            observed_at=at,
            seq=number,
            ticks=(GpuTick(at=at, gpus=gpus),),
        )
    )


def _producer(kafka: Kafka) -> KafkaProducer:
    return KafkaProducer(**kafka.client(), linger_ms=5, acks="all")


def _send(kafka: Kafka, topic: str, values: list[bytes | None]) -> None:
    producer = _producer(kafka)
    sent = [
        producer.send(kafka.topic(topic), value, key=b"host-%d" % (number % 7))
        for number, value in enumerate(values)
    ]
    for one in sent:
        one.get(timeout=30)
    producer.close()


def _stored(root: Path, kind: str) -> Any:
    files = list((root / kind).glob("day=*/*.parquet"))
    return [pq.ParquetFile(path).read(["kafka_log", "kafka_partition", "kafka_offset", "id"])
            for path in files]  # fmt: skip


def _ids(root: Path, kind: str) -> Counter[str]:
    return Counter(one for table in _stored(root, kind) for one in table.column("id").to_pylist())


def _wait(done: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "the sink did not store everything in time"
        time.sleep(0.1)


class Sinks:
    """Sink processes of one test."""

    def __init__(self, kafka: Kafka, root: Path) -> None:
        self.kafka = kafka
        self.root = root
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, **settings: float) -> subprocess.Popen[bytes]:
        settings = {
            "flush_s": 0.1,
            "bulk_flush_s": 0.2,
            "tick_flush_s": 0.2,
            "discover_s": 0.5,
        } | settings
        arguments = [f"{name}={value}" for name, value in settings.items()]
        place = [self.kafka.bootstrap, self.kafka.prefix, str(self.root)]
        self.log = self.root.with_name("sink.log")
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), *place, *arguments], stderr=log
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
def sinks(tmp_path: Path) -> Iterator[Callable[[Kafka], Sinks]]:
    made: list[Sinks] = []

    def make(kafka: Kafka) -> Sinks:
        made.append(Sinks(kafka, tmp_path / "warehouse"))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.chaos
def test_every_record_is_stored_once_although_the_sink_is_killed_again_and_again(
    any_kafka: Kafka, sinks: Any
) -> None:
    chance = random.Random(7)
    mine = sinks(any_kafka)
    expected = Counter(f"k{number}" for number in range(6000))
    feeding = threading.Thread(
        target=_feed, args=(any_kafka, [_kernel(number) for number in range(6000)])
    )
    feeding.start()
    for _ in range(6):
        process = mine.start(flush_records=300)
        time.sleep(chance.uniform(0.5, 1.6))
        process.send_signal(signal.SIGKILL)
        process.wait()
    feeding.join()
    mine.start()
    _wait(lambda: sum(_ids(mine.root, "kernel").values()) >= 6000)
    mine.stop()
    assert _ids(mine.root, "kernel") == expected
    assert list((mine.root / "_tmp").iterdir()) == []


def _feed(kafka: Kafka, values: list[bytes]) -> None:
    """Send over about six seconds, so that the kills fall into the middle of it."""
    producer = _producer(kafka)
    for number, value in enumerate(values):
        producer.send(kafka.topic("kernel"), value, key=b"host-%d" % (number % 7))
        if number % 100 == 0:
            time.sleep(0.1)
    producer.close()


def test_two_sinks_of_the_same_partitions_store_every_record_once(
    any_kafka: Kafka, sinks: Any
) -> None:
    mine = sinks(any_kafka)
    mine.start(flush_records=170)
    mine.start(flush_records=230)
    _feed(any_kafka, [_kernel(number) for number in range(3000)])
    _wait(lambda: sum(_ids(mine.root, "kernel").values()) >= 3000)
    mine.stop()
    assert _ids(mine.root, "kernel") == Counter(f"k{number}" for number in range(3000))


def test_two_sinks_that_share_the_partitions_store_all_of_them(kafka: Kafka, sinks: Any) -> None:
    mine = sinks(kafka)
    mine.start(index=0, count=2)
    mine.start(index=1, count=2)
    _send(kafka, "kernel", [_kernel(number) for number in range(500)])
    _send(kafka, "gpu", [_frame(number) for number in range(100)])
    _wait(lambda: len(_ids(mine.root, "kernel")) == 500 and len(_ids(mine.root, "gpu")) == 100)
    mine.stop()
    assert set(_ids(mine.root, "kernel").values()) == {1}
    assert set(_ids(mine.root, "gpu").values()) == {8}


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


def test_rubbish_in_every_topic_stops_nothing_and_is_kept_byte_for_byte(
    kafka: Kafka, tmp_path: Path
) -> None:
    rubbish = [b"\x8b\x1f\xfe\xff", b"", b'{"schema":"kernel/9"}', b"x" * 900_000]
    topics = ["kernel", "gpu", "fabric", "verdicts", "isolation.commands", "deadletters"]
    for topic in topics:
        _send(kafka, topic, [*rubbish])
    _send(kafka, "kernel", [_kernel(1)])
    sql = "select kafka_topic, undecodable_value from undecodable"

    def all_there() -> bool:
        return len(_rows(tmp_path, sql)) == len(topics) * len(rubbish) and bool(
            _rows(tmp_path, "select id from kernel")
        )

    _run(kafka, tmp_path, all_there)
    assert Counter(_rows(tmp_path, sql)) == Counter(
        (kafka.topic(topic), value) for topic in topics for value in rubbish
    )


def _rows(root: Path, sql: str) -> list[Any]:
    return query(root, sql)[1]


def test_ticks_are_stored_among_the_records_of_their_topic(kafka: Kafka, tmp_path: Path) -> None:
    _send(kafka, "nccl", [encode(Tick(id=f"t{number}", at=AT)) for number in range(5)])
    _run(kafka, tmp_path, lambda: len(_rows(tmp_path, "select id from ticks")) == 5)
    assert _rows(tmp_path, "select distinct kafka_topic, event_at from ticks") == [
        (kafka.topic("nccl"), AT)
    ]


def test_a_stopped_sink_stores_what_it_had_buffered(kafka: Kafka, sinks: Any) -> None:
    mine = sinks(kafka)
    _send(kafka, "kernel", [_kernel(number) for number in range(50)])
    process = mine.start(flush_s=3600.0, bulk_flush_s=3600.0)
    _wait(lambda: b"storing" in mine.log.read_bytes())
    time.sleep(3)  # long enough to have read them; it stores none of them by itself
    assert _ids(mine.root, "kernel") == Counter()
    process.terminate()
    assert process.wait(timeout=30) == 0
    assert len(_ids(mine.root, "kernel")) == 50


def test_a_topic_that_was_made_anew_is_stored_beside_the_old_one(
    any_kafka: Kafka, tmp_path: Path
) -> None:
    kafka = any_kafka
    _send(kafka, "kernel", [_kernel(number) for number in range(200)])
    _run(kafka, tmp_path, lambda: len(_ids(tmp_path, "kernel")) == 200)
    admin = KafkaAdminClient(**kafka.client())
    admin.delete_topics([kafka.topic("kernel")])
    _wait(lambda: bool(admin.describe_topics([kafka.topic("kernel")])[0]["error_code"]))
    admin.create_topics({kafka.topic("kernel"): {"num_partitions": 4, "replication_factor": 1}})
    admin.close()
    _send(kafka, "kernel", [_kernel(number) for number in range(1000, 1300)])
    _run(kafka, tmp_path, lambda: len(_ids(tmp_path, "kernel")) == 500)
    assert set(_ids(tmp_path, "kernel").values()) == {1}
    logs = {log for table in _stored(tmp_path, "kernel")
            for log in pc.unique(table.column("kafka_log")).to_pylist()}  # fmt: skip
    assert len(logs) == 2


def test_a_topic_made_while_the_sink_runs_is_taken_up(kafka: Kafka, tmp_path: Path) -> None:
    later = Kafka(bootstrap=kafka.bootstrap, prefix=f"later{time.time_ns()}.")
    admin = KafkaAdminClient(**later.client())

    def make_and_send() -> None:
        time.sleep(1.0)
        admin.create_topics({later.topic("kernel"): {"num_partitions": 2, "replication_factor": 1}})
        _send(later, "kernel", [_kernel(number) for number in range(10)])

    thread = threading.Thread(target=make_and_send)
    thread.start()
    _run(later, tmp_path, lambda: len(_ids(tmp_path, "kernel")) == 10)
    thread.join()
    admin.close()


def test_a_log_cut_back_below_what_is_stored_is_said_and_stored_as_another_round(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _send(kafka, "isolation.acks", [b"not an ack"] * 3)
    admin = KafkaAdminClient(**kafka.client())
    (described,) = admin.describe_topics([kafka.topic("isolation.acks")])
    admin.close()
    base = digest("log", described["topic_id"])[:8]
    acks = KINDS["isolation.acks"]
    prepare(tmp_path)
    ahead = Range(
        kind=acks, log=base, partition=0, start=0, first=0, last=5000, day=datetime.now(UTC).date()
    )
    publish(tmp_path, ahead, acks.schema.empty_table(), "zstd")
    for _ in range(2):  # a second start goes on in the same round
        _run(kafka, tmp_path, lambda: len(_ids_of_logs(tmp_path, "acks")) == 3)
    assert set(_ids_of_logs(tmp_path, "acks")) == {f"{base}r1"}
    said = [one.getMessage() for one in caplog.records if "cut back" in one.getMessage()]
    assert len(said) == 1


def _ids_of_logs(root: Path, kind: str) -> list[str]:
    return [one for table in _stored(root, kind) for one in table.column("kafka_log").to_pylist()
            if one is not None]  # fmt: skip


@pytest.mark.kafka
@pytest.mark.chaos
def test_a_broker_killed_in_the_middle_costs_and_doubles_nothing(
    own_apache_kafka: Any, fresh_topics: Any, sinks: Any
) -> None:
    kafka = fresh_topics(own_apache_kafka.bootstrap)
    mine = sinks(kafka)
    process = mine.start(flush_records=100)
    _send(kafka, "kernel", [_kernel(number) for number in range(1000)])
    _wait(lambda: len(_ids(mine.root, "kernel")) > 200)
    own_apache_kafka.kill()
    time.sleep(2)
    own_apache_kafka.start()
    _send(kafka, "kernel", [_kernel(number) for number in range(1000, 2000)])
    _wait(lambda: len(_ids(mine.root, "kernel")) == 2000)
    assert process.poll() is None
    mine.stop()
    assert _ids(mine.root, "kernel") == Counter(f"k{number}" for number in range(2000))


@pytest.mark.kafka
def test_what_retention_removed_before_it_was_stored_is_said_and_the_rest_is_stored(
    apache_kafka: Any, fresh_topics: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = fresh_topics(apache_kafka.bootstrap)
    topic = kafka.topic("isolation.acks")
    _send(kafka, "isolation.acks", [b"first"] * 10)
    _run(kafka, tmp_path, lambda: _offsets(tmp_path) == list(range(10)))
    _send(kafka, "isolation.acks", [b"then"] * 10)
    admin = KafkaAdminClient(**kafka.client())
    admin.delete_records({TopicPartition(topic, 0): 15})
    admin.close()
    wanted = [*range(10), *range(15, 20)]
    _run(kafka, tmp_path, lambda: _offsets(tmp_path) == wanted)
    said = [one.getMessage() for one in caplog.records if "retention" in one.getMessage()]
    assert said == [
        f"{topic}-0: offsets 10 to 14 were removed by retention before they were stored"
    ]


def _offsets(root: Path) -> list[int]:
    offsets = [
        one for table in _stored(root, "acks") for one in table.column("kafka_offset").to_pylist()
    ]
    return sorted(offsets)
