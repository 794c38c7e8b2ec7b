"""The node agent: reads every collector of this node when it is due and ships what it returns.

Between reads the process sleeps: a collector's descriptor, its own time, or a thread of its that
has something ends the sleep. A collector that fails or has no source is said once, left alone for
longer and longer, and never stops the others.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Iterable
from functools import partial

from msgspec import Struct

from collectors.config import AgentConfig
from collectors.doctor import Finding, examine
from collectors.metrics import Metrics
from collectors.notify import Notifier
from collectors.registry import GpuCollector, gpu_sources, node_of, sources_of
from collectors.shipping.packing import encodable
from collectors.shipping.shipper import Shipper
from collectors.shipping.spool import SpoolInUseError
from collectors.source import Source
from collectors.waiting import Waiter
from vitals.http import Server

__all__ = ["AgentConfig", "Chores", "Finding", "SpoolInUseError", "once", "rounds", "run"]

_LOG = logging.getLogger(__name__)

#: Sleep at most so long: a stop that no signal tells is then seen.
_LONGEST_WAIT_S = 0.5
#: How long the end of the process waits for Kafka; systemd's and Kubernetes' patience is longer.
_FLUSH_S = 5.0
_REPORT_S = 300.0
#: Rounds without a record that end `once`: an event of several lines may wait for one more look.
_QUIET_ROUNDS = 3
_ONCE_PAUSE_S = 0.01


def run(config: AgentConfig, stop: threading.Event) -> None:
    """Collect and ship until ``stop`` is set; then send what is left and return.

    Raises SpoolInUseError when another agent has this one's state folder.
    """
    node = node_of(config)
    shipper = Shipper(
        config.kafka,
        client_id=f"ringfence-agent-{node.host}",
        host=node.host,
        max_bytes=config.backlog_bytes,
        spool=node.state("spool.sqlite"),
        spool_bytes=config.spool_bytes,
    )
    node = dataclasses.replace(node, skew_s=lambda: shipper.clock_skew_s)
    sources = sources_of(node)
    metrics = Metrics(node.host, sources, shipper)
    server = Server.start(config.metrics_listen, metrics)
    names = ", ".join(sorted({source.name for source in sources}))
    _LOG.info("agent of %s ships %s to %s", node.host, names, config.kafka.bootstrap)
    notifier = Notifier()
    notifier.ready(f"ships {names}")
    try:
        with Waiter() as waiter:
            rounds(sources, shipper, waiter, Chores(sources, shipper, metrics, notifier), stop)
        notifier.stopping()
        _finish(sources, shipper)
    finally:
        if server is not None:
            server.close()


class Chores:
    """What the loop does beside collecting: say that it lives, and report now and then."""

    def __init__(
        self, sources: list[Source], shipper: Shipper, metrics: Metrics, notifier: Notifier
    ) -> None:
        self._sources = sources
        self._shipper = shipper
        self._metrics = metrics
        self._notifier = notifier
        self._report_at = 0.0
        self._alive_at = 0.0

    def __call__(self, now: float) -> float:
        """Do what is due; return when the next of it is."""
        self._metrics.alive_at = now
        if now >= self._report_at:
            self._report_at = now + _REPORT_S
            _report(self._sources, self._shipper)
        if self._notifier.watchdog_s is None:
            return self._report_at
        if now >= self._alive_at:
            self._alive_at = now + self._notifier.watchdog_s
            self._notifier.alive()
        return min(self._report_at, self._alive_at)


def rounds(
    sources: list[Source],
    shipper: Shipper,
    waiter: Waiter,
    chores: Chores,
    stop: threading.Event,
) -> None:
    """Ship what is due, sleep until something is, until ``stop`` is set."""
    for source in sources:
        if hasattr(source.collector, "on_ready"):
            source.collector.on_ready = partial(_poke, source, waiter)
    readable: set[int] = set()
    watched: dict[int, Source] = {}
    while not stop.is_set():
        now = time.monotonic()
        for number in readable:
            watched[number].poked = True
        for source in sources:
            if source.due_at(now) <= now:
                source.ship(shipper, now)
        next_at = min(chores(now), now + _LONGEST_WAIT_S)
        now = time.monotonic()
        watched.clear()
        for source in sources:
            next_at = min(next_at, source.due_at(now))
            descriptor = source.descriptor(now)
            if descriptor is not None:
                watched[descriptor] = source
        readable = waiter.wait(next_at - now, watched)


def _poke(source: Source, waiter: Waiter) -> None:
    source.poked = True
    waiter.wake()


def once(config: AgentConfig) -> tuple[list[Struct], list[Finding]]:
    """Return one round of records, and how each collector fares on this node.

    It needs no Kafka and neither looks at nor moves a cursor. Files are read to their end and one
    tick of the GPUs is taken; it takes as long as that tick.
    """
    node = node_of(dataclasses.replace(config, state_dir=None))
    sources = sources_of(node)
    found: dict[str, list[Struct]] = {source.name: [] for source in sources}
    ends_at = time.monotonic() + config.gpu_deadline_s + _FLUSH_S
    quiet = 0
    try:
        while quiet < _QUIET_ROUNDS and time.monotonic() < ends_at:
            new = 0
            for source in sources:
                taken = source.take(time.monotonic())
                found[source.name] += taken
                new += len(taken)
            quiet = 0 if new or not _settled(sources) else quiet + 1
            time.sleep(_ONCE_PAUSE_S)
        for source in sources:
            found[source.name] += source.rest()
        findings = examine(node, sources, found)
    finally:
        for source in sources:
            source.collector.close()
    return [encodable(record) for records in found.values() for record in records], findings


def _settled(sources: list[Source]) -> bool:
    """Whether what answers on a thread, or from a child process, has answered."""
    gpus = all(gpu.latest is not None or gpu.absent for gpu in gpu_sources(sources))
    return gpus and not any(
        not getattr(source.collector, "settled", True)
        or getattr(source.collector, "busy", False)
        or (source.name == "journal" and not source.records and source.attempts.unavailable is None)
        for source in sources
    )


def _finish(sources: list[Source], shipper: Shipper) -> None:
    now = time.monotonic()
    for source in sources:
        source.ship(shipper, now)
        # Held-back lines are read again at the next start; ticks of the GPUs are not.
        if isinstance(source.collector, GpuCollector):
            source.send(shipper, source.rest(), now)
    left = shipper.close(_FLUSH_S)
    for source in sources:
        source.finish(now)
    _report(sources, shipper)
    if left:
        _LOG.warning("%d records were neither in Kafka nor in the spool when the agent ended", left)


def _report(sources: Iterable[Source], shipper: Shipper) -> None:
    read = ", ".join(f"{one.name} {one.records}" for one in sources)
    errors = sum(source.errors for source in sources)
    lost = sum(source.lost for source in sources)
    _LOG.info(
        "read: %s; in Kafka %d, waiting %d, lost %d, collector errors %d",
        read,
        shipper.delivered.total(),
        shipper.pending,
        lost,
        errors,
    )
