"""Three brokers that keep everything three times: one is killed, and nothing is lost.

The stream of faults flows all the time; what is measured is how long commands take after a broker
died that led the isolation topics, after it came back, and after the leader of the quorum died.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from kafka import KafkaAdminClient

from evidence.records import KernelRecord

from .plant import Plant

pytestmark = [
    pytest.mark.integration,
    pytest.mark.kafka,
    pytest.mark.chaos,
    pytest.mark.timeout(300),
]

NODE = "rack77-n1000"
LINE = (
    "2026-{0:%m-%dT%H:%M:%S,%f}+00:00 NVRM: Xid (PCI:0000:5e:00): 43, pid={1}, name=python3.12, "
    "Ch 0000000c\n"
)


def test_a_broker_killed_of_three_costs_no_record_and_no_command(
    kafka_cluster: Any,
    planted: Callable[..., Plant],
    record_property: Callable[[str, object], None],
) -> None:
    plant = planted(kafka_cluster.bootstrap, replication=3, seed=11, count=120)
    told = played(plant, kafka_cluster, ["leader"])
    for key, value in told.items():
        record_property(key, value)


@pytest.mark.slow
def test_brokers_killed_one_after_the_other_cost_no_record_and_no_command(
    kafka_cluster: Any,
    planted: Callable[..., Plant],
    record_property: Callable[[str, object], None],
) -> None:
    plant = planted(kafka_cluster.bootstrap, replication=3, seed=12, count=600)
    told = played(plant, kafka_cluster, ["leader", "controller", "leader", "any"])
    for key, value in told.items():
        record_property(key, value)


def played(plant: Plant, cluster: Any, victims: list[str]) -> dict[str, float]:
    """Kill these brokers one after the other, each back before the next; what was measured."""
    plant.worker("a")
    plant.worker("b")
    plant.here.start_sink()
    plant.here.start_scheduler()
    lines = plant.folder / "kern.log"
    lines.touch()
    plant.here.start_agent(NODE, "--kernel-file", str(lines))
    plant.ready("a", "b")
    plant.feed()
    told: dict[str, float] = {}
    moments: list[tuple[str, float]] = [("before", time.time())]
    written = 0
    steps = 2 * len(victims) + 1
    for number, victim in enumerate(victims):
        plant.wait_for_part((2 * number + 1) / steps)
        broker = cluster.brokers[victim_of(plant, cluster, victim) - 1]
        moments.append((f"{number + 1}, {victim} killed", time.time()))
        broker.kill()
        written += write_lines(lines, written)
        plant.wait_for_part((2 * number + 2) / steps)
        moments.append((f"{number + 1}, {victim} back", time.time()))
        broker.start()
        whole(plant)
        written += write_lines(lines, written)
    plant.until(lambda: shipped(plant) == written, 60)
    plant.finish()

    plant.check()
    ends = [at for _, at in moments[1:]] + [float("inf")]
    for (name, at), end in zip(moments, ends, strict=True):
        took = [one.took_s for one in plant.at_once() if at <= (one.sent_at or 0.0) < end]
        late = [one.at - at for one in plant.at_once() if one.took_s > 1 and at < one.at < end]
        told |= {f"{name}: slowest_s": round(max(took, default=0.0), 2)}
        told |= {f"{name}: back_s": round(max(late, default=0.0), 1)}
    told |= {"commands": len(plant.told())}
    print(f"three brokers: {told}")  # noqa: T201 (pytest -rP shows it)
    return told


def write_lines(path: Any, first: int, count: int = 20) -> int:
    """Lines that the agent of one node reads."""
    with path.open("a", encoding="utf-8") as file:
        for number in range(first, first + count):
            file.write(LINE.format(datetime.now(UTC), 40_000 + number))
    return count


def shipped(plant: Plant) -> int:
    """How many of them are in Kafka; each once, since ids are unique."""
    ids = [
        one.id
        for one in plant.here.records("kernel")
        if isinstance(one, KernelRecord) and one.host == NODE
    ]
    assert len(ids) == len(set(ids))
    return len(ids)


def victim_of(plant: Plant, cluster: Any, which: str) -> int:
    """The number of a broker: the leader of the verdicts, of the quorum, or neither."""
    admin = KafkaAdminClient(**plant.kafka.client())
    try:
        (topic,) = admin.describe_topics([plant.kafka.topic("verdicts")])
        leader = topic["partitions"][0]["leader_id"]
        quorum = admin.describe_metadata_quorum()
        controller = quorum["topics"][0]["partitions"][0]["leader_id"]
    finally:
        admin.close()
    nodes = {broker.node for broker in cluster.brokers}
    return int(
        {"leader": leader, "controller": controller}.get(which, min(nodes - {leader, controller}))
    )


def whole(plant: Plant) -> None:
    """Wait until every copy of every topic has caught up: one more may then be killed."""

    def in_sync() -> bool:
        admin = KafkaAdminClient(**plant.kafka.client())
        try:
            topics = admin.describe_topics()
        finally:
            admin.close()
        return all(len(part["isr_nodes"]) == 3 for topic in topics for part in topic["partitions"])

    plant.until(in_sync, 60)
