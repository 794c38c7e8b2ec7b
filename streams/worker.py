"""Runs one worker until it is told to stop: start check, Faust, ticks, a watch over both.

It ends with an exception rather than linger: started again, it resumes from what is committed.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import faust
import uvloop

from evidence.wire import encode
from streams.app import build
from streams.config import WorkerConfig, WorkerCrashed
from streams.metrics import serve
from streams.restore import desired_states, out_by_commands
from streams.runner import Runner
from streams.stage import Stage
from streams.stall import Sparing, Stall
from streams.tables import TableStore
from streams.ticks import TICK_KEY, Place, TickTimes, is_ticked, tick
from streams.topics import Prepared, prepare

__all__ = ["WorkerConfig", "run"]

_LOG = logging.getLogger(__name__)
_NOISY = ("faust", "mode", "aiokafka", "kafka", "streams.app", "streams.consumer")
#: How often is looked whether a key is due: what a step just asked for is not known before.
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.005, 0.05
#: They repeat themselves ten times a second while a broker is gone.
_REPEATING = (
    "aiokafka",
    "aiokafka.conn",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
    "aiokafka.producer.sender",
)


def run(
    config: WorkerConfig,
    stages: Sequence[Stage[Any]] | None = None,
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    at_point: Callable[[str], None] = lambda _point: None,
) -> None:
    """Run a worker until SIGTERM or SIGINT.

    ``stages`` None takes those that ``config`` names, with its thresholds and policy. Raises
    TopicsError before anything runs when the topics are not as they must be, and WorkerCrashed
    when the worker cannot go on (the broker gone for too long, its own ticks not coming back): the
    caller exits non-zero and the worker is started again.
    """
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in _REPEATING:
        logging.getLogger(name).addFilter(Sparing())
    own = stages is None
    stages = stages or _stages(config)
    prepared = prepare(config, stages)
    if own:
        stages = _begun(config, stages)
    config.state_dir.mkdir(parents=True, exist_ok=True)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # Faust's threads make loops too
    ending: list[threading.Timer] = []
    error = asyncio.run(_serve(config, stages, prepared, clock, at_point, ending))
    if all(one.daemon or one is threading.main_thread() for one in threading.enumerate()):
        for timer in ending:
            timer.cancel()
    if error is not None:
        raise WorkerCrashed(f"The worker stopped: {error}") from error


def _stages(config: WorkerConfig) -> list[Stage[Any]]:
    from rules.tables import load  # noqa: PLC0415 (a worker with stages of its own needs no rules)
    from streams.stages import bind  # noqa: PLC0415

    return bind(config.stages, load(config.thresholds, config.policy))


def _begun(config: WorkerConfig, stages: Sequence[Stage[Any]]) -> list[Stage[Any]]:
    """The stages, isolation told what is out already; once its topics are known to be there."""
    from streams.stages import restored  # noqa: PLC0415 (see above)

    if all(stage.name != "isolation" for stage in stages):
        return list(stages)
    states = desired_states(config.kafka)
    if not states and (out := out_by_commands(config.kafka)):
        _LOG.error(
            "The published states are gone, and commands took out %d parts (%s): unless the stage's"
            " own table is there, it holds all that it would do until a person says that what is"
            " out is known (`ringfence isolation resume cluster`).",
            len(out),
            ", ".join(out[:8]),
        )
        return list(stages)  # an isolation stage that was told nothing holds its commands
    return [restored(stage, states) if stage.name == "isolation" else stage for stage in stages]


async def _serve(
    config: WorkerConfig,
    stages: Sequence[Stage[Any]],
    prepared: Prepared,
    clock: Callable[[], datetime],
    at_point: Callable[[str], None],
    ending: list[threading.Timer],
) -> BaseException | None:
    """Run until a signal (returns None) or a crash (returns why).

    ``ending`` gets what ends the process if its tasks and threads do not; to be cancelled when
    they have.
    """
    app, runners = build(config, stages, prepared, at_point)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    started = asyncio.create_task(app.start())
    tasks = [asyncio.create_task(runner.settle()) for runner in runners]
    tasks.insert(0, asyncio.create_task(serve(app, config, runners, partial(_flows, app), clock)))
    tasks.append(asyncio.create_task(_send_ticks(app, config, runners, clock)))
    tasks.append(asyncio.create_task(_watch(app, config, runners)))
    error = await _until_stopped(app, stop, [started, *tasks])
    _LOG.info("worker stops%s", "" if error is None else f": {error}")
    ending.append(_end_by_force(config.stop_timeout_s, code=0 if error is None else 1))
    tasks[-1].cancel()
    tasks[-2].cancel()
    with contextlib.suppress(Exception):
        await app.stop()
    for task in (started, *tasks):
        task.cancel()
    return error


async def _until_stopped(
    app: faust.App, stop: asyncio.Event, tasks: Sequence[asyncio.Task[None]]
) -> BaseException | None:
    """Wait for the signal, or for Faust or one of our tasks to fail."""
    while not stop.is_set():
        if app.crashed:
            return app.crash_reason or RuntimeError("Faust crashed")
        for task in tasks:
            if task.done() and (error := task.exception()) is not None:
                return error
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.1)
    return None


def _end_by_force(after_s: float, code: int) -> threading.Timer:
    """End the process if stopping hangs, as Faust's threads do when the broker is gone.

    Nothing is lost by it: what is not committed comes again.
    """

    def end() -> None:
        _LOG.warning("worker did not stop within %.0f s and ends without goodbye", after_s)
        logging.shutdown()
        os._exit(code)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()
    return timer


def _flows(app: faust.App) -> bool:
    """Whether the tables are recovered and records flow."""
    return bool(app.tables.actives_ready and not app.rebalancing and not app.in_recovery)


async def _send_ticks(
    app: faust.App,
    config: WorkerConfig,
    runners: Sequence[Runner],
    clock: Callable[[], datetime],
) -> None:
    """Send ticks into the input partitions that are ours, behind what is already in them."""
    stages = {runner.stage.name: runner for runner in runners}
    times = TickTimes(config.tick_s)
    while True:
        if not _flows(app):
            await asyncio.sleep(0.05)
            continue
        places = _places(config, runners, app.consumer.assignment())
        dues = {place: stages[place[0]].states.next_due(place[1]) for place in places}
        now = clock()
        wanted = times.wanted(time.monotonic(), now, dues)
        try:
            sent = [
                await app.producer.send(
                    topic, TICK_KEY, encode(tick(now, name, place[1])), place[1], None, None
                )
                for place in wanted
                for topic, name in places[place]
            ]
            await asyncio.gather(*sent)
        except Exception as error:  # noqa: BLE001 (the broker may be away; the watch ends us)
            _LOG.warning("ticks were not sent: %s", error)
        wait_s = times.wait_s(time.monotonic(), clock(), dues)
        await asyncio.sleep(min(max(wait_s, _SHORTEST_LOOK_S), _LONGEST_LOOK_S))


def _places(
    config: WorkerConfig, runners: Sequence[Runner], assigned: Collection[Any]
) -> dict[Place, list[tuple[str, str]]]:
    """The stages' partitions that are ours: full and short names of the topics ticked there."""
    owners = {
        config.kafka.topic(name): (runner.stage.name, name)
        for runner in runners
        for name in runner.stage.topics
        if is_ticked(name)
    }
    places: dict[Place, list[tuple[str, str]]] = {}
    for topic, number in sorted(assigned):
        if topic in owners:
            stage, name = owners[topic]
            places.setdefault((stage, number), []).append((topic, name))
    return places


def _recovered(app: faust.App) -> Iterable[object]:
    """The offsets that recovery has come to in the changelogs."""
    tables: Any = app.tables
    return tables.recovery.active_offsets.values()  # type: ignore[no-any-return]


async def _watch(app: faust.App, config: WorkerConfig, runners: Sequence[Runner]) -> None:
    """Raise WorkerCrashed when nothing moves, though our own ticks should come back.

    A stage moves when it reads; before that, the worker moves when its changelogs are read. The
    tables are put on disk here, so that a disk that is full ends the worker too.
    """
    inputs = {
        runner: {config.kafka.topic(name) for name in runner.stage.topics if is_ticked(name)}
        for runner in runners
    }
    stall = Stall(config.stall_s)
    said = False
    while True:
        await asyncio.sleep(0.5)
        for table in app.tables.values():
            cast("TableStore", table.data).flush()
        if _flows(app):
            if not said:
                said = True
                _LOG.info("worker ready: %s", ", ".join(runner.stage.name for runner in runners))
            assigned = {tp.topic for tp in app.consumer.assignment()}
            progress: dict[str, object] = {
                runner.stage.name: runner.counts.taken
                for runner, names in inputs.items()
                if names & assigned
            }
        else:
            progress = {"start": tuple(_recovered(app))}
        if stuck := stall.stuck(time.monotonic(), progress):
            raise WorkerCrashed(f"nothing moved for {config.stall_s:.0f} s: {', '.join(stuck)}")
