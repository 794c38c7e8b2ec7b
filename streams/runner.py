"""Drives one stage: steps each event at once, then settles it in the order that loses nothing.

The order is: (1) the step's outputs are sent and **acknowledged**, (2) the state is sent to the
table's changelog and acknowledged, (3) the event is acked, so that its offset may be committed.
After a crash before (2) the event comes again, meets the old state and makes the same outputs with
the same ids; after a crash between (2) and (3) it comes again, is at or below the offset the state
has seen, and is passed over, its outputs being out. Faust's own order (state written at once,
outputs and changelog some time later) loses outputs, and its commit does not wait for a changelog
that the broker is slow to take.

Stepping does not wait for settling: events are settled in batches, in order, while the next ones
are stepped. What is in memory may therefore be ahead of the table; what is acked never is.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Protocol

from msgspec import Struct

from evidence.records import Tick
from evidence.wire import DecodeError, decode, decoder
from rules.stage import Arrived
from streams.config import TooLargeError
from streams.counts import StageCounts, labels
from streams.deadletters import cut, letter, undeliverable
from streams.routing import Outgoing, outgoing
from streams.stage import Stage
from streams.states import States
from streams.ticks import StageTime, tick, ticked_at

__all__ = ["Kafka", "Runner"]

_LOG = logging.getLogger(__name__)


class Kafka(Protocol):
    """What a runner asks of Faust; one implementation, in `streams.app`."""

    async def send(self, message: Outgoing) -> Awaitable[object]:
        """Send one message; what comes back is done when the broker has it.

        Both raise TooLargeError when the broker will never take it.
        """

    def keep(self, key: bytes, value: bytes | None, partition: int) -> Awaitable[object]:
        """Write one key of the stage's table (None: delete it); done when the changelog has it."""

    async def fail(self, error: BaseException) -> None:
        """End the worker: nothing further can be settled."""


@dataclass(slots=True)
class _Work:
    """One event that was stepped and is not settled yet."""

    ack: Callable[[], Awaitable[object]]
    at: datetime
    outputs: list[Outgoing] = field(default_factory=list)
    #: key -> (table value, partition)
    writes: dict[bytes, tuple[bytes | None, int]] = field(default_factory=dict)


class Runner:
    """One stage in one worker.

    What the metrics read, from the worker's loop: ``counts`` (`streams.counts.StageCounts`),
    ``time`` (``time.now`` and ``time.last``: the stage's time and the last tick of each partition),
    ``states`` (``len``, and ``items`` of each key's live state) and ``stage.name``.

    ``at_point`` is told "outputs-acknowledged", "state-kept" and "acked" after each part of a
    batch that had outputs or state; the tests kill the process there.
    """

    def __init__(
        self,
        stage: Stage[Any],
        states: States,
        kafka: Kafka,
        *,
        batch_size: int,
        at_point: Callable[[str], None] = lambda _point: None,
    ) -> None:
        self.stage = stage
        self.states = states
        self.time = StageTime(stage.topics)
        self.counts = StageCounts()
        self._kafka = kafka
        self._batch_size = batch_size
        self._at_point = at_point
        self._work: deque[_Work] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._decode = {topic: decoder(topic) for topic in stage.topics}

    async def take(self, topic: str, message: Any, ack: Callable[[], Awaitable[object]]) -> None:  # noqa: ANN401
        """Step one message of ``topic`` (short name) and queue it to be settled.

        ``message`` has Kafka's key, value, partition, offset, headers and timestamp (seconds).
        Waits only when a whole batch is already waiting. Never raises for what is in the message.
        """
        counts = self.counts
        counts.taken += 1
        counts.positions[topic, message.partition] = message.offset
        began = perf_counter()
        work = _Work(ack, datetime.fromtimestamp(message.timestamp or 0.0, UTC))
        try:
            self._step_message(topic, message, work)
        except Exception as error:  # noqa: BLE001 (whatever a step raises: the next record goes on)
            counts.failed += 1
            self._bury(topic, message, work, error)
        counts.steps.add(perf_counter() - began)
        self._work.append(work)
        counts.queued = len(self._work)
        self._wake.set()
        while len(self._work) >= self._batch_size:
            self._room.clear()
            await self._room.wait()

    async def settle(self) -> None:
        """Settle what was stepped, for as long as the worker runs."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._work:
                batch = list(self._work)
                try:
                    await self._settle(batch)
                except Exception as error:  # noqa: BLE001 (the worker's own end; it is restarted)
                    await self._kafka.fail(error)
                    return
                for _ in batch:
                    self._work.popleft()
                self.counts.queued = len(self._work)
                self._room.set()

    def _step_message(self, topic: str, message: Any, work: _Work) -> None:  # noqa: ANN401
        if message.value is None:
            return  # a compacted topic's tombstone: the key is gone there, its history is not
        try:
            record = self._decode[topic](message.value)
        except Exception:  # noqa: BLE001 (decode again, for the sentence)
            record = decode(topic, message.value)
        if type(record) is Tick:
            self.counts.ticks += 1
            self._step_tick(topic, message.partition, ticked_at(record.at, work.at), work)
            return
        if message.key is None:
            raise DecodeError(f"topic {topic}: message without a key")
        live = self.states.of(message.key, message.partition)
        if message.offset <= live.seen.get(topic, -1):
            self.counts.redelivered += 1
            return  # its outputs are out and its state is kept
        # Without its offset: what was seen is kept here, also across a topic that was made anew.
        state, outputs = self.stage.step(live.state, Arrived(topic, record, work.at))
        sent = self._outgoing(outputs)
        live.seen[topic] = message.offset
        if state is live.state:
            self.states.remember(message.key, live)
        else:
            value = self.states.advance(message.key, live, state)
            work.writes[message.key] = (value, live.partition)
        work.outputs += sent

    def _step_tick(self, topic: str, partition: int, at: datetime, work: _Work) -> None:
        now = self.time.advance(topic, partition, at)
        if now is None:
            return
        for key in self.states.due(partition, now):
            try:
                self._step_due(key, partition, now, work)
            except Exception as error:  # noqa: BLE001 (whatever a step raises: the others go on)
                _LOG.error(
                    "%s stage: the step of %r failed on a tick",
                    self.stage.name,
                    key,
                    exc_info=error,
                )
                self.states.postpone(key, partition, now)
                reason = f"step failed on a tick: {type(error).__name__}: {error}"
                work.outputs.append(
                    letter(
                        self.stage.name, reason, topic="tick", at=now, key=key, partition=partition
                    )
                )

    def _step_due(self, key: bytes, partition: int, now: datetime, work: _Work) -> None:
        live = self.states.of(key, partition)
        record = tick(now, self.stage.name, partition)
        state, outputs = self.stage.step(live.state, Arrived("", record, now))
        sent = self._outgoing(outputs)
        if state is live.state:
            self.states.remember(key, live)
        else:
            work.writes[key] = (self.states.advance(key, live, state), partition)
        work.outputs += sent

    def _outgoing(self, outputs: Iterable[Struct]) -> list[Outgoing]:
        sent = []
        for output in outputs:
            self.counts.outputs[labels(output)] += 1
            message = outgoing(output, self.stage.routes)
            if message is None:
                self.counts.dropped += 1
                _LOG.warning(
                    "%s stage: a %s names no host to be sent to and was dropped (%d so far): %s",
                    self.stage.name,
                    type(output).__name__.lower(),
                    self.counts.dropped,
                    getattr(output, "reason", ""),
                )
            else:
                sent.append(message)
        return sent

    def _bury(self, topic: str, message: Any, work: _Work, error: Exception) -> None:  # noqa: ANN401
        if isinstance(error, DecodeError):
            reason = str(error)
            _LOG.warning("%s, partition %d, offset %d", reason, message.partition, message.offset)
        else:
            reason = f"step failed: {type(error).__name__}: {error}"
            _LOG.error("%s stage: %s", self.stage.name, reason, exc_info=error)
        work.outputs = [
            letter(
                self.stage.name,
                reason,
                topic=topic,
                at=work.at,
                key=message.key,
                value=message.value,
                partition=message.partition,
                offset=message.offset,
                headers=message.headers or (),
            )
        ]

    async def _settle(self, batch: list[_Work]) -> None:
        began = perf_counter()
        outputs = [(work, output) for work in batch for output in work.outputs]
        if outputs:
            await self._send_all(outputs)
            self._at_point("outputs-acknowledged")
        # Only the last state of each key: the ones between were never seen outside.
        writes = {key: write for work in batch for key, write in work.writes.items()}
        if writes:
            self.counts.writes += len(writes)
            kept = [
                self._kafka.keep(key, value, partition)
                for key, (value, partition) in writes.items()
            ]
            await asyncio.gather(*kept)
            self._at_point("state-kept")
        for work in batch:
            await work.ack()
        self.counts.batches.add(len(batch))
        self.counts.settles.add(perf_counter() - began)
        if outputs or writes:
            self._at_point("acked")

    async def _send_all(self, outputs: list[tuple[_Work, Outgoing]]) -> None:
        """Send in order, then wait for all; what is too large goes to the dead letters."""
        sent = []
        for work, output in outputs:
            with suppress(TooLargeError):
                sent.append((work, output, await self._kafka.send(output)))
                continue
            await self._send_refused(work, output)
        for work, output, future in sent:
            with suppress(TooLargeError):
                await future
                continue
            await self._send_refused(work, output)

    async def _send_refused(self, work: _Work, output: Outgoing) -> None:
        self.counts.too_large += 1
        _LOG.warning(
            "%s stage: a message of %d bytes for %s is too large for the broker",
            self.stage.name,
            len(output.value),
            output.topic,
        )
        if output.topic == "deadletters":
            smaller = cut(output)
        else:
            smaller = undeliverable(self.stage.name, output, "too large to send", work.at)
        await (await self._kafka.send(smaller))
