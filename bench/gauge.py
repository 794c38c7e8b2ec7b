"""What a worker's own metrics and its process say while it is measured."""

import os
import socket
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from rig import BenchError, Child

__all__ = ["Gauge", "free_port"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    """A port on this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Gauge:
    """Reads one worker: messages taken, what is left, keys, memory."""

    def __init__(self, worker: Child, port: int) -> None:
        self._worker = worker
        self._url = f"http://127.0.0.1:{port}/metrics"

    def read(self) -> Mapping[str, float]:
        """Every figure, summed over its labels; and under ``name/stage`` over those of a stage."""
        try:
            with urllib.request.urlopen(self._url, timeout=20) as answer:
                text = answer.read().decode()
        except OSError as error:
            raise BenchError(f"The worker's metrics: {error}; {self._worker.tail()}") from error
        found: dict[str, float] = defaultdict(float)
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            head, _, value = line.rpartition(" ")
            name, _, labels = head.partition("{")
            found[name] += float(value)
            for label in labels.rstrip("}").split(","):
                if label.startswith('stage="'):
                    found[f"{name}/{label[7:-1]}"] += float(value)
        return found

    def lag(self) -> float:
        """Messages in Kafka that the worker has not read, as it knows them."""
        return self.read()["ringfence_stage_lag_messages"]

    def rss_mib(self) -> float:
        """Resident memory of the worker."""
        return resident_mib(self._worker.pid)


def resident_mib(pid: int) -> float:
    """Resident memory of one process."""
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * _PAGE / 2**20
