import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from ringfence.embedded import BrokerError, EmbeddedBroker, broker_answers


def _gone(pid: int) -> bool:
    """Whether the process is gone, or a zombie that nobody reaped yet."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _wait_until_gone(pid: int, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not _gone(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


def test_a_started_broker_serves_kafka_on_loopback_only() -> None:
    with EmbeddedBroker() as broker:
        host, _, port = broker.bootstrap.partition(":")
        assert host == "127.0.0.1"
        assert broker_answers(host, int(port))
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        admin.create_topics(
            {"one": {"num_partitions": 3, "replication_factor": 1}}, wait_for_metadata=True
        )
        assert [len(t["partitions"]) for t in admin.describe_topics(["one"])] == [3]
        admin.close()
    assert not broker.alive
    assert not broker_answers(host, int(port))


def test_it_listens_nowhere_but_on_loopback() -> None:
    with EmbeddedBroker() as broker:
        port = f"{int(broker.bootstrap.partition(':')[2]):04X}"
        listening = [
            line.split()[1]
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
            if line.split()[3] == "0A"
        ]
        assert [one for one in listening if one.endswith(":" + port)] == ["0100007F:" + port]


def test_two_brokers_run_beside_each_other() -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as other:
        assert one.bootstrap != other.bootstrap
        assert one.alive
        assert other.alive


def test_a_taken_port_is_said_in_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=f"Port {port} on 127.0.0.1 cannot be used"):
            EmbeddedBroker(port).start()


def test_a_missing_wheel_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if "calfkit" in name else find(name, *a)
    )
    with pytest.raises(BrokerError, match="install the extra `embedded`"):
        EmbeddedBroker().start()


def test_a_killed_broker_starts_again_on_its_port(tmp_path: Path) -> None:
    broker = EmbeddedBroker(log=tmp_path / "broker.log").start()
    where = broker.bootstrap
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while broker.alive:
        assert time.monotonic() < deadline
    try:
        assert broker.start().bootstrap == where
        assert broker.alive
    finally:
        broker.stop()
    assert "listening on" in (tmp_path / "broker.log").read_text()


def test_stopping_twice_and_starting_twice_are_harmless() -> None:
    broker = EmbeddedBroker()
    broker.stop()
    try:
        first = broker.start().pid
        assert broker.start().pid == first
    finally:
        broker.stop()
        broker.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_the_broker_dies_with_a_parent_that_is_killed() -> None:
    program = (
        "import time; from ringfence.embedded import EmbeddedBroker\n"
        "broker = EmbeddedBroker().start(); print(broker.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not _gone(pid)
    finally:
        parent.kill()
        parent.communicate()
    _wait_until_gone(pid)


def test_a_port_where_something_else_listens_does_not_answer_as_kafka() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        assert not broker_answers("127.0.0.1", deaf.getsockname()[1], timeout_s=0.2)
