"""Decisions a second of the bare steps: no Kafka, no Faust, no decoding."""

import dataclasses
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import load_gpu
import load_kernel
import load_nccl
from figure import Figure, cpu_rates
from msgspec.structs import replace
from rig import Rig

from evidence.decisions import Cause, Domain, DomainKind, Status, Verdict
from evidence.records import GpuFrame, KernelRecord, NcclRecord, Tick
from rules import host, isolation, job
from rules.policy import Mode
from rules.stage import Arrived
from rules.tables import Rules, load

__all__ = ["measure"]

_AT = load_kernel.BEGAN + timedelta(hours=1)


def measure(rig: Rig) -> Iterator[Figure]:
    """Each stage's step on the records it mostly meets, and on those that make it decide."""
    rules = load()
    runs = 1 if rig.quick else 5
    few = 10 if rig.quick else 1
    snapshots = load_gpu.GPUS * load_gpu.TICKS
    frames = list(load_gpu.frames(16, 160 // (4 * few), _AT))
    noise = load_kernel.records(load_kernel.noise(20_000 // few), "hgx100")
    chains = [
        load_kernel.chain(load_gpu.host_name(number), load_kernel.BUSES[0], _AT, number)
        for number in range(400 // few)
    ]
    world = list(load_nccl.job_records("train-1", 1024 // few, 6, 1))
    yield Figure(
        "host step, quiet GPU frames",
        "snapshots/s",
        cpu_rates(lambda: snapshots * _frames(frames, rules), runs),
        note=f"{snapshots} snapshots a frame, already decoded; a second of one core",
    )
    yield Figure(
        "host step, kernel records of no interest",
        "records/s",
        cpu_rates(lambda: _kernel(noise, rules), runs),
        note="a second of one core",
    )
    yield Figure(
        "host step, chains of 48, 63 and nine 94",
        "records/s",
        cpu_rates(lambda: _chains(chains, rules), runs),
        note="each chain on a host of its own, with the tick that judges it",
    )
    yield Figure(
        "job step, a job that hangs",
        "records/s",
        cpu_rates(lambda: _job(world, rules), runs),
        note=f"{len(world)} records of {1024 // few} ranks, one judgement",
    )
    yield Figure(
        "isolation step, verdicts acted upon",
        "verdicts/s",
        cpu_rates(lambda: _isolation(500 // few, 1, rules), runs),
        note=f"the state grows to {500 // few} isolated parts",
    )
    yield Figure(
        "isolation step, verdicts told again",
        "verdicts/s",
        cpu_rates(lambda: _isolation(50, 4000 // few, rules), runs),
        note="later revisions of 50 incidents that were acted upon",
    )


def _frames(frames: list[GpuFrame], rules: Rules) -> int:
    states: dict[str, host.HostState] = {}
    for frame in frames:
        state = states.get(frame.host) or host.HostState()
        states[frame.host], _ = host.step(state, Arrived("gpu", frame, frame.observed_at), rules)
    return len(frames)


def _kernel(records: list[KernelRecord], rules: Rules) -> int:
    state = host.HostState()
    for record in records:
        state, _ = host.step(state, Arrived("kernel", record, _AT), rules)
    return len(records)


def _chains(chains: list[list[KernelRecord]], rules: Rules) -> int:
    done = 0
    for records in chains:
        state = host.HostState()
        for record in records:
            state, _ = host.step(state, Arrived("kernel", record, _AT), rules)
        said = _tick(host.step, host.due, state, rules)
        assert said, "a chain makes a verdict"
        done += len(records)
    return done


def _job(records: list[NcclRecord], rules: Rules) -> int:
    state = job.JobState()
    for record in records:
        state, _ = job.step(state, Arrived("nccl", record, _AT), rules)
    assert _tick(job.step, job.due, state, rules), "a hang makes a suspicion"
    return len(records)


def _tick(
    step: Callable[..., Any], due: Callable[..., datetime | None], state: object, rules: Rules
) -> list[Any]:
    at = due(state)
    assert at is not None
    said: list[Any] = step(state, Arrived("", Tick(id="tick", at=at), at), rules)[1]
    return said


def _isolation(parts: int, times: int, rules: Rules) -> int:
    """``times`` rounds of one verdict a part; all but the first are about what is out already."""
    roomy = _roomy(rules)
    state = isolation.rebuild()
    for turn in range(times):
        for number in range(parts):
            state, _ = isolation.step(
                state, Arrived("verdicts", _verdict(number, turn), _AT), roomy
            )
    return parts * times


def _roomy(rules: Rules) -> Rules:
    """The rules with enforcement and room for any number of nodes."""
    policy = rules.policy
    budget = dataclasses.replace(policy.budget, node_absolute=1e9)
    policy = dataclasses.replace(policy, mode=Mode.ENFORCE, budget=budget)
    return dataclasses.replace(rules, policy=policy)


_VERDICT = Verdict(
    id="v",
    incident="i",
    revision=1,
    at=_AT,
    decided_at=_AT,
    status=Status.LOCALIZED,
    cause=Cause.GPU_LOST,
    domain=Domain(kind=DomainKind.GPU, host="h", pci="0000:18:00"),
    confidence=0.95,
    reason="GPU 0000:18:00 left the bus (Xid 79).",
    hard=True,
)


def _verdict(number: int, revision: int) -> Verdict:
    name = load_gpu.host_name(number)
    return replace(
        _VERDICT,
        id=f"v{number}.{revision}",
        incident=f"i{number}",
        revision=revision + 1,
        domain=Domain(
            kind=DomainKind.GPU,
            host=name,
            pci="0000:18:00",
            uuid=f"GPU-{number:08x}-0001-4002-8003-000000000000",
        ),
    )
