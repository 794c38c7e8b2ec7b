"""The same decoding and the same host step in quixstreams: the peer that Faust is measured beside.

Arguments: bootstrap, topic, prefix, messages, folder. Its states are live in memory and written to
its own state (RocksDB and a changelog topic) when they changed, and its verdicts go to a topic,
as in our worker. Reads so many messages and prints frames, CPU and wall seconds as JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from quixstreams import Application, State

from evidence.records import GpuFrame
from evidence.wire import decoder, encode
from rules.host import HostState, step
from rules.stage import Arrived
from rules.tables import load


class Host:
    """The host stage as a callback, and what it took."""

    def __init__(self, messages: int) -> None:
        self._left = messages
        self.through: Callable[[], None] = lambda: None
        self._rules = load()
        self._decode = decoder("gpu")
        self._live: dict[bytes, HostState] = {}
        self.frames = 0
        self.began: tuple[float, float] | None = None
        self.ended = (0.0, 0.0)

    def take(self, value: bytes, key: bytes, at_ms: int, _headers: Any, kept: State) -> list[bytes]:  # noqa: ANN401
        """One message; returns the verdicts."""
        if self.began is None:
            self.began = (time.process_time(), time.monotonic())
        said = self._step(value, key, at_ms, kept)
        self._left -= 1
        if self._left == 0:
            self.ended = (time.process_time(), time.monotonic())
            self.through()
        return said

    def _step(self, value: bytes, key: bytes, at_ms: int, kept: State) -> list[bytes]:
        record = self._decode(value)
        if not isinstance(record, GpuFrame):
            return []
        self.frames += 1
        before = self._live.get(key)
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        state, said = step(before or HostState(), Arrived("gpu", record, at), self._rules)
        if state is not before:
            self._live[key] = state
            kept.set_bytes("state", encode(state))
        return [encode(one) for one in said]


def main() -> None:
    """Run and print."""
    bootstrap, topic, prefix, messages, folder = sys.argv[1:]
    application = Application(
        broker_address=bootstrap,
        consumer_group=f"{prefix}quix",
        auto_offset_reset="earliest",
        state_dir=folder,
        loglevel="WARNING",
        commit_interval=1.0,
        producer_extra_config={"enable.idempotence": True, "acks": "all"},
        consumer_extra_config={"fetch.wait.max.ms": 50},
    )
    host = Host(int(messages))
    host.through = application.stop
    frames = application.topic(topic, key_deserializer="bytes", value_deserializer="bytes")
    verdicts = application.topic(f"{prefix}quix-verdicts", value_serializer="bytes")
    stream = application.dataframe(frames)
    stream = stream.apply(host.take, stateful=True, metadata=True, expand=True)
    stream.to_topic(verdicts)
    application.run()
    assert host.began is not None, "nothing was read"
    cpu_s, wall_s = (after - before for after, before in zip(host.ended, host.began, strict=True))
    taken = {"frames": host.frames, "cpu_s": cpu_s, "wall_s": wall_s}
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
