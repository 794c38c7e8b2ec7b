"""The isolation stage driven by (record, second) pairs, and the records to drive it with."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from evidence.decisions import (
    Ack,
    AckStatus,
    Cause,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    EvidenceRef,
    Recovery,
    Request,
    RequestAction,
    Status,
    Verdict,
)
from evidence.records import Tick
from rules.isolation import IsolationState, Output, rebuild, step
from rules.policy import Mode, Policy, load
from rules.stage import Arrived

T0 = datetime(2027, 3, 14, 3, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Governed:
    policy: Policy


def rules(**changes: object) -> Governed:
    return Governed(replace(load(), **{"mode": Mode.ENFORCE, **changes}))  # type: ignore[arg-type]


def roomy(**changes: object) -> Governed:
    """Rules whose budget does not matter."""
    return rules(budget=replace(load().budget, node_absolute=100.0), **changes)


def card(host: str = "gpu17", pci: str | None = "0000:4f:00", **names: object) -> Domain:
    return Domain(kind=DomainKind.GPU, host=host, pci=pci, **names)  # type: ignore[arg-type]


def node(host: str = "gpu17") -> Domain:
    return Domain(kind=DomainKind.NODE, host=host)


def verdict(domain: Domain | None = None, incident: str = "inc-1", **fields: object) -> Verdict:
    told: dict[str, object] = {
        "id": f"v-{incident}-{fields.get('revision', 0)}",
        "incident": incident,
        "revision": 0,
        "at": T0,
        "decided_at": T0,
        "status": Status.LOCALIZED,
        "cause": Cause.GPU_MEMORY,
        "domain": domain or card(),
        "confidence": 0.97,
        "reason": "Three witnesses agree.",
        "recovery": Recovery.DRAIN_RESET,
        "hard": True,
        "evidence": (EvidenceRef(id="e1", source="kernel"),),
    }
    return Verdict(**{**told, **fields})  # type: ignore[arg-type]


def request(action: RequestAction, domain: Domain | None = None, **fields: object) -> Request:
    told: dict[str, object] = {"id": f"r-{action}", "at": T0, "by": "ana", "reason": "tested"}
    return Request(action=action, domain=domain or card(), **{**told, **fields})  # type: ignore[arg-type]


def ack(command: Command, status: AckStatus = AckStatus.DONE) -> Ack:
    return Ack(
        id="a-" + command.id,
        command=command.id,
        domain_id=command.domain_id,
        at=T0,
        scheduler="slurm",
        status=status,
    )


def tick(second: float) -> tuple[Tick, float]:
    return Tick(id=f"t{second}", at=T0 + timedelta(seconds=second)), second


class Stage:
    """The stage with its state, driven by (record, second) pairs."""

    def __init__(self, governed: Governed, state: IsolationState | None = None) -> None:
        self.rules = governed
        self.state = rebuild() if state is None else state

    def take(self, record: msgspec.Struct, second: float = 0.0) -> list[Output]:
        now = T0 + timedelta(seconds=second)
        if isinstance(record, Verdict) and record.decided_at == T0:
            record = msgspec.structs.replace(record, decided_at=now)  # as a live worker sends it
        arrived = Arrived("any", record, now)
        before = msgspec.json.encode(self.state)
        after, outputs = step(self.state, arrived, self.rules)
        assert msgspec.json.encode(self.state) == before, "a step must not change its argument"
        self.state = msgspec.json.decode(msgspec.json.encode(after), type=IsolationState)
        assert self.state == after, "a state must survive the table"
        return outputs

    def commands(self, record: msgspec.Struct, second: float = 0.0) -> list[Command]:
        return [out for out in self.take(record, second) if isinstance(out, Command)]

    def states(self, record: msgspec.Struct, second: float = 0.0) -> list[DesiredState]:
        return [out for out in self.take(record, second) if isinstance(out, DesiredState)]
