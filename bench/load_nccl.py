"""Logs of training ranks: what they print all day, how a job starts, and how all ranks time out."""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

from load_gpu import GPUS, host_name
from load_kernel import BEGAN, BUSES

from collectors.nccl import parse_stream
from evidence.records import NcclRecord

__all__ = ["job_records", "noise", "starting", "timeouts"]

_NOISE = (
    "[2026-10-05 06:30:{b:02d}] iteration {a:8d}/ 1000000 | consumed samples: {a} | elapsed time "
    "per iteration (ms): 9{b:03d}.4 | learning rate: 2.951E-04 | lm loss: 2.{a} | grad norm: 0.{b}",
    "{host}:{a}:{a} [{b}] NCCL INFO Channel {b:02d}/0 : {b}[{b}] -> {b}[{b}] via P2P/CUMEM",
    "{host}:{a}:{a} [{b}] NCCL INFO threadThresholds 8/8/64 | {a}/8/64 | 512 | 512, {b} channels",
    "{host}:{a}:{a} [{b}] NCCL INFO Trees [0] {b}/-1/-1->{b}->-1 [1] {b}/-1/-1->{b}->-1",
    "INFO 10-05 06:30:{b:02d} trainer.py:{a}] step={a} tokens/s=14{b}2.7 mfu=0.41{b} mem=71.2GiB",
    "Epoch 3:  {b}%|####      | {a}/1000000 [00:{b:02d}<03:11, 12.{b}it/s, loss=2.{a}]",
    "/opt/train/data.py:{b}: UserWarning: worker {b} restarts its shard reader at sample {a}",
    "[rank {b}] shard {b} of epoch 3: prefetch depth {b}, {a} samples queued, 0 corrupt",
)


def noise(count: int, seed: int = 3) -> list[bytes]:
    """Lines that say nothing of interest here."""
    draw = random.Random(seed)
    return [
        (
            _NOISE[step % len(_NOISE)].format(
                a=draw.randrange(1000, 1 << 20), b=draw.randrange(64), host=host_name(step % 32)
            )
            + "\n"
        ).encode()
        for step in range(count)
    ]


def _where(rank: int) -> tuple[str, int]:
    return host_name(rank // GPUS), rank % GPUS


def starting(rank: int, size: int, seed: int) -> bytes:
    """The line of one rank that joined the world communicator."""
    host, index = _where(rank)
    return (
        f"{host}:{20_000 + rank}:{21_000 + rank} [{index}] NCCL INFO ncclCommInitRank comm "
        f"0x55d0{seed & 0xFFFF:04x}{rank:04x} rank {rank} nranks {size} cudaDev {index} nvmlDev "
        f"{index} busId {BUSES[index] << 12:x} commId {0x5AE7_0000_0000 + seed:#x} - Init "
        "COMPLETE\n"
    ).encode()


def timeouts(rank: int, seq: int, at: datetime) -> list[bytes]:
    """The two messages of one rank whose collective timed out."""
    stamp = f"[rank{rank}]:[E{at:%m%d %H:%M:%S}.{at.microsecond:06d}{rank % 1000:03d}"
    return [
        (
            f"{stamp} ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation "
            f"timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=4194304, NumelOut=4194304, "
            f"Timeout(ms)=600000) ran for {600_005 + rank % 90} milliseconds before timing out.\n"
        ).encode(),
        (
            f"{stamp} ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  "
            f"failure detected by watchdog at work sequence id: {seq} PG status: last enqueued "
            f"work: {seq + 2}, last completed work: {seq - 1}\n"
        ).encode(),
    ]


def job_records(job: str, size: int, absent: int, seed: int) -> Iterator[NcclRecord]:
    """A job of ``size`` ranks that hangs: all join, all but ``absent`` time out, as records."""
    at = BEGAN + timedelta(minutes=11)
    for rank in range(size):
        lines = [starting(rank, size, seed)]
        if rank != absent:
            lines += timeouts(rank, 812, at + timedelta(milliseconds=rank % 90))
        host, _ = _where(rank)
        yield from parse_stream(
            lines, job=job, host=host, now=at + timedelta(seconds=2), file=f"/l/{job}/{rank}.log"
        )
