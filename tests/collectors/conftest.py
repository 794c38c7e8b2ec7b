"""Fixtures of this folder: the NVML stand-in, loaded as the real library would be; a broker."""

import ctypes
import importlib.util
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from evidence.transport import Kafka
from ringfence.embedded import EmbeddedBroker

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
