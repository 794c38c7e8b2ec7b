"""The same decoding and the same host step over a bare aiokafka loop: what Faust is measured by.

Arguments: bootstrap, topic, partitions. Reads what lies in the topic now, keeps its states in
memory only, sends nothing, and prints frames, CPU and wall seconds as JSON.
"""

import asyncio
import json
import sys
import time
from datetime import UTC, datetime

import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]

from evidence.records import GpuFrame
from evidence.wire import decoder
from rules.host import HostState, step
from rules.stage import Arrived
from rules.tables import load


async def read(bootstrap: str, topic: str, partitions: int) -> dict[str, float]:
    """Take everything from the first record to the end as it is now."""
    rules, decode = load(), decoder("gpu")
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=2 << 20,
    )
    await consumer.start()
    places = [TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(places)
    ends = await consumer.end_offsets(places)
    states: dict[bytes, HostState] = {}
    left = {place for place in places if ends[place]}
    frames, cpu, wall = 0, time.process_time(), time.monotonic()
    while left:
        batches = await consumer.getmany(timeout_ms=1000)
        for place, messages in batches.items():
            for message in messages:
                record = decode(message.value)
                if isinstance(record, GpuFrame):
                    at = datetime.fromtimestamp(message.timestamp / 1000, UTC)
                    state = states.get(message.key) or HostState()
                    states[message.key], _ = step(state, Arrived("gpu", record, at), rules)
                    frames += 1
            if messages[-1].offset >= ends[place] - 1:
                left.discard(place)
    taken = {
        "frames": frames,
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.monotonic() - wall,
    }
    await consumer.stop()
    return taken


def main() -> None:
    """Run and print."""
    bootstrap, topic, partitions = sys.argv[1:]
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    print(json.dumps(asyncio.run(read(bootstrap, topic, int(partitions)))))


if __name__ == "__main__":
    main()
