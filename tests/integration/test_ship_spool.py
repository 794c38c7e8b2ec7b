"""An agent without its Kafka: killed and started again, it loses nothing and stays small."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer

from collectors.shipping.shipper import Shipper
from collectors.shipping.spool import SpoolInUseError
from evidence.records import KernelKind, KernelRecord
from evidence.transport import Kafka
from evidence.wire import decode
from ringfence.cluster import ensure_topics

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

ROOT = Path(__file__).parents[2]
AT = datetime(2026, 3, 3, 3, 3, 3, tzinfo=UTC)
AGENT = Path(__file__).with_name("ship_agent.py")


class Agent:
    """The process of ship_agent.py."""

    def __init__(self, kafka: Kafka, state: Path, rate: int, total: int) -> None:
        command = [sys.executable, AGENT, kafka.bootstrap, kafka.prefix, state, rate, total]
        self._process = subprocess.Popen(
            [str(one) for one in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def until(self, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first status of which something is true."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            status = json.loads(line)
            if reached(status):
                return status  # type: ignore[no-any-return]
        raise AssertionError(f"the agent ended with {self._process.wait()}")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    agents: list[Agent] = []

    def make(kafka: Kafka, rate: int, total: int) -> Agent:
        state = tmp_path / "state"
        state.mkdir(exist_ok=True)
        agents.append(Agent(kafka, state, rate, total))
        return agents[-1]

    yield make
    for agent in agents:
        agent.kill()


def first_of_each(kafka: Kafka, topic: str, count: int) -> list[int]:
    """The ``seq`` of every record, the first of each id, until ``count`` are there."""
    consumer = KafkaConsumer(
        kafka.topic(topic), **kafka.client(), auto_offset_reset="earliest", group_id=None
    )
    found: dict[str, int] = {}
    try:
        while len(found) < count:
            for part in consumer.poll(timeout_ms=500).values():
                for message in part:
                    record = decode(topic, message.value)
                    found.setdefault(record.id, record.seq)
    finally:
        consumer.close()
    return [*found.values()]


def away(broker: Any, start: Callable[..., Agent], rate: int, total: int) -> dict[str, Any]:
    """Ship ``total`` records past a broker that is away, over a kill; returns the last status."""
    kafka = Kafka(bootstrap=broker.bootstrap, prefix="away.")
    ensure_topics(kafka)
    broker.kill()
    agent = start(kafka, rate, total)
    # What memory alone had is read again from its cursor; what was spooled is not.
    agent.until(lambda now: now["spooled"] > 0 and now["read"] >= total // 4)
    agent.kill()
    agent = start(kafka, rate, total)
    agent.until(lambda now: now["read"] == total and now["spooled"] >= total // 4)
    broker.start()
    status = agent.until(lambda now: now["pending"] == 0)
    for topic, count in (("kernel", total * 9 // 10), ("gpu", total // 10)):
        assert first_of_each(kafka, topic, count) == [*range(count)]
    assert status["dropped"] == {}
    assert status["rss_mb"] < 150
    return status


@pytest.mark.chaos
def test_nothing_is_lost_or_out_of_order_when_kafka_was_away_and_the_agent_was_killed(
    own_apache_kafka: Any, start: Callable[..., Agent], tmp_path: Path
) -> None:
    away(own_apache_kafka, start, 0, 20_000)
    assert not (tmp_path / "state" / "spool.sqlite").exists()


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rate", [0, 500], ids=["as fast as can be", "ten minutes"])
def test_ten_minutes_without_kafka_at_500_records_a_second(
    own_apache_kafka: Any, start: Callable[..., Agent], rate: int
) -> None:
    away(own_apache_kafka, start, rate, 300_000)


def line(seq: int) -> KernelRecord:
    return KernelRecord(
        id=f"k{seq}",
        host="b200-r7-n3",
        observed_at=AT,
        raw="mlx5_core 0000:9a:00.0: Port module event: module 0, Cable unplugged",
        kind=KernelKind.MLX5,
        seq=seq,
    )


def test_what_an_agent_left_at_its_end_is_sent_by_the_next_one_before_its_own(
    apache_kafka: Any, fresh_topics: Any, tmp_path: Path
) -> None:
    kafka = fresh_topics(apache_kafka.bootstrap)
    spool = tmp_path / "spool.sqlite"
    told: list[bool] = []
    first = Shipper(Kafka(bootstrap="127.0.0.1:1", prefix=kafka.prefix), spool=spool)
    for seq in range(2500):
        first.send("kernel", "n3", line(seq), told.append)
    with pytest.raises(SpoolInUseError):
        Shipper(kafka, spool=spool)
    assert first.close(0.2) == 0
    assert told == [True] * 2500
    second = Shipper(kafka, spool=spool)
    for seq in range(2500, 3000):
        second.send("kernel", "n3", line(seq))
    assert second.flush(30)
    second.close()
    assert first_of_each(kafka, "kernel", 3000) == [*range(3000)]
    assert second.delivered == {"kernel": 3000}
    assert not spool.exists()


def test_what_a_full_spool_dropped_is_told_before_what_follows(
    apache_kafka: Any, fresh_topics: Any, tmp_path: Path
) -> None:
    kafka = fresh_topics(apache_kafka.bootstrap)
    spool = tmp_path / "spool.sqlite"
    gone = Kafka(bootstrap="127.0.0.1:1", prefix=kafka.prefix)
    first = Shipper(gone, host="b200-r7-n3", spool=spool, spool_bytes=40_000)
    for seq in range(400):
        first.send("kernel", "b200-r7-n3", line(seq))
    assert first.close(0.2) == 0
    dropped = first.dropped["kernel"]
    assert dropped > 0
    second = Shipper(kafka, host="b200-r7-n3", spool=spool)
    assert second.flush(30)
    second.close()
    kept = 400 - dropped
    consumer = KafkaConsumer(
        kafka.topic("kernel"), **kafka.client(), auto_offset_reset="earliest", group_id=None
    )
    messages: list[Any] = []
    while len(messages) < kept + 1:
        messages += [one for part in consumer.poll(500).values() for one in part]
    consumer.close()
    fact, *rest = (decode("kernel", one.value) for one in messages)
    assert (fact.kind, fact.source, fact.device, fact.count) == (
        KernelKind.OVERRUN,
        "spool",
        "kernel",
        dropped,
    )
    assert fact.at == fact.last_at == rest[0].observed_at
    assert [one.seq for one in rest] == [*range(dropped, 400)]


def test_the_clock_skew_to_kafka_is_known_where_topics_keep_the_append_time(
    apache_kafka: Any, fresh_topics: Any
) -> None:
    shipper = Shipper(fresh_topics(apache_kafka.bootstrap))
    assert shipper.clock_skew_s is None
    for seq in range(20):
        shipper.send("kernel", "n3", line(seq))
        assert shipper.flush(20)
    assert shipper.connected
    skew = shipper.clock_skew_s
    shipper.close()
    assert skew is not None
    assert abs(skew) < 0.25
