"""The node agent: reads every collector of this node in turn and ships what they return.

A collector that fails or has no source is said once and never stops the others.
"""

import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from msgspec import Struct

from collectors.collector import Collector
from collectors.gpu import NvmlCollector, RecordingCollector
from collectors.inventory import InventoryCollector, Place
from collectors.kernel import FileCollector, KmsgCollector
from collectors.nccl import NcclCollector
from collectors.nccl_pattern import matcher
from collectors.ship import Shipper
from collectors.source import Source
from evidence.transport import Kafka

__all__ = ["AgentConfig", "once", "run"]

_LOG = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

#: Pauses between rounds: short while records come, so that an event is followed closely; longer
#: when all is calm (a round then costs a few system calls).
_BUSY_PAUSE_S = 0.005
_CALM_PAUSE_S = 0.02
_CALM_AFTER_S = 1.0
#: How long the end of the process waits for Kafka.
_FLUSH_S = 5.0
_REPORT_S = 300.0
#: Rounds without a record that end `once`: an event of several lines may wait for one more look.
_QUIET_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What one node's agent reads and where it ships it.

    ``host`` None is the machine's hostname, ``boot_id`` None the running kernel's. ``state_dir``
    keeps the cursors; None keeps none, and every start reads its files anew. ``nccl_paths`` are
    patterns such as ``/var/log/train/{job}/{host}-{rank}.log``; what ``nccl_job`` (empty: the
    communicator's id), ``nccl_attempt`` and ``nccl_trust_host`` mean, `collectors.nccl` says.
    ``gpu_source`` ``recording`` reads ``gpu_recording``, an NDJSON file of GpuTick.
    """

    kafka: Kafka
    host: str | None = None
    boot_id: str | None = None
    kmsg: bool = True
    kernel_files: tuple[Path, ...] = ()
    nccl_paths: tuple[str, ...] = ()
    nccl_job: str = ""
    nccl_attempt: int = 0
    nccl_trust_host: bool = False
    gpu_source: Literal["nvml", "recording", "none"] = "nvml"
    gpu_recording: Path | None = None
    gpu_interval_s: float = 1.0
    gpu_frame_ticks: int = 5
    gpu_deadline_s: float = 0.8
    state_dir: Path | None = None
    backlog_bytes: int = 64 << 20
    rack: str | None = None
    leaf: str | None = None
    pool: str | None = None
    nvlink_domain: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work; raises ValueError with one sentence."""
        if self.gpu_source == "recording" and self.gpu_recording is None:
            raise ValueError("gpu_source is recording, but gpu_recording names no file")
        for pattern in self.nccl_paths:
            matcher(pattern)


@dataclass(frozen=True, slots=True)
class _Node:
    """What every collector of one node is built from."""

    config: AgentConfig
    host: str
    boot_id: str | None
    clock: Callable[[], datetime]

    def state(self, name: str) -> Path | None:
        """A file or folder for cursors; None when none are kept."""
        return None if self.config.state_dir is None else self.config.state_dir / name


def run(config: AgentConfig, stop: threading.Event) -> None:
    """Collect and ship until ``stop`` is set; then send what is left and return."""
    node = _node(config)
    sources = _sources(node)
    shipper = Shipper(
        config.kafka, client_id=f"ringfence-agent-{node.host}", max_bytes=config.backlog_bytes
    )
    names = ", ".join(sorted({source.collector.name for source in sources}))
    _LOG.info("agent of %s ships %s to %s", node.host, names, config.kafka.bootstrap)
    busy_until = report_at = 0.0
    while not stop.is_set():
        now = time.monotonic()
        if sum(source.ship(shipper, now) for source in sources):
            busy_until = now + _CALM_AFTER_S
        if now >= report_at:
            report_at = now + _REPORT_S
            _report(sources, shipper)
        stop.wait(_BUSY_PAUSE_S if now < busy_until else _CALM_PAUSE_S)
    _finish(sources, shipper)


def once(config: AgentConfig) -> list[Struct]:
    """Return one round of records, without Kafka and without looking at or moving a cursor.

    Files are read to their end and one tick of the GPUs is taken; it takes as long as that tick.
    """
    sources = _sources(_node(dataclasses.replace(config, state_dir=None)))
    found: list[Struct] = []
    ends_at = time.monotonic() + config.gpu_deadline_s + _FLUSH_S
    quiet = 0
    try:
        while quiet < _QUIET_ROUNDS and time.monotonic() < ends_at:
            new = [record for source in sources for record in source.take(time.monotonic())]
            found += new
            quiet = 0 if new or not _settled(sources) else quiet + 1
            time.sleep(_BUSY_PAUSE_S)
        for source in sources:
            found += source.rest()
    finally:
        for source in sources:
            source.collector.close()
    return found


def _node(config: AgentConfig) -> _Node:
    boot_id = config.boot_id
    if boot_id is None and _BOOT_ID.exists():
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    return _Node(config, config.host or socket.gethostname(), boot_id, lambda: datetime.now(UTC))


def _sources(node: _Node) -> list[Source]:
    """Build what the configuration asks for, from the registry of what there is."""
    gpu = _GPU[node.config.gpu_source](node)
    sources = [
        Source(collector, node.host, patient=patient)
        for build, patient in _COLLECTORS.values()
        if (collector := build(node)) is not None
    ]
    if gpu is not None:
        sources.append(Source(gpu, node.host, patient=node.config.gpu_source == "recording"))
    place = Place(
        rack=node.config.rack,
        leaf=node.config.leaf,
        pool=node.config.pool,
        nvlink_domain=node.config.nvlink_domain,
    )
    inventory = InventoryCollector(node.host, node.boot_id, gpu, node.clock, place)
    return [*sources, Source(inventory, node.host, patient=False)]


def _kmsg(node: _Node) -> Collector | None:
    if not node.config.kmsg:
        return None
    return KmsgCollector(node.host, node.boot_id or "", node.state("kmsg.json"), clock=node.clock)


def _kernel_files(node: _Node) -> Collector | None:
    if not node.config.kernel_files:
        return None
    return FileCollector(
        node.host, list(node.config.kernel_files), node.state("kernel"), node.clock
    )


def _nccl(node: _Node) -> Collector | None:
    if not node.config.nccl_paths:
        return None
    return NcclCollector(
        list(node.config.nccl_paths),
        node.config.nccl_job,
        node.host,
        node.state("nccl"),
        node.clock,
        attempt=node.config.nccl_attempt,
        trust_host=node.config.nccl_trust_host,
    )


def _nvml(node: _Node) -> NvmlCollector:
    return NvmlCollector(
        node.host,
        node.boot_id,
        node.clock,
        deadline_s=node.config.gpu_deadline_s,
        frame_ticks=node.config.gpu_frame_ticks,
        interval_s=node.config.gpu_interval_s,
    )


def _recording(node: _Node) -> RecordingCollector:
    assert node.config.gpu_recording is not None
    return RecordingCollector(
        node.host,
        node.config.gpu_recording,
        node.boot_id,
        node.clock,
        frame_ticks=node.config.gpu_frame_ticks,
        interval_s=node.config.gpu_interval_s,
        cursor_file=node.state("gpu-recording.json"),
    )


#: Where log lines come from, and whether that place keeps what is not read yet. The kernel's ring
#: does not: what it overwrites is gone.
_COLLECTORS: dict[str, tuple[Callable[[_Node], Collector | None], bool]] = {
    "kmsg": (_kmsg, False),
    "kernel-files": (_kernel_files, True),
    "nccl": (_nccl, True),
}

#: Where GPU ticks come from.
_GPU: dict[str, Callable[[_Node], NvmlCollector | RecordingCollector | None]] = {
    "nvml": _nvml,
    "recording": _recording,
    "none": lambda _node: None,
}


def _settled(sources: list[Source]) -> bool:
    """Whether the GPUs have been seen, or are known not to be there."""
    gpus = [source.collector for source in sources if isinstance(source.collector, NvmlCollector)]
    return all(gpu.latest is not None or gpu.absent for gpu in gpus)


def _finish(sources: list[Source], shipper: Shipper) -> None:
    now = time.monotonic()
    for source in sources:
        source.ship(shipper, now)
        # Held-back lines are read again at the next start; ticks of the GPUs are not.
        if isinstance(source.collector, NvmlCollector | RecordingCollector):
            source.send(shipper, source.rest(), now)
    left = shipper.close(_FLUSH_S)
    for source in sources:
        source.finish(now)
    _report(sources, shipper)
    if left:
        _LOG.warning("%d records were not in Kafka when the agent ended", left)


def _report(sources: list[Source], shipper: Shipper) -> None:
    read = ", ".join(f"{one.collector.name} {one.records}" for one in sources)
    errors = sum(source.errors for source in sources)
    lost = sum(source.lost for source in sources)
    _LOG.info(
        "read: %s; in Kafka %d, waiting %d, lost %d, collector errors %d",
        read,
        shipper.delivered.total(),
        shipper.pending,
        lost,
        errors,
    )
