"""The node agent: its collectors together, over a real broker and in a process of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from kafka import KafkaConsumer

from collectors.agent import AgentConfig, once, run
from evidence.records import (
    GpuFrame,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    InventoryRecord,
    KernelKind,
    KernelRecord,
)
from evidence.transport import Kafka
from evidence.wire import decode
from ringfence.cluster import ensure_topics

HOST = "hgx-r01-n09"
START = datetime(2026, 9, 3, 6, 0, tzinfo=UTC)
NOWHERE = Kafka(bootstrap="127.0.0.1:1")
XID = (
    "Sep  3 06:00:0{} hgx-r01-n09 kernel: [81234.50{}] NVRM: Xid (PCI:0000:9b:00): 79, "
    "pid=3311, GPU has fallen off the bus.\n"
)


def tick(second: int, *, status: GpuStatus = GpuStatus.OK) -> GpuTick:
    gpu = GpuSnapshot(index=0, uuid="GPU-q", pci="0000:9b:00", status=status)
    return GpuTick(at=START + timedelta(seconds=second), gpus=(gpu,))


def record_ticks(path: Path, *ticks: GpuTick) -> None:
    with path.open("ab") as out:
        out.writelines(msgspec.json.encode(one) + b"\n" for one in ticks)


def config(kafka: Kafka, **settings: Any) -> AgentConfig:
    quiet = {"kernel_source": "none", "gpu_source": "none", "metrics_listen": ""}
    settings = {"host": HOST, "boot_id": "boot-9"} | quiet | settings
    return AgentConfig(kafka=kafka, **settings)


def messages(kafka: Kafka, *topics: str) -> Iterator[tuple[str, bytes, Any]]:
    """Every message of some topics as (topic, key, record), as they come, without an end."""
    names = {kafka.topic(topic): topic for topic in topics}
    consumer = KafkaConsumer(*names, **kafka.client(), auto_offset_reset="earliest", group_id=None)
    try:
        while True:
            for batch in consumer.poll(timeout_ms=50).values():
                for one in batch:
                    topic = names[one.topic]
                    yield topic, one.key, decode(topic, one.value)
    finally:
        consumer.close()


@pytest.fixture
def start() -> Iterator[Callable[[AgentConfig], Callable[[], None]]]:
    """Start an agent on a thread; what comes back stops it and waits for its end."""
    running: list[tuple[threading.Event, threading.Thread]] = []

    def begin(settings: AgentConfig) -> Callable[[], None]:
        stop = threading.Event()
        thread = threading.Thread(target=run, args=(settings, stop))
        thread.start()
        running.append((stop, thread))

        def end() -> None:
            stop.set()
            thread.join()

        return end

    yield begin
    for stop, thread in running:
        stop.set()
        thread.join()


@pytest.fixture
def topics(kafka: Kafka) -> Kafka:
    ensure_topics(kafka)
    return kafka


def test_one_round_needs_no_kafka_and_moves_no_cursor(node: Any, tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(XID.format(1, 1))
    settings = config(
        NOWHERE,
        gpu_source="nvml",
        kernel_files=(log,),
        state_dir=tmp_path / "state",
        rack="r01",
    )
    for _ in range(2):
        found, _ = once(settings)
        kernel = [one for one in found if isinstance(one, KernelRecord)]
        assert [(one.kind, one.code, one.pci) for one in kernel] == [
            (KernelKind.XID, 79, "0000:9b:00")
        ]
        (frame,) = (one for one in found if isinstance(one, GpuFrame))
        assert [gpu.status for gpu in frame.ticks[0].gpus] == [GpuStatus.OK, GpuStatus.OK]
        (inventory,) = (one for one in found if isinstance(one, InventoryRecord))
        assert (len(inventory.gpus), inventory.rack) == (2, "r01")
    assert not (tmp_path / "state").exists()
    assert node.path.exists()


@pytest.mark.integration
def test_an_agent_ships_what_its_node_says(topics: Kafka, start: Any, tmp_path: Path) -> None:
    log, recording = tmp_path / "kern.log", tmp_path / "gpu.ndjson"
    log.touch()
    start(
        config(
            topics,
            kernel_files=(log,),
            gpu_source="recording",
            gpu_recording=recording,
            state_dir=tmp_path / "state",
            pool="train",
        )
    )
    found = messages(topics, "kernel", "gpu", "inventory")
    record_ticks(recording, tick(0))
    first = {topic: (key, one) for topic, key, one in (next(found), next(found))}
    assert first["gpu"][0] == HOST.encode()
    assert (first["gpu"][1].boot_id, first["gpu"][1].source) == ("boot-9", "recording")
    inventory = first["inventory"][1]
    assert [gpu.uuid for gpu in inventory.gpus] == ["GPU-q"]
    assert inventory.pool == "train"
    with log.open("a") as out:
        out.write(XID.format(2, 2))
    topic, key, line = next(found)
    assert (topic, key, line.code, line.pci) == ("kernel", HOST.encode(), 79, "0000:9b:00")


@pytest.mark.integration
def test_what_a_stopped_agent_still_gathered_is_shipped(
    topics: Kafka, start: Any, tmp_path: Path
) -> None:
    recording = tmp_path / "gpu.ndjson"
    record_ticks(recording, tick(0), tick(1), tick(2))
    stop = start(config(topics, gpu_source="recording", gpu_recording=recording))
    found = messages(topics, "gpu")
    assert [one.at for one in next(found)[2].ticks] == [START]
    stop()
    assert [one.at for one in next(found)[2].ticks] == [
        START + timedelta(seconds=1),
        START + timedelta(seconds=2),
    ]


@pytest.mark.integration
def test_a_restarted_agent_sends_nothing_twice(topics: Kafka, start: Any, tmp_path: Path) -> None:
    log, recording = tmp_path / "kern.log", tmp_path / "gpu.ndjson"
    settings = config(
        topics,
        kernel_files=(log,),
        gpu_source="recording",
        gpu_recording=recording,
        state_dir=tmp_path / "state",
    )
    log.write_text(XID.format(1, 1))
    record_ticks(recording, tick(0))
    stop = start(settings)
    found = messages(topics, "kernel", "gpu")
    assert {next(found)[0], next(found)[0]} == {"kernel", "gpu"}
    stop()
    with log.open("a") as out:
        out.write(XID.format(3, 3))
    record_ticks(recording, tick(3, status=GpuStatus.LOST))
    start(settings)
    again = [next(found), next(found)]
    assert sorted(topic for topic, _, _ in again) == ["gpu", "kernel"]
    for topic, _, one in again:
        at = one.at if topic == "kernel" else one.ticks[0].at
        assert (at.minute, at.second) == (0, 3)


@pytest.mark.integration
def test_a_broken_collector_does_not_stop_the_others(
    topics: Kafka, start: Any, tmp_path: Path
) -> None:
    log = tmp_path / "kern.log"
    log.write_text(XID.format(1, 1))
    recording = tmp_path / "folder"
    recording.mkdir()
    start(config(topics, kernel_files=(log,), gpu_source="recording", gpu_recording=recording))
    topic, _, line = next(messages(topics, "kernel"))
    assert (topic, line.code) == ("kernel", 79)


@pytest.mark.integration
def test_an_agent_whose_broker_comes_later_loses_nothing(
    broker: Any, start: Any, tmp_path: Path
) -> None:
    kafka = Kafka(bootstrap=broker.bootstrap)
    broker.stop()
    log = tmp_path / "kern.log"
    log.write_text(XID.format(1, 1))
    start(config(kafka, kernel_files=(log,)))
    time.sleep(0.3)
    broker.start()
    ensure_topics(kafka)
    assert next(messages(kafka, "kernel"))[2].code == 79


@pytest.mark.integration
@pytest.mark.usefixtures("node")
def test_a_lost_gpu_comes_out_of_kafka(
    topics: Kafka, start: Any, node: Any, stand_in: ModuleType
) -> None:
    start(config(topics, gpu_source="nvml", gpu_interval_s=0.05))
    found = messages(topics, "gpu")
    assert next(found)[2].ticks[0].gpus[1].status is GpuStatus.OK
    node.change({"gpu.1.all": "!15"})
    lost = next(
        gpu
        for _, _, frame in found
        for one in frame.ticks
        for gpu in one.gpus
        if gpu.status is not GpuStatus.OK
    )
    assert (lost.status, lost.error, lost.uuid) == (GpuStatus.LOST, 15, stand_in.uuid(1))


def test_a_recording_without_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="gpu_recording names no file"):
        config(NOWHERE, gpu_source="recording")
