"""Runs one scheduler's consumer: commands in, acks out, and now and then a look at the scheduler.

What the loop does with each message is in `schedulers.desk`, what a look is for in
`schedulers.watching`.
"""

import logging
import math
import sqlite3
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from evidence.decisions import Level
from evidence.transport import Kafka
from schedulers.adapter import Adapter, Observing, SchedulerError
from schedulers.budget import Limits
from schedulers.checks import Checks
from schedulers.clerk import Clerk
from schedulers.counts import Counts
from schedulers.desired import DesiredStates
from schedulers.desk import COMMANDS, Desk
from schedulers.direct import tell_direct
from schedulers.journal import Journal
from schedulers.metrics import SchedulerVitals
from schedulers.watching import Watch
from vitals.address import listen_address
from vitals.clients import made
from vitals.http import Server

__all__ = ["SchedulerConfig", "SchedulerError", "run"]

_LOG = logging.getLogger(__name__)
#: Longer than any adapter takes with its retries: a member that acts must not lose its partition.
_LONGEST_COMMAND_MS = 30 * 60 * 1000
_LARGEST_BYTES = 2 * 1024 * 1024
#: A loop that runs is not held up longer by a Kafka that is away.
_REJOIN_MS = 5_000


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """One scheduler process.

    ``name`` stands in its acks and names its consumer group (``group`` None: the topic prefix,
    ``scheduler.`` and the name) and its journal in ``state_dir``. ``attempts`` counts the first
    try; ``retry_wait_s`` is the wait before the second, and doubles. A killed scheduler's successor
    gets its commands after ``session_timeout_s``.

    With ``verify_keys`` (a PEM file or a folder of them) only signed commands are carried out.
    ``max_isolations`` nodes within ``window_s``, ``per_minute`` isolations and the level
    ``at_most`` hold whatever is asked; with ``dry_run`` nothing is carried out. An adapter that can
    look does so every ``observe_s``.
    """

    kafka: Kafka = field(default_factory=Kafka)
    name: str = "exec"
    state_dir: Path = Path("ringfence-data/scheduler")
    group: str | None = None
    attempts: int = 3
    retry_wait_s: float = 2.0
    session_timeout_s: float = 6.0
    start_within_s: float = 30.0
    verify_keys: Path | None = None
    max_isolations: int = 20
    window_s: float = 3600.0
    per_minute: int | None = None
    at_most: Level = Level.EVICT
    dry_run: bool = False
    observe_s: float = 15.0
    metrics_listen: str = ""

    def __post_init__(self) -> None:
        _ = self.limits
        if self.observe_s <= 0:
            raise ValueError("observe_s must be more than 0 seconds")
        if self.metrics_listen:
            listen_address(self.metrics_listen)

    @property
    def group_id(self) -> str:
        """The consumer group."""
        return self.group or f"{self.kafka.prefix}scheduler.{self.name}"

    @property
    def limits(self) -> Limits:
        """What this consumer lets itself do."""
        return Limits(
            max_isolations=self.max_isolations,
            window_s=self.window_s,
            per_minute=self.per_minute,
            at_most=self.at_most,
            dry_run=self.dry_run,
        )


def run(
    config: SchedulerConfig,
    adapter: Adapter,
    stop: Event,
    clock: Callable[[], datetime] = _now,
) -> None:
    """Carry commands out until ``stop`` is set; a command in hand is finished first.

    Raises SchedulerError when Kafka is not there at the start, the keys or the state folder cannot
    be used, or the journal is damaged: without a memory nothing may be carried out.
    """
    checks = Checks(config.kafka, config.verify_keys)
    with ExitStack() as held:
        journal = held.enter_context(Journal(config.state_dir, config.name))
        clients = _clients(config)
        held.callback(clients.close)
        states = clients.states(config, checks)
        clerk = Clerk(
            config.name,
            adapter,
            journal,
            clock,
            stop,
            config.attempts,
            config.retry_wait_s,
            limits=config.limits,
            topic=clients.topic_id,
            floor=states.generation,
        )
        counts = Counts(turned=time.monotonic())
        desk = Desk(
            config.kafka,
            clerk,
            clients.consumer,
            lambda: _consumer(config, clients.common | {"bootstrap_timeout_ms": _REJOIN_MS}),
            clients.producer,
            checks,
            clock,
            counts,
        )
        held.callback(desk.close)
        watch = _watch(config, adapter, journal, clients, states, counts)
        server = Server.start(
            config.metrics_listen, SchedulerVitals(config.name, counts, config.limits)
        )
        if server is not None:
            held.callback(server.close)
        _LOG.info("scheduler %s reads %s", config.name, config.kafka.topic(COMMANDS))
        _turn(desk, states, watch, stop)
    _LOG.info("scheduler %s stopped", config.name)


def _turn(desk: Desk, states: DesiredStates, watch: Watch | None, stop: Event) -> None:
    while not stop.is_set():
        states.read()
        tell_direct(desk.clerk.journal, desk.producer, desk.kafka)
        desk.turn(math.inf if watch is None else watch.wait_s)
        if watch is None or not desk.consumer.assignment():
            continue  # a spare consumer looks at nothing: the one that acts does
        try:
            watch.turn()
        except sqlite3.Error as error:
            if type(error) is sqlite3.DatabaseError:  # not its kinds: busy, full, unreadable now
                raise SchedulerError(f"The journal is damaged: {error}") from error
            _LOG.exception("what the scheduler says could not be kept")


def _watch(
    config: SchedulerConfig,
    adapter: Adapter,
    journal: Journal,
    clients: "_Clients",
    states: DesiredStates,
    counts: Counts,
) -> Watch | None:
    if not isinstance(adapter, Observing):
        return None
    return Watch(
        config.name,
        adapter,
        journal,
        clients.producer,
        config.kafka,
        states,
        counts,
        every_s=config.observe_s,
        told=config.state_dir / f"{config.name}.differences.json",
    )


@dataclass(frozen=True, slots=True)
class _Clients:
    """What speaks to Kafka, and the identity of the topic of commands."""

    common: dict[str, Any]
    producer: KafkaProducer
    consumer: KafkaConsumer
    topic_id: str
    more: list[DesiredStates] = field(default_factory=list)

    def states(self, config: SchedulerConfig, checks: Checks) -> DesiredStates:
        """The reader of desired states, closed with the rest."""
        try:
            made = DesiredStates(config.kafka, checks, self.common)
        except KafkaError as error:
            where = config.kafka.bootstrap
            raise SchedulerError(f"No Kafka answers at {where}: {error}") from error
        self.more.append(made)
        return made

    def close(self) -> None:
        """Let the broker go."""
        self.consumer.close(autocommit=False, timeout_ms=5000)
        with suppress(KafkaError):  # acks that are on their way still: they are sent again
            self.producer.close(timeout=5)
        for one in self.more:
            one.close()


def _clients(config: SchedulerConfig) -> _Clients:
    common = config.kafka.client() | {
        "client_id": f"ringfence-{config.name}",
        "bootstrap_timeout_ms": int(config.start_within_s * 1000),
        "reconnect_backoff_max_ms": 1000,  # a broker that is back is found within a second
    }
    try:
        topic_id = _topic_id(config, common)
        producer = made(
            KafkaProducer,
            **common,
            acks="all",
            linger_ms=2,
            max_request_size=_LARGEST_BYTES,
        )
        consumer = _consumer(config, common)
    except (KafkaError, OSError) as error:
        raise SchedulerError(f"No Kafka answers at {config.kafka.bootstrap}: {error}") from error
    return _Clients(common, producer, consumer, topic_id)


def _consumer(config: SchedulerConfig, common: dict[str, Any]) -> KafkaConsumer:
    session_ms = int(config.session_timeout_s * 1000)
    return made(
        KafkaConsumer,
        config.kafka.topic(COMMANDS),
        **common,
        group_id=config.group_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=1000,
        max_poll_interval_ms=_LONGEST_COMMAND_MS,
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=session_ms // 3,
    )


def _topic_id(config: SchedulerConfig, common: dict[str, Any]) -> str:
    """Kafka's id of the commands' topic; one of this run where the broker gives none.

    A topic that was made anew, as an embedded broker's is at each start, counts its generations
    from the beginning: what was seen in the old one must not stand against it.
    """
    admin = made(KafkaAdminClient, **common)
    try:
        (found,) = admin.describe_topics([config.kafka.topic(COMMANDS)])
    finally:
        admin.close()
    given = str(found.get("topic_id") or "")
    return given if given not in ("", str(uuid.UUID(int=0))) else uuid.uuid4().hex
