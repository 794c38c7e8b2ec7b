"""A month of a small cluster, made by hand, whose answers can be reckoned on paper.

Four nodes of two GPUs in two racks, 2026-03-01 to 2026-04-01. One card (`BAD`) fails three times
and is moved between; another falls off the bus once; a third job dies of its own software.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from msgspec import Struct

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Cause,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    EvidenceRef,
    Hold,
    Level,
    Says,
    Status,
    Suspicion,
    Verdict,
    Witness,
)
from evidence.records import (
    ContextKind,
    ContextRecord,
    FabricPort,
    FabricRecord,
    GpuFrame,
    GpuIdentity,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    InventoryRecord,
    KernelKind,
    KernelRecord,
    NcclKind,
    NcclRecord,
)
from evidence.wire import encode

BEGIN, END = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
SLOTS = ("0000:1b:00", "0000:9c:00")
BAD = "GPU-c01a0000-0000-0000-0000-000000000001"
LOST = "GPU-c04b0000-0000-0000-0000-000000000008"
FIRST = datetime(2026, 3, 3, 10, 5, tzinfo=UTC)

Timed = tuple[datetime, str, Struct]


def uuid(host: str, slot: int) -> str:
    number = 2 * int(host[1:]) + slot - 1
    return f"GPU-{host}{'ab'[slot]}0000-0000-0000-0000-{number:012d}"


def _day(day: int, hour: float = 0.0) -> datetime:
    return datetime(2026, 3, day, tzinfo=UTC) + timedelta(hours=hour)


def inventory(host: str, at: datetime, *uuids: str) -> Timed:
    cards = tuple(
        GpuIdentity(index=slot, pci=SLOTS[slot], uuid=one, serial=f"16521230{one[-4:]}")
        for slot, one in enumerate(uuids)
    )
    rack = "r1" if host in ("c01", "c02") else "r2"
    record = InventoryRecord(
        id=f"inv-{host}-{at:%d%H}", host=host, observed_at=at, boot_id="b1", driver="580.65.06",
        gpus=cards, rack=rack, pool="train",
    )  # fmt: skip
    return at, "inventory", record


def allocation(job: str, begin: datetime, end: datetime, *hosts: str) -> Iterator[Timed]:
    for host in hosts:
        record = ContextRecord(
            id=f"al-{job}-{host}", host=host, observed_at=begin, kind=ContextKind.ALLOCATION,
            at=begin, job=job, hosts=hosts, owner="ana",
        )  # fmt: skip
        yield begin, "context", record
        ended = ContextRecord(
            id=f"al-{job}-{host}-end", host=host, observed_at=end, kind=ContextKind.ALLOCATION,
            at=begin, until=end, ended=True, job=job, hosts=hosts, owner="ana",
        )  # fmt: skip
        yield end, "context", ended


def incident(
    number: int, host: str, card: str, slot: int, at: datetime, cause: Cause, codes: list[int],
    out: timedelta, job: str | None = None,
) -> Iterator[Timed]:  # fmt: skip
    """Kernel lines, a suspicion, two revisions of a verdict, the command, its ack, two states."""
    part = Domain(kind=DomainKind.GPU, host=host, pci=SLOTS[slot], uuid=card, index=slot)
    refs = []
    for step, code in enumerate(codes):
        when = at + timedelta(milliseconds=40 * step)
        raw = f"NVRM: Xid (PCI:{SLOTS[slot]}): {code}, pid=4711, name=python3"
        line = KernelRecord(
            id=f"x{number}-{step}", observed_at=when, at=when, raw=raw, kind=KernelKind.XID,
            code=code, host=host, pci=SLOTS[slot], pid=4711, process="python3",
            file="/var/log/kern.log", line=1200 + step, boot_id="b1",
        )  # fmt: skip
        refs.append(
            EvidenceRef(id=line.id, source="kernel", at=when, host=host, text=f"Xid {code}")
        )
        yield when, "kernel", line
    second = timedelta(seconds=1)
    suspicion = Suspicion(
        id=f"s{number}", at=at + second, observed_at=at + second, witness=Witness.COLLECTIVE,
        says=Says.ACCUSES, kind="culprit", domain=part, host=host, job=job, cause=cause,
        evidence=tuple(refs[:1]), reason="rank 3 did not join",
    )  # fmt: skip
    yield at + second, "suspicions", suspicion
    for revision, status in enumerate((Status.SUSPECTED, Status.LOCALIZED), start=1):
        when = at + revision * second
        verdict = Verdict(
            id=f"v{number}-{revision}", incident=f"i{number}", revision=revision, at=at,
            decided_at=when, status=status, cause=cause, domain=part, confidence=0.5 * revision,
            reason=f"Xid {codes[0]}", evidence=tuple(refs), host=host, job=job,
            rack="r1" if host in ("c01", "c02") else "r2", pool="train",
        )  # fmt: skip
        yield when, "verdicts", verdict
    issued = at + 3 * second
    command = Command(
        id=f"c0{number}aa", action=Action.ISOLATE, domain=part, domain_id=part.id,
        level=Level.DRAIN, cause=cause, reason=f"Xid {codes[0]}", incident=f"i{number}",
        generation=number, issued_at=issued, verdict=f"v{number}-2",
        evidence=tuple(one.id for one in refs),
    )  # fmt: skip
    yield issued, "isolation.commands", command
    hold = Hold(id=f"h{number}", cause=cause, by="ringfence", at=issued, level=Level.DRAIN)
    state = DesiredState(
        id=f"st{number}-1", domain_id=part.id, domain=part, at=issued, generation=number,
        isolated=True, level=Level.DRAIN, holds=(hold,),
    )  # fmt: skip
    yield issued, "isolation.state", state
    ack = Ack(
        id=f"a{number}", command=command.id, domain_id=part.id, at=at + 5 * second,
        scheduler="slurm", status=AckStatus.DONE, detail="drained", took_ms=840,
    )  # fmt: skip
    yield at + 5 * second, "isolation.acks", ack
    back = DesiredState(
        id=f"st{number}-2", domain_id=part.id, domain=part, at=issued + out, generation=number,
        isolated=False, note="released by ana",
    )  # fmt: skip
    yield issued + out, "isolation.state", back


def software() -> Iterator[Timed]:
    at = _day(16, 14)
    part = Domain(kind=DomainKind.JOB, job="train-8")
    verdict = Verdict(
        id="v8-1", incident="i8", revision=1, at=at, decided_at=at, status=Status.SOFTWARE,
        cause=Cause.SOFTWARE, domain=part, confidence=0.9, reason="rank 2 raised KeyError",
        job="train-8",
    )  # fmt: skip
    yield at, "verdicts", verdict
    yield from allocation("train-8", _day(16, 8), at, "c02", "c03")


def hour_of_samples() -> Iterator[Timed]:
    """The hour around the first incident on c01: the bad card heats, errs, and answers no more."""
    for minute in range(-30, 31):
        at = FIRST + timedelta(minutes=minute)
        gone = 12 <= minute < 20
        bad = GpuSnapshot(
            index=0, uuid=BAD, pci=SLOTS[0], serial="165212300001",
            status=GpuStatus.LOST if minute >= 20 else GpuStatus.OK,
            error=15 if minute >= 20 else None,
            temperature_c=62 + (minute + 30) // 2 if minute < 20 else None,
            temperature_memory_c=70 + (minute + 30) // 2 if minute < 20 else None,
            utilization_pct=(96 if minute <= 0 else 3) if minute < 20 else None,
            power_w=(640.0 if minute <= 0 else 120.0) if minute < 20 else None,
            ecc_volatile_corrected=max(0, minute + 12) ** 2 if minute < 20 else None,
            ecc_volatile_uncorrected=(2 if minute >= 0 else 0) if minute < 20 else None,
            ecc_aggregate_uncorrected=(2 if minute >= 0 else 0) if minute < 20 else None,
            remap_pending=(minute >= 1) if minute < 20 else None,
        )  # fmt: skip
        good = GpuSnapshot(
            index=1, uuid=uuid("c01", 1), pci=SLOTS[1], serial="165212300002", temperature_c=60,
            temperature_memory_c=66, utilization_pct=95 if minute <= 0 else 0, power_w=600.0,
            ecc_volatile_corrected=0, ecc_volatile_uncorrected=0, remap_pending=False,
        )  # fmt: skip
        gpus = (good,) if gone else (bad, good)
        frame = GpuFrame(
            id=f"g{minute}", host="c01", observed_at=at, seq=minute + 30, boot_id="b1",
            driver="580.65.06", ticks=(GpuTick(at=at, gpus=gpus),),
        )  # fmt: skip
        yield at, "gpu", frame


def lines_and_links() -> Iterator[Timed]:
    at = FIRST + timedelta(seconds=2)
    timeout = NcclRecord(
        id="n1", observed_at=at, at=at, kind=NcclKind.TIMEOUT, job="train-7", host="c02", rank=2,
        raw="[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=815)",
        seq=815, file="/jobs/train-7/c02.log", line=90211,
    )  # fmt: skip
    yield at, "nccl", timeout
    for minute in range(-30, 31, 5):
        at = FIRST + timedelta(minutes=minute)
        port = FabricPort(
            port=1, state="Active", counters={"symbol_error": 3 if minute >= 10 else 0},
        )  # fmt: skip
        sweep = FabricRecord(
            id=f"f{minute}", observed_at=at, at=at, subnet="ib0", guid="0xb8cef60300c01a00",
            name="c01 mlx5_0", kind="hca", host="c01", device="mlx5_0", ports=(port,),
        )  # fmt: skip
        yield at, "fabric", sweep


def history() -> list[Timed]:
    told = [
        inventory(host, BEGIN, uuid(host, 0), uuid(host, 1))
        for host in ("c01", "c02", "c03", "c04")
    ]
    spare = "GPU-5a5a0000-0000-0000-0000-000000000009"
    # The bad card goes from c01 to c03; the card that was there lies on a shelf from then on.
    told.append(inventory("c01", _day(12, 9), spare, uuid("c01", 1)))
    told.append(inventory("c03", _day(12, 9.5), BAD, uuid("c03", 1)))
    hours = timedelta(hours=1)
    memory, lost = Cause.GPU_MEMORY, Cause.GPU_LOST
    told += incident(1, "c01", BAD, 0, FIRST, memory, [48, 63, 94], 12 * hours, "train-7")
    told += incident(2, "c01", BAD, 0, _day(10, 8), memory, [48, 94], 24 * hours)
    told += incident(3, "c03", BAD, 0, _day(20, 16), memory, [48, 64, 95], 60 * hours, "train-9")
    told += incident(4, "c04", LOST, 1, _day(15, 6), lost, [79], 2 * hours)
    told += allocation("train-7", _day(3), FIRST + timedelta(seconds=30), "c01", "c02")
    told += allocation("train-9", _day(20, 10), _day(20, 16) + timedelta(minutes=2), "c03", "c04")
    told += allocation("train-5", _day(5), _day(6), "c01", "c04")
    told += software()
    told += hour_of_samples()
    told += lines_and_links()
    return sorted(told, key=lambda one: (one[0], one[1]))


def keep(told: list[Timed], partition: Callable[..., Any], fetched: type[Any]) -> None:
    """Store records as the sink does, a file a topic and day, as if each was sent at once."""
    offsets: dict[str, int] = {}
    ordered = sorted(told, key=lambda one: (one[1], one[0]))
    for (topic, _), group in groupby(ordered, lambda one: (one[1], one[0].date())):
        start = offsets.get(topic, 0)
        messages = [
            fetched(start + number, encode(record), timestamp=int(at.timestamp() * 1000))
            for number, (at, _, record) in enumerate(group)
        ]
        one = partition(topic, start)
        one.add(messages, now=0.0)
        one.flush(0.0)
        offsets[topic] = start + len(messages)
