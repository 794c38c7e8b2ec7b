"""Fixtures of this folder: a simulated fabric, and processes that look at it."""

import importlib.util
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evidence.records import FabricPort, FabricRecord
from evidence.transport import Kafka
from evidence.wire import decode
from ringfence.cluster import ensure_topics
from ringfence.embedded import EmbeddedBroker

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def _module(name: str) -> ModuleType:
    known = f"fabric_tests_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, HERE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[known] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    return sys.modules[known]


@pytest.fixture(scope="session")
def simulator() -> ModuleType:
    """tests/fabric/simulator.py, where everything is installed that it needs."""
    module = _module("simulator")
    missing = module.missing()
    if missing is not None:
        assert not os.environ.get("RINGFENCE_REQUIRE_PARTS"), missing
        pytest.skip(f"the simulated fabric is left out: {missing}")
    return module


@pytest.fixture(scope="session")
def canned() -> ModuleType:
    """tests/fabric/canned.py."""
    return _module("canned")


@pytest.fixture
def fabric(simulator: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """Two spines, two leaves, four machines of two adapters; this test's own."""
    tree = simulator.Tree(spines=2, leaves=2, hosts=2, cards=2, ports=8)
    with simulator.Simulator(tree, tmp_path / "fabric") as running:
        yield running


@pytest.fixture
def inside(fabric: Any) -> Callable[..., Any]:
    """``inside(code, *arguments)``: what Python prints as JSON where the fabric can be asked."""

    def run(code: str, *arguments: object) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=fabric.folder,
            env=fabric.environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


class Sweeps:
    """Sweeps over the simulated fabric, each when asked for; what they told is remembered."""

    def __init__(self, fabric: Any, **given: Any) -> None:
        with (fabric.folder / "sweeps.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, HERE / "sweep_process.py", json.dumps(given)],
                cwd=fabric.folder,
                env=fabric.environment | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        #: Every port as it was last told, and every node's last record, by GUID as in records.
        self.ports: dict[tuple[str, int], FabricPort] = {}
        self.nodes: dict[str, FabricRecord] = {}

    def sweep(self) -> dict[tuple[str, int], FabricPort]:
        """Make one, and return the ports that it told."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        told, seen = {}, set()
        while line := self._process.stdout.readline().strip():
            record = decode("fabric", line.encode())
            assert record.guid not in seen, "a node was told twice in one sweep"
            seen.add(record.guid)
            self.nodes[record.guid] = record
            told |= {(record.guid, port.port): port for port in record.ports}
        assert self._process.poll() is None, "the sweeping process ended"
        self.ports |= told
        return told

    def until(self, seen: Callable[[], bool], within_s: float = 15) -> None:
        """Sweep until something is seen; the fabric takes a moment to settle."""
        ends = time.monotonic() + within_s
        while not seen():
            assert time.monotonic() < ends, "it was never seen"
            time.sleep(0.05)
            self.sweep()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def sweeps(fabric: Any) -> Iterator[Callable[..., Sweeps]]:
    """``sweeps(sweeper={...}, port={...})`` begins to sweep; arguments as of the classes."""
    begun: list[Sweeps] = []

    def begin(**given: Any) -> Sweeps:
        begun.append(Sweeps(fabric, **given))
        return begun[-1]

    yield begin
    for one in begun:
        one.stop()


@pytest.fixture(scope="session")
def session_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def kafka(session_broker: EmbeddedBroker) -> Kafka:
    """Fresh topics on an embedded broker."""
    kafka = Kafka(bootstrap=session_broker.bootstrap, prefix=f"f{uuid.uuid4().hex[:10]}.")
    ensure_topics(kafka)
    return kafka
