"""What one node's agent reads and where it ships it: the settings of ``[agent]``."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from collectors.nccl.pattern import matcher
from collectors.node.place import PLACES
from evidence.transport import Kafka
from vitals.address import listen_address

__all__ = ["AgentConfig"]


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What one node's agent reads and where it ships it.

    ``host`` None is the machine's hostname, ``boot_id`` None the running kernel's. ``state_dir``
    keeps the cursors; None keeps none, and every start reads its files anew. ``nccl_paths`` are
    patterns such as ``/var/log/train/{job}/{host}-{rank}.log``; what ``nccl_job`` (empty: the
    communicator's id), ``nccl_attempt`` and ``nccl_trust_host`` mean, `collectors.nccl` says.
    ``gpu_source`` ``recording`` reads ``gpu_recording``, an NDJSON file of GpuTick; ``dcgm`` the
    page of a dcgm-exporter at ``dcgm_url``. ``nccl_flight_recorder`` are patterns of dumps,
    ``nccl_ras`` is ``HOST:PORT``. ``mlxlink_files`` are patterns of its JSON output,
    ``mlxlink_program`` is run for every adapter. What is not in Kafka waits in memory
    (``backlog_bytes``) and, with a ``state_dir``, on disk (``spool_bytes``). What ``rack_file``,
    ``rack_pattern`` and ``label_file`` look like, `collectors.node.place` says.
    """

    kafka: Kafka
    host: str | None = None
    boot_id: str | None = None
    kernel_source: Literal["kmsg", "journal", "none"] = "kmsg"
    journal_directory: Path | None = None
    kernel_files: tuple[Path, ...] = ()
    nccl_paths: tuple[str, ...] = ()
    nccl_job: str = ""
    nccl_attempt: int = 0
    nccl_trust_host: bool = False
    nccl_flight_recorder: tuple[str, ...] = ()
    nccl_ras: str | None = None
    gpu_source: Literal["nvml", "dcgm", "recording", "none"] = "nvml"
    dcgm_url: str = "http://127.0.0.1:9400/metrics"
    gpu_recording: Path | None = None
    gpu_interval_s: float = 1.0
    gpu_frame_ticks: int = 5
    gpu_deadline_s: float = 0.8
    fabric_sysfs: bool = True
    fabric_interval_s: float = 10.0
    subnet: str = "default"
    mlxlink_files: tuple[str, ...] = ()
    mlxlink_program: str | None = None
    state_dir: Path | None = None
    backlog_bytes: int = 64 << 20
    spool_bytes: int = 256 << 20
    metrics_listen: str = "127.0.0.1:9455"
    rack: str | None = None
    leaf: str | None = None
    pool: str | None = None
    nvlink_domain: str | None = None
    rack_file: Path | None = None
    rack_pattern: str | None = None
    label_file: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work; raises ValueError with one sentence."""
        if self.gpu_source == "recording" and self.gpu_recording is None:
            raise ValueError("gpu_source is recording, but gpu_recording names no file")
        for pattern in (*self.nccl_paths, *self.nccl_flight_recorder):
            matcher(pattern)
        if self.metrics_listen:
            listen_address(self.metrics_listen)
        if self.rack_pattern is not None:
            _check_places(self.rack_pattern)


def _check_places(pattern: str) -> None:
    try:
        named = set(re.compile(pattern).groupindex)
    except re.error as error:
        raise ValueError(f"rack_pattern {pattern!r} is no regular expression: {error}") from error
    if not named or not named <= set(PLACES):
        known = ", ".join(f"(?P<{name}>...)" for name in PLACES)
        raise ValueError(f"rack_pattern {pattern!r} must have groups named among {known}")
