"""All parts on one machine, kept running until Ctrl-C: what a first installation starts with."""

import contextlib
import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from collectors.agent import AgentConfig
from ringfence import show
from ringfence.cluster import ClusterError, ensure_topics
from ringfence.embedded import BrokerError, EmbeddedBroker
from ringfence.parts import Parts
from ringfence.settings import Settings
from ringfence.supervise import Supervisor
from rules import tables
from schedulers.consumer import SchedulerConfig
from streams.config import WorkerConfig
from warehouse.sink import SinkConfig

__all__ = ["UpError", "up"]


class UpError(Exception):
    """The parts cannot be started; the message is one sentence."""


def up(
    settings: Settings,
    config: Path | None,
    *,
    agent: bool,
    program: str | None,
    stop: threading.Event,
) -> None:
    """Start broker (unless settings name one), worker, sink, agent and scheduler; wait for stop.

    A part that dies is started again; when the embedded broker does, all are, since what it held
    is lost. Raises UpError when the folder, the broker or the topics cannot be had.
    """
    data = settings.data.absolute()
    try:
        data.mkdir(parents=True, exist_ok=True)
        carry_out = None if program is None else shlex.split(program)
    except OSError as error:
        raise UpError(f"The data folder {data} cannot be used: {error.strerror}.") from error
    except ValueError as error:
        raise UpError(f"{program!r} is no command line: {error}.") from error
    _check(settings)
    house = _House(
        settings, None if config is None else config.absolute(), data, agent, carry_out,
        show.screen(),
    )  # fmt: skip
    while not stop.is_set():
        house.run(stop)
    house.console.print("All parts stopped.")


def _check(settings: Settings) -> None:
    """Refuse what a part would refuse at each start: settings, policy, thresholds."""
    own: Mapping[str, tuple[type, dict[str, object]]] = {
        "agent": (AgentConfig, {}),
        "worker": (WorkerConfig, {}),
        "sink": (SinkConfig, {"root": settings.warehouse}),
        "scheduler": (SchedulerConfig, {}),
    }
    try:
        for section, (config, given) in own.items():
            settings.build(config, section, kafka=settings.kafka, **given)
        worker = settings.build(WorkerConfig, "worker", kafka=settings.kafka)
        tables.load(worker.thresholds, worker.policy)
    except (ValueError, OSError) as error:
        raise UpError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _House:
    """What `up` starts, and where it says so."""

    settings: Settings
    config: Path | None
    data: Path
    agent: bool
    carry_out: list[str] | None
    console: Console

    def run(self, stop: threading.Event) -> None:
        """Run everything until ``stop``, or until the embedded broker dies."""
        with contextlib.ExitStack() as held:
            broker, bootstrap = self._broker(held)
            supervisor = held.enter_context(Supervisor(self.data / "logs", say=self.console.print))
            self._start(supervisor, Parts(self.data, bootstrap, self.config))
            names = ", ".join(part.name for part in supervisor.parts)
            self.console.print(
                f"Running: {names}. Files in {self.data}. Ctrl-C stops all.", soft_wrap=True
            )
            while not stop.wait(0.5):
                if broker is not None and not broker.alive:
                    self.console.print(
                        "The embedded broker died; what it held is lost. All is started again.",
                        soft_wrap=True,
                    )
                    return
            self.console.print("Stopping ...")

    def _broker(self, held: contextlib.ExitStack) -> tuple[EmbeddedBroker | None, str]:
        """The embedded broker, unless the settings name another, and where the topics are."""
        broker: EmbeddedBroker | None = None
        bootstrap = self.settings.sections["kafka"].get("bootstrap")
        try:
            if bootstrap is None:
                broker = held.enter_context(EmbeddedBroker(log=self.data / "broker.log"))
                bootstrap = broker.bootstrap
                self.console.print(
                    f"Broker: embedded, in memory, on {bootstrap} "
                    "(it forgets when it stops; --bootstrap names a lasting one)",
                    soft_wrap=True,
                )
            ensure_topics(replace(self.settings.kafka, bootstrap=bootstrap))
        except (BrokerError, ClusterError) as error:
            raise UpError(str(error)) from error
        return broker, bootstrap

    def _start(self, supervisor: Supervisor, parts: Parts) -> None:
        supervisor.start("worker", parts.worker())
        supervisor.start("sink", parts.sink())
        if self.agent:
            supervisor.start("agent", parts.agent())
        if self.carry_out is not None:
            supervisor.start("scheduler", parts.scheduler_exec(self.carry_out))
