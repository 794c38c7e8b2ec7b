"""GPU snapshots a second through Kafka and Faust: a backlog, then the real worker on it.

The figure is per second of the worker's own CPU time, from the first answer to the last; the wall
clock stands beside it, with the broker and whatever else the machine does on the same cores.
"""

import json
import statistics
import time
from collections.abc import Iterator

import load_gpu
from figure import Figure
from kafka import KafkaConsumer, TopicPartition
from rig import Backlog, BenchError, Child, Rig

from evidence.decisions import Verdict
from evidence.transport import Kafka
from evidence.wire import decode
from streams.config import WorkerConfig

__all__ = ["measure"]

MARK = 50_000
_WITHIN_S = 180.0


def measure(rig: Rig) -> Iterator[Figure]:
    """Two figures, of worker runs that take turns with the peer's."""
    backlog = rig.backlog()
    runs = 1 if rig.quick else 3
    workers, peers = [], []
    for number in range(runs):
        workers.append(_worker(rig, backlog, number))
        peers.append(_peer(rig, backlog))
        rig.say(f"worker {workers[-1]}, peer {peers[-1]} (GPU snapshots: a core second, a second)")
    note = (
        f"{backlog.frames} frames of {load_gpu.GPUS} GPUs x {load_gpu.TICKS} ticks, "
        f"{backlog.hosts} hosts"
    )
    yield Figure(
        "GPU snapshots through Kafka and Faust, a worker-core second",
        "snapshots/s",
        tuple(per_core for per_core, _ in workers),
        MARK,
        peer=("the same over bare aiokafka", statistics.median(one for one, _ in peers)),
        note=note,
    )
    yield Figure(
        "GPU snapshots through Kafka and Faust, wall clock",
        "snapshots/s",
        tuple(wall for _, wall in workers),
        peer=("the same over bare aiokafka", statistics.median(one for _, one in peers)),
        note="one worker; it shares the cores with the broker",
    )


def _worker(rig: Rig, backlog: Backlog, number: int) -> tuple[float, float]:
    """Snapshots a worker-core second and a second of one worker on the whole backlog."""
    kafka = backlog.kafka
    settings = f'[worker]\napp_id = "worker{number}"\n'
    parts = rig.parts(kafka, f"worker{number}", settings)
    verdicts = _Answers(kafka)
    worker = rig.start(parts.worker(), "worker")
    began: tuple[float, float] | None = None
    ended = (0.0, 0.0)
    left = set(backlog.ended_hosts)
    deadline = time.monotonic() + _WITHIN_S
    try:
        while left:
            if time.monotonic() > deadline:
                raise BenchError(f"The worker was not through in time: {worker.tail()}")
            hosts = verdicts.hosts(worker)
            if hosts:
                ended = (time.monotonic(), worker.cpu_s())
                began = began or ended
            left -= hosts
    finally:
        worker.stop()
        verdicts.close()
    assert began is not None
    wall_s, cpu_s = ended[0] - began[0], ended[1] - began[1]
    # The first answer may come when a whole batch was stepped: what it holds is not counted.
    counted = backlog.snapshots - WorkerConfig().batch_size * load_gpu.GPUS * load_gpu.TICKS
    return round(counted / max(cpu_s, 0.01)), round(counted / max(wall_s, 0.01))


class _Answers:
    """The hosts of the verdicts that come from now on."""

    def __init__(self, kafka: Kafka) -> None:
        self._consumer = KafkaConsumer(**kafka.client(), fetch_max_wait_ms=20)
        place = TopicPartition(kafka.topic("verdicts"), 0)
        self._consumer.assign([place])
        self._consumer.seek_to_end(place)
        self._consumer.position(place)

    def hosts(self, worker: Child) -> set[str]:
        """Hosts of what came within the next moment."""
        if not worker.alive:
            raise BenchError(f"The worker ended; its log ends: {worker.tail()}")
        found = set()
        for messages in self._consumer.poll(timeout_ms=20).values():
            for message in messages:
                record = decode("verdicts", message.value)
                if isinstance(record, Verdict) and record.domain.host:
                    found.add(record.domain.host)
        return found

    def close(self) -> None:
        self._consumer.close()


def _peer(rig: Rig, backlog: Backlog) -> tuple[float, float]:
    kafka = backlog.kafka
    arguments = (kafka.bootstrap, kafka.topic("gpu"), kafka.partitions)
    said = rig.start(rig.script("peer.py", *arguments), "peer").wait(_WITHIN_S)
    taken = json.loads(said.splitlines()[-1])
    return (
        round(backlog.snapshots / max(taken["cpu_s"], 0.01)),
        round(backlog.snapshots / taken["wall_s"]),
    )
