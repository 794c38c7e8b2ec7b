"""What the agent says of itself to Prometheus, on loopback: its collectors, its spool, its clock.

Every value is read when it is asked for; between two scrapes it costs nothing.
"""

import time
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from collectors.gpu.figures import cards
from collectors.shipping.shipper import Shipper
from collectors.source import Source
from vitals.families import Values, gauge, info

__all__ = ["Metrics"]

#: The loop returns twice a second at least; when it has not for so long, it is stuck in a read.
_STUCK_S = 15.0


class Metrics:
    """The agent's figures as a Prometheus collector; `collect` is called by another thread."""

    def __init__(self, host: str, sources: Iterable[Source], shipper: Shipper) -> None:
        self._host = host
        self._sources = tuple(sources)
        self._shipper = shipper
        #: When the loop last went round, in monotonic seconds; the loop itself says so.
        self.alive_at = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Whether the loop goes round; it does so whatever Kafka and the sources are like."""
        return time.monotonic() - self.alive_at < _STUCK_S

    @property
    def ready(self) -> bool:
        """Whether it goes round and every source was looked at."""
        return self.healthy and all(one.attempts.reads for one in self._sources)

    def collect(self) -> Iterator[Metric]:
        """Every figure as it is now."""
        yield info("ringfence_agent", "The agent of this node", host=self._host)
        yield from self._of_collectors()
        yield from self._of_shipping()
        # Whatever takes ticks of GPUs keeps its last one.
        yield from cards(getattr(one.collector, "latest", None) for one in self._sources)

    def _of_collectors(self) -> Iterator[Metric]:
        now = time.monotonic()
        gauges: dict[str, tuple[str, dict[str, float | None]]] = {
            "success": ("1 when the last read worked", {}),
            "last_success_timestamp_seconds": ("When a read last worked", {}),
            "duration_seconds": ("How long the last read took", {}),
            "reading_seconds": ("How long the read that is under way has taken", {}),
        }
        counts: dict[str, tuple[str, dict[str, float | None]]] = {
            "records": ("Records returned", {}),
            "reads": ("Reads made", {}),
            "errors": ("Reads, cursors and closings that failed", {}),
            "slow_reads": ("Reads that took more than a second", {}),
            "busy_seconds": ("Time spent in reads", {}),
            "lost": ("Records dropped or refused on their way", {}),
        }
        why = GaugeMetricFamily(
            "ringfence_collector_unavailable",
            "1 with the reason while a source is not there or cannot be read",
            labels=("collector", "reason"),
        )
        for source in self._sources:
            name, one = source.name, source.attempts
            since, reason = one.reading_since, one.unavailable or one.error
            gauges["success"][1][name] = float(one.worked_at is not None and reason is None)
            gauges["last_success_timestamp_seconds"][1][name] = one.worked_at
            gauges["duration_seconds"][1][name] = one.took_s
            gauges["reading_seconds"][1][name] = 0.0 if since is None else max(0.0, now - since)
            counts["records"][1][name] = source.records
            counts["reads"][1][name] = one.reads
            counts["errors"][1][name] = source.errors
            counts["slow_reads"][1][name] = one.slow
            counts["busy_seconds"][1][name] = one.busy_s
            counts["lost"][1][name] = source.lost
            if reason is not None:
                why.add_metric((name, reason), 1)
        for suffix, (words, values) in gauges.items():
            yield _family(GaugeMetricFamily, f"ringfence_collector_{suffix}", words, values)
        for suffix, (words, values) in counts.items():
            yield _family(CounterMetricFamily, f"ringfence_collector_{suffix}", words, values)
        yield why

    def _of_shipping(self) -> Iterator[Metric]:
        shipper = self._shipper
        for suffix, words, by_topic in (
            ("delivered", "Records that Kafka has", shipper.delivered),
            ("refused", "Records that Kafka refused for good", shipper.refused),
            ("dropped", "Records dropped for want of room", shipper.dropped),
        ):
            yield _family(
                CounterMetricFamily, f"ringfence_shipper_{suffix}", words, dict(by_topic), "topic"
            )
        rows, size = shipper.spooled
        plain = {
            "pending_records": ("Records that are neither in Kafka nor given up", shipper.pending),
            "spool_records": ("Records in the spool on disk", rows),
            "spool_bytes": ("Size of the spool on disk", size),
            "connected": ("1 while Kafka answers", shipper.connected),
            "clock_skew_seconds": ("How far this clock is ahead of Kafka's", shipper.clock_skew_s),
        }
        for suffix, (words, value) in plain.items():
            of_all: Values = {(): None if value is None else float(value)}
            yield gauge(f"ringfence_shipper_{suffix}", words, (), of_all)


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    words: str,
    values: dict[str, float | None],
    label: str = "collector",
) -> Metric:
    family = kind(name, words, labels=(label,))
    for labelled, value in values.items():
        if value is not None:
            family.add_metric((labelled,), value)
    return family
