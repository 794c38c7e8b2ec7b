import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.supervise import Supervisor

SLEEPER = (sys.executable, "-c", "print('here', flush=True); import time; time.sleep(60)")
STUBBORN = (
    sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); "
    "time.sleep(60)",
)  # fmt: skip


def wait_for(condition: Callable[[], bool], seconds: float = 15) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_part_that_dies_is_restarted_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    with Supervisor(tmp_path, say=said.append) as supervisor:
        part = supervisor.start("sleeper", SLEEPER)
        log = supervisor.log_file(part)
        wait_for(lambda: log.exists() and "here" in log.read_text())
        assert part.process is not None
        first = part.process.pid
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: part.restarts == 1)
        wait_for(lambda: log.read_text().count("here") == 2)
        second = part.process.pid
    assert second != first
    assert not alive(second)
    assert said[0].startswith("sleeper was killed by SIGKILL")
    assert said[1] == "sleeper was restarted (1)"


def test_stop_ends_every_part_even_one_that_ignores_it(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor(tmp_path, say=said.append, stop_within_s=0.5)
    with supervisor:
        parts = [supervisor.start("sleeper", SLEEPER), supervisor.start("stubborn", STUBBORN)]
        log = supervisor.log_file(parts[1])
        wait_for(lambda: log.exists() and "on" in log.read_text())
        pids = [part.process.pid for part in parts if part.process is not None]
    assert len(pids) == 2
    assert not any(map(alive, pids))
    assert said == ["stubborn did not stop within 0.5 s and was killed"]
    assert [part.restarts for part in parts] == [0, 0]


def test_parts_get_the_environment_they_are_given_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFENCE_KAFKA_PREFIX", "production.")
    tell = (sys.executable, "-c", "import os; print(sorted(os.environ), flush=True); input()")
    with Supervisor(tmp_path, say=lambda _: None, environ={"LANG": "C"}) as supervisor:
        log = supervisor.log_file(supervisor.start("teller", tell))
        wait_for(lambda: log.exists() and "LANG" in log.read_text())
    assert "RINGFENCE" not in log.read_text()


def test_a_part_that_dies_is_said_with_its_own_last_words(tmp_path: Path) -> None:
    said: list[str] = []
    dying = (sys.executable, "-c", "import sys; print('Error: no such rack'); sys.exit(2)")
    with Supervisor(tmp_path, say=said.append) as supervisor:
        supervisor.start("sink", dying)
        wait_for(lambda: bool(said))
    assert said[0].startswith("sink ended with 2: Error: no such rack; its log: ")
