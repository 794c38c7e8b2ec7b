"""Two days of a fleet in minutes: does the worker keep more and more?

The real worker over a real broker, only its time is that of the records (`soak_worker.py`). Hosts
come and go, jobs start, end and hang, cards fail, are isolated, acknowledged and released. On the
first day everything that is remembered for a day fills up; the second is compared with itself.
"""

import itertools
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import load_gpu
import load_kernel
import load_nccl
from figure import Figure
from gauge import Gauge, free_port
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from msgspec import Struct
from msgspec.structs import replace
from rig import BenchError, Rig
from watch import POLICY

from evidence.decisions import Ack, AckStatus, Command, Request, RequestAction
from evidence.identity import digest
from evidence.topics import CLUSTER_KEY, TOPICS
from evidence.transport import Kafka
from evidence.wire import decode, encode

__all__ = ["measure"]

#: Memory at the end of the second day over memory at its begin.
MARK = 1.05
_NODES, _NAMES = 32, 40
_HOUR = timedelta(hours=1)
_EVERY = timedelta(seconds=30)
#: Each so many seconds of the fleet's time.
_JOB_S, _HANG_S, _FAULT_S, _MOVE_S = 900, 6 * 3600, 1800, 3600
_RANKS = 16
_AHEAD = 2000
_WITHIN_S = 600.0

_Message = tuple[datetime, str, bytes, Struct]


def measure(rig: Rig) -> Iterator[Figure]:
    """Memory and what is kept over the second day."""
    hours = 2.0 if rig.quick else 48.0
    kafka = rig.kafka()
    _keep_our_times(kafka)
    policy = rig.folder / "soak.toml"
    policy.write_text(POLICY.format(settle_s=10), encoding="utf-8")
    port = free_port()
    folder = rig.folder / "soak"
    folder.mkdir()
    begin = datetime.now(UTC) - timedelta(hours=hours + 1)
    given = (kafka.bootstrap, kafka.prefix, kafka.partitions, folder, policy, port)
    worker = rig.start(rig.script("soak_worker.py", *given, begin.timestamp()), "soak")
    worker.says("worker ready")
    soak = _Soak(kafka, Gauge(worker, port))
    try:
        began = time.monotonic()
        soak.run(begin, hours)
        took_s = time.monotonic() - began
    finally:
        soak.close()
        worker.stop()
    rest = soak.samples[len(soak.samples) // 2 :]
    each = max(1, len(rest) // 6)
    before, after = (
        statistics.median(one.rss_mib for one in part) for part in (rest[:each], rest[-each:])
    )
    yield Figure(
        "worker's memory at the end of a day over its begin",
        "x",
        (after / before,),
        MARK,
        at_most=True,
        note=f"{before:.1f} and {after:.1f} MiB, after a day of warm-up; {soak.sent:,} messages of "
        f"{hours:.0f} h in {took_s:.0f} s, {soak.commands} commands, {_NAMES} hosts",
    )
    for stage in ("host", "job", "isolation"):
        yield Figure(
            f"keys of the {stage} stage at the end",
            "keys",
            (rest[-1].keys.get(stage, 0.0),),
            at_most=True,
            note=f"at the begin of the second day {rest[0].keys.get(stage, 0.0):.0f}",
        )


def _keep_our_times(kafka: Kafka) -> None:
    """Let the topics of this run keep the times that records were sent with."""
    admin = KafkaAdminClient(**kafka.client())
    admin.alter_configs(
        [
            ConfigResource(
                ConfigResourceType.TOPIC,
                kafka.topic(name),
                configs={"message.timestamp.type": "CreateTime"},
            )
            for name in TOPICS
        ]
    )
    admin.close()


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the worker had at one moment."""

    rss_mib: float
    keys: dict[str, float]


@dataclass(slots=True)
class _Soak:
    """Sends the fleet's messages in the order of their times, and answers commands."""

    kafka: Kafka
    gauge: Gauge
    samples: list[_Sample] = field(default_factory=list)
    sent: int = 0
    commands: int = 0
    _producer: Any = None
    _consumer: Any = None

    def run(self, begin: datetime, hours: float) -> None:
        """Send it all; raises BenchError when the worker does not follow."""
        self._producer = KafkaProducer(**self.kafka.client(), acks="all", linger_ms=5)
        self._consumer = KafkaConsumer(
            self.kafka.topic("isolation.commands"),
            **self.kafka.client(),
            auto_offset_reset="earliest",
            fetch_max_wait_ms=10,
        )
        messages = _fleet(begin, hours)
        while part := list(itertools.islice(messages, 1000)):
            for at, topic, key, record in part:
                self._send(at, topic, key, record)
            self.sent += len(part)
            self._answer(part[-1][0])
            self._follow()
        self._follow(0)
        if not self.commands:
            raise BenchError("Cards failed, and nothing was commanded.")

    def _send(self, at: datetime, topic: str, key: bytes, record: Struct) -> None:
        self._producer.send(
            self.kafka.topic(topic),
            key=key,
            value=encode(record),
            timestamp_ms=int(at.timestamp() * 1000),
        )

    def _answer(self, now: datetime) -> None:
        """Acknowledge what was commanded, and let a person release it."""
        for messages in self._consumer.poll(timeout_ms=30).values():
            for message in messages:
                command = decode("isolation.commands", message.value)
                assert isinstance(command, Command)
                self.commands += 1
                ack = Ack(
                    id=digest("ack", command.id),
                    command=command.id,
                    domain_id=command.domain_id,
                    at=now,
                    scheduler="bench",
                    status=AckStatus.DONE,
                )
                self._send(now, "isolation.acks", CLUSTER_KEY, ack)
                if command.action == "isolate":
                    back = Request(
                        id=digest("release", command.id),
                        at=now,
                        action=RequestAction.RELEASE,
                        domain=command.domain,
                        by="bench",
                        reason="repaired",
                    )
                    self._send(now, "requests", CLUSTER_KEY, back)

    def _follow(self, ahead: int = _AHEAD) -> None:
        """Wait until the worker is close behind, and look at it."""
        self._producer.flush()
        deadline = time.monotonic() + _WITHIN_S
        while True:
            read = self.gauge.read()
            taken = read["ringfence_stage_taken_total"] - read["ringfence_stage_ticks_total"]
            if taken >= self.sent - ahead:
                break
            if time.monotonic() > deadline:
                raise BenchError("The worker does not follow.")
            time.sleep(0.05)
        keys = {
            name.partition("/")[2]: value
            for name, value in read.items()
            if name.startswith("ringfence_stage_keys/")
        }
        self.samples.append(_Sample(self.gauge.rss_mib(), keys))

    def close(self) -> None:
        """Close the clients."""
        for client in (self._producer, self._consumer):
            if client is not None:
                client.close()


def _fleet(begin: datetime, hours: float) -> Iterator[_Message]:
    """What the fleet sends, in the order of its times."""
    draw = random.Random(7)
    names = [load_gpu.host_name(number) for number in range(_NAMES)]
    cards = {name: load_gpu.Cards(name) for name in names}
    here = names[:_NODES]
    noise = load_kernel.records(load_kernel.noise(200), "any")
    for step in range(int(hours * _HOUR / _EVERY)):
        at = begin + step * _EVERY
        since_s = step * _EVERY.total_seconds()
        for number, host in enumerate(here):
            yield at, "gpu", host.encode(), cards[host].frame(at, 1)
            if step % 4 == number % 4:
                told = replace(
                    noise[draw.randrange(200)],
                    id=f"{host}-{step}",
                    host=host,
                    at=at,
                    observed_at=at,
                )
                yield at, "kernel", host.encode(), told
        if since_s % _FAULT_S == 0 and step:
            host = draw.choice(here)
            bus = draw.choice(load_kernel.BUSES)
            told = load_kernel.fallen_off(host, bus, at)
            yield at, "kernel", host.encode(), told
        if since_s % _JOB_S == 0:
            hangs = since_s % _HANG_S == 0 and step > 0
            yield from _job(f"train-{step}", at, hangs=hangs)
        if since_s % _MOVE_S == 0 and step:
            gone = here.pop(0)
            here.append(next(name for name in names if name not in here and name != gone))
            cards[gone] = load_gpu.Cards(gone, seed=step)  # it comes back started anew


def _job(job: str, at: datetime, *, hangs: bool) -> Iterator[_Message]:
    for record in load_nccl.job_records(job, _RANKS, 3, 1):
        if hangs or record.kind == "comm-init":
            told = replace(record, id=f"{job}-{record.id}", at=at, observed_at=at)
            yield at, "nccl", job.encode(), told
