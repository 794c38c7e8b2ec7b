"""What a worker's metrics say of what its stages did."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from evidence.decisions import (
    Action,
    Cause,
    Command,
    Domain,
    DomainKind,
    Hold,
    Level,
)
from evidence.records import KernelKind, KernelRecord
from evidence.topics import CLUSTER_KEY
from evidence.wire import encode
from rules.budget import Spent
from rules.desired import IsolationState, Part
from rules.outbox import Pending
from rules.tables import load
from streams.config import WorkerConfig
from streams.metrics import WorkerMetrics
from streams.runner import Runner
from streams.stages import bind
from streams.states import Live, States
from streams.ticks import TICK_KEY, tick

NOW = datetime(2026, 11, 5, 6, 7, 8, tzinfo=UTC)
PCI = "0000:5e:00"


class Wire:
    """Takes everything."""

    async def send(self, _message: Any) -> Any:
        sent = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent

    async def keep(self, *_: Any) -> None: ...

    async def fail(self, error: BaseException) -> None:
        raise error


@dataclass
class Message:
    key: bytes | None
    value: bytes | None
    offset: int
    partition: int = 0
    timestamp: float = NOW.timestamp()
    headers: list[tuple[str, bytes]] = field(default_factory=list)


def runner(name: str) -> Runner:
    (stage,) = bind((name,), load())
    return Runner(stage, States(stage, 1 << 20), Wire(), batch_size=64)


def take(stage: Runner, *messages: tuple[str, Message]) -> None:
    async def play() -> None:
        task = asyncio.create_task(stage.settle())

        async def ack() -> None: ...

        for topic, message in messages:
            await stage.take(topic, message, ack)
        for _ in range(100):
            await asyncio.sleep(0)
        assert stage.counts.queued == 0
        task.cancel()

    asyncio.run(play())


def metrics(*stages: Runner, end: int | None = 10, flows: bool = True) -> WorkerMetrics:
    return WorkerMetrics(WorkerConfig(), stages, lambda *_: end, lambda: flows, lambda: NOW)


def samples(one: WorkerMetrics) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, in order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in one.collect()
        for sample in family.samples
    }


def xid(offset: int) -> tuple[str, Message]:
    record = KernelRecord(
        id=f"x{offset}", observed_at=NOW, at=NOW, kind=KernelKind.XID, host="gx-8", code=79,
        raw=f"NVRM: Xid (PCI:{PCI}): 79, GPU has fallen off the bus.", pci=PCI,
    )  # fmt: skip
    return "kernel", Message(b"gx-8", encode(record), offset)


def ticks(*topics: str, at: datetime) -> Iterable[tuple[str, Message]]:
    for topic in topics:
        yield topic, Message(TICK_KEY, encode(tick(at, topic)), 4, timestamp=at.timestamp())


def test_a_stage_tells_what_it_read_and_what_came_of_it() -> None:
    host = runner("host")
    take(host, xid(1), xid(1), ("kernel", Message(b"gx-8", b"junk", 2)))
    found = samples(metrics(host))
    assert found["ringfence_stage_taken_total", "host"] == 3
    assert found["ringfence_stage_redelivered_total", "host"] == 1
    assert found["ringfence_stage_deadletters_total", "host"] == 1
    assert found["ringfence_stage_keys", "host"] == 1
    assert found["ringfence_stage_queued", "host"] == 0
    assert found["ringfence_verdicts_total", "gpu-lost", "localized"] == 1
    assert found["ringfence_stage_outputs_total", "verdict", "host"] == 1
    assert found["ringfence_stage_step_seconds_count", "host"] == 3
    assert found["ringfence_stage_step_seconds_bucket", "+Inf", "host"] == 3
    assert 0 < found["ringfence_stage_step_seconds_sum", "host"] < 3
    assert found["ringfence_stage_batch_messages_sum", "host"] == 3


def test_it_tells_how_far_it_is_behind_in_messages_and_in_time() -> None:
    host = runner("host")
    late = NOW - timedelta(seconds=42)
    take(host, xid(7), *ticks("gpu", "suspicions", "context", "inventory", "kernel", at=late))
    found = samples(metrics(host, end=20))
    assert found["ringfence_stage_lag_messages", "0", "host", "gpu"] == 15
    assert found["ringfence_stage_watermark_delay_seconds", "0", "host"] == 42
    assert found["ringfence_stage_ticks_total", "host"] == 5
    unknown = samples(metrics(host, end=None))
    assert not [name for name, *_ in unknown if name == "ringfence_stage_lag_messages"]


def test_a_worker_is_ready_while_its_ticks_come_back() -> None:
    host = runner("host")
    assert metrics(host).ready
    assert not metrics(host, flows=False).ready
    topics = ("gpu", "suspicions", "context", "inventory", "kernel")
    take(host, *ticks(*topics, at=NOW - timedelta(seconds=60)))
    assert not metrics(host).ready
    take(host, *ticks(*topics, at=NOW))
    assert metrics(host).ready
    stuck = metrics(host)
    stuck.alive_at = time.monotonic() - 3600
    assert (stuck.healthy, stuck.ready) == (False, False)


def test_a_worker_tells_nothing_of_an_isolation_stage_it_does_not_have() -> None:
    names = {name for name, *_ in samples(metrics(runner("job")))}
    assert not {name for name in names if name.startswith(("ringfence_budget", "ringfence_held"))}


def part(host: str, **more: Any) -> Part:
    return Part(domain=Domain(kind=DomainKind.NODE, host=host), **more)


def test_the_isolation_stage_tells_what_is_out_what_waits_and_what_the_budget_has_left() -> None:
    isolation = runner("isolation")
    hold = Hold(id="h", cause=Cause.NODE, by="ringfence", at=NOW)
    node = Domain(kind=DomainKind.NODE, host="gx-1")
    command = Command(
        id="c", action=Action.ISOLATE, domain=node, domain_id=node.id, level=Level.DRAIN,
        cause=Cause.NODE, reason="r", incident="i", generation=1, issued_at=NOW,
    )  # fmt: skip

    def spent(unit: str, ago_s: float, *, dry: bool = False, foreign: bool = False) -> Spent:
        at = NOW - timedelta(seconds=ago_s)
        return Spent(at=at, command="c", domain_id=f"node:{unit}", kind=DomainKind.NODE, unit=unit,
                     dry_run=dry, foreign=foreign)  # fmt: skip

    state = IsolationState(
        restored=True,
        parts={
            "node:gx-1": part("gx-1", holds=(hold,)),
            "node:gx-2": part("gx-2", holds=(hold,), dry_run=True),
            "node:gx-3": part("gx-3", held="Budget: 1 of 1"),
            "node:gx-4": part("gx-4"),
        },
        outbox={"c": Pending(command=command, next_at=NOW, wait_s=5)},
        spent=(
            spent("gx-1", 10), spent("gx-1", 20), spent("gx-2", 5, dry=True),
            spent("gx-9", 5, foreign=True), spent("gx-0", 7200),
        ),
    )  # fmt: skip
    isolation.states.remember(CLUSTER_KEY, Live(0, state))
    found = samples(metrics(isolation))
    assert found["ringfence_isolated", "act", "node"] == 1
    assert found["ringfence_isolated", "dry-run", "node"] == 1
    assert found["ringfence_held", "node"] == 1
    assert found["ringfence_unanswered_commands", "act"] == 1
    assert found["ringfence_budget_used", "act", "node"] == 2
    assert found["ringfence_budget_used", "dry-run", "node"] == 2
    assert found["ringfence_budget_limit", "node"] == 1
    assert found["ringfence_budget_window_seconds",] == 3600


def test_reading_the_figures_while_the_stage_runs_breaks_neither() -> None:
    host = runner("host")

    async def play() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(host.settle())
        one = metrics(host)
        scrapes = [loop.run_in_executor(None, samples, one) for _ in range(20)]

        async def ack() -> None: ...

        for number in range(400):
            topic, message = xid(number)
            message.key = f"gx-{number}".encode()
            await host.take(topic, message, ack)
            await asyncio.sleep(0)
        await asyncio.gather(*scrapes)
        task.cancel()

    asyncio.run(play())
    assert samples(metrics(host))["ringfence_stage_taken_total", "host"] == 400
