"""The Faust application of one worker: declares the app, its topics and its tables.

Faust is held to what was found about it: equal partition counts (checked in `streams.topics`), no
table write outside an event (`Runner` writes through the table's changelog, by partition), no
exception out of an agent.
"""

import asyncio
import gc
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any, cast

import faust
from aiokafka.errors import (  # type: ignore[import-untyped]
    MessageSizeTooLargeError,
    RecordTooLargeError,
)
from faust.assignor.partition_assignor import PartitionAssignor
from faust.auth import SASLCredentials, SSLCredentials
from faust.exceptions import ProducerSendError
from faust.transport.drivers.aiokafka import Producer
from faust.types import TP

from evidence.transport import Kafka as Cluster
from streams.config import StoreKind, TooLargeError, WorkerConfig, WorkerCrashed
from streams.consumer import SafeConsumer
from streams.lanes import Turns
from streams.pulse import Pulse
from streams.routing import SIGNED_TOPICS, Outgoing, signer
from streams.runner import Runner
from streams.shelves import MemoryShelf, RocksShelf, Shelf
from streams.stage import Stage
from streams.states import States
from streams.tables import EPOCH_HEADER, StageTable, Tables, TableStore
from streams.topics import Prepared

__all__ = ["build"]

# Faust services defined here log under this module's name, and are as chatty as Faust.
_LOG = logging.getLogger("streams")
_TOO_LARGE = (MessageSizeTooLargeError, RecordTooLargeError)


class _SafeProducer(Producer):
    """Faust's producer, idempotent and acknowledged by all replicas whatever the guarantee."""

    def _settings_extra(self) -> Mapping[str, Any]:
        return {"acks": "all", "enable_idempotence": True}


class _WholeAssignor(PartitionAssignor):
    """Faust's assignor, which must see every topic.

    Right after a broker's restart Kafka may tell of none. Faust then hands out nothing, for good:
    the worker ends instead, and its next start reads anew. It ends too when a topic has another
    number of partitions than at the start: keys have moved, and their states have not.
    """

    #: Partitions of the input topics as the start check found them.
    expected: Mapping[str, int] = MappingProxyType({})

    def assign(self, cluster: Any, member_metadata: Any) -> Any:  # noqa: ANN401 (Faust's types)
        wanted = {topic for one in member_metadata.values() for topic in one.subscription}
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in sorted(wanted)}
        unseen = [topic for topic, count in counts.items() if not count]
        changed = [
            topic for topic in counts if counts[topic] != self.expected.get(topic, counts[topic])
        ]
        if unseen:
            self._end(f"Kafka tells of {len(unseen)} of the topics nothing yet ({unseen[0]} ...)")
        elif changed:
            before, now = self.expected[changed[0]], counts[changed[0]]
            self._end(
                f"Topic {changed[0]} had {before} partitions at the start and has {now} now: "
                "changing the partition count is a migration"
            )
        return super().assign(cluster, member_metadata)

    def _end(self, sentence: str) -> None:
        asyncio.ensure_future(self.app.crash(WorkerCrashed(sentence)))  # noqa: RUF006


def build(
    config: WorkerConfig,
    stages: Sequence[Stage[Any]],
    prepared: Prepared,
    at_point: Callable[[str], None] = lambda _point: None,
) -> tuple[faust.App, list[Runner]]:
    """The application and one runner a stage; raises StateFolderError.

    ``prepared`` is what `streams.topics.prepare` found.
    """
    app = faust.App(
        config.group,
        env_prefix="RINGFENCE_FAUST_",  # else BROKER_URL and the like in the environment win
        broker=[f"kafka://{server}" for server in config.kafka.bootstrap.split(",")],
        broker_credentials=_credentials(config.kafka),
        broker_session_timeout=config.session_timeout_s,
        broker_heartbeat_interval=config.session_timeout_s / 4,
        broker_rebalance_timeout=max(config.session_timeout_s, 15.0),
        broker_request_timeout=max(config.session_timeout_s + 5.0, 15.0),
        broker_commit_interval=config.commit_s,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=2 * 1024 * 1024,
        processing_guarantee="at_least_once",
        producer_acks=-1,
        producer_max_request_size=config.max_message_bytes + 64 * 1024,
        producer_request_timeout=config.send_timeout_s,
        stream_buffer_maxsize=config.buffer_size,
        stream_wait_empty=True,
        store="memory://",  # not used: StageTable has a store of its own
        datadir=str(config.state_dir),
        table_standby_replicas=config.standby_replicas,
        consumer_metadata_max_age_ms=int(config.metadata_s * 1000),
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        TableManager=Tables,
        Table=StageTable,
        PartitionAssignor=_WholeAssignor,
    )
    cast("_WholeAssignor", app.assignor).expected = prepared.counts
    # One transport each, of this app alone: Faust looks the classes up on it.
    vars(app.producer_transport)["Producer"] = _SafeProducer
    vars(app.transport)["Consumer"] = partial(
        SafeConsumer, fetch_wait_ms=config.fetch_wait_ms, turns=Turns(config.kafka.topic)
    )
    pulse = Pulse(config.session_timeout_s / 2)  # the rest may have gone before the pause
    pulse.start()
    return app, [_declare(app, config, stage, prepared, pulse, at_point) for stage in stages]


def _shelf(config: WorkerConfig, stage: Stage[Any], prepared: Prepared) -> Shelf:
    """Where the stage's table lies."""
    if config.store is StoreKind.MEMORY:
        return MemoryShelf()
    changelog = config.changelog(stage.name)
    identity = prepared.ids.get(changelog)
    if not identity:
        _LOG.warning("this Kafka gives topics no ids: %s is kept in memory only", changelog)
        return MemoryShelf()
    shelf = RocksShelf(config.state_dir / "rocksdb" / changelog, identity.encode())
    if shelf.removed is not None:
        _LOG.warning("%s is read anew, its local tables were removed: %s", changelog, shelf.removed)
    return shelf


def _table(app: faust.App, config: WorkerConfig, stage: Stage[Any], prepared: Prepared) -> Any:  # noqa: ANN401 (Faust's)
    """Declare one stage's table."""
    return app.Table(
        stage.name,
        key_type=bytes,
        value_type=bytes,
        partitions=prepared.counts[config.kafka.topic(stage.topics[0])],
        recovery_buffer_size=1000,
        shelf=_shelf(config, stage, prepared),
    )


def _declare(
    app: faust.App,
    config: WorkerConfig,
    stage: Stage[Any],
    prepared: Prepared,
    pulse: Pulse,
    at_point: Callable[[str], None],
) -> Runner:
    """Declare one stage's topics, table and agent."""
    short = {config.kafka.topic(name): name for name in stage.topics}
    topic = app.topic(
        *short,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        allow_empty=True,
    )
    table = _table(app, config, stage, prepared)
    states = States(stage, config.max_message_bytes)
    runner = Runner(
        stage,
        states,
        _Wire(app, config, table, pulse),
        batch_size=config.batch_size,
        at_point=at_point,
    )

    async def move(stream: Any) -> None:  # noqa: ANN401 (Faust's stream)
        try:
            async for event in stream.noack().events():
                message = event.message
                await runner.take(short[message.topic], message, partial(stream.ack, event))
        except Exception as error:
            await app.crash(error)  # Faust would start the agent anew, without the event it had
            raise

    app.agent(topic, name=stage.name)(move)

    async def restore() -> None:
        try:
            await _restore(
                app, config.changelog(stage.name), cast("TableStore", table.data), runner, short
            )
        except Exception as error:
            await app.crash(error)  # Faust would go on, with the states of before or none
            raise

    table.on_recover(restore)
    return runner


async def _restore(
    app: faust.App,
    changelog: str,
    store: TableStore,
    runner: Runner,
    short: Mapping[str, str],
) -> None:
    """Begin anew with the partitions this worker has now."""
    began = perf_counter()
    stage, states, counts = runner.stage, runner.states, runner.counts
    if counts.queued:
        raise WorkerCrashed(f"the {stage.name} stage lost partitions before it had settled them")
    recovery = cast("Any", app.tables).recovery
    mine = {tp.partition for tp in app.assignor.assigned_actives() if tp.topic == changelog}
    for partition in mine:
        end = recovery.active_highwaters[TP(changelog, partition)]
        store.claim(partition, cast("Any", app).consumer_generation_id, end)
    with _uncollected():
        states.restore(store.items_of(mine))
    consumer = cast("SafeConsumer", app.consumer)
    states.forget_beyond(await _ends(consumer, short, states.newest_seen()))
    runner.time.forget()
    counts.positions.clear()
    counts.restores += 1
    counts.restored_keys = len(states)
    counts.restored_s = perf_counter() - began
    _LOG.info("%s stage: %d keys in %d partitions", stage.name, len(states), len(mine))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Make a hundred thousand states without looking for cycles among them; they have none.

    It was two thirds of the time of a restore, and each later search would go through them again.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


async def _ends(
    consumer: SafeConsumer,
    short: Mapping[str, str],
    newest: Mapping[tuple[str, int], int],
) -> dict[tuple[str, int], int]:
    """End offsets of the inputs, exact where what was seen reaches the reported one."""
    inputs = [tp for tp in consumer.assignment() if tp.topic in short]
    ends = dict(await consumer.reported_ends(inputs)) if inputs else {}
    doubtful = [
        tp for tp, end in ends.items() if newest.get((short[tp.topic], tp.partition), -1) >= end
    ]
    if doubtful:
        ends |= await consumer.highwaters(*doubtful)
    return {(short[tp.topic], tp.partition): end for tp, end in ends.items()}


class _Wire:
    """What a runner asks of Faust: its producer, its stage's table, its end."""

    def __init__(
        self,
        app: faust.App,
        config: WorkerConfig,
        table: Any,  # noqa: ANN401 (Faust's)
        pulse: Pulse,
    ) -> None:
        self._app = app
        self._config = config
        self._table = table
        self._pulse = pulse
        self._signer = signer(config.signing_key)

    async def send(self, message: Outgoing) -> Awaitable[object]:
        """Send one message; what comes back is done when the broker has it."""
        self._pulse.check()
        topic = self._config.kafka.topic(message.topic)
        headers = message.headers
        if self._signer is not None and message.topic in SIGNED_TOPICS:
            headers = [*(headers or ()), *self._signer.headers(topic, message.value)]
        try:
            sent = await self._app.producer.send(
                topic, message.key, message.value, None, None, headers
            )
        except ProducerSendError as error:
            if isinstance(error.__cause__, _TOO_LARGE):
                raise TooLargeError(str(error.__cause__)) from error
            raise
        return self._acknowledged(sent)

    async def _acknowledged(self, sent: Awaitable[object]) -> object:
        try:
            return await sent
        except _TOO_LARGE as error:
            raise TooLargeError(str(error)) from error

    async def keep(self, key: bytes, value: bytes | None, partition: int) -> object:
        """Write one key of the table, in the partition its records come from.

        Sent as outputs are and not by the table: Faust's own buffer passes one message a turn of
        the event loop, and holds up reading while a hundred wait (docs/decisions/0002).
        """
        self._pulse.check()
        store: TableStore = self._table.data
        headers = [(EPOCH_HEADER, b"%d" % store.epoch(partition))]
        changelog = self._table.changelog_topic_name
        sent = await self._app.producer.send(changelog, key, value, partition, None, headers)
        kept: Any = await sent
        store.wrote(partition, kept.offset, key, value)
        return kept

    async def fail(self, error: BaseException) -> None:
        """End the worker."""
        await self._app.crash(error)


def _credentials(kafka: Cluster) -> SASLCredentials | SSLCredentials | None:
    """Faust's credentials for what `evidence.transport.Kafka` asks for; None for PLAINTEXT."""
    context = None
    if kafka.tls:
        context = ssl.create_default_context(cafile=kafka.ssl_cafile)
        context.check_hostname = kafka.ssl_check_hostname
        if kafka.ssl_certfile:
            context.load_cert_chain(kafka.ssl_certfile, kafka.ssl_keyfile)
    if kafka.sasl:
        return SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.password(),
            mechanism=kafka.sasl_mechanism,
            ssl_context=context,
        )
    return None if context is None else SSLCredentials(context)
