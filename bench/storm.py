"""750 nodes failing at once, with a budget of 750: seconds until every command is out.

Once through the bare step, once through a worker on Apache Kafka, from the first verdict's send to
the last command in a consumer's hands. Nobody answers the commands: the worst case for the outbox.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from figure import Figure
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from rig import BenchError, Rig

from evidence.decisions import (
    Cause,
    Command,
    Domain,
    DomainKind,
    EvidenceRef,
    Status,
    Verdict,
)
from evidence.topics import CLUSTER_KEY
from evidence.wire import decode, encode
from rules.isolation import rebuild, step
from rules.policy import Mode, Policy, load
from rules.stage import Arrived

__all__ = ["measure"]

MARK_S = 2.0
#: NVIDIA NVSentinel, its own record of 750 nodes cordoned (2.5 a second): not measured here.
RIVAL = ("NVSentinel, as published", 303.7)
_NODES = 750
_POLICY = """\
[isolation.mode]
value = "enforce"
why = "Commands are real in the bench."
source = "bench/storm.py"

[budget.node_absolute]
value = {nodes}
why = "Every node that fails may be taken out."
source = "bench/storm.py"
"""


@dataclass(frozen=True)
class _Governed:
    policy: Policy


def measure(rig: Rig) -> Iterator[Figure]:
    """Both figures, each beside the rival's."""
    runs = 1 if rig.quick else 3
    yield Figure(
        f"{_NODES} nodes failing at once: all commands, bare step",
        "s",
        tuple(_bare() for _ in range(runs)),
        MARK_S,
        at_most=True,
        peer=RIVAL,
    )
    took, cores = zip(*(_worker(rig, number) for number in range(runs)), strict=True)
    yield Figure(
        f"{_NODES} nodes failing at once: all commands, worker on Kafka",
        "s",
        took,
        MARK_S,
        at_most=True,
        peer=RIVAL,
        note=f"the worker's CPU: {min(cores):.2f} core-seconds in its best run",
    )


def verdicts(now: datetime) -> list[Verdict]:
    """What the host stages say of nodes whose cards fell off the bus, all within a second."""
    return [
        Verdict(
            id=f"verdict-{number:04d}-aaaaaaaaaaaa",
            incident=f"incident-{number:04d}-bbbbbbbbbb",
            revision=1,
            at=now,
            decided_at=now,
            status=Status.LOCALIZED,
            cause=Cause.GPU_LOST,
            domain=Domain(
                kind=DomainKind.GPU,
                host=f"storm-{number:04d}",
                pci="0000:5e:00",
                uuid=f"GPU-{number:08d}-0000-4000-8000-000000000000",
                serial=f"16530{number:08d}",
                index=3,
            ),
            confidence=0.99,
            reason="The driver lost the GPU: it has fallen off the bus.",
            hard=True,
            evidence=tuple(
                EvidenceRef(id=f"evidence-{number:04d}-{part}", source="kernel", at=now)
                for part in range(3)
            ),
            rule="xid-79",
            host=f"storm-{number:04d}",
            rack=f"r{number // 8:03d}",
            leaf=f"leaf-{number // 32}",
            pool="training",
        )
        for number in range(_NODES)
    ]


def _bare() -> float:
    policy = load()
    budget = replace(policy.budget, node_absolute=float(_NODES))
    rules = _Governed(replace(policy, mode=Mode.ENFORCE, budget=budget))
    state, now, out = rebuild(), datetime.now(UTC), set()
    told = verdicts(now)
    began = time.perf_counter()
    for number, one in enumerate(told):
        state, outputs = step(state, Arrived("verdicts", one, now, number), rules)
        out |= {o.id for o in outputs if isinstance(o, Command) and o.held is None}
    took = time.perf_counter() - began
    if len(out) != _NODES:
        raise BenchError(f"{len(out)} commands came out of the step, not {_NODES}.")
    return took


def _worker(rig: Rig, number: int) -> tuple[float, float]:
    """Seconds to the last command, and the worker's core-seconds."""
    kafka = rig.kafka()
    policy = rig.folder / f"storm-{number}.toml"
    policy.write_text(_POLICY.format(nodes=float(_NODES)), encoding="utf-8")
    settings = f'[worker]\npolicy = "{policy}"\nstages = ["isolation"]\nmetrics_listen = ""\n'
    worker = rig.start(rig.parts(kafka, f"storm-{number}", settings).worker(), "storm")
    worker.says("worker ready")
    time.sleep(1.0)
    consumer = KafkaConsumer(**kafka.client(), fetch_max_wait_ms=5)
    consumer.assign([TopicPartition(kafka.topic("isolation.commands"), 0)])
    consumer.seek_to_beginning()
    producer = KafkaProducer(**kafka.client(), acks="all", linger_ms=0)
    out: set[str] = set()
    told = [encode(one) for one in verdicts(datetime.now(UTC))]
    cpu, began = worker.cpu_s(), time.perf_counter()
    for value in told:
        producer.send(kafka.topic("verdicts"), value, key=CLUSTER_KEY)
    try:
        while len(out) < _NODES:
            if time.perf_counter() - began > 60:
                raise BenchError(f"{len(out)} of {_NODES} commands came in a minute.")
            for messages in consumer.poll(timeout_ms=50).values():
                commands = (decode("isolation.commands", one.value) for one in messages)
                out |= {o.id for o in commands if isinstance(o, Command) and o.held is None}
        took = time.perf_counter() - began
        return took, worker.cpu_s() - cpu
    finally:
        producer.close(timeout=5)
        consumer.close()
        worker.stop()
