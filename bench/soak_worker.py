"""The real worker, whose time is that of the records it reads: a day goes by in minutes.

Arguments: bootstrap, prefix, partitions, folder, policy, metrics port, begin (epoch seconds). Its
clock, and so its ticks, and what is stamped on its records are the newest time that it has read.
"""

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faust.transport.drivers.aiokafka import Producer

from evidence.transport import Kafka
from streams import worker
from streams.config import WorkerConfig
from streams.runner import Runner

#: Ticks come this often by the wall clock: some ten seconds of the worker's time.
_TICK_S = 0.02


class Clock:
    """The newest time read so far."""

    def __init__(self, begin: float) -> None:
        self.newest = begin

    def __call__(self) -> datetime:
        """That time."""
        return datetime.fromtimestamp(self.newest, UTC)


def _bend(clock: Clock) -> None:
    """Make Faust's producer stamp, and the runners tell, the time of the records."""
    send, take = Producer.send, Runner.take

    async def stamped(self: Any, topic: str, *given: Any) -> Any:  # noqa: ANN401 (Faust's)
        key, value, partition, _, headers = given
        return await send(self, topic, key, value, partition, clock.newest, headers)

    async def noted(
        self: Runner,
        topic: str,
        message: Any,  # noqa: ANN401
        ack: Callable[[], Awaitable[object]],
    ) -> None:
        clock.newest = max(clock.newest, message.timestamp or 0.0)
        await take(self, topic, message, ack)

    Producer.send = stamped
    Runner.take = noted  # type: ignore[method-assign]


def main() -> None:
    """Run until told to stop."""
    bootstrap, prefix, partitions, folder, policy, port, begin = sys.argv[1:]
    clock = Clock(float(begin))
    _bend(clock)
    worker.run(
        WorkerConfig(
            kafka=Kafka(bootstrap=bootstrap, prefix=prefix, partitions=int(partitions)),
            state_dir=Path(folder),
            policy=Path(policy),
            tick_s=_TICK_S,
            metrics_listen=f"127.0.0.1:{port}",
        ),
        clock=clock,
    )


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO)
    main()
