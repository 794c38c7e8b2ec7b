"""A worker that takes over a hundred thousand hosts' states from one that was killed."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer

from rules import host
from rules.stage import Arrived
from rules.tables import load
from streams.states import Kept
from streams.ticks import tick

from .faults import stream
from .plant import Plant

pytestmark = [
    pytest.mark.integration,
    pytest.mark.kafka,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

HOSTS = 100_000


@pytest.mark.parametrize("standby", [0, 1])
def test_a_large_state_is_taken_over_and_every_command_comes(
    broker: Any,
    planted: Callable[..., Plant],
    record_property: Callable[[str, object], None],
    standby: int,
) -> None:
    plant = planted(broker.bootstrap, seed=31 + standby, count=150, standby=standby)
    plant.worker("a")
    plant.ready("a")
    size = fill(plant)
    plant.worker("b")
    plant.here.start_scheduler()
    plant.ready("b")
    time.sleep(10 if standby else 0)  # a standby reads what it follows
    plant.feed()
    plant.wait_for_part(1 / 4)
    plant.keep_away("a")
    killed = time.time()
    plant.signal("a")
    plant.finish(120)

    plant.check()
    figures = {
        "hosts": HOSTS,
        "bytes_a_host": size,
        "commands": len(plant.told()),
        "silence_s": round(plant.silence_s(), 1),
        "slowest_s": round(plant.slowest_s(), 1),
        "back_s": round(plant.back_s(killed), 1),
    }
    for key, value in figures.items():
        record_property(key, value)
    print(f"kill -9, large state, {standby} standbys: {figures}")  # noqa: T201 (pytest -rP)


def fill(plant: Plant) -> int:
    """Give the host stage's table the states of many hosts; returns the size of one in bytes."""
    began = datetime.now(UTC) - timedelta(hours=1)
    fault = next(one for one in stream(1, 40, began) if len(one.sent) == 2)
    state, rules = host.HostState(), load()
    for sent in fault.sent:
        at = began + timedelta(seconds=sent.after_s)
        state, _ = host.step(state, Arrived(sent.topic, sent.record, at), rules)
    while (due := host.due(state)) is not None:  # what waits would be judged in the test
        state, _ = host.step(state, Arrived("", tick(due, "past"), due), rules)
    topic = f"{plant.kafka.prefix}worker-host-changelog"
    encoded = msgspec.Raw(msgspec.json.encode(state))
    producer = KafkaProducer(**plant.kafka.client(), acks=1, linger_ms=20, batch_size=1 << 18)
    for number in range(HOSTS):
        partition = number % plant.kafka.partitions
        value = msgspec.json.encode(Kept(partition=partition, state=encoded))
        producer.send(topic, key=b"many%06d" % number, value=value, partition=partition)
    producer.flush(120)
    producer.close()
    return len(value)
