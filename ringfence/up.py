"""All parts on one machine, kept running until Ctrl-C: what a first installation starts with."""

import contextlib
import shlex
import threading
from dataclasses import replace
from pathlib import Path

from evidence.transport import Kafka
from ringfence import show
from ringfence.cluster import ClusterError, ensure_topics
from ringfence.embedded import BrokerError, EmbeddedBroker
from ringfence.parts import Parts
from ringfence.settings import Settings
from ringfence.supervise import Supervisor

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

    Raises UpError when the folder, the broker or the topics cannot be had.
    """
    console = show.screen()
    data = settings.data.absolute()
    try:
        data.mkdir(parents=True, exist_ok=True)
        carry_out = None if program is None else shlex.split(program)
    except OSError as error:
        raise UpError(f"The data folder {data} cannot be used: {error.strerror}.") from error
    except ValueError as error:
        raise UpError(f"{program!r} is no command line: {error}.") from error
    with contextlib.ExitStack() as held:
        bootstrap = settings.sections["kafka"].get("bootstrap")
        try:
            if bootstrap is None:
                broker = EmbeddedBroker(log=data / "broker.log")
                bootstrap = held.enter_context(broker).bootstrap
                console.print(
                    f"Broker: embedded, in memory, on {bootstrap} "
                    "(it forgets when it stops; --bootstrap names a lasting one)"
                )
            kafka = _kafka(settings, bootstrap)
            ensure_topics(kafka)
        except (BrokerError, ClusterError) as error:
            raise UpError(str(error)) from error
        parts = Parts(data, bootstrap, None if config is None else config.absolute())
        supervisor = held.enter_context(Supervisor(data / "logs", say=console.print))
        supervisor.start("worker", parts.worker())
        supervisor.start("sink", parts.sink())
        if agent:
            supervisor.start("agent", parts.agent())
        if carry_out is not None:
            supervisor.start("scheduler", parts.scheduler_exec(carry_out))
        names = ", ".join(part.name for part in supervisor.parts)
        console.print(f"Running: {names}. Files in {data}. Ctrl-C stops all.", soft_wrap=True)
        stop.wait()
        console.print("Stopping ...")
    console.print("All parts stopped.")


def _kafka(settings: Settings, bootstrap: str) -> Kafka:
    return replace(settings.kafka, bootstrap=bootstrap)
