"""What a service manager hears of the agent."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.notify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.settimeout(20)
        yield ear


def test_a_service_manager_hears_that_the_agent_works_lives_and_ends(
    manager: socket.socket,
) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready("ships kmsg")
    notifier.alive()
    notifier.stopping()
    heard = [manager.recv(100).decode() for _ in range(3)]
    assert heard == ["READY=1\nSTATUS=ships kmsg", "WATCHDOG=1", "STOPPING=1"]


def test_an_abstract_socket_is_spoken_to(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        name = f"rf-{os.getpid()}-{tmp_path.name}"
        ear.bind(f"\0{name}")
        ear.settimeout(20)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).alive()
        assert ear.recv(100) == b"WATCHDOG=1"


def test_the_watchdog_is_fed_twice_in_its_time_and_only_by_whom_it_watches() -> None:
    watched = {"WATCHDOG_USEC": "30000000"}
    assert Notifier(watched).watchdog_s == 15.0
    assert Notifier(watched | {"WATCHDOG_PID": str(os.getpid())}).watchdog_s == 15.0
    assert Notifier(watched | {"WATCHDOG_PID": "1"}).watchdog_s is None
    assert Notifier({}).watchdog_s is None


def test_a_manager_that_is_gone_hinders_nothing(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready("x")
    Notifier({}).ready("x")
