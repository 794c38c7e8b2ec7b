"""The demo's three scenes, drawn anew each run: a dying GPU, a software timeout, a planned reset.

It only writes what nodes would write (kernel log, NVML recording, one NCCL log a rank); the parts
then see files growing as in life. Event times lie in the past, since ten minutes are told in
seconds; nothing here knows what Ringfence will conclude.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import msgspec
from msgspec.structs import replace

from evidence.records import GpuSnapshot, GpuStatus, GpuTick

__all__ = ["Gpu", "Incident", "Node", "Write"]

_GPUS = 8
_TIMEOUT_S = 600
#: Bus numbers of the eight GPUs as HGX boards of several makers wire them.
_BOARDS = (
    (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB),
    (0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xBB, 0xCB, 0xDB),
    (0x0F, 0x2D, 0x44, 0x5B, 0x89, 0xA8, 0xC0, 0xD8),
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card as its node names it."""

    index: int
    pci: str
    uuid: str
    serial: str

    @property
    def bus_id(self) -> str:
        """NCCL's spelling of the address."""
        return f"{int(self.pci.split(':')[1], 16) << 12:x}"


@dataclass(frozen=True, slots=True)
class Node:
    """One host with its eight cards."""

    host: str
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """Text appended to one file ``after_s`` seconds after the play began."""

    after_s: float
    path: Path
    text: str


class Incident:
    """The cast and the script of one demo run.

    ``culprit`` is the card that dies; ``quitter`` the (job, rank) that leaves its collective;
    ``reset`` the (host, card) an operator resets on purpose.
    """

    def __init__(self, folder: Path, ends: datetime, seed: int | None = None) -> None:
        self._draw = random.Random(seed)  # noqa: S311 (a play, not a secret)
        self.folder = folder
        self.began = ends.astimezone(UTC) - timedelta(seconds=_TIMEOUT_S + 60)
        number = self._draw.randrange(100, 980)
        names = [f"{self._draw.choice(('gpu', 'hgx', 'node'))}{number + at:03d}" for at in range(6)]
        board = self._draw.choice(_BOARDS)
        self.nodes = tuple(Node(name, self._cards(board)) for name in names)
        self.training, self.other = self.nodes[:4], self.nodes[4:]
        self.job, self.other_job = (f"train-{self._draw.randrange(10**4, 10**5)}" for _ in "ab")
        self.victim_node = self._draw.choice(self.training)
        self.culprit = self._draw.choice(self.victim_node.gpus)
        self.culprit_rank = self.training.index(self.victim_node) * _GPUS + self.culprit.index
        self.quitter_rank = self._draw.randrange(1, 2 * _GPUS)
        self.reset_node = self.other[0]
        # Another card than the quitter's: one scene must not explain the other.
        quitter = self.other[self.quitter_rank // _GPUS].gpus[self.quitter_rank % _GPUS]
        self.reset_gpu = self._draw.choice([g for g in self.reset_node.gpus if g is not quitter])
        self.reset_at = self.began + timedelta(seconds=_TIMEOUT_S + 20)

    def kernel_log(self, node: Node) -> Path:
        """The node's kernel log."""
        return self.folder / "nodes" / node.host / "kern.log"

    def gpu_recording(self, node: Node) -> Path:
        """The node's NVML snapshots, one tick a line."""
        return self.folder / "nodes" / node.host / "gpu.ndjson"

    def rank_log(self, job: str, node: Node, rank: int) -> Path:
        """The log of one rank."""
        return self.folder / "jobs" / job / f"{node.host}-{rank}.log"

    def rank_logs(self, node: Node) -> str:
        """Pattern of the rank logs of one node, as its collector is given it."""
        return str(self.folder / "jobs" / "{job}" / f"{node.host}-{{rank}}.log")

    def script(self) -> list[Write]:
        """Everything that is written, in order of play."""
        scenes = (
            self._quiet(),
            self._memory_fault(),
            self._collective(self.job, self.training, {self.culprit_rank}),
            self._collective(self.other_job, self.other, {self.quitter_rank}),
            self._quitter(),
            self._planned_reset(),
            self._snapshots(),
        )
        return sorted(
            (write for scene in scenes for write in scene),
            key=lambda write: write.after_s,
        )

    def _cards(self, board: tuple[int, ...]) -> tuple[Gpu, ...]:
        cards = []
        for index, bus in enumerate(board):
            uuid = UUID(int=self._draw.getrandbits(128), version=4)
            serial = str(self._draw.randrange(1_650_000_000_000, 1_660_000_000_000))
            cards.append(Gpu(index, f"0000:{bus:02x}:00", f"GPU-{uuid}", serial))
        return tuple(cards)

    def _kernel(self, after_s: float, node: Node, at: datetime, message: str) -> Write:
        stamp = at.strftime("%Y-%m-%dT%H:%M:%S,%f+00:00")
        return Write(after_s, self.kernel_log(node), f"{stamp} {message}\n")

    def _quiet(self) -> Iterator[Write]:
        """Noise of a healthy node: what surrounds a fault in real logs."""
        noise = (
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, "
            "skipping further processing",
            "systemd-journald[{}]: Data hash table of system.journal has a fill level at 75.0",
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1)",
        )
        for node in self.nodes:
            for step in range(40):
                at = self.began + timedelta(seconds=step * 14 - 60, microseconds=step * 7919)
                text = self._draw.choice(noise[:2] if step % 13 else noise)
                yield self._kernel(step / 10, node, at, text.format(self._draw.randrange(300, 900)))

    def _memory_fault(self) -> Iterator[Write]:
        """One double-bit error as an H100 prints it: 48, 63 and nine 94 lines in 168 ms."""
        pci, address = self.culprit.pci, self._draw.randrange(0x10_0000_0000, 0x13_0000_0000) & ~31
        pid = self._draw.randrange(100_000, 4_000_000)
        part, sub = self._draw.randrange(8), self._draw.randrange(2)
        unknown = "pid='<unknown>', name=<unknown>"
        lines = [
            (0, f"48, {unknown}, An uncorrectable double bit error (DBE) has been detected on GPU "
                f"in the framebuffer at physAddr {address:#x} partition {part}, "
                f"subpartition {sub}."),
            (28, f"63, {unknown}, Row Remapper: New row ({address:#018x}) marked for remapping, "
                 "reset gpu to activate."),
            (36, f"94, {unknown}, Contained: SM (0x1). RST: No, D-RST: No"),
        ]  # fmt: skip
        for channel, offset_ms in enumerate((51, 82, 91, 100, 108, 117, 159, 168), start=8):
            lines.append((offset_ms, f"94, pid={pid}, name=python3.11, Ch {channel:08x}"))
        for offset_ms, text in lines:
            at = self.began + timedelta(milliseconds=offset_ms)
            yield self._kernel(1.0, self.victim_node, at, f"NVRM: Xid (PCI:{pci}): {text}")

    def _collective(self, job: str, nodes: tuple[Node, ...], absent: set[int]) -> Iterator[Write]:
        """One NCCL job: every rank joins; all but ``absent`` time out ten minutes later."""
        size, comm = len(nodes) * _GPUS, f"{self._draw.getrandbits(64):#018x}"
        seq, elements = self._draw.randrange(20_000, 90_000), 2 ** self._draw.randrange(20, 26)
        for rank in range(size):
            node, gpu = nodes[rank // _GPUS], nodes[rank // _GPUS].gpus[rank % _GPUS]
            path, pid = self.rank_log(job, node, rank), 20_000 + self._draw.randrange(40_000)
            yield Write(0.5, path, (
                f"{node.host}:{pid}:{pid + 900} [{gpu.index}] NCCL INFO ncclCommInitRank comm "
                f"0x{self._draw.getrandbits(44):x} rank {rank} nranks {size} cudaDev {gpu.index} "
                f"nvmlDev {gpu.index} busId {gpu.bus_id} commId {comm} - Init COMPLETE\n"
            ))  # fmt: skip
            if rank in absent:
                continue
            waited_ms = _TIMEOUT_S * 1000 + self._draw.randrange(5, 95)
            at = self.began + timedelta(seconds=_TIMEOUT_S, milliseconds=300 + rank)
            stamp = f"[rank{rank}]:[E{at:%m%d %H:%M:%S}.{at.microsecond:06d}{rank:03d}"
            yield Write(4.0, path, (
                f"{stamp} ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective "
                f"operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn={elements}, "
                f"NumelOut={elements}, Timeout(ms)={_TIMEOUT_S * 1000}) ran for {waited_ms} "
                "milliseconds before timing out.\n"
                f"{stamp} ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  "
                f"failure detected by watchdog at work sequence id: {seq} PG status: last enqueued "
                f"work: {seq}, last completed work: {seq - 1}\n"
            ))  # fmt: skip

    def _quitter(self) -> Iterator[Write]:
        """The rank that left: its Python failed in the data loader, so it never joined again."""
        rank = self.quitter_rank
        node = self.other[rank // _GPUS]
        at = self.began - timedelta(seconds=2)
        yield Write(1.5, self.rank_log(self.other_job, node, rank), (
            f"[rank{rank}]: Traceback (most recent call last):\n"
            f'[rank{rank}]:   File "/opt/train/pretrain.py", line 212, in train\n'
            f"[rank{rank}]:     batch = next(batches)\n"
            f"[rank{rank}]: StopIteration\n"
            f"{at:%Y-%m-%d %H:%M:%S} {node.host} pretrain: rank {rank} leaves the training loop\n"
        ))  # fmt: skip

    def _planned_reset(self) -> Iterator[Write]:
        """What an operator's ``nvidia-smi --gpu-reset`` leaves in the log."""
        node, gpu, at = self.reset_node, self.reset_gpu, self.reset_at
        lines = (
            (0, f"NVRM: Xid (PCI:{gpu.pci}): 45, pid=1, name=nvidia-smi, Ch 00000008"),
            (900, f"NVRM: Xid (PCI:{gpu.pci}): 79, GPU has fallen off the bus."),
            (940, f"NVRM: GPU {gpu.pci}.0: GPU has fallen off the bus."),
        )
        for offset_ms, text in lines:
            yield self._kernel(3.0, node, at + timedelta(milliseconds=offset_ms), text)

    def _snapshots(self) -> Iterator[Write]:
        """NVML every ten seconds: the culprit's uncorrectable count rises and a remap pends."""
        for node in self.nodes:
            for step in range(-3, (_TIMEOUT_S + 50) // 10):
                at = self.began + timedelta(seconds=step * 10 + 1)
                gpus = tuple(self._snapshot(node, gpu, at) for gpu in node.gpus)
                line = msgspec.json.encode(GpuTick(at=at, gpus=gpus)).decode() + "\n"
                yield Write(0.5 + max(step, 0) / 20, self.gpu_recording(node), line)

    def _snapshot(self, node: Node, gpu: Gpu, at: datetime) -> GpuSnapshot:
        named = GpuSnapshot(
            index=gpu.index, uuid=gpu.uuid, serial=gpu.serial, pci=gpu.pci, name=_NAME
        )
        resetting = node is self.reset_node and gpu is self.reset_gpu
        gone_s = (at - self.reset_at).total_seconds()
        if resetting and 0 <= gone_s < 20:  # noqa: PLR2004 (a reset takes some seconds)
            return replace(named, status=GpuStatus.LOST, error=15)
        broken = gpu is self.culprit and at > self.began
        errors = min(1 + int((at - self.began).total_seconds()) // 120, 3) if broken else 0
        return replace(
            named,
            ecc_enabled=True,
            ecc_volatile_corrected=self._draw.randrange(2),
            ecc_volatile_uncorrected=errors,
            ecc_aggregate_corrected=4,
            ecc_aggregate_uncorrected=errors,
            sram_threshold_exceeded=False,
            remapped_correctable=0,
            remapped_uncorrectable=1 if broken else 0,
            remap_pending=broken,
            remap_failure=False,
            recovery_action=4 if broken else 0,
            temperature_c=self._draw.randrange(48, 66),
            temperature_memory_c=self._draw.randrange(60, 78),
            power_w=float(self._draw.randrange(480, 690)),
            utilization_pct=100,
            memory_used_mib=71_204,
            clock_sm_mhz=1_980,
            clocks_event_reasons=0,
            pcie_replays=0,
            pcie_width=16,
            pcie_width_max=16,
            pcie_generation=5,
            pcie_generation_max=5,
            mig_enabled=False,
            read_us=self._draw.randrange(900, 1_700),
        )


_NAME = "NVIDIA H100 80GB HBM3"
