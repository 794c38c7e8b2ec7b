"""The agent as a process of its own: what systemd hears, what probes see, how it ends."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evidence.transport import Kafka
from ringfence.cluster import ensure_topics
from ringfence.embedded import free_port

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
LINE = (
    "Nov 12 01:02:03 b200-07 kernel: [ 99.1] NVRM: Xid (PCI:0000:9a:00): 79, "
    "GPU has fallen off the bus.\n"
)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.settimeout(40)
        yield ear


class Agent:
    """A started agent; its log is a file."""

    def __init__(self, folder: Path, bootstrap: str, *flags: str, **environ: str) -> None:
        self.log = folder / "agent.log"
        self.port = free_port(None)
        argv = [sys.executable, "-m", "ringfence", "--data", str(folder / "data"), "agent"]
        argv += ["--bootstrap", bootstrap, "--host", "b200-07", "--no-kmsg", "--gpu", "none"]
        argv += ["--metrics-listen", f"127.0.0.1:{self.port}", *flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | environ,
            )  # fmt: skip

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
            text: str = answer.read().decode()
            return text


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    agents: list[Agent] = []

    def begin(bootstrap: str, *flags: str, **environ: str) -> Agent:
        agents.append(Agent(tmp_path, bootstrap, *flags, **environ))
        return agents[-1]

    yield begin
    for agent in agents:
        agent.process.kill()
        agent.process.wait()


def heard(manager: socket.socket, words: str) -> None:
    """Wait until the service manager hears these words; a timeout is an OSError."""
    while words not in manager.recv(1000).decode():
        pass


def test_systemd_hears_that_it_works_that_it_lives_and_that_it_ends(
    kafka: Kafka, manager: socket.socket, start: Any, tmp_path: Path
) -> None:
    ensure_topics(kafka)
    log = tmp_path / "kern.log"
    log.write_text(LINE)
    agent = start(
        kafka.bootstrap,
        "--kernel-file",
        str(log),
        NOTIFY_SOCKET=manager.getsockname(),
        WATCHDOG_USEC="200000",
        RINGFENCE_KAFKA_PREFIX=kafka.prefix,
    )
    heard(manager, "READY=1")
    for _ in range(3):
        heard(manager, "WATCHDOG=1")
    assert agent.get("/healthz") == '{"ok": true}'
    while 'ringfence_shipper_delivered_total{topic="kernel"} 1.0' not in agent.get("/metrics"):
        pass
    agent.process.send_signal(signal.SIGTERM)
    heard(manager, "STOPPING=1")
    assert agent.process.wait(30) == 0
    assert "Traceback" not in agent.log.read_text()


def test_it_ends_when_told_although_kafka_is_away(start: Any, manager: socket.socket) -> None:
    agent = start("127.0.0.1:1", NOTIFY_SOCKET=manager.getsockname())
    heard(manager, "READY=1")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(30) == 0


def test_two_agents_of_one_host_share_a_port_by_one_going_without(
    start: Any, manager: socket.socket
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        agent = start(
            "127.0.0.1:1",
            "--metrics-listen",
            f"127.0.0.1:{port}",
            NOTIFY_SOCKET=manager.getsockname(),
        )
        heard(manager, "READY=1")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(30) == 0
    assert agent.log.read_text().count("no metrics are served") == 1


_LOADED = "import sys, collectors.agent; print(sorted(sys.modules))"


def test_the_agent_loads_nothing_that_only_other_parts_need() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _LOADED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    heavy = ("pyarrow", "duckdb", "faust", "aiokafka", "rich", "click", "numpy", "pandas")
    assert [name for name in heavy if f"'{name}'" in found] == []
