"""GPU snapshots a second through Kafka and Faust: a backlog, then the real worker on it.

The figure is per second of the worker's own CPU time, from the first answer to the last; the wall
clock stands beside it, with the broker and whatever else the machine does on the same cores. The
peers take turns with it on the same topic: quixstreams with the same step, state and verdicts, and
the same step over bare aiokafka with neither.
"""

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import load_gpu
from figure import Figure
from kafka import KafkaConsumer, TopicPartition
from rig import Backlog, BenchError, Child, Rig

from evidence.decisions import Verdict
from evidence.transport import Kafka
from evidence.wire import decode
from streams.config import WorkerConfig

__all__ = ["measure"]

MARK = 100_000
_WITHIN_S = 180.0


@dataclass(frozen=True, slots=True)
class _Run:
    """What one reader took for the backlog: core seconds of its own and of the broker, and time."""

    frames: float
    cpu_s: float
    broker_s: float
    wall_s: float

    def a_core_second(self) -> float:
        """Frames a second of the reader's CPU time."""
        return self.frames / max(self.cpu_s, 0.01)

    def a_second(self) -> float:
        """Frames a second of the wall clock."""
        return self.frames / max(self.wall_s, 0.01)


def measure(rig: Rig) -> Iterator[Figure]:
    """Frames of five ticks, as agents send them, and of one: there the cost of a message shows."""
    backlog = rig.backlog()
    runs = _take_turns(rig, backlog, 1 if rig.quick else 3, bare=True)
    yield from _snapshots(backlog, runs)
    yield from _spent(backlog, runs["worker"])
    small = Backlog(rig.kafka(), 400 if rig.quick else 12_000, ticks=1).produce()
    runs = _take_turns(rig, small, 1, bare=False)
    yield Figure(
        "frames of one tick through Kafka and Faust, a worker-core second",
        "messages/s",
        _each(runs["worker"], 1),
        peer=("quixstreams", _median(runs["quixstreams"], 1)),
        note=f"{small.frames} messages of {load_gpu.GPUS} snapshots: what a message costs; agents "
        f"send {load_gpu.TICKS} ticks in one",
    )


def _take_turns(rig: Rig, backlog: Backlog, rounds: int, *, bare: bool) -> dict[str, list[_Run]]:
    runs: dict[str, list[_Run]] = {"worker": [], "quixstreams": [], "aiokafka": []}
    for number in range(rounds):
        runs["worker"].append(_worker(rig, backlog, number))
        runs["quixstreams"].append(_quix(rig, backlog, number))
        if bare:
            runs["aiokafka"].append(_bare(rig, backlog))
        told = ", ".join(f"{name} {of[-1].a_core_second():,.0f}" for name, of in runs.items() if of)
        rig.say(f"GPU frames of {backlog.ticks} ticks a core second: {told}")
    return runs


def _each(runs: list[_Run], factor: int) -> tuple[float, ...]:
    return tuple(one.a_core_second() * factor for one in runs)


def _median(runs: list[_Run], factor: int) -> float:
    return statistics.median(_each(runs, factor))


def _snapshots(backlog: Backlog, runs: dict[str, list[_Run]]) -> Iterator[Figure]:
    snapshots = load_gpu.GPUS * backlog.ticks
    note = (
        f"{backlog.frames} frames of {load_gpu.GPUS} GPUs x {backlog.ticks} ticks, "
        f"{backlog.hosts} hosts, six of 64 with a fault; all rules"
    )
    name = "GPU snapshots through Kafka and Faust, a worker-core second"
    quix, bare = runs["quixstreams"], runs["aiokafka"]
    yield Figure(
        name,
        "snapshots/s",
        _each(runs["worker"], snapshots),
        MARK,
        peer=("quixstreams, the same step, state and verdicts", _median(quix, snapshots)),
        note=note,
    )
    yield Figure(
        "the same beside the bare client",
        "snapshots/s",
        _each(runs["worker"], snapshots),
        peer=("the same step over bare aiokafka, nothing kept", _median(bare, snapshots)),
        note=f"{_median(runs['worker'], 1):,.0f} messages a worker-core second, quixstreams "
        f"{_median(quix, 1):,.0f}, bare aiokafka {_median(bare, 1):,.0f}",
    )
    yield Figure(
        "the same, wall clock",
        "snapshots/s",
        tuple(one.a_second() * snapshots for one in runs["worker"]),
        peer=("quixstreams", statistics.median(one.a_second() * snapshots for one in quix)),
        note="one worker; it shares the cores with the broker",
    )


def _spent(backlog: Backlog, runs: list[_Run]) -> Iterator[Figure]:
    """Core seconds of the others for a million snapshots."""
    millions = backlog.frames * load_gpu.GPUS * backlog.ticks / 1e6
    took = {
        "worker": tuple(1e6 / (one.a_core_second() * _snapshots_a_frame(backlog)) for one in runs),
        "broker, while the worker reads": tuple(
            one.broker_s / (one.frames * _snapshots_a_frame(backlog)) * 1e6 for one in runs
        ),
        "producer (made and sent by one process)": (backlog.producer_s / millions,),
    }
    for who, values in took.items():
        yield Figure(f"core seconds for a million snapshots: {who}", "core s", values, at_most=True)


def _snapshots_a_frame(backlog: Backlog) -> int:
    return load_gpu.GPUS * backlog.ticks


def _worker(rig: Rig, backlog: Backlog, number: int) -> _Run:
    """One worker on the whole backlog."""
    kafka = backlog.kafka
    name = f"worker{backlog.ticks}-{number}"
    parts = rig.parts(kafka, name, f'[worker]\napp_id = "{name}"\nmetrics_listen = ""\n')
    verdicts = _Answers(kafka)
    worker = rig.start(parts.worker(), "worker")
    began: tuple[float, float, float] | None = None
    ended = (0.0, 0.0, 0.0)
    left = set(backlog.ended_hosts)
    deadline = time.monotonic() + _WITHIN_S
    try:
        while left:
            if time.monotonic() > deadline:
                raise BenchError(f"The worker was not through in time: {worker.tail()}")
            hosts = verdicts.hosts(worker)
            if hosts:
                ended = (time.monotonic(), worker.cpu_s(), rig.broker_s())
                began = began or ended
            left -= hosts
    finally:
        worker.stop()
        verdicts.close()
    assert began is not None
    wall_s, cpu_s, broker_s = (after - before for after, before in zip(ended, began, strict=True))
    # The first answer may come when a whole batch was stepped: what it holds is not counted.
    return _Run(backlog.frames - WorkerConfig().batch_size, cpu_s, broker_s, wall_s)


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


def _bare(rig: Rig, backlog: Backlog) -> _Run:
    kafka = backlog.kafka
    arguments = (kafka.bootstrap, kafka.topic("gpu"), kafka.partitions)
    return _peer(rig, backlog, rig.script("peer.py", *arguments))


def _quix(rig: Rig, backlog: Backlog, number: int) -> _Run:
    """Quixstreams under a group, a state and topics of its own each time."""
    kafka = backlog.kafka
    consumer = KafkaConsumer(**kafka.client())
    messages = sum(consumer.end_offsets(backlog.places()).values())
    consumer.close()
    folder = rig.folder / f"quix{backlog.ticks}-{number}"
    prefix = f"{kafka.prefix}{number}-"
    arguments = (kafka.bootstrap, kafka.topic("gpu"), prefix, messages, folder)
    return _peer(rig, backlog, rig.script("peer_quix.py", *arguments))


def _peer(rig: Rig, backlog: Backlog, argv: tuple[str, ...]) -> _Run:
    broker_s = rig.broker_s()
    said = rig.start(argv, "peer").wait(_WITHIN_S)
    taken = json.loads(said.splitlines()[-1])
    if taken["frames"] < backlog.frames:
        raise BenchError(f"A peer took {taken['frames']} of {backlog.frames} frames.")
    return _Run(backlog.frames, taken["cpu_s"], rig.broker_s() - broker_s, taken["wall_s"])
