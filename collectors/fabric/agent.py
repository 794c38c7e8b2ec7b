"""The fabric agent: sweeps one InfiniBand subnet and ships what its ports say.

One process is enough for a subnet; a second one ships everything twice, as records of its own.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from collectors.collector import CollectorError, Unavailable
from collectors.deadline import Caller
from collectors.fabric.mad import MadPort
from collectors.fabric.sweep import Sweeper
from collectors.shipping.shipper import Shipper
from collectors.shipping.spool import SpoolInUseError
from collectors.source import Source
from evidence.records import FabricRecord
from evidence.transport import Kafka

__all__ = ["FabricAgentConfig", "FabricCollector", "SpoolInUseError", "once", "run"]

_LOG = logging.getLogger(__name__)

#: Between two attempts to open a port that was not there.
_ABSENT_S = 30.0
#: What a sweep may take where the interval is shorter.
_LEAST_BUDGET_S = 5.0
#: How much longer than its budget a sweep may take before it is said to hang.
_HANGS_AFTER_S = 30.0
_ROUND_S = 0.1
_FLUSH_S = 5.0
_REPORT_S = 300.0


@dataclass(frozen=True, slots=True)
class FabricAgentConfig:
    """Which subnet is swept, through which port, how, and where it goes.

    ``subnet`` names it in every record and is their key. ``device`` (``mlx5_0``; None is the first
    active one) and ``port`` (0 is the first active one) are this machine's. ``timeout_ms``,
    ``tries`` and ``outstanding`` are those of `collectors.fabric.mad.MadPort`; ``full_every`` and
    ``refresh_s`` those of `collectors.fabric.sweep.Sweeper`. ``state_dir`` keeps records on disk
    while Kafka is away, at most ``spool_bytes``; None keeps them in memory only.
    """

    kafka: Kafka
    subnet: str = "default"
    device: str | None = None
    port: int = 0
    interval_s: float = 10.0
    timeout_ms: int = 200
    tries: int = 2
    outstanding: int = 4
    full_every: int = 30
    refresh_s: float = 300.0
    state_dir: Path | None = None
    backlog_bytes: int = 64 << 20
    spool_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        """Refuse what cannot work; raises ValueError with one sentence."""
        for name in ("interval_s", "timeout_ms", "tries", "outstanding", "full_every", "refresh_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, not {getattr(self, name)}")


class FabricCollector:
    """Every port of one subnet, each ``interval_s``, as one record a switch or adapter.

    The sweep is made on a thread of its own, so that `read` never waits for the fabric.
    """

    name = "fabric"
    topic = "fabric"

    def __init__(self, config: FabricAgentConfig, clock: Callable[[], datetime]) -> None:
        self._config = config
        self._sweeper = Sweeper(
            config.subnet,
            clock,
            full_every=config.full_every,
            refresh_s=config.refresh_s,
            budget_s=max(config.interval_s, _LEAST_BUDGET_S),
        )
        self._mads: MadPort | None = None
        self._caller: Caller[list[FabricRecord]] = Caller("fabric-sweep")
        self._due = 0.0
        #: Why the last sweep that ended gave nothing.
        self._failure: Exception | None = None

    def read(self) -> Iterable[Struct]:
        """Return the records of the sweep that ended since the last call, and start what is due.

        Raises Unavailable when there is no InfiniBand port that this process may ask, and
        CollectorError when the port fails or a sweep does not end.
        """
        now = time.monotonic()
        found: list[FabricRecord] = []
        if self._caller.busy:
            found = self._ended(now)
        if not self._caller.busy and now >= self._due:
            self._due += self._config.interval_s
            if self._due <= now:  # the first one, or the machine slept
                self._due = now + self._config.interval_s
            self._caller.start(self._sweep)
        if self._failure is not None:  # until a sweep says otherwise: it is said and counted once
            raise self._failure
        return found

    def saved(self) -> None:
        """Nothing to remember: a sweep that did not arrive is followed by the next."""

    def close(self) -> None:
        """End the thread once its sweep is over."""
        self._caller.close()

    def once(self) -> list[FabricRecord]:
        """Make one sweep, here and now; raises as `read` does."""
        return self._sweep()

    def _ended(self, now: float) -> list[FabricRecord]:
        answer = self._caller.answer()
        if answer is None:
            took_s = now - self._caller.started_at
            if took_s > self._config.interval_s + _HANGS_AFTER_S:
                raise CollectorError("the sweep over the fabric does not end: a MAD call hangs")
            return []
        self._failure = answer.error
        if isinstance(answer.error, Unavailable):
            self._due = now + _ABSENT_S
        return answer.value or []

    def _sweep(self) -> list[FabricRecord]:
        """One sweep, through a port that is opened anew after it failed."""
        if self._mads is None:
            config = self._config
            self._mads = MadPort(
                config.device,
                config.port,
                timeout_ms=config.timeout_ms,
                tries=config.tries,
                outstanding=config.outstanding,
            )
        try:
            return self._sweeper.sweep(self._mads)
        except CollectorError:
            self._mads.close()
            self._mads = None
            raise


def once(config: FabricAgentConfig) -> list[FabricRecord]:
    """Return the records of one sweep, without Kafka; raises CollectorError with one sentence."""
    return FabricCollector(config, _now).once()


def run(config: FabricAgentConfig, stop: threading.Event) -> None:
    """Sweep and ship until ``stop`` is set; then send what is left and return.

    Raises SpoolInUseError when another agent has this one's state folder.
    """
    shipper = Shipper(
        config.kafka,
        client_id=f"ringfence-fabric-agent-{config.subnet}",
        host=socket.gethostname(),
        max_bytes=config.backlog_bytes,
        spool=None if config.state_dir is None else config.state_dir / "spool.sqlite",
        spool_bytes=config.spool_bytes,
    )
    source = Source(FabricCollector(config, _now), config.subnet, patient=False)
    _LOG.info("fabric agent of subnet %s ships to %s", config.subnet, config.kafka.bootstrap)
    report_at = time.monotonic() + _REPORT_S
    while not stop.wait(_ROUND_S):
        now = time.monotonic()
        source.ship(shipper, now)
        if now >= report_at:
            report_at = now + _REPORT_S
            _report(source, shipper)
    left = shipper.close(_FLUSH_S)
    source.finish(time.monotonic())
    _report(source, shipper)
    if left:
        _LOG.warning("%d records were not in Kafka when the fabric agent ended", left)


def _report(source: Source, shipper: Shipper) -> None:
    _LOG.info(
        "read: fabric %d; in Kafka %d, waiting %d, lost %d, errors %d",
        source.records,
        shipper.delivered.total(),
        shipper.pending,
        source.lost,
        source.errors,
    )


def _now() -> datetime:
    return datetime.now(UTC)
