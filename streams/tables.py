"""The store behind a stage's Faust table: applies the changelog, and notes what we wrote to it.

Faust's own stores are not used: the one in memory is read anew as a whole when a standby becomes
active and mixes tables when a partition leaves, and the one over RocksDB takes a damaged block for
the end of the table (docs/decisions/0005). Here a partition's values and the offset they go up to
are written together, and a value of a writer who had lost the partition is passed over.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import faust
from faust.stores.base import Store
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.types import TP
from mode.utils.queues import ThrowableQueue

from streams.config import StreamsError
from streams.shelves import Mark, Shelf

__all__ = ["EPOCH_HEADER", "StageTable", "TableStore", "Tables"]

#: Kafka header of every changelog message: which term of ownership wrote it.
EPOCH_HEADER = "epoch"
_LOG = logging.getLogger(__name__)
#: Changelog messages on their way to a table. A full queue makes Faust hand on each by two tasks.
_QUEUED = 10_000
#: A mark is renewed this often while its partition is followed and nothing is written.
_RENEW = timedelta(minutes=1)


class TableStore(Store[bytes, bytes]):
    """The partitions of one table that this worker has, as active or as standby.

    A term of ownership has a number, its **epoch**, larger than any before in that partition's
    changelog. Who was paused, lost the partition and still writes, does so under an older epoch
    than what the next owner wrote: whoever reads the changelog passes it over.
    """

    def __init__(
        self,
        shelf: Shelf,
        clock: Callable[[], datetime],
        *given: Any,  # noqa: ANN401 (Faust's)
        **named: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*given, **named)
        self.data: dict[bytes, bytes] = {}  # Faust's mapping: not used
        self._shelf = shelf
        self._clock = clock
        self._epochs: dict[int, int] = {}
        self._mine: dict[int, int] = {}
        #: partition -> offset -> what we wrote there, until it is put on the shelf
        self._written: dict[int, dict[int, tuple[bytes, bytes | None]]] = defaultdict(dict)

    # What the stage asks.

    def claim(self, partition: int, generation: int, end: int) -> None:
        """Begin a term: the changelog was read up to ``end``, its last offset."""
        epoch = max(self._epoch(partition) + 1, generation)
        self._mine[partition] = epoch
        mark = self._shelf.mark(partition)
        offset = max(end, -1 if mark is None else mark.offset)
        self._put(partition, {}, offset, self._epoch(partition))

    def epoch(self, partition: int) -> int:
        """The epoch to write under; raises StreamsError for a partition that is not ours."""
        try:
            return self._mine[partition]
        except KeyError:
            raise StreamsError(
                f"Partition {partition} of {self.table_name} was taken away meanwhile."
            ) from None

    def wrote(self, partition: int, offset: int, key: bytes, value: bytes | None) -> None:
        """Note what the changelog acknowledged at an offset."""
        self._written[partition][offset] = key, value

    def flush(self) -> None:
        """Put on the shelf what was noted, and renew the marks of what is followed.

        A gap in the offsets is somebody else's write: the copy is then not complete, and dropped.
        """
        for partition, written in self._written.items():
            mark = self._shelf.mark(partition)
            if mark is None or not written:
                continue
            offsets = sorted(written)
            if offsets[0] <= mark.offset or offsets[-1] - mark.offset != len(offsets):
                _LOG.warning(
                    "another worker wrote to partition %d of %s", partition, self.table_name
                )
                self._shelf.drop(partition)
                continue
            changes = {written[offset][0]: written[offset][1] for offset in offsets}
            self._put(partition, changes, offsets[-1], self._mine.get(partition, mark.epoch))
        self._written.clear()
        for partition in self._mine:
            mark = self._shelf.mark(partition)
            if mark is not None and self._clock() - mark.at > _RENEW:
                self._put(partition, {}, mark.offset, mark.epoch)

    def items_of(self, partitions: Collection[int]) -> Iterator[tuple[int, bytes, bytes]]:
        """Partition, key and value of everything in some partitions."""
        for partition in sorted(partitions):
            for key, value in self._shelf.items(partition):
                yield partition, key, value

    # What Faust asks.

    def persisted_offset(self, tp: TP) -> int | None:
        """The changelog offset up to which the copy goes."""
        self.flush()
        mark = self._shelf.mark(tp.partition)
        return None if mark is None or mark.offset < 0 else mark.offset

    def apply_changelog_batch(
        self,
        batch: Iterable[Any],
        to_key: Callable[[Any], Any],
        to_value: Callable[[Any], Any],
    ) -> None:
        """Take part of the changelog, in order; leaves out what is another table's or fenced."""
        del to_key, to_value  # raw bytes
        try:
            self.apply(event.message for event in batch)
        except StreamsError as error:
            asyncio.ensure_future(self.app.crash(error))  # noqa: RUF006 (Faust would try for ever)
            raise

    def apply(self, messages: Iterable[Any]) -> None:
        """Take messages of the changelog, in order; raises StateFolderError."""
        changelog = self.table.changelog_topic.get_topic_name()
        parts: dict[int, dict[bytes, bytes | None]] = defaultdict(dict)
        ends: dict[int, int] = {}
        for message in messages:
            if message.topic != changelog:
                continue
            partition = message.partition
            mark = self._shelf.mark(partition)
            if mark is not None and message.offset <= mark.offset:
                continue
            ends[partition] = message.offset
            epoch = _epoch(message.headers)
            if epoch < self._epoch(partition):
                _LOG.warning(
                    "%s, partition %d, offset %d: written by a worker that had lost it",
                    changelog,
                    partition,
                    message.offset,
                )
                continue
            self._epochs[partition] = epoch
            parts[partition][message.key] = message.value
        for partition, offset in ends.items():
            if self._shelf.mark(partition) is None:
                self._shelf.drop(partition)  # values without a mark are of nobody knows when
            self._put(partition, parts[partition], offset, self._epoch(partition))

    async def on_rebalance(
        self,
        assigned: set[TP],
        revoked: set[TP],
        newly_assigned: set[TP],
        generation_id: int = 0,
    ) -> None:
        """Leave what is no longer ours, and drop copies that go beyond their changelog's end."""
        del revoked, newly_assigned, generation_id
        self.flush()
        self._mine.clear()
        topic = self.table.changelog_topic.get_topic_name()
        recovery = self.app.tables.recovery  # type: ignore[attr-defined]
        ours = {tp for tp in assigned if tp.topic == topic}
        kept = {tp.partition for tp in ours}
        for tp in ours:  # where to read from is what the copy says, not what Faust read once
            recovery.active_offsets.pop(tp, None)
            recovery.standby_offsets.pop(tp, None)
        for partition in range(self.table.partitions or 0):
            if partition not in kept:
                self._epochs.pop(partition, None)
                self._shelf.leave(partition)
        marked = [tp for tp in ours if self.persisted_offset(tp) is not None]
        ends: Mapping[Any, int] = await self.app.consumer.highwaters(*marked) if marked else {}
        for tp in marked:
            mark = self._shelf.mark(tp.partition)
            if mark is not None and mark.offset >= (ends.get(tp) or 0):
                _LOG.warning("%s was made anew or lost its end: it is read again", tp)
                self._epochs.pop(tp.partition, None)
                self._shelf.drop(tp.partition)

    def reset_state(self) -> None:
        """Forget everything."""
        for partition in range(self.table.partitions or 0):
            self._shelf.drop(partition)

    async def backup_partition(self, *_given: Any, **_named: Any) -> None:  # noqa: ANN401
        """Not needed: the changelog is the backup."""

    def restore_backup(self, *_given: Any, **_named: Any) -> None:  # noqa: ANN401
        """Not needed: the changelog is the backup."""

    async def on_stop(self) -> None:
        """Put away what was noted."""
        self.flush()
        self._shelf.close()

    def _epoch(self, partition: int) -> int:
        """The highest epoch seen in a partition's changelog."""
        if partition not in self._epochs:
            mark = self._shelf.mark(partition)
            self._epochs[partition] = 0 if mark is None else mark.epoch
        return self._epochs[partition]

    def _put(
        self, partition: int, changes: Mapping[bytes, bytes | None], offset: int, epoch: int
    ) -> None:
        self._shelf.write(partition, changes, Mark(offset, epoch, self._clock()))


class StageTable(faust.Table[bytes, bytes]):
    """A Faust table over a `TableStore`."""

    def __init__(self, *given: Any, shelf: Shelf, **named: Any) -> None:  # noqa: ANN401
        self._shelf = shelf
        super().__init__(*given, **named)

    def _new_store(self) -> Any:  # noqa: ANN401 (Faust's type)
        return TableStore(
            self._shelf,
            lambda: datetime.now(UTC),
            "stage://",
            self.app,
            self,
            table_name=self.name,
            key_type=self.key_type,
            value_type=self.value_type,
        )


class _ChangelogQueue(ThrowableQueue[Any]):
    """What was read of the changelogs and not applied yet; tells only of this assignment.

    Faust empties its own whenever the flow resumes, also while standbys are being read already,
    and takes what was on its way at a rebalance for what it reads next: either leaves a hole in a
    copy. Each assignment reads on from where the copy ends, so what is of an older one can go.
    """

    def __init__(self, app: Any, **named: Any) -> None:  # noqa: ANN401 (Faust's)
        super().__init__(**named)
        self._app = app

    async def get(self) -> Any:  # noqa: ANN401 (Faust's event)
        while True:
            event = await super().get()
            if event.message.generation_id == self._app.consumer_generation_id:
                return event


class _Recovery(Recovery):
    """Faust's recovery, which finds next to nothing left to read.

    Faust hands on each changelog message by itself, at 75 us; read in batches they cost a tenth.
    """

    async def _build_offsets(
        self,
        consumer: Any,  # noqa: ANN401 (Faust's)
        tps: set[TP],
        destination: Any,  # noqa: ANN401
        title: str,
    ) -> None:
        await super()._build_offsets(consumer, tps, destination, title)
        if title != "active":
            return
        # What is not read within half of the time that Faust gives this is left to Faust.
        within_s = self.app.conf.broker_request_timeout / 2
        behind = {tp: destination[tp] for tp in tps if self.active_highwaters[tp] > destination[tp]}
        reading = consumer.changelogs(behind, self.active_highwaters, within_s)
        async with aclosing(reading):
            async for messages in reading:
                tp = TP(messages[0].topic, messages[0].partition)
                try:
                    cast("Any", self.tp_to_table[tp]).data.apply(messages)
                except StreamsError as error:
                    await self.app.crash(error)
                    raise
                destination[tp] = messages[-1].offset


class Tables(TableManager):
    """Faust's table manager without its second of waiting (ours are declared before)."""

    @property
    def recovery(self) -> Recovery:
        """What reads the changelogs."""
        if self._recovery is None:
            self._recovery = _Recovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery

    async def on_start(self) -> None:
        """Start at once."""
        await self._update_channels()
        await self.recovery.start()

    @property
    def changelog_queue(self) -> Any:  # noqa: ANN401 (Faust's)
        """Where the consumer puts what it reads of the changelogs."""
        if self._changelog_queue is None:
            self._changelog_queue = _ChangelogQueue(
                self.app,
                maxsize=_QUEUED,
                flow_control=self.app.flow_control,
            )
        return self._changelog_queue

    async def on_rebalance(self, *given: Any, **named: Any) -> None:  # noqa: ANN401
        """Apply what was taken before the copies are asked how far they go."""
        self.recovery.flush_buffers()
        await super().on_rebalance(*given, **named)


def _epoch(headers: Any) -> int:  # noqa: ANN401 (a mapping, pairs or None)
    """The epoch a changelog message was written under; 0 of an older release's."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    for name, value in pairs:
        if name == EPOCH_HEADER:
            try:
                return int(value)
            except (TypeError, ValueError):
                return 0
    return 0
