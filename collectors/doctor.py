"""What an agent finds on a new node: which collectors work, and what each of the others lacks."""

import grp
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from msgspec import Struct

from collectors.nccl.pattern import find, matcher
from collectors.registry import GpuCollector, Node, is_required
from collectors.shipping.packing import pack
from collectors.source import Source
from evidence.records import GpuStatus
from evidence.transport import Kafka

__all__ = ["Finding", "Need", "ask_kafka", "examine", "held_capabilities"]

#: linux/capability.h
_CAPABILITIES = {"CAP_DAC_READ_SEARCH": 2, "CAP_SYS_ADMIN": 21, "CAP_SYSLOG": 34}
_KAFKA_WITHIN_MS = 5_000
#: A sample shows what comes; a frame of 72 GPUs would fill the screen.
_SAMPLE_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Need:
    """One thing a collector needs of the machine, and whether this process has it."""

    what: str
    has: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """How one collector fares: ``state`` is ``ok``, ``unavailable`` or ``error``.

    ``required`` is False for a source that a healthy node may lack (no job, so no job's log).
    ``sample`` is the first record it returned, as JSON, cut where it is long.
    """

    name: str
    state: str
    reason: str | None = None
    required: bool = True
    needs: tuple[Need, ...] = ()
    took_ms: float = 0.0
    records: int = 0
    sample: str | None = None

    @property
    def good(self) -> bool:
        """Whether nothing is to be done about it."""
        return self.state == "ok" or (self.state == "unavailable" and not self.required)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def examine(
    node: Node, sources: Iterable[Source], records: Mapping[str, list[Struct]]
) -> list[Finding]:
    """Say of each source that was read how it fares; ``records`` are by the source's name."""
    return [_finding(node, source, records.get(source.name, [])) for source in sources]


def _finding(node: Node, source: Source, records: list[Struct]) -> Finding:
    one = source.attempts
    state, reason = "ok", None
    if one.error is not None:
        state, reason = "error", one.error
    elif one.unavailable is not None:
        state, reason = "unavailable", one.unavailable
    elif isinstance(source.collector, GpuCollector):
        reason = _ailing(source.collector)
        state = "ok" if reason is None else "error"
    look = _NEEDS.get(source.name)
    needs = [] if look is None else list(look(node))
    answers = one.error is None and one.unavailable is None
    needs += [Need(what, answers) for what in _asked(node, source.name)]
    return Finding(
        name=source.name,
        state=state,
        reason=reason,
        required=is_required(source.name),
        needs=tuple(needs),
        took_ms=round(1000 * one.busy_s, 2),
        records=len(records),
        sample=_sample(records[0]) if records else None,
    )


def _ailing(gpu: GpuCollector) -> str | None:
    """Why GPUs that were asked did not all answer well; None when they did."""
    tick = gpu.latest
    if tick is None:
        return "no tick was complete in the time there was"
    if tick.error is not None:
        return f"NVML answers {tick.error}: {tick.error_text}"
    bad = [f"GPU {one.index} {one.status.value}" for one in tick.gpus if one.status != GpuStatus.OK]
    return f"{len(bad)} of {len(tick.gpus)} GPUs: {', '.join(bad)}" if bad else None


def _sample(record: Struct) -> str:
    text = pack(record).decode()
    return text if len(text) <= _SAMPLE_BYTES else f"{text[:_SAMPLE_BYTES]}..."


def ask_kafka(kafka: Kafka) -> Finding:
    """Say whether the brokers answer this client, and have its topics. Takes seconds at most."""
    try:
        client = KafkaAdminClient(
            **kafka.client(),
            client_id="ringfence-doctor",
            bootstrap_timeout_ms=_KAFKA_WITHIN_MS,
            request_timeout_ms=_KAFKA_WITHIN_MS,
        )
        try:
            there = set(client.list_topics())
        finally:
            client.close()
    except (KafkaError, OSError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        return Finding("kafka", "error", f"{kafka.bootstrap} does not answer: {said}")
    missing = sorted({kafka.topic(topic) for topic in _SHIPPED} - there)
    if missing:
        return Finding("kafka", "error", f"{kafka.bootstrap} has no topic {', '.join(missing)}")
    return Finding("kafka", "ok")


#: What an agent writes to.
_SHIPPED = ("kernel", "gpu", "nccl", "fabric", "inventory")


def held_capabilities(status: Path = Path("/proc/self/status")) -> frozenset[str]:
    """The capabilities in force in this process, of those that collectors use."""
    try:
        lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return frozenset(name for name, bit in _CAPABILITIES.items() if held >> bit & 1)


def _of_kmsg(_node: Node) -> Iterator[Need]:
    yield _readable(Path("/dev/kmsg"))
    try:
        restricted = Path("/proc/sys/kernel/dmesg_restrict").read_text(encoding="ascii")
    except OSError:
        restricted = "0"
    if restricted.strip() != "0":
        yield Need("CAP_SYSLOG (kernel.dmesg_restrict is set)", "CAP_SYSLOG" in held_capabilities())


def _of_journal(node: Node) -> Iterator[Need]:
    folders = [Path("/var/log/journal"), Path("/run/log/journal")]
    if node.config.journal_directory is not None:
        folders = [node.config.journal_directory]
    journals = [path for folder in folders for path in sorted(folder.glob("*/system.journal"))]
    groups = " or ".join(f"group {name}" for name in ("systemd-journal", "adm"))
    if not journals:
        yield Need(f"a journal under {' or '.join(map(str, folders))}", has=False)
    for path in journals[:1]:
        yield Need(f"read access to {path} ({groups})", _may(path, os.R_OK) or _in_group())


def _in_group() -> bool:
    mine = {os.getegid(), *os.getgroups()}
    for name in ("systemd-journal", "adm"):
        try:
            if grp.getgrnam(name).gr_gid in mine:
                return True
        except KeyError:
            continue
    return False


def _of_kernel_files(node: Node) -> Iterator[Need]:
    yield from map(_readable, node.config.kernel_files)


def _of_nccl(node: Node) -> Iterator[Need]:
    return _all_readable(node.config.nccl_paths)


def _of_flight_recorder(node: Node) -> Iterator[Need]:
    return _all_readable(node.config.nccl_flight_recorder)


def _all_readable(patterns: Iterable[str]) -> Iterator[Need]:
    for pattern in patterns:
        unread = [found.path for found in find(*matcher(pattern)) if not _readable(found.path).has]
        yield Need(f"read access to {unread[0] if unread else pattern}", not unread)


def _of_nvml(node: Node) -> Iterator[Need]:
    if node.config.gpu_source != "nvml":
        return
    for device in (Path("/dev/nvidiactl"), *sorted(Path("/dev").glob("nvidia[0-9]*"))):
        yield Need(f"read and write access to {device}", _may(device, os.R_OK | os.W_OK))
    yield Need("root for the SRAM ECC status and nothing else", os.geteuid() == 0)


def _of_mlxlink(node: Node) -> Iterator[Need]:
    program = node.config.mlxlink_program
    if program is not None:
        yield Need(f"the program {program}", shutil.which(program) is not None)
        yield Need("root, since mlxlink opens the adapter", os.geteuid() == 0)


def _of_inventory(_node: Node) -> Iterator[Need]:
    for device in sorted(Path("/dev/infiniband").glob("umad*")):
        yield Need(
            f"read and write access to {device}, for the switch port of each adapter",
            _may(device, os.R_OK | os.W_OK),
        )


def _asked(node: Node, name: str) -> Iterator[str]:
    """What must answer for a collector that asks over a socket; only its own asking tells."""
    if name == "nccl-ras":
        yield f"a job on this node with NCCL 2.28.7 or newer, its RAS at {node.config.nccl_ras}"
    elif name == "gpu" and node.config.gpu_source == "dcgm":
        yield f"a dcgm-exporter at {node.config.dcgm_url}"


def _may(path: Path, how: int) -> bool:
    return os.access(path, how, effective_ids=True)


def _readable(path: Path) -> Need:
    return Need(f"read access to {path}", _may(path, os.R_OK))


#: By the source's name; the others need nothing that a process could lack.
_NEEDS: Mapping[str, Callable[[Node], Iterator[Need]]] = {
    "kmsg": _of_kmsg,
    "journal": _of_journal,
    "kernel-files": _of_kernel_files,
    "nccl": _of_nccl,
    "flight-recorder": _of_flight_recorder,
    "gpu": _of_nvml,
    "mlxlink": _of_mlxlink,
    "inventory": _of_inventory,
}
