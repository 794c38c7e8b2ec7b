"""The traffic of a fleet at rest, at an even rate: GPU frames, kernel noise, NCCL lines.

Arguments: bootstrap, prefix, messages a second. Runs until SIGTERM, then prints how many messages
it sent in how many seconds as JSON. One producer stands for all agents, so its batches are larger
than theirs.
"""

import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event

import load_gpu
import load_kernel
import load_nccl
from kafka import KafkaProducer
from msgspec.structs import replace

from evidence.transport import Kafka
from evidence.wire import encode

#: Of ten messages: a frame is five seconds of one node, so 200 frames a second are 1,000 nodes.
_MIX = ("gpu", "kernel", "kernel", "nccl", "kernel", "kernel", "kernel", "kernel", "kernel", "nccl")
_NODES = 1000
_RANKS = 64

_Message = tuple[str, bytes, bytes]


def _frames() -> Iterator[_Message]:
    nodes = [load_gpu.Cards(load_gpu.host_name(number)) for number in range(_NODES)]
    for node in itertools.cycle(nodes):
        yield "gpu", node.host.encode(), encode(node.frame(datetime.now(UTC)))


def _kernel() -> Iterator[_Message]:
    pool = load_kernel.records(load_kernel.noise(500), "any")
    for number in itertools.count():
        host = load_gpu.host_name(number % _NODES)
        now = datetime.now(UTC)
        record = replace(pool[number % 500], id=f"k{number}", host=host, at=now, observed_at=now)
        yield "kernel", host.encode(), encode(record)


def _nccl() -> Iterator[_Message]:
    """Jobs of 64 ranks that start, one after the other."""
    pool = [
        record
        for record in load_nccl.job_records("any", _RANKS, 0, 1)
        if record.kind == "comm-init"
    ]
    for number in itertools.count():
        job, rank = f"train-{number // _RANKS}", number % _RANKS
        now = datetime.now(UTC)
        record = replace(pool[rank], id=f"n{number}", job=job, at=now, observed_at=now)
        yield "nccl", job.encode(), encode(record)


def main() -> None:
    """Send until told to stop."""
    bootstrap, prefix, rate = sys.argv[1], sys.argv[2], float(sys.argv[3])
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    kafka = Kafka(bootstrap=bootstrap, prefix=prefix)
    producer = KafkaProducer(
        **kafka.client(), acks="all", enable_idempotence=True, compression_type="lz4", linger_ms=2
    )
    sources = {"gpu": _frames(), "kernel": _kernel(), "nccl": _nccl()}
    began, sent = time.monotonic(), 0
    while not stop.is_set():
        due = int((time.monotonic() - began) * rate)
        for _ in range(due - sent):
            topic, key, value = next(sources[_MIX[sent % len(_MIX)]])
            producer.send(kafka.topic(topic), key=key, value=value)
            sent += 1
        stop.wait(0.005)
    took_s = time.monotonic() - began
    producer.close(timeout=10)
    print(json.dumps({"sent": sent, "took_s": took_s}))


if __name__ == "__main__":
    main()
