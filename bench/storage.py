"""Bytes on disk of the same samples: our files, small and rewritten, and two time-series databases.

What is compared: the numeric values of a number of GPUs at the same times, every value in each. Of
ours all the files of the kind, with ids, places, Kafka's positions and the text columns, which the
others do not have; of Prometheus the blocks that promtool makes of them (chunks and index), of
VictoriaMetrics its data folder after a forced merge. One series a GPU and field in both.
"""

import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import load_gpu
from figure import Figure
from msgspec.structs import astuple, fields, replace
from rig import BenchError, Rig

from evidence.records import GpuFrame, GpuSnapshot
from evidence.wire import encode
from warehouse.compaction import Compaction, compact
from warehouse.files import prepare
from warehouse.kinds import KINDS
from warehouse.partition import Partition, Policy
from warehouse.tables import Fetched

__all__ = ["measure"]

_STEP_S = 5
_YEAR_S = 365 * 86_400
_FILE_S = 60
_BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
_NAMES = [one.name for one in fields(GpuSnapshot)]
_LABELS = 'gpu="{index}",UUID="{uuid}",Hostname="{host}",modelName="{name}",pci_bus_id="{pci}"'


def measure(rig: Rig) -> Iterator[Figure]:
    """A figure a store; the peer of ours is the smaller of the two others."""
    hosts, hours = (2, 0.2) if rig.quick else (16, 2.0)
    frames = list(_frames(hosts, round(hours * 3600 / _STEP_S / load_gpu.TICKS)))
    samples = len(frames) * load_gpu.GPUS * load_gpu.TICKS
    root = rig.folder / "stored"
    small = _ours(root, frames)
    whole = _rewritten(root)
    found = {
        name: size
        for name, size in (
            ("Prometheus", _prometheus(rig, frames)),
            ("VictoriaMetrics", _victoria_metrics(rig, frames)),
        )
        if size is not None
    }
    numbers = len(_numbers(frames[0].ticks[0].gpus[0]))
    gpus = hosts * load_gpu.GPUS
    note = f"{samples:,} samples of {gpus} GPUs, one each {_STEP_S} s, {numbers} numbers each"
    peer = min(
        ((name, size / samples) for name, size in found.items()),
        key=lambda one: one[1],
        default=None,
    )
    for name, size in (
        ("ours, small files", small),
        ("ours, a rewritten day", whole),
        *found.items(),
    ):
        each = round(size / samples, 2)
        mine = peer if name.startswith("ours") else None
        yield Figure(f"bytes a sample: {name}", "B", (each,), at_most=True, peer=mine, note=note)
        year = round(each * _YEAR_S / _STEP_S / 1e6, 1)
        yield Figure(f"a GPU-year: {name}", "MB", (year,), at_most=True)


def _frames(hosts: int, each: int) -> Iterator[GpuFrame]:
    nodes = [load_gpu.Cards(load_gpu.host_name(number)) for number in range(hosts)]
    for step in range(each):
        end = _BEGIN + timedelta(seconds=_STEP_S * load_gpu.TICKS * (step + 1))
        for node in nodes:
            frame = node.frame(end)
            ticks = tuple(
                replace(tick, at=end - timedelta(seconds=_STEP_S * (load_gpu.TICKS - 1 - place)))
                for place, tick in enumerate(frame.ticks)
            )
            yield replace(frame, ticks=ticks)


class _Message:
    """A message as a consumer hands it out."""

    def __init__(self, offset: int, frame: GpuFrame) -> None:
        self.offset = offset
        self.timestamp = int(frame.observed_at.timestamp() * 1000)
        self.key: bytes | None = frame.host.encode()
        self.value: bytes | None = encode(frame)
        self.headers: list[tuple[str, bytes | None]] = []


def _ours(root: Path, frames: list[GpuFrame]) -> int:
    """Bytes of the files that a sink writes of one partition, one a minute."""
    prepare(root)
    policy = Policy(
        root=root, flush_records=10**9, flush_s=2.0, bulk_flush_s=_FILE_S, tick_flush_s=900.0,
        flush_bytes=1 << 40, compression="zstd",
    )  # fmt: skip
    one = Partition(
        kind=KINDS["gpu"], topic="ringfence.gpu", base="0a1b2c3d", rounds=0, number=0, start=0,
        policy=policy,
    )  # fmt: skip
    held: list[Fetched] = []
    due = _BEGIN + timedelta(seconds=_FILE_S)
    for offset, frame in enumerate(frames):
        if frame.observed_at > due:
            one.add(held, 0.0)
            one.flush(0.0)
            held, due = [], due + timedelta(seconds=_FILE_S)
        held.append(_Message(offset, frame))
    one.add(held, 0.0)
    one.flush(0.0)
    return _size(root / "gpu", "gpu-0000-*.parquet")


def _rewritten(root: Path) -> int:
    for _ in compact(root, Compaction(), kinds=("gpu",), now_s=time.time() + 1e6):
        pass
    return _size(root / "gpu", "gpu-whole-*.parquet")


def _size(folder: Path, pattern: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


def _numbers(gpu: GpuSnapshot) -> list[tuple[str, float]]:
    """The values of a sample that a time-series database can hold."""
    pairs = zip(_NAMES, astuple(gpu), strict=True)
    return [(name, float(value)) for name, value in pairs
            if isinstance(value, (int, float)) and name != "index"]  # fmt: skip


def _series(frames: list[GpuFrame]) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Name with labels, and (time, value) of each series, all of a name together."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for frame in frames:
        for tick in frame.ticks:
            at = tick.at.timestamp()
            for gpu in tick.gpus:
                labels = _LABELS.format(index=gpu.index, uuid=gpu.uuid, host=frame.host,
                                        name=gpu.name, pci=gpu.pci)  # fmt: skip
                for name, value in _numbers(gpu):
                    found.setdefault(name, {}).setdefault(labels, []).append((at, value))
    for name, by_labels in sorted(found.items()):
        for labels, values in by_labels.items():
            yield f"gpu_{name}{{{labels}}}", values


def _text(frames: list[GpuFrame], scale: int) -> Iterator[bytes]:
    """OpenMetrics lines, or with a ``scale`` of 1000 those of the older format."""
    for series, values in _series(frames):
        lines = (f"{series} {value:.17g} {round(at * scale)}\n" for at, value in values)
        yield "".join(lines).encode()


def _prometheus(rig: Rig, frames: list[GpuFrame]) -> int | None:
    if shutil.which("promtool") is None:
        rig.say("no promtool (Debian: prometheus)")
        return None
    source, blocks = rig.folder / "samples.txt", rig.folder / "blocks"
    names: set[str] = set()
    with source.open("wb") as file:
        for part in _text(frames, 1):
            name = part.split(b"{", 1)[0].decode()
            if name not in names:
                names.add(name)
                file.write(f"# TYPE {name} gauge\n".encode())
            file.write(part)
        file.write(b"# EOF\n")
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(source), str(blocks)]
    done = subprocess.run(made, capture_output=True, timeout=600, check=False)
    source.unlink()
    if done.returncode:
        raise BenchError(f"promtool failed: {done.stderr.decode()[-300:]}")
    return _size(blocks)


def _victoria_metrics(rig: Rig, frames: list[GpuFrame]) -> int | None:
    program = shutil.which("victoria-metrics")
    if program is None:
        rig.say("no victoria-metrics (Debian: victoria-metrics)")
        return None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = rig.folder / "victoria"
    url = f"http://127.0.0.1:{port}"
    argv = (program, f"-storageDataPath={folder}", f"-httpListenAddr=127.0.0.1:{port}",
            "-retentionPeriod=100y")  # fmt: skip
    child = rig.start(argv, "victoria")
    child.until(lambda: _answers(f"{url}/health"), "VictoriaMetrics", 30)
    for part in _joined(_text(frames, 1000)):
        _post(f"{url}/api/v1/import/prometheus", part)
    for step in ("flush", "merge"):
        _post(f"{url}/internal/force_{step}", b"")
    time.sleep(3)
    child.stop()
    return _size(folder / "data") + _size(folder / "indexdb")


def _joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) > 4 << 20:
            yield b"".join(held)
            held = []
    yield b"".join(held)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _post(url: str, body: bytes) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=60) as answer:
        answer.read()
