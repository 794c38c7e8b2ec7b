"""The fabric agent as an operator runs it: one round on the screen, or for years over Kafka."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer

from collectors.collector import Unavailable
from collectors.fabric.agent import FabricAgentConfig, FabricCollector
from evidence.records import FabricPort, FabricRecord
from evidence.transport import Kafka
from evidence.wire import decode

ROOT = Path(__file__).parents[2]
NOWHERE = Kafka(bootstrap="127.0.0.1:1")
COMMAND = (sys.executable, "-m", "ringfence", "fabric-agent")


def guid(number: int) -> str:
    return f"0x{number:016x}"


def ask(environment: dict[str, str], folder: Path, *flags: str) -> Any:
    return subprocess.run(
        [*COMMAND, *flags],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a fabric agent; it is gone at the end of the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(environment: dict[str, str], folder: Path, *flags: str) -> subprocess.Popen[str]:
        running.append(
            subprocess.Popen(
                [*COMMAND, *flags],
                cwd=folder,
                env=environment | {"PYTHONPATH": str(ROOT)},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def stop(process: subprocess.Popen[str]) -> str:
    """End an agent as systemd does; return its log."""
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0, log
    return log


@pytest.mark.integration
def test_one_round_needs_no_kafka(fabric: Any) -> None:
    done = ask(fabric.environment, fabric.folder, "--once", "--json", "--subnet", "ib-7")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["schema"] for one in records} == {"fabric/1"}
    assert {one["subnet"] for one in records} == {"ib-7"}
    assert sum(len(one["ports"]) for one in records) == 40
    names = {one["name"] for one in records}
    assert names >= {"hgx004 mlx5_1", "MF0;leaf-2:MQM9700/U1", "MF0;spine-1:MQM9700/U1"}


@pytest.mark.usefixtures("simulator")
def test_a_machine_without_infiniband_is_told_so_in_one_sentence(tmp_path: Path) -> None:
    done = ask(dict(os.environ), tmp_path, "--once")
    assert done.returncode == 2
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("Error")]
    assert "umad" in sentence
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("setting", ["interval_s", "timeout_ms", "tries", "outstanding"])
def test_a_setting_that_cannot_work_is_refused(setting: str) -> None:
    given: dict[str, Any] = {setting: 0}
    with pytest.raises(ValueError, match=f"{setting} must be more than 0, not 0"):
        FabricAgentConfig(kafka=NOWHERE, **given)


def test_reading_never_waits_and_an_absent_port_stays_absent_between_attempts() -> None:
    collector = FabricCollector(FabricAgentConfig(kafka=NOWHERE), lambda: datetime.now(UTC))
    assert list(collector.read()) == []
    said: set[str] = set()
    ends = time.monotonic() + 10
    while len(said) < 1 and time.monotonic() < ends:
        time.sleep(0.02)
        try:
            assert list(collector.read()) == []
        except Unavailable as error:
            said.add(str(error))
    for _ in range(3):
        with pytest.raises(Unavailable) as again:
            collector.read()
        said.add(str(again.value))
    assert len(said) == 1
    collector.close()


@pytest.mark.integration
def test_a_fabric_that_is_gone_is_said_once_and_does_not_keep_the_agent(
    fabric: Any, kafka: Kafka, start: Any
) -> None:
    agent = start(
        fabric.environment | {"RINGFENCE_KAFKA_PREFIX": kafka.prefix},
        fabric.folder,
        *("--bootstrap", kafka.bootstrap, "--interval", "0.2"),
    )
    topic = Topic(kafka)
    topic.until(lambda: len(topic.ports) == 40)
    fabric.stop()
    time.sleep(6)  # thirty sweeps that fail
    log = stop(agent)
    # The pipe breaks, then there is none: two reasons, each said once.
    assert 1 <= log.count("WARNING collectors.source: fabric: ") <= 2


@pytest.mark.integration
def test_the_second_sweep_waits_for_its_time(inside: Any) -> None:
    code = """
import json, time
from datetime import UTC, datetime
from collectors.fabric.agent import FabricAgentConfig, FabricCollector
from evidence.transport import Kafka
collector = FabricCollector(FabricAgentConfig(Kafka(), interval_s=3600), lambda: datetime.now(UTC))
found = []
ends = time.monotonic() + 20
while not found and time.monotonic() < ends:
    found += collector.read()
for _ in range(50):
    time.sleep(0.005)
    found += collector.read()
collector.close()
print(json.dumps([one.sweep for one in found]))
"""
    assert inside(code) == [1] * 12


def messages(kafka: Kafka) -> Iterator[tuple[bytes, FabricRecord]]:
    """Every record of the fabric topic with its key, as they come, for a minute at most."""
    consumer = KafkaConsumer(
        kafka.topic("fabric"), **kafka.client(), auto_offset_reset="earliest", group_id=None
    )
    ends = time.monotonic() + 60
    try:
        while time.monotonic() < ends:
            for batch in consumer.poll(timeout_ms=50).values():
                for one in batch:
                    yield one.key, decode("fabric", one.value)
    finally:
        consumer.close()
    pytest.fail("what was waited for never came out of the fabric topic")


class Topic:
    """The fabric topic, followed: the newest of every port and node."""

    def __init__(self, kafka: Kafka) -> None:
        self._messages = messages(kafka)
        self.keys: set[bytes] = set()
        self.ports: dict[tuple[str, int], FabricPort] = {}
        self.nodes: dict[str, FabricRecord] = {}

    def until(self, seen: Callable[[], bool]) -> None:
        while not seen():
            key, record = next(self._messages)
            self.keys.add(key)
            self.nodes[record.guid] = record
            self.ports |= {(record.guid, port.port): port for port in record.ports}


@pytest.mark.integration
def test_every_fault_comes_out_of_the_fabric_topic(fabric: Any, kafka: Kafka, start: Any) -> None:
    tree = fabric.tree
    leaf, spine, card = tree.leaf(0), tree.spine(1), tree.card(0, 1, 0)
    agent = start(
        fabric.environment | {"RINGFENCE_KAFKA_PREFIX": kafka.prefix},
        fabric.folder,
        *("--bootstrap", kafka.bootstrap, "--interval", "0.1", "--subnet", "ib-7"),
    )
    topic = Topic(kafka)
    topic.until(lambda: len(topic.ports) == 40)

    fabric.set(leaf, 4, "PortCounters.SymbolErrorCounter", 1300)  # a bad cable
    bad = (guid(leaf), 4)
    topic.until(lambda: topic.ports[bad].counters["symbol_error"] == 1300)
    assert (topic.ports[bad].peer_name, topic.ports[bad].peer_port) == ("hgx002 mlx5_1", 1)

    ends = ((guid(leaf), tree.up_port(1)), (guid(spine), 1))
    fabric.unlink(leaf, tree.up_port(1))  # a flap
    for node, port in ((leaf, tree.up_port(1)), (spine, 1)):
        fabric.set(node, port, "PortCounters.LinkDownedCounter", 3)
    topic.until(lambda: all(topic.ports[end].counters["link_downed"] == 3 for end in ends))
    topic.until(lambda: all(topic.ports[end].state == "Down" for end in ends))
    assert [(topic.ports[end].peer_guid, topic.ports[end].peer_port) for end in ends] == [
        *ends[::-1]
    ]
    fabric.relink(leaf, tree.up_port(1))
    topic.until(lambda: all(topic.ports[end].state == "Active" for end in ends))

    slow = (guid(leaf), 2)
    lid = str(fabric.lid(leaf))
    with fabric.manager_held():  # a degraded speed
        fabric.run("ibportstate", lid, "2", "espeed", "2")
        topic.until(lambda: topic.ports[slow].rate_gbps == 100)
    assert topic.ports[slow].rate_max_gbps == 200
    assert topic.ports[slow].peer_name == "hgx001 mlx5_1"

    fabric.unlink(leaf, 3)  # a dead port
    dead = (guid(leaf), 3)
    topic.until(lambda: topic.ports[dead].state == "Down")
    assert (topic.ports[dead].peer_guid, topic.ports[dead].peer_port) == (guid(card), 1)
    topic.until(lambda: topic.nodes[guid(card)].missing)
    assert topic.nodes[guid(card)].host == "hgx002"

    assert topic.keys == {b"ib-7"}
    assert "Traceback" not in stop(agent)


@pytest.mark.integration
@pytest.mark.usefixtures("simulator")
def test_an_agent_without_a_port_says_so_once_and_ends_when_asked(
    kafka: Kafka, start: Any, tmp_path: Path
) -> None:
    agent = start(dict(os.environ), tmp_path, "--bootstrap", kafka.bootstrap)
    time.sleep(3)
    log = stop(agent)
    told = [line for line in log.splitlines() if "no InfiniBand port to ask" in line]
    assert len(told) == 1, log
    assert "Traceback" not in log


@pytest.mark.integration
def test_two_agents_do_not_share_a_state_folder(kafka: Kafka, start: Any, tmp_path: Path) -> None:
    flags = ("--bootstrap", kafka.bootstrap)
    first = start(dict(os.environ), tmp_path, *flags)
    ends = time.monotonic() + 20
    while not list(tmp_path.rglob("spool.sqlite*")) and time.monotonic() < ends:
        time.sleep(0.05)
    time.sleep(0.5)
    second = ask(dict(os.environ), tmp_path, *flags)
    assert second.returncode == 2, second.stderr
    assert "Traceback" not in second.stderr
    stop(first)
