"""Fixtures of this folder: the NVML stand-in, loaded as the real library would be; a broker."""

import ctypes
import importlib.util
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from collectors.gpu import NvmlCollector
from evidence.transport import Kafka
from ringfence.embedded import EmbeddedBroker

# Modules beside the tests are imported by their names.
sys.path.insert(0, str(Path(__file__).parent))
from gpu_ticks import BOOT, HOST, Clock

_FOLDER = Path(__file__).parents[1] / "nvml_stand_in"


def _stand_in() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nvml_stand_in_node", _FOLDER / "node.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def stand_in() -> ModuleType:
    """tests/nvml_stand_in/node.py."""
    return _stand_in()


@pytest.fixture(scope="session")
def nvml_library(stand_in: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, compiled; for LD_LIBRARY_PATH of a process of its own use its folder."""
    if stand_in.compiler() is None:
        pytest.skip("no gcc here: the NVML stand-in cannot be compiled")
    library: Path = stand_in.build(tmp_path_factory.mktemp("nvml"))
    return library


@pytest.fixture(scope="session")
def _loaded(nvml_library: Path) -> Iterator[ctypes.CDLL]:
    # A library already in the process answers to its soname: nvidia-ml-py's own
    # CDLL("libnvidia-ml.so.1") then gets this one and no other.
    return ctypes.CDLL(str(nvml_library), mode=ctypes.RTLD_GLOBAL)


@pytest.fixture
def node(
    _loaded: ctypes.CDLL,
    stand_in: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> object:
    """A healthy node of two GPUs whose NVML this process reads."""
    path = tmp_path / "nvml.txt"
    node = stand_in.Node(path)
    monkeypatch.setenv("NVML_STAND_IN", str(path))
    return node


@pytest.fixture
def collect() -> Iterator[Callable[..., NvmlCollector]]:
    """Makes NVML collectors of a quick pace, everything read every tick unless said otherwise."""
    made: list[NvmlCollector] = []

    def make(**settings: Any) -> NvmlCollector:
        quick = {
            "interval_s": 0.02,
            "frame_ticks": 1,
            "deadline_s": 10.0,
            "slow_ticks": 1,
            "event_wait_s": 0.05,
        }
        made.append(NvmlCollector(HOST, BOOT, Clock(), **(quick | settings)))
        return made[-1]

    yield make
    for collector in made:
        stuck = collector._node.busy or collector._crew.busy
        collector.close()
        if not stuck and (thread := collector._node._thread):
            thread.join(10)  # it shuts NVML, which the next test's collector shares


@pytest.fixture(scope="session")
def session_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def kafka(session_broker: EmbeddedBroker) -> Kafka:
    """A cluster without topics: others may use the broker under other prefixes."""
    return Kafka(bootstrap=session_broker.bootstrap, prefix=f"c{uuid.uuid4().hex[:10]}.")


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """A broker of this test alone, to stop and start; it comes back empty."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def journals() -> ModuleType:
    """journals.py: writes real journal files."""
    spec = importlib.util.spec_from_file_location(
        "journal_files", Path(__file__).with_name("journals.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.require()
    return module
