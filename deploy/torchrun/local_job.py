# ruff: noqa: INP001 (run as a file, not a package)
"""An elastic job of several nodes on this machine: real agents (gloo), each under its supervisor.

For tests and benches; needs Debian's python3-torch. Everything it starts ends with it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evidence.transport import Kafka
from ringfence.embedded import die_with_parent, free_port

__all__ = ["PYTHON", "TORCHRUN", "LocalJob", "missing"]

#: Debian's interpreter, which has torch; the supervisors run in ours.
PYTHON, TORCHRUN = "/usr/bin/python3", "/usr/bin/torchrun"
_HERE = Path(__file__).parent
_ENOUGH = 3
#: Chosen for few seconds, not for a fabric: torchrun's own defaults wait 30 s and 15 s.
_CONF = "join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


def missing() -> str:
    """Why no job can run here, or an empty string."""
    return "" if Path(TORCHRUN).exists() else f"{TORCHRUN} is missing (python3-torch)"


@dataclass(slots=True)
class LocalJob:
    """One job in ``folder``; ``store_at`` names the node that holds the store (None: outside).

    ``settings`` are those of [torchrun], by name, for all nodes.
    """

    folder: Path
    kafka: Kafka
    store_at: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=lambda: free_port(None))
    supervisors: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _store: subprocess.Popen[bytes] | None = None

    def start(self, *hosts: str) -> None:
        """Start the supervisors of these nodes, and the store before the first."""
        self.folder.mkdir(exist_ok=True)
        if self.store_at is None and self._store is None:
            self._store = self._spawn(
                "store", [PYTHON, str(_HERE / "store.py"), "127.0.0.1", str(self.port)], {}
            )
        for host in hosts:
            self.supervisors[host] = self._spawn(host, self.command(host), self._variables(host))

    def command(self, host: str, workers: int = 1, flags: Sequence[str] = ()) -> list[str]:
        """The command line of one node's supervisor."""
        agent = [
            TORCHRUN,
            "--nnodes=2:4",
            f"--nproc_per_node={workers}",
            "--max_restarts=20",
            "--monitor_interval=0.2",
            # Torch 1.13 takes none of both for nothing at all on Python 3.11, and fails.
            "--redirects=1",
            "--tee=1",
            f"--log_dir={self.folder}",
            "--rdzv_backend=c10d",
            f"--rdzv_endpoint=127.0.0.1:{self.port}",
            "--rdzv_id=tiny-7b",
            f"--rdzv_conf=is_host={int(host == self.store_at)},{_CONF}",
            str(_HERE / "train.py"),
        ]
        front = [sys.executable, "-m", "ringfence", "--data", str(self.folder / host)]
        return [*front, "scheduler", "torchrun", "--host", host, *flags, "--", *agent]

    def lines(self) -> list[dict[str, Any]]:
        """What the training loop told so far; a line that is being written is left out."""
        path = self.folder / "steps.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def steps(self, world: int, since: float = 0.0) -> list[dict[str, Any]]:
        """Steps that so many workers made since a time."""
        return [
            line
            for line in self.lines()
            if line["what"] == "step" and line["world"] == world and line["at"] >= since
        ]

    def until(self, done: Callable[[], Any], what: str, within_s: float = 120.0) -> Any:  # noqa: ANN401
        """Wait until ``done()`` gives something, and return it; says the logs' ends otherwise."""
        deadline = time.monotonic() + within_s
        while not (found := done()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s:g} s: {what}\n{self.logs()}")
            time.sleep(0.05)
        return found

    def trains(self, world: int, since: float = 0.0) -> dict[str, Any]:
        """The first of three steps in a row that so many workers made since a time."""
        steps = self.until(
            lambda: found if len(found := self.steps(world, since)) >= _ENOUGH else None,
            f"{world} workers train",
        )
        first: dict[str, Any] = steps[0]
        return first

    def workers(self, host: str) -> list[int]:
        """Workers that a node has now: those of its last round that live."""
        told = [line for line in self.lines() if line["what"] == "resume" and line["node"] == host]
        return [line["pid"] for line in told if _lives(line["pid"])]

    def kill(self, host: str) -> None:
        """Kill a node's supervisor by SIGKILL."""
        process = self.supervisors.pop(host)
        process.kill()
        process.wait(10)

    def logs(self) -> str:
        """The ends of all logs."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {one.name}\n{one.read_text()[-1500:]}" for one in files)

    def stop(self) -> None:
        """End everything."""
        for process in self.supervisors.values():
            process.send_signal(signal.SIGTERM)
        if self._store is not None:
            self._store.kill()
        for process in (*self.supervisors.values(), *filter(None, [self._store])):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _spawn(
        self, name: str, command: Sequence[str], variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | dict(variables),
                preexec_fn=die_with_parent(),  # noqa: PLW1509 (one thread, or it asks only the kernel)
            )

    def _variables(self, host: str) -> dict[str, str]:
        settings = {
            f"RINGFENCE_TORCHRUN_{name.upper()}": str(value).lower()
            if isinstance(value, bool)
            else str(value)
            for name, value in self.settings.items()
        }
        return {
            "RINGFENCE_KAFKA_BOOTSTRAP": self.kafka.bootstrap,
            "RINGFENCE_KAFKA_PREFIX": self.kafka.prefix,
            "RINGFENCE_KAFKA_PARTITIONS": str(self.kafka.partitions),
            "RINGFENCE_SCHEDULER_SESSION_TIMEOUT_S": "3",
            "FOLDER": str(self.folder),
            "NODE": host,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONWARNINGS": "ignore",
            **settings,
            **self.environ,
        }


def _lives(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
