"""Settings of the worker and what can stop it from starting or running."""

from dataclasses import dataclass, field
from pathlib import Path

from evidence.transport import Kafka

__all__ = ["StreamsError", "TooLargeError", "TopicsError", "WorkerConfig", "WorkerCrashed"]


class StreamsError(Exception):
    """The worker cannot do its work; the message is one sentence for the operator."""


class TopicsError(StreamsError):
    """A topic is missing, or has another number of partitions than its stage needs."""


class TooLargeError(StreamsError):
    """A message that the broker will never take, however often it is sent."""


class WorkerCrashed(StreamsError):  # noqa: N818 (a state, as operators say it)
    """The worker met something it cannot go on with; started again, it resumes where it was."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker process.

    ``app_id`` names the consumer group and the tables' changelogs, after the topic prefix: workers
    that share it share the partitions and must run the same ``stages``. ``thresholds`` and
    ``policy`` None take the shipped files. A partition is ticked every ``tick_s``; a batch of
    records is settled (outputs, state, offsets) at the latest when it has ``batch_size`` of them.
    """

    kafka: Kafka = field(default_factory=Kafka)
    state_dir: Path = Path("ringfence-data/worker")
    thresholds: Path | None = None
    policy: Path | None = None
    stages: tuple[str, ...] = ("host", "job", "fabric", "isolation")
    app_id: str = "worker"
    tick_s: float = 0.5
    # The embedded broker holds a first join for the session timeout; Kafka refuses less than 6 s.
    session_timeout_s: float = 8.0
    #: How long a fetch waits for a record. Kafka answers at once when there is one; the embedded
    #: broker may sit the time out when a fetch names many partitions.
    fetch_wait_ms: int = 50
    commit_s: float = 1.0
    #: How long a record may wait for its acknowledgement before the worker gives up.
    send_timeout_s: float = 30.0
    #: How long the topics may be missing before the worker gives up.
    start_timeout_s: float = 30.0
    #: A worker whose own ticks do not come back for this long is stuck and ends.
    stall_s: float = 60.0
    stop_timeout_s: float = 4.0
    batch_size: int = 256
    #: How many messages a stage holds before it stops fetching.
    buffer_size: int = 1024
    #: Largest record we send, and so the largest state of one key.
    max_message_bytes: int = 8 * 1024 * 1024

    @property
    def group(self) -> str:
        """The consumer group, e.g. ``ringfence.worker``."""
        return self.kafka.prefix + self.app_id

    def changelog(self, stage: str) -> str:
        """Full name of the topic that keeps a stage's table."""
        return f"{self.group}-{stage}-changelog"
