"""The Faust application of one worker: declares the app, its topics and its tables.

Faust is held to what was found about it: equal partition counts (checked in `streams.topics`), no
table write outside an event (`Runner` writes through the table's changelog, by partition), no
exception out of an agent.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import faust
from aiokafka.errors import (  # type: ignore[import-untyped]
    MessageSizeTooLargeError,
    RecordTooLargeError,
)
from faust.assignor.partition_assignor import PartitionAssignor
from faust.auth import SASLCredentials, SSLCredentials
from faust.exceptions import ProducerSendError
from faust.tables.manager import TableManager
from faust.transport.drivers.aiokafka import Producer

from evidence.transport import Kafka as Cluster
from streams.config import TooLargeError, WorkerConfig, WorkerCrashed
from streams.consumer import SafeConsumer
from streams.routing import Outgoing
from streams.runner import Runner
from streams.stage import Stage
from streams.states import States, newest_seen

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
    the worker ends instead, and its next start reads anew.
    """

    def assign(self, cluster: Any, member_metadata: Any) -> Any:  # noqa: ANN401 (Faust's types)
        wanted = {topic for one in member_metadata.values() for topic in one.subscription}
        unseen = sorted(topic for topic in wanted if not cluster.partitions_for_topic(topic))
        if unseen:
            sentence = f"Kafka tells of {len(unseen)} of the topics nothing yet ({unseen[0]} ...)"
            asyncio.ensure_future(self.app.crash(WorkerCrashed(sentence)))  # noqa: RUF006
        return super().assign(cluster, member_metadata)


class _PromptTables(TableManager):
    """Faust's table manager without its second of waiting: our tables are declared before."""

    async def on_start(self) -> None:
        await self._update_channels()
        await self.recovery.start()


def build(
    config: WorkerConfig,
    stages: Sequence[Stage[Any]],
    counts: Mapping[str, int],
    at_point: Callable[[str], None] = lambda _point: None,
) -> tuple[faust.App, list[Runner]]:
    """The application and one runner a stage.

    ``counts`` has the partitions of every input topic (`streams.topics.prepare`).
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
        store="memory://",
        datadir=str(config.state_dir),
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        TableManager=_PromptTables,
        PartitionAssignor=_WholeAssignor,
    )
    # One transport each, of this app alone: Faust looks the classes up on it.
    vars(app.producer_transport)["Producer"] = _SafeProducer
    vars(app.transport)["Consumer"] = partial(SafeConsumer, fetch_wait_ms=config.fetch_wait_ms)
    return app, [_declare(app, config, stage, counts, at_point) for stage in stages]


def _declare(
    app: faust.App,
    config: WorkerConfig,
    stage: Stage[Any],
    counts: Mapping[str, int],
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
    table = app.Table(
        stage.name,
        key_type=bytes,
        value_type=bytes,
        partitions=counts[next(iter(short))],
        recovery_buffer_size=1000,
    )
    states = States(stage, config.max_message_bytes)
    runner = Runner(
        stage, states, _Wire(app, config, table), batch_size=config.batch_size, at_point=at_point
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
        changelog = config.changelog(stage.name)
        mine = {tp.partition for tp in app.assignor.assigned_actives() if tp.topic == changelog}
        ends = await _ends(cast("SafeConsumer", app.consumer), short, newest_seen(table.data))
        for key in list(states.restore(table.data, mine, ends)):
            del table.data[key]
        runner.time.forget()
        _LOG.info("%s stage: %d keys in %d partitions", stage.name, len(states), len(mine))

    table.on_recover(restore)
    return runner


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

    def __init__(self, app: faust.App, config: WorkerConfig, table: Any) -> None:  # noqa: ANN401
        self._app = app
        self._config = config
        self._table = table

    async def send(self, message: Outgoing) -> Awaitable[object]:
        """Send one message; what comes back is done when the broker has it."""
        try:
            sent = await self._app.producer.send(
                self._config.kafka.topic(message.topic),
                message.key,
                message.value,
                None,
                None,
                message.headers,
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
        if value is None:
            self._table.data.pop(key, None)
        else:
            self._table.data[key] = value
        changelog = self._table.changelog_topic_name
        sent = await self._app.producer.send(changelog, key, value, partition, None, None)
        return await sent

    async def fail(self, error: BaseException) -> None:
        """End the worker."""
        await self._app.crash(error)


def _credentials(kafka: Cluster) -> SASLCredentials | SSLCredentials | None:
    """Faust's credentials for what `evidence.transport.Kafka` asks for; None for PLAINTEXT."""
    context = None
    if kafka.security_protocol in {"SSL", "SASL_SSL"}:
        context = ssl.create_default_context(cafile=kafka.ssl_cafile)
        if kafka.ssl_certfile:
            context.load_cert_chain(kafka.ssl_certfile, kafka.ssl_keyfile)
    if kafka.security_protocol.startswith("SASL"):
        return SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.sasl_password,
            mechanism=kafka.sasl_mechanism,
            ssl_context=context,
        )
    return None if context is None else SSLCredentials(context)
