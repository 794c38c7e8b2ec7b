"""The topics, what they carry, how they are keyed, and how many partitions they need.

Topics that one Faust agent reads into one table must have equal partition counts, so all
host-keyed topics share one (a setting: changing it is a migration).
"""

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from evidence import decisions, records

__all__ = ["CLUSTER_KEY", "TOPICS", "Key", "Topic"]

#: Key of everything that one isolation stage must see in one order.
CLUSTER_KEY = b"cluster"


class Key(StrEnum):
    """What a topic's messages are keyed by."""

    HOST = "host"
    JOB = "job"
    SUBNET = "subnet"
    CLUSTER = "cluster"
    DOMAIN = "domain"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: its short name (the prefix is a setting), key and the structs it carries."""

    name: str
    key: Key
    types: tuple[type[Struct], ...]
    compacted: bool = False

    def full_name(self, prefix: str) -> str:
        """The name in Kafka, e.g. ``ringfence.kernel``."""
        return prefix + self.name

    def partitions(self, shared: int) -> int:
        """Partitions of this topic when keyed topics have ``shared`` of them."""
        return shared if self.key in (Key.HOST, Key.JOB, Key.SUBNET) else 1


_ALL = (
    Topic("kernel", Key.HOST, (records.KernelRecord, records.Tick)),
    Topic("gpu", Key.HOST, (records.GpuFrame, records.Tick)),
    Topic("nccl", Key.JOB, (records.NcclRecord, records.Tick)),
    Topic("fabric", Key.SUBNET, (records.FabricRecord, records.Tick)),
    Topic("inventory", Key.HOST, (records.InventoryRecord, records.Tick), compacted=True),
    Topic("context", Key.HOST, (records.ContextRecord, records.Tick)),
    Topic("growth", Key.HOST, (records.GrowthRecord,)),
    Topic("suspicions", Key.HOST, (decisions.Suspicion, records.Tick)),
    Topic("verdicts", Key.CLUSTER, (decisions.Verdict, records.Tick)),
    Topic("requests", Key.CLUSTER, (decisions.Request,)),
    Topic("isolation.commands", Key.DOMAIN, (decisions.Command,)),
    Topic("isolation.state", Key.DOMAIN, (decisions.DesiredState,), compacted=True),
    Topic("isolation.acks", Key.CLUSTER, (decisions.Ack,)),
    Topic("drills", Key.CLUSTER, (records.DrillRecord,)),
    Topic("deadletters", Key.TOPIC, (decisions.DeadLetter,)),
)

#: Every topic by its short name.
TOPICS: dict[str, Topic] = {topic.name: topic for topic in _ALL}
