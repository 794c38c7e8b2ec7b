"""The collectors there are, and how each is built from the agent's settings.

A new collector is named here, in `collectors.config` and in the docs.
"""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from collectors.collector import Collector
from collectors.config import AgentConfig
from collectors.fabric.mad import peer_of
from collectors.fabric.mlxlink import MlxlinkCollector
from collectors.fabric.sysfs import SysfsFabricCollector
from collectors.gpu import NvmlCollector, RecordingCollector
from collectors.gpu.dcgm import DcgmCollector
from collectors.kernel import FileCollector, KmsgCollector
from collectors.kernel.journald import JournalCollector
from collectors.nccl import NcclCollector
from collectors.nccl.flight_recorder import FlightRecorderCollector
from collectors.nccl.ras import RasCollector
from collectors.node.inventory import InventoryCollector, TickSource
from collectors.node.peers import Peers
from collectors.node.place import Place, PlaceFinder
from collectors.source import Source

__all__ = ["GpuCollector", "Node", "gpu_sources", "is_required", "node_of", "sources_of"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

#: How long what stays away is left alone at most. A job's log may appear at any time and is
#: cheap to look for; a device is there from the start or comes with a driver.
_LOGS_REST_S = 5.0
_DEVICE_REST_S = 60.0
#: Between two reads of a job's logs, each of which costs a few system calls a rank. A rank that
#: hangs has done so for minutes when its log says so.
_JOB_LOGS_S = 1.0
#: Between two reads of what has no word of its own about when it is due.
_INTERVAL_S = 0.1
#: Where a thread asks once in seconds, and a read is a look whether it has an answer.
_SLOW_S = 1.0

GpuCollector = NvmlCollector | DcgmCollector | RecordingCollector


@dataclass(frozen=True, slots=True)
class Node:
    """What every collector of one node is built from."""

    config: AgentConfig
    host: str
    boot_id: str | None
    clock: Callable[[], datetime]
    skew_s: Callable[[], float | None] = lambda: None

    def state(self, name: str) -> Path | None:
        """A file or folder for cursors; None when none are kept."""
        return None if self.config.state_dir is None else self.config.state_dir / name


def node_of(config: AgentConfig, skew_s: Callable[[], float | None] = lambda: None) -> Node:
    """Return this machine as the settings name it."""
    boot_id = config.boot_id
    if boot_id is None and _BOOT_ID.exists():
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    host = config.host or socket.gethostname()
    return Node(config, host, boot_id, lambda: datetime.now(UTC), skew_s)


def sources_of(node: Node) -> list[Source]:
    """Build what the configuration asks for; the inventory comes last, as it follows the GPUs."""
    gpu = _GPU[node.config.gpu_source](node)
    sources = [
        Source(
            collector,
            node.host,
            patient=kind.patient,
            longest_rest_s=kind.longest_rest_s,
            interval_s=kind.interval_s,
            name=name,
        )
        for name, kind in COLLECTORS.items()
        if (collector := kind.build(node)) is not None
    ]
    if gpu is not None:
        patient = node.config.gpu_source == "recording"
        sources.append(Source(gpu, node.host, patient=patient))
    return [*sources, Source(_inventory(node, gpu), node.host, patient=False)]


def is_required(name: str) -> bool:
    """Whether a healthy node has the source of this name, once it is configured."""
    return name not in COLLECTORS or COLLECTORS[name].required


def gpu_sources(sources: list[Source]) -> list[GpuCollector]:
    """Those collectors that take ticks of GPUs."""
    return [one.collector for one in sources if isinstance(one.collector, GpuCollector)]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one collector is built (None: not asked for), and what its source does meanwhile.

    ``patient``: the source keeps what is not read yet. The kernel's ring does not: what it
    overwrites is gone. ``required``: a healthy node has it once it is configured.
    """

    build: Callable[[Node], Collector | None]
    patient: bool
    longest_rest_s: float = _DEVICE_REST_S
    required: bool = True
    interval_s: float = _INTERVAL_S


def _kmsg(node: Node) -> Collector | None:
    if node.config.kernel_source != "kmsg":
        return None
    return KmsgCollector(
        node.host,
        node.boot_id or "",
        node.state("kmsg.json"),
        clock=node.clock,
        journal=True,
        journal_directory=node.config.journal_directory,
    )


def _journal(node: Node) -> Collector | None:
    if node.config.kernel_source != "journal":
        return None
    return JournalCollector(
        node.host,
        node.boot_id or "",
        node.state("journal.json"),
        node.clock,
        directory=node.config.journal_directory,
    )


def _kernel_files(node: Node) -> Collector | None:
    if not node.config.kernel_files:
        return None
    return FileCollector(
        node.host, list(node.config.kernel_files), node.state("kernel"), node.clock
    )


def _nccl(node: Node) -> Collector | None:
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


def _flight_recorder(node: Node) -> Collector | None:
    config = node.config
    if not config.nccl_flight_recorder:
        return None
    return FlightRecorderCollector(
        config.nccl_flight_recorder,
        config.nccl_job,
        node.host,
        node.state("flight-recorder"),
        node.clock,
        attempt=config.nccl_attempt,
    )


def _ras(node: Node) -> Collector | None:
    config = node.config
    if not config.nccl_ras:
        return None
    return RasCollector(config.nccl_ras, config.nccl_job, node.host, node.clock)


def _fabric_sysfs(node: Node) -> Collector | None:
    config = node.config
    if not config.fabric_sysfs:
        return None
    return SysfsFabricCollector(
        node.host, node.clock, subnet=config.subnet, interval_s=config.fabric_interval_s
    )


def _mlxlink(node: Node) -> Collector | None:
    config = node.config
    if not config.mlxlink_files and config.mlxlink_program is None:
        return None
    return MlxlinkCollector(
        node.host,
        node.clock,
        patterns=config.mlxlink_files,
        program=config.mlxlink_program,
        subnet=config.subnet,
    )


def _nvml(node: Node) -> NvmlCollector:
    return NvmlCollector(
        node.host,
        node.boot_id,
        node.clock,
        deadline_s=node.config.gpu_deadline_s,
        frame_ticks=node.config.gpu_frame_ticks,
        interval_s=node.config.gpu_interval_s,
    )


def _dcgm(node: Node) -> DcgmCollector:
    return DcgmCollector(
        node.host,
        node.boot_id,
        node.config.dcgm_url,
        node.clock,
        interval_s=node.config.gpu_interval_s,
        frame_ticks=node.config.gpu_frame_ticks,
    )


def _recording(node: Node) -> RecordingCollector:
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


def _inventory(node: Node, gpu: TickSource | None) -> InventoryCollector:
    config = node.config
    given = Place(config.rack, config.leaf, config.pool, config.nvlink_domain)
    finder = PlaceFinder(
        node.host,
        given,
        rack_file=config.rack_file,
        rack_pattern=config.rack_pattern,
        label_file=config.label_file,
    )
    return InventoryCollector(
        node.host,
        node.boot_id,
        gpu,
        node.clock,
        finder,
        peers=Peers(peer_of),
        skew_s=node.skew_s,
    )


#: What a node has beside its GPUs.
COLLECTORS: Mapping[str, _Kind] = {
    "kmsg": _Kind(_kmsg, patient=False),
    "journal": _Kind(_journal, patient=True),
    "kernel-files": _Kind(_kernel_files, patient=True, longest_rest_s=_LOGS_REST_S),
    "nccl": _Kind(
        _nccl, patient=True, longest_rest_s=_LOGS_REST_S, required=False, interval_s=_JOB_LOGS_S
    ),
    "flight-recorder": _Kind(
        _flight_recorder,
        patient=True,
        longest_rest_s=_LOGS_REST_S,
        interval_s=_SLOW_S,
        required=False,
    ),
    "nccl-ras": _Kind(_ras, patient=False, interval_s=_SLOW_S, required=False),
    "fabric-sysfs": _Kind(_fabric_sysfs, patient=False, required=False),
    "mlxlink": _Kind(_mlxlink, patient=False),
}

#: Where GPU ticks come from.
_GPU: Mapping[str, Callable[[Node], GpuCollector | None]] = {
    "nvml": _nvml,
    "dcgm": _dcgm,
    "recording": _recording,
    "none": lambda _node: None,
}
