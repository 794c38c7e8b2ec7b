"""``ringfence up`` as a person runs it: everything on one machine, until Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from warehouse.kinds import KINDS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LOST = (
    "NVRM: Xid (PCI:0000:b1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)


class Up:
    """One ``ringfence up`` with everything it starts, and what it has said."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.kernel = folder / "kern.log"
        self.kernel.touch()
        self.drained = folder / "drained"
        config = folder / "ringfence.toml"
        policy = folder / "policy.toml"
        policy.write_text('isolation.mode = { value = "enforce", why = "w", source = "s" }\n')
        config.write_text(
            f'[worker]\npolicy = "{policy}"\n'
            f'[agent]\nhost = "solo"\nkernel_source = "none"\nkernel_files = ["{self.kernel}"]\n'
            'gpu_source = "none"\n[sink]\nflush_s = 0.5\n'
        )
        program = folder / "drain"
        program.write_text(f"#!/bin/sh\necho $RINGFENCE_COMMAND_ID >> {self.drained}\n")
        program.chmod(0o755)
        self.screen = (folder / "screen").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ringfence", "--config", str(config), "--data", str(self.data),
             "up", "--exec", str(program)],
            stdout=self.screen,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C of the test is for this one alone
            env=os.environ | {"COLUMNS": "200"},
        )  # fmt: skip

    def said(self) -> str:
        return Path(self.screen.name).read_text()

    def log(self, part: str) -> str:
        file = self.data / "logs" / f"{part}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def until(self, done: Callable[[], bool], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < deadline, f"{self.said()}\n{self.log('worker')[-2000:]}"
            assert self.process.poll() is None, self.said()
            time.sleep(0.1)

    def descendants(self) -> dict[int, str]:
        """Every process that it started, or that one of those did, by its command line."""
        parents, lines = {}, {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    stat = (folder / "stat").read_text().rpartition(")")[2].split()
                    lines[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if stat[0] != "Z":
                    parents[int(folder.name)] = int(stat[1])
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return {pid: lines[pid] for pid in found - {self.process.pid}}

    def kill(self) -> None:
        """Whatever a failed test left."""
        left = list(self.descendants())
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.screen.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    started = Up(tmp_path)
    yield started
    started.kill()


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
@pytest.mark.chaos
def test_all_parts_run_one_that_is_killed_is_restarted_and_ctrl_c_ends_them_all(up: Up) -> None:
    up.until(lambda: "Running: worker, sink, agent, scheduler." in up.said())
    up.until(lambda: "worker ready" in up.log("worker"))
    up.until(lambda: "agent of solo ships" in up.log("agent"))
    up.until(lambda: "scheduler exec reads" in up.log("scheduler"))
    up.until(lambda: f"storing {len(KINDS)} topics" in up.log("sink"))
    parts = ("worker", "sink", "agent", "scheduler exec", "broker")
    for part in parts:
        running = [line for line in up.descendants().values() if f" {part} " in line]
        assert len(running) == 1, (part, running)

    (victim,) = (pid for pid, line in up.descendants().items() if " agent " in line)
    os.kill(victim, signal.SIGKILL)
    up.until(lambda: "agent was restarted (1)" in up.said())
    assert "agent was killed by SIGKILL; its log: " in " ".join(up.said().split())

    # The restarted one does its work, and so do all the others.
    with up.kernel.open("a") as log:
        log.write(f"[ 811.120031] {LOST}\n")
    up.until(lambda: up.drained.exists() and len(up.drained.read_text().split()) == 1)
    command = up.drained.read_text().split()[0]
    up.until(lambda: command in why(up, command))

    everything = up.descendants()
    assert len(everything) == len(parts)
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(15) == 0
    assert up.said().rstrip().endswith("All parts stopped.")
    assert [line for pid, line in everything.items() if alive(pid)] == []
    for part in ("worker", "sink", "agent", "scheduler"):
        assert "Traceback" not in up.log(part)
        assert not re.search(rf"{part} did not stop", up.said())


@pytest.mark.chaos
def test_a_broker_that_is_killed_is_said_and_the_parts_go_on_with_the_next_one(up: Up) -> None:
    up.until(lambda: "worker ready" in up.log("worker"))
    (broker,) = (pid for pid, line in up.descendants().items() if " broker " in line)
    os.kill(broker, signal.SIGKILL)
    up.until(lambda: "The embedded broker died; what it held is lost." in up.said())
    up.until(lambda: up.log("worker").count("worker ready") == 2)
    with up.kernel.open("a") as log:
        log.write(f"[ 812.500000] {LOST}\n")
    up.until(up.drained.exists)
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(15) == 0


def why(up: Up, command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ringfence", "--data", str(up.data), "why", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""
