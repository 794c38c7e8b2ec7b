"""Settings of the worker and what can stop it from starting or running."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from evidence.transport import Kafka
from vitals.address import listen_address

__all__ = [
    "SigningError",
    "StateFolderError",
    "StoreKind",
    "StreamsError",
    "TooLargeError",
    "TopicsError",
    "WorkerConfig",
    "WorkerCrashed",
]


class StreamsError(Exception):
    """The worker cannot do its work; the message is one sentence for the operator."""


class TopicsError(StreamsError):
    """A topic is missing, or has another number of partitions than its stage needs."""


class StateFolderError(StreamsError):
    """The folder of the tables cannot be used; what is in it is in Kafka too."""


class SigningError(StreamsError):
    """The key that is to sign commands cannot be used."""


class TooLargeError(StreamsError):
    """A message that the broker will never take, however often it is sent."""


class WorkerCrashed(StreamsError):  # noqa: N818 (a state, as operators say it)
    """The worker met something it cannot go on with; started again, it resumes where it was."""


class StoreKind(StrEnum):
    """Where a worker has its tables, besides Kafka."""

    ROCKSDB = "rocksdb"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker process.

    ``app_id`` names the consumer group and the tables' changelogs, after the topic prefix: workers
    that share it share the partitions and must run the same ``stages``. ``thresholds`` and
    ``policy`` None take the shipped files. A partition is ticked every ``tick_s``, and when a key
    of it is due; a batch of records is settled (outputs, state, offsets) at the latest when it has
    ``batch_size`` of them.
    With ``store`` rocksdb the tables are under ``state_dir`` too, and a worker that starts again
    reads of the changelogs only what is newer; each worker needs a folder of its own then.
    """

    kafka: Kafka = field(default_factory=Kafka)
    state_dir: Path = Path("ringfence-data/worker")
    thresholds: Path | None = None
    policy: Path | None = None
    stages: tuple[str, ...] = ("host", "job", "fabric", "isolation")
    app_id: str = "worker"
    store: StoreKind = StoreKind.ROCKSDB
    #: How many other workers follow each partition's changelog, to take over without reading it.
    standby_replicas: int = 0
    tick_s: float = 0.5
    # The embedded broker holds a first join for the session timeout; Kafka refuses less than 6 s.
    session_timeout_s: float = 8.0
    #: How old the picture of the topics may be: by it a changed partition count is noticed.
    metadata_s: float = 30.0
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
    #: HOST:PORT of the Prometheus metrics, `/healthz` and `/readyz`; empty: none.
    metrics_listen: str = "127.0.0.1:9456"
    #: PEM file of the Ed25519 key that signs commands and desired states; its stem is the key's id.
    signing_key: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work; raises ValueError with one sentence."""
        if self.metrics_listen:
            listen_address(self.metrics_listen)

    @property
    def group(self) -> str:
        """The consumer group, e.g. ``ringfence.worker``."""
        return self.kafka.prefix + self.app_id

    def changelog(self, stage: str) -> str:
        """Full name of the topic that keeps a stage's table."""
        return f"{self.group}-{stage}-changelog"
