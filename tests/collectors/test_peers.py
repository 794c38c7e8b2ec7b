"""Which switch port each adapter is cabled to, asked where nobody waits."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors.node.hca import read_hcas
from collectors.node.peers import Peer, Peers
from evidence.records import HcaIdentity

PORT = ("mlx5_4", 1)
HERE = HcaIdentity(name="mlx5_4", port=1, link_layer="InfiniBand")
ROCE = HcaIdentity(name="mlx5_5", port=1, link_layer="Ethernet")


class Fabric:
    """Answers what a test lays out; `asked` is set whenever somebody asks."""

    def __init__(self, answer: Callable[[], Peer | None]) -> None:
        self.answer = answer
        self.ports: list[tuple[str, int]] = []

    def __call__(self, device: str, port: int) -> Peer | None:
        self.ports.append((device, port))
        return self.answer()


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    port = tmp_path / "class/infiniband/mlx5_4/ports/1"
    (port / "gids").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "lid").write_text("0x21\n")
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "gids" / "0").write_text("fe80:0000:0000:0000:e8eb:d303:00aa:0417\n")
    return tmp_path


@pytest.fixture
def start(sysfs: Path) -> Iterator[Callable[[Fabric], tuple[Peers, threading.Event]]]:
    running: list[Peers] = []

    def begin(fabric: Fabric) -> tuple[Peers, threading.Event]:
        peers = Peers(fabric, sysfs, look_s=0.01)
        changed = threading.Event()
        peers.on_change = changed.set
        running.append(peers)
        return peers, changed

    yield begin
    for peers in running:
        peers.close()


def test_a_port_is_named_by_its_own_guid_on_infiniband(sysfs: Path) -> None:
    (hca,) = read_hcas(sysfs)
    assert (hca.port_guid, hca.link_layer) == ("0xe8ebd30300aa0417", "InfiniBand")
    (sysfs / "class/infiniband/mlx5_4/ports/1/link_layer").write_text("Ethernet\n")
    (hca,) = read_hcas(sysfs)
    assert (hca.port_guid, hca.link_layer) == (None, "Ethernet")


def test_a_peer_is_known_once_the_fabric_answered(start: Callable[..., tuple]) -> None:
    fabric = Fabric(lambda: ("0x1070fd03007a1d40", 17, "leaf-3"))
    peers, changed = start(fabric)
    peers.of([HERE, ROCE])
    assert changed.wait(20)
    assert peers.of([HERE, ROCE]) == {PORT: ("0x1070fd03007a1d40", 17, "leaf-3")}
    assert fabric.ports == [PORT]


def test_a_cable_that_moved_is_asked_for_again(start: Callable[..., tuple], sysfs: Path) -> None:
    fabric = Fabric(lambda: ("0xa", 1, None))
    peers, changed = start(fabric)
    peers.of([HERE])
    assert changed.wait(20)
    changed.clear()
    fabric.answer = lambda: ("0xb", 2, None)
    (sysfs / "class/infiniband/mlx5_4/ports/1/lid").write_text("0x22\n")
    assert changed.wait(20)
    assert peers.of([HERE]) == {PORT: ("0xb", 2, None)}


def test_a_link_that_is_down_keeps_its_peer(start: Callable[..., tuple], sysfs: Path) -> None:
    asked_down = threading.Event()

    def down() -> None:
        asked_down.set()

    fabric = Fabric(lambda: ("0xa", 1, None))
    peers, changed = start(fabric)
    peers.of([HERE])
    assert changed.wait(20)
    fabric.answer = down
    (sysfs / "class/infiniband/mlx5_4/ports/1/state").write_text("1: DOWN\n")
    assert asked_down.wait(20)
    assert peers.of([HERE]) == {PORT: ("0xa", 1, None)}


def test_a_fabric_that_never_answers_keeps_nobody_waiting(start: Callable[..., tuple]) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hang() -> Peer:
        asked.set()
        answer.wait(60)
        return ("0xa", 1, None)

    peers, _ = start(Fabric(hang))
    assert peers.of([HERE]) == {}
    assert asked.wait(20)
    assert peers.of([HERE]) == {}
    answer.set()


def test_no_access_is_said_once(
    start: Callable[..., tuple], sysfs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Semaphore(0)

    def refuse() -> Peer:
        asked.release()
        raise PermissionError("/dev/infiniband/umad0: Permission denied")

    with caplog.at_level(logging.WARNING):
        peers, _ = start(Fabric(refuse))
        peers.of([HERE])
        assert asked.acquire(timeout=20)
        (sysfs / "class/infiniband/mlx5_4/ports/1/lid").write_text("0x23\n")
        assert asked.acquire(timeout=20)
        peers.close()
    assert [one for one in caplog.messages if "umad0: Permission denied" in one] == [
        "the switch ports of this node's adapters cannot be asked: "
        "/dev/infiniband/umad0: Permission denied"
    ]


def test_a_node_without_infiniband_asks_nobody(start: Callable[..., tuple]) -> None:
    fabric = Fabric(lambda: None)
    peers, _ = start(fabric)
    assert peers.of([ROCE]) == {}
    assert peers._thread is None
