"""A worker to which Kafka shows only some of its topics ends, and does not sit idle for good."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.structs import PartitionMetadata

from evidence.transport import Kafka
from rules.tables import load
from streams.app import build
from streams.config import WorkerConfig, WorkerCrashed
from streams.stages import bind
from streams.topics import Prepared


class Seen(ClusterMetadata):
    """What a broker has told of some topics."""

    def __init__(self, *topics: str) -> None:
        super().__init__()
        for topic in topics:
            self._partitions[topic] = {
                0: PartitionMetadata(topic, 0, 0, (0,), (0,), 0)  # one, led by the only broker
            }


def crashes(tmp_path: Path, shown: set[str] | None) -> list[BaseException]:
    """What ends the worker when it hands out partitions; ``shown`` None is all of its topics."""
    config = WorkerConfig(kafka=Kafka(), state_dir=tmp_path)
    stages = bind(("job",), load())
    full = {config.kafka.topic(name) for stage in stages for name in stage.topics}
    ended: list[BaseException] = []

    async def crash(error: BaseException) -> None:
        ended.append(error)

    async def hand_out() -> None:
        app, _ = build(config, stages, Prepared(dict.fromkeys(full, 1), {}))
        app.crash = crash
        wanted = full | {config.changelog(stage.name) for stage in stages}
        told = Seen(*(wanted if shown is None else shown))
        member: Any = app.assignor.metadata(wanted)
        app.assignor.assign(told, {"worker-1": member})
        await asyncio.sleep(0)

    asyncio.run(hand_out())
    return ended


def test_it_goes_on_where_every_topic_is_seen(tmp_path: Path) -> None:
    assert crashes(tmp_path, None) == []


@pytest.mark.parametrize("shown", [set(), {"ringfence.nccl"}], ids=["none", "some"])
def test_it_ends_where_a_topic_is_not_seen(tmp_path: Path, shown: set[str]) -> None:
    (error,) = crashes(tmp_path, shown)
    assert isinstance(error, WorkerCrashed)
    assert "of the topics nothing yet" in str(error)
