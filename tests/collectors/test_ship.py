"""The shipper against a real broker, and what it keeps while there is none."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient

from collectors.shipping.backlog import Backlog, Parcel, is_telemetry
from collectors.shipping.shipper import Shipper
from collectors.shipping.spool import Spool
from evidence.records import (
    FabricRecord,
    GpuEvent,
    GpuEventKind,
    GpuFrame,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    KernelKind,
    KernelRecord,
    NcclKind,
    NcclRecord,
)
from evidence.transport import Kafka
from evidence.wire import decode

AT = datetime(2026, 4, 2, 1, 5, 9, tzinfo=UTC)
HOST = "dgx-a11-u22"


def frame(seq: int, *gpus: GpuSnapshot, error: int | None = None) -> GpuFrame:
    tick = GpuTick(at=AT, gpus=gpus, error=error)
    return GpuFrame(id=f"f{seq}", host=HOST, observed_at=AT, seq=seq, ticks=(tick,))


def line(seq: int, text: str = "NVRM: Xid (PCI:0000:9b:00): 79") -> KernelRecord:
    return KernelRecord(
        id=f"k{seq}", host=HOST, observed_at=AT, raw=text, kind=KernelKind.XID, seq=seq
    )


def parcel(number: int, topic: str, size: int = 10, *, telemetry: bool = False) -> Parcel:
    return Parcel(number, topic, b"", b"x" * size, telemetry)


def test_a_calm_frame_is_telemetry_and_trouble_is_evidence() -> None:
    calm = GpuSnapshot(index=0)
    assert is_telemetry(frame(1, calm))
    assert is_telemetry(FabricRecord(id="a", observed_at=AT, subnet="s0", guid="0x1"))
    assert not is_telemetry(frame(1, calm, GpuSnapshot(index=1, status=GpuStatus.LOST)))
    assert not is_telemetry(frame(1, error=9))
    assert not is_telemetry(line(1))
    unplugged = FabricRecord(id="b", observed_at=AT, subnet="s0", guid="0x1", missing=True)
    assert not is_telemetry(unplugged)
    told = GpuTick(at=AT, gpus=(calm,), events=(GpuEvent(at=AT, kind=GpuEventKind.XID, data=94),))
    assert not is_telemetry(GpuFrame(id="e", host=HOST, observed_at=AT, seq=1, ticks=(told,)))
    chatter = {"observed_at": AT, "raw": "usb 1-2: new device"}
    assert is_telemetry(KernelRecord(id="o", kind=KernelKind.OTHER, **chatter))
    assert not is_telemetry(KernelRecord(id="n", kind=KernelKind.NVRM, **chatter))
    assert is_telemetry(NcclRecord(id="o", kind=NcclKind.OTHER, job="88", **chatter))
    assert not is_telemetry(NcclRecord(id="t", kind=NcclKind.TIMEOUT, job="88", **chatter))


def test_a_full_backlog_drops_the_oldest_telemetry_first_and_counts_it() -> None:
    backlog = Backlog(max_bytes=40)
    parcels = [
        parcel(1, "kernel"),
        parcel(2, "gpu", telemetry=True),
        parcel(3, "gpu"),
        parcel(4, "gpu", telemetry=True),
    ]
    assert [gone for one in parcels for gone in backlog.add(one)] == []
    assert backlog.add(parcel(5, "nccl")) == [parcels[1]]
    assert backlog.add(parcel(6, "nccl")) == [parcels[3]]
    # No telemetry is left: only now does evidence go, and the oldest of it.
    assert backlog.add(parcel(7, "nccl")) == [parcels[0]]
    taken = [backlog.take() for _ in range(5)]
    assert [one.number if one else None for one in taken] == [3, 5, 6, 7, None]
    assert backlog.bytes == 0


def test_what_the_disk_has_not_given_back_yet_bars_what_came_after_it() -> None:
    backlog = Backlog(max_bytes=1000)
    for number, topic in ((3, "kernel"), (9, "kernel"), (10, "gpu")):
        backlog.add(parcel(number, topic))
    taken = [backlog.take(behind={"kernel": 5}) for _ in range(3)]
    assert [one.number if one else None for one in taken] == [3, 10, None]
    backlog.restore([parcel(6, "kernel"), parcel(7, "kernel")])
    taken = [backlog.take() for _ in range(3)]
    assert [one.number if one else None for one in taken] == [6, 7, 9]


def test_only_what_the_disk_lacks_is_taken_to_it() -> None:
    backlog = Backlog(max_bytes=1000)
    for number in range(1, 8):
        backlog.add(parcel(number, "kernel", telemetry=number % 2 == 0))
    first = [backlog.take() for _ in range(3)]
    for one in first:
        assert one is not None
        one.spooled = one.number != 2
        backlog.put_back(one)
    assert [one.number for one in backlog.take_unspooled(3)] == [2, 4, 5]
    assert (len(backlog), backlog.bytes) == (4, 40)
    rest = [backlog.take() for _ in range(4)]
    assert [one.number if one else None for one in rest] == [1, 3, 6, 7]


def test_a_topic_that_is_blocked_does_not_hold_up_the_others() -> None:
    backlog = Backlog(max_bytes=1000)
    for number, topic in enumerate(("nccl", "kernel", "nccl", "kernel"), start=1):
        backlog.add(parcel(number, topic))
    taken = [backlog.take({"nccl"}) for _ in range(3)]
    assert [one.number if one else None for one in taken] == [2, 4, None]


def test_what_did_not_arrive_goes_back_to_its_place() -> None:
    backlog = Backlog(max_bytes=1000)
    for number in range(1, 5):
        backlog.add(parcel(number, "kernel"))
    first, second = backlog.take(), backlog.take()
    assert first is not None
    assert second is not None
    backlog.put_back(second)
    backlog.put_back(first)
    taken = [backlog.take() for _ in range(4)]
    assert [one.number if one else None for one in taken] == [1, 2, 3, 4]


class Told:
    """What `done` was told, and when nothing is missing."""

    def __init__(self) -> None:
        self.answers: list[bool] = []
        self._lock = threading.Lock()

    def __call__(self, arrived: bool) -> None:
        with self._lock:
            self.answers.append(arrived)


@pytest.fixture
def ship() -> Iterator[Callable[..., Shipper]]:
    made: list[Shipper] = []

    def make(kafka: Kafka, **settings: Any) -> Shipper:
        made.append(Shipper(kafka, **settings))
        return made[-1]

    yield make
    for shipper in made:
        shipper.close(0)


def consume(kafka: Kafka, topic: str, count: int) -> list[Any]:
    """The first ``count`` messages of a topic; the test's own timeout ends a wait for fewer."""
    consumer = KafkaConsumer(
        kafka.topic(topic), **kafka.client(), auto_offset_reset="earliest", group_id=None
    )
    found: list[Any] = []
    try:
        while len(found) < count:
            for messages in consumer.poll(timeout_ms=200).values():
                found += messages
    finally:
        consumer.close()
    return found


def create(kafka: Kafka, *topics: str) -> None:
    """Create topics; the embedded broker makes one by itself for whoever asks after it."""
    admin = KafkaAdminClient(**kafka.client())
    try:
        four = {"num_partitions": 4, "replication_factor": 1}
        admin.create_topics({kafka.topic(topic): four for topic in topics}, raise_errors=False)
    finally:
        admin.close()


@pytest.mark.integration
def test_records_arrive_by_key_and_in_order(kafka: Kafka, ship: Any) -> None:
    create(kafka, "kernel", "gpu")
    shipper, told = ship(kafka), Told()
    for seq in range(200):
        shipper.send("kernel", HOST, line(seq), told)
        shipper.send("gpu", HOST, frame(seq, GpuSnapshot(index=0)), told)
    assert shipper.flush(20)
    assert (shipper.pending, told.answers) == (0, [True] * 400)
    for topic, make in (("kernel", line), ("gpu", lambda seq: frame(seq, GpuSnapshot(index=0)))):
        messages = consume(kafka, topic, 200)
        assert {message.key for message in messages} == {HOST.encode()}
        assert len({message.partition for message in messages}) == 1
        assert [decode(topic, message.value) for message in messages] == [
            make(seq) for seq in range(200)
        ]


@pytest.mark.integration
def test_a_record_too_large_for_kafka_is_given_up_and_the_rest_arrives(
    kafka: Kafka, ship: Any
) -> None:
    create(kafka, "kernel")
    shipper, told = ship(kafka, host=HOST), Told()
    shipper.send("kernel", HOST, line(1, "x" * 2_000_000), told)
    shipper.send("kernel", HOST, line(2), told)
    assert shipper.flush(20)
    assert sorted(told.answers) == [False, True]
    assert shipper.refused == {"kernel": 1}
    fact, second = (decode("kernel", one.value) for one in consume(kafka, "kernel", 2))
    assert (fact.kind, fact.source, fact.device, fact.count) == ("overrun", "spool", "kernel", 1)
    assert second == line(2)


@pytest.mark.integration
def test_records_wait_for_a_broker_that_comes_later(broker: Any, ship: Any) -> None:
    kafka = Kafka(bootstrap=broker.bootstrap)
    broker.stop()
    shipper, told = ship(kafka), Told()
    for seq in range(50):
        shipper.send("kernel", HOST, line(seq), told)
    assert not shipper.flush(0.5)
    assert told.answers == []
    broker.start()
    create(kafka, "kernel")
    assert shipper.flush(30)
    assert [decode("kernel", one.value).seq for one in consume(kafka, "kernel", 50)] == [*range(50)]


@pytest.mark.integration
def test_a_broker_that_comes_back_empty_is_shipped_to_again(broker: Any, ship: Any) -> None:
    kafka = Kafka(bootstrap=broker.bootstrap)
    create(kafka, "kernel")
    shipper = ship(kafka)
    for seq in range(10):
        shipper.send("kernel", HOST, line(seq))
    assert shipper.flush(20)
    broker.stop()
    for seq in range(10, 20):
        shipper.send("kernel", HOST, line(seq))
    assert not shipper.flush(0.5)
    broker.start()
    create(kafka, "kernel")
    for seq in range(20, 30):
        shipper.send("kernel", HOST, line(seq))
    assert shipper.flush(60)
    found = {decode("kernel", one.value).seq for one in consume(kafka, "kernel", 20)}
    assert found == set(range(10, 30))


def test_memory_is_bounded_while_there_is_no_broker(ship: Any) -> None:
    shipper, told = ship(Kafka(bootstrap="127.0.0.1:1"), max_bytes=2000), Told()
    for seq in range(20):
        shipper.send("kernel", HOST, line(seq), told)
        shipper.send("gpu", HOST, frame(seq, GpuSnapshot(index=0)), told)
    dropped = shipper.dropped
    assert dropped["gpu"] == 20
    assert told.answers == [False] * sum(dropped.values())
    assert shipper.crowded


def test_nothing_is_sent_after_close(ship: Any) -> None:
    shipper = ship(Kafka(bootstrap="127.0.0.1:1"))
    shipper.send("kernel", HOST, line(1))
    assert shipper.close(0) == 1
    with pytest.raises(RuntimeError, match="closed"):
        shipper.send("kernel", HOST, line(2))


@pytest.mark.integration
def test_nothing_is_written_while_kafka_answers(kafka: Kafka, ship: Any, tmp_path: Path) -> None:
    create(kafka, "kernel")
    shipper = ship(kafka, spool=tmp_path / "spool.sqlite")
    for seq in range(100):
        shipper.send("kernel", HOST, line(seq))
        assert shipper.flush(20)
    shipper.close()
    assert [one.name for one in tmp_path.iterdir()] == ["spool.sqlite.lock"]
    assert shipper.last_delivered_at is not None


def test_records_go_into_a_new_spool_when_the_old_one_is_damaged(ship: Any, tmp_path: Path) -> None:
    path = tmp_path / "spool.sqlite"
    first = Spool(path, 1 << 20)
    first.write([parcel(number, "kernel", size=900) for number in range(1, 301)], ())
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    shipper = ship(Kafka(bootstrap="127.0.0.1:1"), spool=path, spool_after_s=0.05)
    told = Told()
    for seq in range(50):
        shipper.send("kernel", HOST, line(seq), told)
    while len(told.answers) < 50:
        time.sleep(0.01)
    assert told.answers == [True] * 50
    assert shipper.close(0) == 0
    assert Path(f"{path}.damaged").exists()
    again = Spool(path, 1 << 20)
    again.open()
    assert [decode("kernel", one.value).seq for one in again.load("kernel", 1 << 20)] == [
        *range(50)
    ]
    again.close()
