"""Parquet rows a second of the sink: a backlog of GPU frames, then the real sink process on it.

It runs with its shipped settings; when it has read everything and rests, it is told to stop and
stores what it still holds. Reading and storing are counted, resting and starting are not. Beside it
stand quixstreams' own file sink on the same topic (a row a GPU and tick too, read at least once, no
proof of what is stored), and pyarrow writing the same rows from memory.
"""

import json
import resource
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from figure import Figure
from rig import BenchError, Child, Rig

__all__ = ["measure"]

MARK = 100_000
_REST_S = 1.2
_REST_CPU_S = 0.04
_WITHIN_S = 240.0


def measure(rig: Rig) -> Iterator[Figure]:
    """Figures of sink runs on fresh folders, each followed by a run of the peer."""
    runs = 1 if rig.quick else 3
    backlog = rig.backlog()
    walls, cores, limits, peers, peer_cores, brokers = [], [], [], [], [], []
    rows = 0
    for number in range(runs):
        before = rig.broker_s()
        rows, wall_s, cpu_s, root = _sink(rig, number)
        brokers.append(round(rows / max(rig.broker_s() - before, 0.01)))
        limits.append(_from_memory(root))
        walls.append(round(rows / wall_s))
        cores.append(round(rows / max(cpu_s, 0.01)))
        peer = _peer(rig, number, backlog.snapshots)
        peers.append(round(backlog.snapshots / peer["wall_s"]))
        peer_cores.append(round(backlog.snapshots / peer["cpu_s"]))
        rig.say(
            f"sink {walls[-1]} rows/s, {cores[-1]} a core second, quixstreams {peers[-1]} and "
            f"{peer_cores[-1]}, pyarrow {limits[-1]} rows/s"
        )
    note = f"{rows:,} rows of {backlog.frames:,} frames"
    library = "quixstreams' file sink"
    yield Figure(
        "GPU rows stored by the sink", "rows/s", tuple(walls), MARK,
        peer=(library, max(peers)), note=note,
    )  # fmt: skip
    yield Figure(
        "GPU rows stored by the sink, a core second", "rows/s", tuple(cores),
        peer=(library, max(peer_cores)), note=note,
    )  # fmt: skip
    limit = ("pyarrow writes the same rows from memory", max(limits))
    yield Figure(
        "rows a core second of the broker, meanwhile", "rows/s", tuple(brokers), peer=limit
    )
    if backlog.producer_s:
        sent = (round(backlog.snapshots / backlog.producer_s),)
        yield Figure("rows made and sent, a core second of the producer", "rows/s", sent)


def _peer(rig: Rig, number: int, rows: int) -> dict[str, float]:
    """Wall and CPU seconds of quixstreams' sink on the whole backlog."""
    backlog = rig.backlog()
    folder = rig.folder / f"peer{number}"
    topic = backlog.kafka.topic("gpu")
    command = rig.script("peer_sink.py", backlog.kafka.bootstrap, topic, folder.name, rows)
    said = rig.start(command, "peer-sink").wait(_WITHIN_S).splitlines()[-1]
    found: dict[str, float] = json.loads(said)
    stored = _rows_under(folder)
    if stored < rows:
        raise BenchError(f"quixstreams stored {stored} of {rows} rows.")
    return found


def _sink(rig: Rig, number: int) -> tuple[int, float, float, Path]:
    """Rows, wall and CPU seconds of one sink on the whole backlog, and where it stored them."""
    backlog = rig.backlog()
    parts = rig.parts(backlog.kafka, f"sink{number}")
    root = parts.data / "warehouse"
    ended_before = _cpu_of_ended()
    sink = rig.start(parts.sink(), "sink")
    sink.says("storing ")
    began, cpu = time.monotonic(), sink.cpu_s()
    _until_it_rests(sink, cpu)
    stopped = time.monotonic()
    sink.stop(_WITHIN_S)
    ended = time.monotonic()
    rows = _rows(root)
    if rows < backlog.snapshots:
        raise BenchError(f"The sink stored {rows} of {backlog.snapshots} rows: {sink.tail()}")
    wall_s = (stopped - _REST_S - began) + (ended - stopped)
    return rows, wall_s, _cpu_of_ended() - ended_before - cpu, root


def _cpu_of_ended() -> float:
    """CPU seconds of all our children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _until_it_rests(sink: Child, cpu: float) -> None:
    """Wait until the sink has worked and then done hardly anything for ``_REST_S``."""
    seen: deque[tuple[float, float]] = deque([(time.monotonic(), cpu)])
    deadline = time.monotonic() + _WITHIN_S
    while True:
        time.sleep(0.02)
        now, used = time.monotonic(), sink.cpu_s()
        seen.append((now, used))
        while now - seen[0][0] > _REST_S:
            seen.popleft()
        rested = now - seen[0][0] > _REST_S - 0.1 and used - seen[0][1] < _REST_CPU_S
        if rested and used - cpu > 4 * _REST_CPU_S:
            return
        if now > deadline:
            raise BenchError(f"The sink was not through in time: {sink.tail()}")


def _rows(root: Path) -> int:
    return _rows_under(root / "gpu")


def _rows_under(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


def _from_memory(root: Path) -> float:
    """Rows a second that pyarrow writes of the tables the sink wrote, from memory."""
    paths = [path for path in (root / "gpu").rglob("*.parquet") if pq.read_metadata(path).num_rows]
    rows, wall_s = 0, 0.0
    for number, path in enumerate(paths):
        table = pq.read_table(path, partitioning=None)
        began = time.monotonic()
        pq.write_table(table, root / f"limit{number}.parquet", compression="zstd")
        wall_s += time.monotonic() - began
        rows += table.num_rows
    return round(rows / wall_s)
