"""Faust's consumer, kept from dropping records around a rebalance and from idling between fetches.

Faust fetches and drops records of paused partitions and counts on going back to the committed
offsets afterwards; both ends of that are closed here.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, cast

from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from mode.services import WaitResults

__all__ = ["SafeConsumer"]

#: Partitions that are resumed meanwhile are asked for after this long.
_LONGEST_POLL_S = 0.05
_PAIR = 2


class _Thread(AIOKafkaConsumerThread):
    """Faust's consumer thread, with a fetch that keeps to the partitions it was asked for.

    Faust hands over its live set of active partitions. Emptied while a fetch waits (as at the end
    of a recovery), it means "all" to aiokafka: records of paused partitions are then returned,
    and dropped. It also fixes the broker's wait at 1.5 s.
    """

    def _create_worker_consumer(self, transport: Any) -> Any:  # noqa: ANN401 (Faust's)
        consumer = super()._create_worker_consumer(transport)
        parent = cast("SafeConsumer", self.consumer)
        consumer._fetch_max_wait_ms = parent.fetch_wait_ms  # noqa: SLF001 (Faust passes 1.5 s)
        return consumer

    async def _fetch_records(
        self,
        consumer: Any,  # noqa: ANN401 (Faust's)
        active_partitions: Any,  # noqa: ANN401
        timeout: float | None = None,  # noqa: ASYNC109 (Faust's signature)
        max_records: int | None = None,
    ) -> Any:  # noqa: ANN401
        wait_s = min(timeout or 0.0, _LONGEST_POLL_S)
        if not active_partitions:
            await asyncio.sleep(wait_s)
            return {}
        only = cast("Any", _Only(active_partitions))
        return await super()._fetch_records(consumer, only, wait_s, max_records)


class _Only:
    """A live set of partitions that, unlike a set, still excludes all others when it is empty."""

    def __init__(self, partitions: Collection[object]) -> None:
        self._partitions = partitions

    def __bool__(self) -> bool:
        return True

    def __contains__(self, tp: object) -> bool:
        return tp in self._partitions


class SafeConsumer(Consumer):
    """Faust's consumer, which also goes back to the start where nothing is committed yet.

    Faust returns to the committed offsets after each rebalance and counts on it for what was
    fetched and dropped meanwhile; aiokafka leaves a partition without one where it is.
    """

    def __init__(self, *arguments: Any, fetch_wait_ms: int, **named: Any) -> None:  # noqa: ANN401
        self.fetch_wait_ms = fetch_wait_ms
        super().__init__(*arguments, **named)

    def _new_consumer_thread(self) -> _Thread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)

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
