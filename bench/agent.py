"""What the node's agent costs the node: its CPU, its memory, and how often it wakes.

The real process, `ringfence agent`, with eight GPUs of the NVML stand-in at 1 Hz, log files that
gain 100 lines a second, and the embedded broker. An hour's work is then done in little time: ticks
and lines come faster by one factor, and what memory grows by is told for an hour's worth of them.
"""

import importlib.util
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Self

import load_kernel
import load_nccl
from figure import Figure
from rig import ROOT, BenchError, Child, Rig

from evidence.transport import Kafka
from ringfence.cluster import ensure_topics
from ringfence.embedded import BrokerError, EmbeddedBroker

__all__ = ["MARK_CPU_PCT", "MARK_RSS_MB", "Usage", "measure", "usage"]

GPUS = 8
LINES_A_SECOND = 100
#: One part in a thousand of a node of 64 cores would be 6.4 % of a core; this is far below it.
MARK_CPU_PCT = 1.0
MARK_RSS_MB = 100.0
#: What an hour may add: an agent that runs for a year must still fit its limit.
MARK_GROWTH_MB = 1.0
_HOUR_S = 3600.0
#: How long start, the first connection and the first inventory are left out.
_WARM_S = 4.0
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used so far, as /proc tells it; ``cpu_s`` is by thread id."""

    at: float
    cpu_s: Mapping[int, float]
    switches: int
    threads: int
    rss_bytes: int


def usage(pid: int) -> Usage:
    """Read a process's use; raises OSError when it is gone."""
    cpu_s: dict[int, float] = {}
    switches = threads = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            ran_ns = int((task / "schedstat").read_text(encoding="ascii").split()[0])
            status = (task / "status").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:  # a thread that ended meanwhile
            continue
        threads += 1
        cpu_s[int(task.name)] = ran_ns / 1e9
        switches += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return Usage(time.monotonic(), cpu_s, switches, threads, pages * os.sysconf("SC_PAGE_SIZE"))


class _Logs:
    """A kernel log and eight ranks' logs that gain lines at an even rate, on a thread."""

    def __init__(self, folder: Path, rate: float) -> None:
        folder.mkdir()
        self.kernel = folder / "kern.log"
        self.pattern = str(folder / "{job}-{rank}.log")
        self.written = 0
        self._rate = rate
        self._ranks = [(folder / f"train-{rank}.log").open("ab", 0) for rank in range(GPUS)]
        self._file = self.kernel.open("ab", 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        for file in (self._file, *self._ranks):
            file.close()

    def _run(self) -> None:
        kernel = itertools.cycle(load_kernel.noise(3000))
        ranks = itertools.cycle(load_nccl.noise(8000))
        began = time.monotonic()
        while not self._stop.wait(0.01):
            due = int((time.monotonic() - began) * self._rate)
            for number in range(self.written, due):
                # One line in five is the kernel's, the others the ranks' in turn.
                if number % 5 == 0:
                    self._file.write(next(kernel))
                else:
                    self._ranks[number % GPUS].write(next(ranks))
            self.written = max(self.written, due)


def measure(rig: Rig) -> Iterator[Figure]:
    """CPU, memory and wakeups at the ordinary pace, then what an hour's worth of work adds."""
    stand_in = _stand_in()
    if stand_in.compiler() is None:
        raise BenchError("No C compiler is here to build the NVML stand-in.")
    folder = rig.folder / "agent"
    folder.mkdir()
    stand_in.build(folder)
    node = stand_in.Node(folder / "nvml.txt", gpus=GPUS)
    environment = {"LD_LIBRARY_PATH": str(folder), "NVML_STAND_IN": str(node.path)}
    try:
        with EmbeddedBroker(log=folder / "broker.log") as broker:
            kafka = Kafka(bootstrap=broker.bootstrap)
            ensure_topics(kafka)
            yield from _ordinary(rig, kafka, environment)
            yield from _hour(rig, kafka, environment)
    except BrokerError as error:
        raise BenchError(str(error)) from error


def _ordinary(rig: Rig, kafka: Kafka, environment: Mapping[str, str]) -> Iterator[Figure]:
    runs, each_s = (1, 3.0) if rig.quick else (3, 20.0)
    with _Running(rig, kafka, environment, 1.0) as running:
        seen = [running.look()]
        for _ in range(runs):
            time.sleep(each_s)
            seen.append(running.look())
    spans = list(itertools.pairwise(seen))
    shares = tuple(_cpu_pct(before, after) for before, after in spans)
    yield Figure(
        f"agent, {GPUS} GPUs at 1 Hz and {LINES_A_SECOND} log lines/s",
        "% of a core",
        shares,
        MARK_CPU_PCT,
        at_most=True,
        note=_by_thread(seen[0], seen[-1]),
    )
    yield Figure(
        "agent, resident memory",
        "MB",
        tuple(after.rss_bytes / _MB for _, after in spans),
        MARK_RSS_MB,
        at_most=True,
        note=f"{seen[0].rss_bytes / _MB:.1f} MB when warm; {seen[-1].threads} threads",
    )
    yield Figure(
        "agent, wakeups of all its threads",
        "a second",
        tuple((b.switches - a.switches) / (b.at - a.at) for a, b in spans),
        at_most=True,
    )


def _hour(rig: Rig, kafka: Kafka, environment: Mapping[str, str]) -> Iterator[Figure]:
    """The same work faster: a factor of 60 makes a minute of it an hour's equivalent."""
    factor, took_s = (10.0, 5.0) if rig.quick else (40.0, 90.0)
    with _Running(rig, kafka, environment, factor) as running:
        time.sleep(took_s / 6)  # caches and buffers fill once, at this pace too
        seen = [running.look()]
        lines = running.logs.written
        for _ in range(10):
            time.sleep(took_s / 10)
            seen.append(running.look())
        lines = running.logs.written - lines
    hours = (seen[-1].at - seen[0].at) * factor / _HOUR_S
    grown = _slope([(one.at, one.rss_bytes / _MB) for one in seen]) * _HOUR_S / factor
    yield Figure(
        "agent, memory gained in an hour's equivalent",
        "MB",
        (max(0.0, grown),),
        MARK_GROWTH_MB,
        at_most=True,
        note=f"{hours:.2f} h of ticks and lines ({lines:,} lines) at {factor:.0f} times the pace; "
        f"{seen[0].rss_bytes / _MB:.1f} MB, then {seen[-1].rss_bytes / _MB:.1f} MB; "
        f"{_cpu_pct(seen[0], seen[-1]):.1f} % of a core",
    )


class _Running:
    """The agent at work at ``factor`` times the ordinary pace; a context manager."""

    def __init__(
        self, rig: Rig, kafka: Kafka, environment: Mapping[str, str], factor: float
    ) -> None:
        name = f"agent-{factor:.0f}"
        self.logs = _Logs(rig.folder / f"{name}-logs", LINES_A_SECOND * factor)
        parts = rig.parts(
            kafka,
            name,
            f"[agent]\ngpu_interval_s = {1 / factor}\n",
        )
        argv = parts.agent(
            "--host", name, "--no-kmsg", "--kernel-file", str(self.logs.kernel),
            "--nccl", self.logs.pattern,
        )  # fmt: skip
        self._child: Child = rig.start(argv, name, environment)

    def __enter__(self) -> Self:
        self.logs.start()
        self._child.says("connected to Kafka")
        time.sleep(_WARM_S)
        return self

    def __exit__(self, *_error: object) -> None:
        self._child.stop()
        self.logs.stop()

    def look(self) -> Usage:
        """What it has used; raises BenchError when it is gone."""
        try:
            return usage(self._child.pid)
        except OSError as error:
            raise BenchError(f"The agent ended; its log ends: {self._child.tail()}") from error


def _cpu_pct(before: Usage, after: Usage) -> float:
    used = sum(after.cpu_s.values()) - sum(before.cpu_s.values())
    return 100 * used / (after.at - before.at)


def _by_thread(before: Usage, after: Usage) -> str:
    """What each thread took, the main one first; the GPUs' follow in the order they began."""
    took = after.at - before.at
    shares = [
        100 * (used - before.cpu_s.get(thread, 0.0)) / took
        for thread, used in sorted(after.cpu_s.items())
    ]
    return "% by thread: " + " ".join(f"{share:.2f}" for share in shares)


def _slope(points: list[tuple[float, float]]) -> float:
    """Least squares: what y gains a unit of x."""
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread


def _stand_in() -> ModuleType:
    """tests/nvml_stand_in/node.py, which belongs to no package."""
    name = "nvml_stand_in_node"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "tests/nvml_stand_in/node.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
