"""A node of eight GPUs to write host-stage cases against: seconds in, verdicts out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Struct

from evidence.decisions import (
    Cause,
    Domain,
    DomainKind,
    Says,
    Status,
    Suspicion,
    Verdict,
    Witness,
)
from evidence.identity import digest
from evidence.records import (
    ContextKind,
    ContextRecord,
    GpuEvent,
    GpuEventKind,
    GpuFrame,
    GpuIdentity,
    GpuSnapshot,
    GpuTick,
    InventoryRecord,
    KernelKind,
    KernelRecord,
    Tick,
)
from rules import host, tables
from rules.stage import Arrived
from rules.tables import Rules

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
HOST = "gpu-r07-n3"
BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
PCI = tuple(f"0000:{bus:02x}:00" for bus in BUSES)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass(slots=True)
class Records:
    """Builds records of one node; GPUs are numbers, times are seconds since the start."""

    made: int = 0

    def kernel(self, seconds: float, gpu: int = 0, **fields: Any) -> KernelRecord:
        self.made += 1
        fields = {"kind": KernelKind.XID, "pci": PCI[gpu], "host": HOST, "seq": self.made} | fields
        what = fields.get("message", "")
        raw = f"NVRM: Xid (PCI:{fields['pci']}): {fields.get('code')}, {what}"
        return KernelRecord(
            id=digest("kernel", seconds, sorted(map(str, fields.items()))),
            observed_at=at(seconds),
            at=at(seconds),
            raw=raw,
            **fields,
        )

    def frame(self, *ticks: tuple[float, dict[int, dict[str, Any]]], **fields: Any) -> GpuFrame:
        """A frame; each tick is (seconds, what differs by GPU)."""
        self.made += 1
        return GpuFrame(
            id=digest("gpu", self.made),
            host=HOST,
            observed_at=at(ticks[-1][0]),
            seq=self.made,
            ticks=tuple(
                GpuTick(at=at(seconds), gpus=tuple(_snapshot(n, differs) for n in range(8)))
                for seconds, differs in ticks
            ),
            **fields,
        )

    def event(
        self,
        seconds: float,
        gpu: int = 0,
        kind: GpuEventKind = GpuEventKind.XID,
        data: int | None = None,
        **fields: Any,
    ) -> GpuFrame:
        """A frame of one NVML event, as the agent sends it between two ticks."""
        self.made += 1
        named = {"index": gpu, "uuid": uuid(gpu), "pci": PCI[gpu]} | fields
        event = GpuEvent(at=at(seconds), kind=kind, data=data, **named)
        return GpuFrame(
            id=digest("event", seconds, gpu, kind, data),
            host=HOST,
            observed_at=at(seconds),
            seq=self.made,
            ticks=(GpuTick(at=at(seconds), events=(event,)),),
        )

    def chain(self, start: float = 10, gpu: int = 0) -> list[Struct]:
        """A memory fault as the driver prints it: 48, 63, then 94 for each channel."""
        codes = (48, 63, 94, 94, 94)
        return [self.kernel(start + n / 100, gpu, code=code) for n, code in enumerate(codes)]

    def quiet(self) -> list[Struct]:
        """A node at rest: kernel log read, NVML read."""
        noise = {"kind": KernelKind.OTHER, "code": None, "pci": None, "message": "systemd started"}
        return [self.inventory(0), self.kernel(1, **noise), self.frame((2, {}))]

    def sxid(self, seconds: float, code: int, severity: str | None, **more: Any) -> KernelRecord:
        more = {"pci": "0000:a9:00", "severity": severity, "link": 30} | more
        return self.kernel(seconds, kind=KernelKind.SXID, code=code, **more)

    def port(self, seconds: float, severity: str, pci: str = "0000:1a:02") -> KernelRecord:
        """An AER event of the port above a device."""
        return self.kernel(
            seconds,
            kind=KernelKind.AER,
            code=None,
            pci=pci,
            severity=severity,
            message="PCIe Bus Error: Surprise Down",
        )

    def service(self, seconds: float, error: int | None) -> GpuFrame:
        """A frame in which NVML as a whole did not answer."""
        self.made += 1
        tick = GpuTick(at=at(seconds), error=error)
        return GpuFrame(
            id=digest("gpu", self.made),
            host=HOST,
            observed_at=at(seconds),
            seq=self.made,
            ticks=(tick,),
        )

    def context(self, seconds: float, kind: ContextKind, **fields: Any) -> ContextRecord:
        self.made += 1
        if (gpu := fields.pop("gpu", None)) is not None:
            fields["pci"] = PCI[gpu]
        if (until := fields.pop("until_s", None)) is not None:
            fields["until"] = at(until)
        return ContextRecord(
            id=digest("context", self.made),
            host=HOST,
            observed_at=at(seconds),
            kind=kind,
            at=at(fields.pop("at_s", seconds)),
            **({"by": "ada"} | fields),
        )

    def suspicion(self, seconds: float, gpu: int | None = 0, **fields: Any) -> Suspicion:
        self.made += 1
        domain = fields.pop("domain", None)
        if domain is None:
            domain = Domain(kind=DomainKind.JOB, job="train-7")
            if gpu is not None:
                domain = Domain(kind=DomainKind.GPU, host=HOST, pci=PCI[gpu], rank=8 + gpu)
        stalled = fields.pop("stalled_s", seconds)
        plain: dict[str, Any] = {
            "witness": Witness.COLLECTIVE,
            "says": Says.ACCUSES,
            "kind": "missing-rank",
            "weight": 0.3,
            "reason": "rank 8 never joined the collective that all others waited in",
            "job": "train-7",
            "cause": Cause.UNKNOWN,
            "status": Status.SUSPECTED,
        }
        return Suspicion(
            id=digest("suspicion", self.made),
            at=at(stalled),
            observed_at=at(seconds),
            domain=domain,
            host=HOST,
            **(plain | fields),
        )

    def tick(self, seconds: float) -> Tick:
        return Tick(id=f"tick-{seconds}", at=at(seconds))

    def inventory(self, seconds: float = 0, **fields: Any) -> InventoryRecord:
        self.made += 1
        gpus = tuple(
            GpuIdentity(index=n, pci=PCI[n], uuid=uuid(n), serial=f"16540000000{n}")
            for n in range(8)
        )
        plain: dict[str, Any] = {"gpus": gpus, "rack": "r07", "leaf": "leaf-2", "pool": "training"}
        return InventoryRecord(
            id=digest("inventory", self.made),
            host=HOST,
            observed_at=at(seconds),
            **(plain | fields),
        )


def uuid(gpu: int) -> str:
    return f"GPU-5e0d9c1a-0000-4000-8000-00000000000{gpu}"


def _snapshot(gpu: int, differs: dict[int, dict[str, Any]]) -> GpuSnapshot:
    plain: dict[str, Any] = {
        "index": gpu,
        "uuid": uuid(gpu),
        "pci": PCI[gpu],
        "ecc_volatile_uncorrected": 0,
        "ecc_aggregate_uncorrected": 3,
        "remap_pending": False,
        "remap_failure": False,
        "sram_threshold_exceeded": False,
        "recovery_action": 0,
        "temperature_c": 55,
    }
    return GpuSnapshot(**(plain | differs.get(gpu, {}) | differs.get(-1, {})))


TOPICS: dict[type, str] = {
    KernelRecord: "kernel",
    GpuFrame: "gpu",
    Suspicion: "suspicions",
    ContextRecord: "context",
    InventoryRecord: "inventory",
    Tick: "kernel",
}


@dataclass(slots=True)
class Node:
    """Feeds one host's records to the real steps and keeps what came out."""

    rules: Rules
    state: host.HostState = field(default_factory=host.HostState)
    verdicts: list[Verdict] = field(default_factory=list)
    taken: list[Arrived] = field(default_factory=list)

    def take(self, record: Struct, seconds: float | None = None) -> list[Verdict]:
        """One record, arriving at ``seconds`` (None: when it was observed)."""
        when = at(seconds) if seconds is not None else getattr(record, "observed_at", None)
        assert when is not None
        return self.arrive(Arrived(TOPICS[type(record)], record, when))

    def arrive(self, arrived: Arrived) -> list[Verdict]:
        self.taken.append(arrived)
        self.state, said = host.step(self.state, arrived, self.rules)
        self.verdicts += said
        return said

    @staticmethod
    def at(seconds: float) -> datetime:
        return at(seconds)

    def tick(self, seconds: float) -> list[Verdict]:
        return self.take(Tick(id=f"tick-{seconds}", at=at(seconds)), seconds)

    def feed(self, records: Iterable[Struct]) -> None:
        for record in records:
            self.take(record)

    def run_on(self) -> None:
        """Let time run until nothing waits any more."""
        for _ in range(100):
            due = host.settles(self.state)
            if due is None:
                return
            self.arrive(Arrived("kernel", Tick(id=f"tick-{due}", at=due), due))
        raise AssertionError("the host stage is never done")

    def latest(self) -> list[Verdict]:
        return list({verdict.incident: verdict for verdict in self.verdicts}.values())

    def told(self) -> list[str]:
        """The last revision of each incident in short: ``localized gpu-memory gpu0``."""
        return sorted(short(verdict) for verdict in self.latest())


def short(verdict: Verdict) -> str:
    domain = verdict.domain
    part = str(domain.kind)
    if domain.kind in (DomainKind.GPU, DomainKind.NVLINK, DomainKind.MIG):
        number = PCI.index(domain.pci) if domain.pci in PCI else domain.pci
        part += str(number)
    if domain.link is not None:
        part += f"/{domain.link}"
    return f"{verdict.status} {verdict.cause} {part}"


@pytest.fixture(scope="session")
def rules() -> Rules:
    return tables.load()


@pytest.fixture
def records() -> Records:
    return Records()


@pytest.fixture
def node(rules: Rules) -> Node:
    return Node(rules)


@pytest.fixture
def new_node(rules: Rules) -> Callable[[], Node]:
    return lambda: Node(rules)
