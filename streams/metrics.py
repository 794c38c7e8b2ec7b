"""What a worker says of itself to Prometheus: every stage's counts, its time, its backlog, budget.

Everything is read when it is asked for, by the server's own thread, out of numbers that the loop
writes anyway: copies that Python makes in one piece, so that nothing is locked and nothing slowed.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import faust
from faust.types import TP
from prometheus_client.metrics_core import Metric

from evidence.decisions import DomainKind
from rules.budget import in_window
from rules.desired import IsolationState
from rules.policy import Budget
from rules.tables import Rules
from streams.config import WorkerConfig
from streams.counts import Histogram
from streams.runner import Runner
from streams.stage import Stage
from vitals.families import Values, counter, gauge, histogram, info
from vitals.http import Server

__all__ = ["WorkerMetrics", "budget_of", "serve"]

#: The loop says that it goes round; when it has not for so long, all stands.
_STUCK_S = 15.0
_BEAT_S = 0.5
_STAGE = ("stage",)

#: Counters of a stage: field of StageCounts, name, what it counts.
_COUNTED = (
    ("taken", "taken", "Messages read, ticks among them"),
    ("ticks", "ticks", "Ticks read"),
    ("redelivered", "redelivered", "Messages passed over because they had been stepped before"),
    ("failed", "deadletters", "Messages that could not be decoded or stepped"),
    ("dropped", "dropped", "Outputs that name nobody they could be sent to"),
    ("too_large", "too_large", "Messages that the broker refused for their size"),
    ("writes", "state_writes", "States written to the changelog"),
    ("restores", "restores", "Recoveries of the table"),
)
#: What an output is counted under (`streams.counts.labels`), by its first word.
_OUTPUTS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "verdict": ("ringfence_verdicts", "Verdicts by cause and status", ("cause", "status")),
    "command": (
        "ringfence_commands",
        "Commands emitted, each time they were sent; as: act, dry-run or held",
        ("action", "level", "domain", "as"),
    ),
    "suspicion": ("ringfence_suspicions", "Suspicions by witness and kind", ("witness", "kind")),
}
_LIMITS: Mapping[DomainKind, Callable[[Budget], float]] = {
    DomainKind.NODE: lambda budget: budget.nodes,
    DomainKind.LINK: lambda budget: budget.link_absolute,
    DomainKind.SWITCH: lambda budget: budget.switch_absolute,
    DomainKind.RACK: lambda budget: budget.rack_absolute,
}


async def serve(
    app: faust.App,
    config: WorkerConfig,
    runners: Sequence[Runner],
    flows: Callable[[], bool],
    clock: Callable[[], datetime],
) -> None:
    """Serve the worker's figures until cancelled, and say all the while that its loop goes round.

    An address that cannot be listened on is said and no more.
    """

    def highwater(topic: str, partition: int) -> int | None:
        consumer: Any = app.consumer
        try:
            end: int | None = consumer.highwater(TP(topic, partition))
        except Exception:  # noqa: BLE001 (not ours at this moment; Faust raises what it likes)
            return None
        return end

    metrics = WorkerMetrics(config, runners, highwater, flows, clock)
    server = Server.start(config.metrics_listen, metrics)
    try:
        while True:
            metrics.alive_at = time.monotonic()
            await asyncio.sleep(_BEAT_S)
    finally:
        if server is not None:
            server.close()


def budget_of(stages: Iterable[Stage]) -> Budget | None:  # type: ignore[type-arg]
    """The budget that the isolation stage among them was bound to; None where there is none."""
    for stage in stages:
        if stage.name == "isolation":
            for given in getattr(stage.step, "args", ()):
                if isinstance(given, Rules):
                    return given.policy.budget
    return None


class WorkerMetrics:
    """A worker's figures, health and readiness.

    ``highwater`` tells the end offset of a (full topic name, partition) as the last fetch saw it,
    None before the first; ``flows`` whether records do.
    """

    def __init__(
        self,
        config: WorkerConfig,
        runners: Sequence[Runner],
        highwater: Callable[[str, int], int | None],
        flows: Callable[[], bool],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._config = config
        self._runners = tuple(runners)
        self._highwater = highwater
        self._flows = flows
        self._clock = clock
        self._budget = budget_of(runner.stage for runner in runners)
        #: When the loop last went round, in monotonic seconds; the loop itself says so.
        self.alive_at = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Whether the loop goes round, whatever Kafka is like."""
        return time.monotonic() - self.alive_at < _STUCK_S

    @property
    def ready(self) -> bool:
        """Whether the tables are recovered and our own ticks come back."""
        if not (self.healthy and self._flows()):
            return False
        times = [at for one in self._runners for at in one.time.now.copy().values()]
        # A worker that stands by has no partition, and no tick to wait for.
        return not times or (self._clock() - max(times)).total_seconds() < _STUCK_S

    def collect(self) -> Iterator[Metric]:
        """Every figure as it is now."""
        yield info("ringfence_worker", "A worker", app=self._config.group)
        yield gauge("ringfence_worker_ready", "1 while records flow", (), {(): float(self.ready)})
        yield from self._counted()
        yield from self._timed()
        yield from self._behind()
        yield from self._said()
        for runner in self._runners:
            if runner.stage.name == "isolation":
                yield from self._isolation(runner)

    def _counted(self) -> Iterator[Metric]:
        for field, name, words in _COUNTED:
            values: Values = {
                (one.stage.name,): getattr(one.counts, field) for one in self._runners
            }
            yield counter(f"ringfence_stage_{name}", words, _STAGE, values)
        for name, words, read in (
            ("queued", "Messages stepped and not yet settled", lambda one: one.counts.queued),
            ("keys", "Keys with a state", lambda one: len(one.states)),
            (
                "restore_seconds",
                "How long the last recovery took after the changelog was read",
                lambda one: one.counts.restored_s,
            ),
        ):
            values = {(one.stage.name,): float(read(one)) for one in self._runners}
            yield gauge(f"ringfence_stage_{name}", words, _STAGE, values)

    def _timed(self) -> Iterator[Metric]:
        def read(of: Callable[[Runner], Histogram]) -> dict[tuple[str, ...], tuple]:  # type: ignore[type-arg]
            found = {(one.stage.name,): of(one) for one in self._runners}
            return {name: (one.bounds, tuple(one.counts), one.total) for name, one in found.items()}

        yield histogram(
            "ringfence_stage_step_seconds",
            "Time of stepping one message (a tick that steps many keys is one)",
            _STAGE,
            read(lambda one: one.counts.steps),
        )
        yield histogram(
            "ringfence_stage_settle_seconds",
            "Time from a batch's outputs to its acknowledgement",
            _STAGE,
            read(lambda one: one.counts.settles),
        )
        yield histogram(
            "ringfence_stage_batch_messages",
            "Messages settled together",
            _STAGE,
            read(lambda one: one.counts.batches),
        )

    def _behind(self) -> Iterator[Metric]:
        lag: dict[tuple[str, ...], float | None] = {}
        delay: dict[tuple[str, ...], float | None] = {}
        now = self._clock()
        for runner in self._runners:
            stage = runner.stage.name
            for (topic, partition), taken in runner.counts.positions.copy().items():
                end = self._highwater(self._config.kafka.topic(topic), partition)
                if end is not None:
                    lag[stage, topic, str(partition)] = max(0, end - taken - 1)
            for partition, at in runner.time.now.copy().items():
                delay[stage, str(partition)] = max(0.0, (now - at).total_seconds())
        yield gauge(
            "ringfence_stage_lag_messages",
            "Messages in Kafka that the stage has not read",
            ("stage", "topic", "partition"),
            lag,
        )
        yield gauge(
            "ringfence_stage_watermark_delay_seconds",
            "How far the stage's time (the smallest of its topics' last ticks) is behind",
            ("stage", "partition"),
            delay,
        )

    def _said(self) -> Iterator[Metric]:
        plain: dict[tuple[str, ...], float | None] = {}
        told: dict[str, dict[tuple[str, ...], float | None]] = {name: {} for name in _OUTPUTS}
        for runner in self._runners:
            for (kind, *labels), count in runner.counts.outputs.copy().items():
                place = (runner.stage.name, kind)
                plain[place] = (plain.get(place) or 0) + count
                if kind in told:
                    sums = told[kind]
                    sums[tuple(labels)] = (sums.get(tuple(labels)) or 0) + count
        words = "Records that steps returned, by kind"
        yield counter("ringfence_stage_outputs", words, ("stage", "kind"), plain)
        for kind, (name, said, names) in _OUTPUTS.items():
            yield counter(name, said, names, told[kind])

    def _isolation(self, runner: Runner) -> Iterator[Metric]:
        """The budget and what is out, of the one state that the stage has."""
        states = [live.state for _, live in list(runner.states.items())]
        state = next((one for one in states if isinstance(one, IsolationState)), None)
        if state is None:
            return
        isolated: dict[tuple[str, ...], float | None] = {}
        held: dict[tuple[str, ...], float | None] = {(kind.value,): 0 for kind in _LIMITS}
        for part in state.parts.values():
            kind = part.domain.kind.value
            if part.held:
                held[kind,] = (held.get((kind,)) or 0) + 1
            if part.holds:
                place = (kind, "dry-run" if part.dry_run else "act")
                isolated[place] = (isolated.get(place) or 0) + 1
        yield gauge("ringfence_isolated", "Parts out of service", ("domain", "as"), isolated)
        yield gauge("ringfence_held", "Commands that wait for a person", ("domain",), held)
        yield gauge(
            "ringfence_unanswered_commands",
            "Commands that no scheduler has answered; as: act, dry-run or held",
            ("as",),
            _unanswered(state),
        )
        if self._budget is not None:
            yield from _budget(state, self._budget, self._clock())


def _unanswered(state: IsolationState) -> dict[tuple[str, ...], float | None]:
    found: dict[tuple[str, ...], float | None] = {("act",): 0, ("dry-run",): 0, ("held",): 0}
    for pending in state.outbox.values():
        command = pending.command
        how = "held" if command.held else "dry-run" if command.dry_run else "act"
        found[how,] = (found[how,] or 0) + 1
    return found


def _budget(state: IsolationState, budget: Budget, now: datetime) -> Iterator[Metric]:
    """Capacity that left service in the window, in nodes, links, switches and racks."""
    units: dict[tuple[DomainKind, str, str], float] = {}
    for one in in_window(state.spent, now, budget):
        price = budget.card if one.card else one.cost
        for how in ("act", "dry-run") if one.foreign else ("dry-run" if one.dry_run else "act",):
            place = (one.kind, how, one.unit)
            units[place] = min(1.0, units.get(place, 0.0) + price)
    used: dict[tuple[str, ...], float | None] = {
        (kind.value, how): 0.0 for kind in _LIMITS for how in ("act", "dry-run")
    }
    for (kind, how, _), price in units.items():
        used[kind.value, how] = (used.get((kind.value, how)) or 0.0) + price
    words = "Capacity that left service in the budget's window; as: act or dry-run"
    yield gauge("ringfence_budget_used", words, ("domain", "as"), used)
    limits: dict[tuple[str, ...], float | None] = {
        (kind.value,): limit(budget) for kind, limit in _LIMITS.items()
    }
    words = "Capacity that may leave service in one window"
    yield gauge("ringfence_budget_limit", words, ("domain",), limits)
    window: dict[tuple[str, ...], float | None] = {(): budget.window_s}
    yield gauge("ringfence_budget_window_seconds", "The budget's window", (), window)
