"""A steady stream of faults on many hosts, drawn from a seed, and what comes out undisturbed.

Every record is built once, by the parsers that agents use, so that two runs are given the same
bytes. Each fault has hosts of its own: none depends on when another one is heard.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from msgspec import Struct

from collectors.kernel import parse_stream as parse_kernel
from collectors.nccl import parse_stream as parse_nccl
from evidence.decisions import Status, Verdict
from evidence.identity import digest
from evidence.records import GpuFrame, GpuSnapshot, GpuStatus, GpuTick
from ringfence.drive import Driver, Outcome
from rules.tables import Rules

__all__ = ["Fault", "Sent", "driven", "localized", "stream"]

_BUSES = (0x1A, 0x2C, 0x3D, 0x5E, 0x9C, 0xAD, 0xBE, 0xD9)
_RANKS_A_NODE = 4
_TIMEOUT_S = 600
_UNKNOWN = "pid='<unknown>', name=<unknown>"


@dataclass(frozen=True, slots=True)
class Sent:
    """One record on its way: ``after_s`` seconds from the start of the stream."""

    after_s: float
    topic: str
    key: str
    record: Struct


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to some host; ``at_once`` where one record is enough for a command."""

    host: str
    sent: tuple[Sent, ...]
    at_once: bool = False


def stream(seed: int, count: int, began: datetime, every_s: float = 0.12) -> list[Fault]:
    """``count`` faults, the first at ``began``; about three quarters of them cost a card."""
    draw = random.Random(seed)
    # A list with all kinds in it, so that each seed has some of each.
    kinds = [_KINDS[number % len(_KINDS)] for number in range(count)]
    draw.shuffle(kinds)
    return [
        kind(draw, f"rack{seed % 100:02d}-n{number:04d}", began, number * every_s)
        for number, kind in enumerate(kinds)
    ]


def driven(faults: list[Fault], began: datetime, rules: Rules) -> Outcome:
    """What all steps make of the stream without Kafka and without any disturbance."""
    driver = Driver(rules)
    for one in sorted((s for fault in faults for s in fault.sent), key=lambda one: one.after_s):
        driver.add(one.topic, one.key, one.record, began + timedelta(seconds=one.after_s))
    return driver.run()


def localized(verdicts: list[Verdict]) -> set[tuple[str, str, str, str | None]]:
    """Incident, part, cause and action of those that were localized, in their last revision."""
    last: dict[str, Verdict] = {}
    for verdict in verdicts:
        known = last.get(verdict.incident)
        if known is None or known.revision <= verdict.revision:
            last[verdict.incident] = verdict
    return {
        (one.incident, one.domain.id, one.cause, one.domain.host)
        for one in last.values()
        if one.status is Status.LOCALIZED
    }


def _kernel(
    host: str, pci: str, at: datetime, after_s: float, told: list[tuple[int, str]]
) -> Iterator[Sent]:
    """Xid lines of one card, each some milliseconds after ``at``."""
    lines = []
    for after_ms, text in told:
        stamp = at + timedelta(milliseconds=after_ms)
        lines.append(
            f"{stamp:%Y-%m-%dT%H:%M:%S},{stamp.microsecond:06d}+00:00 "
            f"NVRM: Xid (PCI:{pci}): {text}".encode()
        )
    parsed = parse_kernel(lines, host=host, now=at + timedelta(seconds=1), file="kern.log")
    for (after_ms, _), record in zip(told, parsed, strict=True):
        yield Sent(after_s + after_ms / 1000, "kernel", host, record)


def _frame(host: str, seq: int, at: datetime, **card_0: object) -> GpuFrame:
    """One tick of a node's eight cards; ``card_0`` holds on the first."""
    draw = random.Random(host)
    gpus = []
    for index, bus in enumerate(_BUSES):
        own: dict[str, object] = {
            "index": index,
            "uuid": f"GPU-{UUID(int=draw.getrandbits(128), version=4)}",
            "serial": str(1_561_000_000_000 + draw.randrange(10**9)),
            "pci": f"0000:{bus:02x}:00",
            "ecc_enabled": True,
            "ecc_volatile_uncorrected": 0,
            "ecc_aggregate_uncorrected": 0,
            "remapped_uncorrectable": 0,
            "remap_pending": False,
            "remap_failure": False,
            "recovery_action": 0,
            "temperature_c": 57,
        }
        gpus.append(GpuSnapshot(**own | (card_0 if index == 0 else {})))  # type: ignore[arg-type]
    return GpuFrame(
        id=digest("gpu", host, seq, at.isoformat()),
        host=host,
        observed_at=at,
        seq=seq,
        ticks=(GpuTick(at=at, gpus=tuple(gpus)),),
        boot_id=str(UUID(int=draw.getrandbits(128), version=4)),
        driver="570.172.08",
    )


def _off_the_bus(draw: random.Random, host: str, began: datetime, after_s: float) -> Fault:
    pci = f"0000:{draw.choice(_BUSES):02x}:00"
    told = [(0, f"79, {_UNKNOWN}, GPU has fallen off the bus.")]
    at = began + timedelta(seconds=after_s)
    return Fault(host, tuple(_kernel(host, pci, at, after_s, told)), at_once=True)


def _lost_to_nvml(_draw: random.Random, host: str, began: datetime, after_s: float) -> Fault:
    at = began + timedelta(seconds=after_s)
    frame = _frame(host, 1, at, status=GpuStatus.LOST, error=15)
    return Fault(host, (Sent(after_s, "gpu", host, frame),), at_once=True)


def _double_bit(draw: random.Random, host: str, began: datetime, after_s: float) -> Fault:
    """48, 63 and 94 lines, and NVML's counters that tell the same: two witnesses."""
    at = began + timedelta(seconds=after_s)
    address, pid = draw.randrange(1 << 32, 1 << 37), draw.randrange(2_000, 1 << 20)
    told = [
        (0, f"48, {_UNKNOWN}, An uncorrectable double bit error (DBE) has been detected on GPU "
            f"in the framebuffer at physAddr {address:#x} partition 3, subpartition 0."),
        (24, f"63, {_UNKNOWN}, Row Remapper: New row ({address:#018x}) marked for remapping, "
             "reset gpu to activate."),
        (33, f"94, {_UNKNOWN}, Contained: SM (0x2). RST: No, D-RST: No"),
        (61, f"94, pid={pid}, name=python3.12, Ch 0000000a"),
    ]  # fmt: skip
    before = _frame(host, 1, at - timedelta(seconds=1))
    grown = _frame(
        host,
        2,
        at + timedelta(milliseconds=80),
        ecc_volatile_uncorrected=1,
        ecc_aggregate_uncorrected=1,
        remapped_uncorrectable=1,
        remap_pending=True,
    )
    pci = f"0000:{_BUSES[0]:02x}:00"
    sent = (
        Sent(after_s, "gpu", host, before),
        *_kernel(host, pci, at, after_s, told),
        Sent(after_s + 0.08, "gpu", host, grown),
    )
    return Fault(host, sent)


def _out_of_range(draw: random.Random, host: str, began: datetime, after_s: float) -> Fault:
    """An application's fault: no card is to be blamed."""
    at, pid = began + timedelta(seconds=after_s), draw.randrange(2_000, 1 << 20)
    told = [
        (0, f"13, pid={pid}, name=python3.12, Graphics SM Warp Exception on (GPC 2, TPC 1, "
            "SM 1): Out Of Range Address"),
        (7, f"43, pid={pid}, name=python3.12, Ch 00000012"),
    ]  # fmt: skip
    pci = f"0000:{draw.choice(_BUSES):02x}:00"
    return Fault(host, tuple(_kernel(host, pci, at, after_s, told)))


def _hung_job(draw: random.Random, host: str, began: datetime, after_s: float) -> Fault:
    """One rank's card fails, and all other ranks time out waiting for it."""
    broken = _double_bit(draw, host, began - timedelta(seconds=_TIMEOUT_S), after_s)
    at = began + timedelta(seconds=after_s)
    job, size = f"train-{host}", 2 * _RANKS_A_NODE
    sent = list(broken.sent)
    for rank in range(size):
        where = host if rank < _RANKS_A_NODE else f"{host}-b"
        lines = [_joined(where, rank, size, digest("comm", host)[:8])]
        lines += _timed_out(rank, at + timedelta(milliseconds=rank)) if rank else []
        parsed = parse_nccl(
            lines, job=job, host=where, now=at + timedelta(seconds=1), file=f"/l/{job}/{rank}"
        )
        sent += [Sent(after_s + 0.2, "nccl", job, record) for record in parsed]
    return Fault(host, tuple(sent))


def _joined(host: str, rank: int, size: int, comm: str) -> bytes:
    index = rank % _RANKS_A_NODE
    return (
        f"{host}:{31_000 + rank}:{32_000 + rank} [{index}] NCCL INFO ncclCommInitRank comm "
        f"0x55f1{rank:08x} rank {rank} nranks {size} cudaDev {index} nvmlDev {index} busId "
        f"{_BUSES[index] << 12:x} commId 0x{comm}00000000 - Init COMPLETE\n"
    ).encode()


def _timed_out(rank: int, at: datetime) -> list[bytes]:
    stamp = f"[rank{rank}]:[E{at:%m%d %H:%M:%S}.{at.microsecond:06d}{rank:03d}"
    return [
        (
            f"{stamp} ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=733, OpType=ALLREDUCE, NumelIn=2097152, NumelOut=2097152, "
            f"Timeout(ms)={_TIMEOUT_S * 1000}) ran for {_TIMEOUT_S * 1000 + 9 + rank} "
            "milliseconds before timing out.\n"
        ).encode(),
        (
            f"{stamp} ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  "
            "failure detected by watchdog at work sequence id: 733 PG status: last enqueued "
            "work: 734, last completed work: 732\n"
        ).encode(),
    ]


_Kind = Callable[[random.Random, str, datetime, float], Fault]
_KINDS: tuple[_Kind, ...] = (
    _off_the_bus,
    _off_the_bus,
    _lost_to_nvml,
    _double_bit,
    _double_bit,
    _hung_job,
    _out_of_range,
)
