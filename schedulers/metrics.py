"""A consumer's figures for Prometheus, its health and its readiness."""

import time
from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from schedulers.budget import Limits
from schedulers.counts import Counts
from vitals.families import counter, gauge, info

__all__ = ["SchedulerVitals"]

#: Longer than any command with its retries takes.
_STUCK_S = 30 * 60.0


class SchedulerVitals:
    """What a consumer says of itself."""

    def __init__(self, name: str, counts: Counts, limits: Limits) -> None:
        self._name = name
        self._counts = counts
        self._limits = limits

    @property
    def healthy(self) -> bool:
        """Whether the loop goes round."""
        return time.monotonic() - self._counts.turned < _STUCK_S

    @property
    def ready(self) -> bool:
        """Whether it reads commands."""
        return self.healthy and self._counts.connected

    def collect(self) -> Iterable[Metric]:
        """Every figure as it is now."""
        counts, limits = self._counts, self._limits
        yield info("ringfence_scheduler", "This consumer.", scheduler=self._name)
        yield gauge(
            "ringfence_scheduler_connected", "1 while Kafka answers.", (), {(): counts.connected}
        )
        yield counter(
            "ringfence_scheduler_acks",
            "Acks sent, by status.",
            ("status",),
            {(status,): count for status, count in dict(counts.acks).items()},
        )
        yield counter(
            "ringfence_scheduler_deadletters",
            "Messages that were no command.",
            (),
            {(): counts.letters},
        )
        yield counter(
            "ringfence_scheduler_passed_over",
            "Commands for others.",
            (),
            {(): counts.passed_over},
        )
        yield counter(
            "ringfence_scheduler_requests",
            "Requests sent about what others did, by action.",
            ("action",),
            {(action,): count for action, count in dict(counts.requests).items()},
        )
        yield counter(
            "ringfence_scheduler_context", "Context records sent.", (), {(): counts.context}
        )
        yield counter(
            "ringfence_scheduler_looks",
            "Looks at the scheduler, by whether it answered.",
            ("answered",),
            {("yes",): counts.looks, ("no",): counts.looks_failed},
        )
        looked = counts.looked_at
        yield gauge(
            "ringfence_scheduler_looked_timestamp_seconds",
            "When the scheduler last answered a look.",
            (),
            {(): None if looked is None else looked.timestamp()},
        )
        yield gauge(
            "ringfence_scheduler_differences",
            "Parts whose state in the scheduler is not the desired one, by kind.",
            ("kind",),
            {(kind,): count for kind, count in dict(counts.differences).items()},
        )
        yield gauge(
            "ringfence_scheduler_budget_nodes",
            "Nodes that may be taken out within the window.",
            (),
            {(): limits.max_isolations},
        )
        yield gauge(
            "ringfence_scheduler_dry_run",
            "1 where nothing is carried out.",
            (),
            {(): limits.dry_run},
        )
