"""Times that no clock shows: years 1 and 9999 must not stop a stage, whatever carries them."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from msgspec import Struct

from evidence.decisions import (
    Domain,
    DomainKind,
    Says,
    Suspicion,
    Witness,
)
from evidence.records import (
    ContextKind,
    ContextRecord,
    GpuFrame,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    KernelKind,
    KernelRecord,
    NcclKind,
    NcclRecord,
)
from ringfence.drive import Driver
from rules import tables

NOW = datetime(2026, 5, 5, 3, 11, tzinfo=UTC)
DAWN, END = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
RULES = tables.load(None, None)
HOST, PCI, JOB = "trn-3", "0000:0e:00", "j"


def kernel(at: datetime, **fields: object) -> KernelRecord:
    plain = {"kind": KernelKind.XID, "host": HOST, "pci": PCI, "observed_at": at, "raw": "r"}
    return KernelRecord(id=f"k{at}{fields}", at=at, **(plain | fields))  # type: ignore[arg-type]


def gpu(first: datetime, then: datetime) -> GpuFrame:
    before = GpuSnapshot(index=0, pci=PCI, ecc_volatile_uncorrected=0, temperature_c=40)
    after = GpuSnapshot(
        index=0, pci=PCI, status=GpuStatus.LOST, error=15, remap_failure=True, temperature_c=97
    )
    ticks = (GpuTick(at=first, gpus=(before,)), GpuTick(at=then, gpus=(after,)))
    return GpuFrame(id="f", host=HOST, observed_at=first, seq=1, ticks=ticks)


def stories(first: datetime, then: datetime) -> Iterator[list[tuple[str, str, Struct]]]:
    for code in (13, 31, 45, 48, 63, 64, 74, 79, 94, 95, 119, 149, 154, 999):
        others = (kernel(then, code=45), kernel(then, kind=KernelKind.AER, pci="0000:00:00"))
        yield [("kernel", HOST, one) for one in (kernel(first, code=code, link=1), *others)]
    yield [("gpu", HOST, gpu(first, then))]
    for kind in ContextKind:
        for until in (None, then):
            planned = ContextRecord(
                id="c", host=HOST, observed_at=first, kind=kind, at=first, until=until, pci=PCI
            )
            yield [("context", HOST, planned), ("kernel", HOST, kernel(then, code=79))]
    for one in NcclKind:
        lines = [
            NcclRecord(
                id=f"n{rank}", observed_at=at, at=at, raw="r", kind=one, job=JOB, rank=rank,
                host=HOST, seq=3, op="ALLREDUCE", timeout_ms=600_000, elapsed_ms=2**40,
                comm="0x1", comm_rank=rank, comm_size=4, status=12, exit_code=-9,
            )
            for rank, at in enumerate((first, then))
        ]  # fmt: skip
        yield [("nccl", JOB, line) for line in lines]
    named = Domain(kind=DomainKind.GPU, host=HOST, pci=PCI)
    said = Suspicion(
        id="s", at=first, observed_at=then, witness=Witness.COLLECTIVE, says=Says.ACCUSES,
        kind="hang", domain=named, host=HOST, job=JOB,
    )  # fmt: skip
    yield [("suspicions", HOST, said), ("kernel", HOST, kernel(then, code=48))]


@pytest.mark.parametrize(("first", "then"), list(itertools.product((DAWN, END, NOW), repeat=2)))
def test_no_time_stops_a_stage_or_hides_what_is_plain_to_see(
    first: datetime, then: datetime
) -> None:
    for story in stories(first, then):
        driver = Driver(RULES)
        for topic, key, record in story:
            driver.add(topic, key, record, NOW)
        lost = kernel(NOW, code=79, pci="0000:9f:00", host="trn-4")
        driver.add("kernel", "trn-4", lost, NOW)
        found = {(one.domain.host, one.domain.pci) for one in driver.run().verdicts}
        assert ("trn-4", "0000:9f:00") in found
