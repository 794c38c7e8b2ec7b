"""Faust's consumer, kept from dropping records around a rebalance and from idling between fetches.

Faust resumes its partitions, goes back to the committed offsets and only then opens the flow, which
empties the queues: a record that is fetched in between is lost, and committed as a gap. So no
record of an input is fetched here before the rebalance has ended.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any, cast

from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]
from faust.transport.drivers.aiokafka import (
    AIOKafkaConsumerThread,
    Consumer,
    credentials_to_aiokafka_auth,
    server_list,
)
from mode.services import WaitResults

from streams.lanes import Lane, Turns

__all__ = ["SafeConsumer"]

#: Partitions that are resumed meanwhile are asked for after this long.
_LONGEST_POLL_S = 0.05
_PAIR = 2
#: While the stages are busy, evidence alone is waited for, and not for long.
_BUSY_POLL_S = 0.005
#: For so long nothing is asked of a broker after an answer that nobody took all of: frames that
#: wait here must not hold up the asking for evidence.
_BACKOFF_S = 0.01
#: Records that are taken after a wait: the next turn has the rest.
_AFTER_A_WAIT = 96
#: How long the last batch of a partition may take to come (it is there: only the way is long).
_TAIL_S = 2.0


class _Thread(AIOKafkaConsumerThread):
    """Faust's consumer thread, with a fetch that keeps to the partitions it was asked for."""

    def _create_worker_consumer(self, transport: Any) -> Any:  # noqa: ANN401 (Faust's)
        consumer = super()._create_worker_consumer(transport)
        parent = cast("SafeConsumer", self.consumer)
        consumer._fetch_max_wait_ms = parent.fetch_wait_ms  # noqa: SLF001 (Faust fixes 1.5 s)
        return consumer

    async def _fetch_records(
        self,
        consumer: Any,  # noqa: ANN401 (Faust's)
        active_partitions: Any,  # noqa: ANN401
        timeout: float | None = None,  # noqa: ASYNC109 (Faust's signature)
        max_records: int | None = None,
    ) -> Any:  # noqa: ANN401
        del max_records
        wait_s = min(timeout or 0.0, _LONGEST_POLL_S)
        parent = cast("SafeConsumer", self.consumer)
        if parent.app.rebalancing:
            parent.turns.begin()
        if not active_partitions:
            await asyncio.sleep(wait_s)
            return {}
        consumer._fetcher._prefetch_backoff = _BACKOFF_S  # noqa: SLF001 (aiokafka fixes 0.1 s)

        async def fetch(lanes: Collection[Lane], most: int | None, within_s: float) -> Any:  # noqa: ANN401
            only = cast("Any", _Only(active_partitions, parent, lanes))
            return await AIOKafkaConsumerThread._fetch_records(  # noqa: SLF001 (super's)
                self, consumer, only, within_s, most
            )

        waiting = parent.waiting()
        level = not parent.app.rebalancing and parent.turns.level(
            lambda: _is_read(consumer, active_partitions, parent)
        )
        found = await parent.turns.take(
            lambda lane, most: fetch((lane,), most, 0.0), waiting, level=level
        )
        if found:
            return found
        if level and parent.turns.room(waiting):
            return await fetch(tuple(Lane), _AFTER_A_WAIT, wait_s)
        return await fetch((Lane.OWN, Lane.EVIDENCE), _AFTER_A_WAIT, _BUSY_POLL_S)


def _is_read(consumer: Any, active: Collection[Any], parent: "SafeConsumer") -> bool:  # noqa: ANN401
    """Whether every input of evidence was fetched from and is read to its end."""
    evidence = [tp for tp in list(active) if parent.is_evidence(tp)]
    assigned = consumer._subscription.subscription  # noqa: SLF001 (aiokafka has no other way that does not wait)
    if not evidence or assigned is None or assigned.assignment is None:
        return False
    for tp in evidence:
        end = consumer.highwater(tp)
        state = assigned.assignment.state_value(tp)
        if end is None or state is None or not state.has_valid_position or state.position < end:
            return False
    return True


class _Only:
    """The partitions that may be fetched now: Faust's live set, without inputs while it rebalances.

    A set that Faust empties while a fetch waits (as at the end of a recovery) would mean "all" to
    aiokafka, and the records of paused partitions would be returned and dropped: this is never
    false.
    """

    def __init__(
        self, active: Collection[object], consumer: "SafeConsumer", lanes: Collection[Lane]
    ) -> None:
        self._active = active
        self._consumer = consumer
        self._lanes = lanes

    def __bool__(self) -> bool:
        return True

    def __contains__(self, tp: Any) -> bool:  # noqa: ANN401
        return (
            tp in self._active
            and self._consumer.turns.lane(tp.topic) in self._lanes
            and self._consumer.may_fetch(tp)
        )


class SafeConsumer(Consumer):
    """Faust's consumer, which also goes back to the start where nothing is committed yet.

    Faust returns to the committed offsets after each rebalance and counts on it for what was
    fetched and dropped meanwhile; aiokafka leaves a partition without one where it is.
    """

    def __init__(self, *arguments: Any, fetch_wait_ms: int, turns: Turns, **named: Any) -> None:  # noqa: ANN401
        self.fetch_wait_ms = fetch_wait_ms
        self.turns = turns
        turns.begin()
        super().__init__(*arguments, **named)

    def _new_consumer_thread(self) -> _Thread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)

    def may_fetch(self, tp: Any) -> bool:  # noqa: ANN401 (aiokafka's topic and partition)
        """Whether a record of this partition can reach its stage or table now."""
        return not self.app.rebalancing or self._is_changelog_tp(tp)

    def is_evidence(self, tp: Any) -> bool:  # noqa: ANN401 (aiokafka's topic and partition)
        """Whether a partition is an input that goes before telemetry."""
        return self.turns.lane(tp.topic) is not Lane.TELEMETRY and not self._is_changelog_tp(tp)

    def waiting(self) -> int:
        """How many messages the stages have not stepped yet."""
        return sum(channel.queue.qsize() for channel in list(self.app.topics))

    async def highwaters(self, *partitions: Any) -> Mapping[Any, int]:  # noqa: ANN401
        """The end offsets, read from the last batches.

        The embedded broker reports the **first** offset of the last batch, plus one, as the end.
        """
        reported = dict(await super().highwaters(*partitions))
        ends = await self._tails({tp: end for tp, end in reported.items() if end})
        return reported | ends

    async def reported_ends(self, partitions: Iterable[Any]) -> Mapping[Any, int]:
        """The end offsets as the broker reports them: never too large."""
        return await super().highwaters(*partitions)

    async def _tails(self, reported: Mapping[Any, int]) -> dict[Any, int]:
        """The offset after the last record of each partition's last batch."""
        if not reported:
            return {}
        reader = self._reader()
        ends: dict[Any, int] = {}
        await reader.start()
        try:
            reader.assign(list(reported))
            for tp, end in reported.items():
                reader.seek(tp, end - 1)
            deadline = asyncio.get_running_loop().time() + _TAIL_S
            while len(ends) < len(reported) and asyncio.get_running_loop().time() < deadline:
                batches = await reader.getmany(timeout_ms=self.fetch_wait_ms)
                for tp, records in batches.items():
                    ends[tp] = max(reported[tp], records[-1].offset + 1)
        finally:
            await reader.stop()
        return ends

    def _reader(self) -> Any:  # noqa: ANN401 (aiokafka's)
        """A consumer beside the group's, not started."""
        conf, transport = self.app.conf, cast("Any", self.transport)
        return AIOKafkaConsumer(
            bootstrap_servers=server_list(transport.url, transport.default_port),
            fetch_max_wait_ms=self.fetch_wait_ms,
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            **credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context),
        )

    async def changelogs(
        self, after: Mapping[Any, int], to: Mapping[Any, int], within_s: float
    ) -> AsyncIterator[list[Any]]:
        """Messages of some partitions, a list of one partition's at a time, in order.

        From behind the offsets ``after`` up to at least ``to``, or as far as ``within_s`` goes.
        """
        if not after:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        reader = self._reader()
        await reader.start()
        try:
            reader.assign(list(after))
            for tp, offset in after.items():
                reader.seek(tp, offset + 1)
            left = dict(after)
            while left and loop.time() < deadline:
                batches = await reader.getmany(timeout_ms=self.fetch_wait_ms, max_records=2000)
                for tp, messages in batches.items():
                    yield messages
                    if messages[-1].offset >= to[tp]:
                        left.pop(tp, None)
        finally:
            await reader.stop()

    async def seek_to_committed(self) -> Mapping[Any, int]:
        """Seek to the committed offsets, and to the first one where there is none."""
        committed = dict(await super().seek_to_committed())
        fresh = [tp for tp, offset in committed.items() if not offset or offset < 0]
        fresh = [tp for tp in fresh if not self._is_changelog_tp(tp)]
        if fresh:
            await self.seek_wait(await self.earliest_offsets(*fresh))
        return committed

    async def wait_first(self, *coros: Any, timeout: Any = None) -> WaitResults:  # noqa: ANN401, ASYNC109
        """Hand a message on at once where it need not wait.

        Faust calls this for each message with two coroutines, the handing on and the flow's
        suspension, and waits for them in two tasks: a third of all it does with a message.
        """
        if len(coros) != _PAIR or not self._flows():
            return await super().wait_first(*coros, timeout=timeout)
        hand_on, suspended = coros
        suspended.close()
        await hand_on
        return WaitResults([hand_on], [None], stopped=False)

    def _flows(self) -> bool:
        """Whether a message can go to its stage without waiting for anything."""
        return bool(
            self.app.flow_control.is_active()
            and not self.suspend_flow.is_set()
            and not any(channel.queue.full() for channel in self.app.topics)
        )
