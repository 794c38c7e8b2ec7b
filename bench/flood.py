"""The traffic of a fleet at any rate: messages are made beforehand, and only their times are new.

Arguments: bootstrap, prefix, messages a second (0: as fast as it goes), seconds (or messages, with
a rate of 0), and ``frames`` for GPU frames alone. Prints what was sent, how long it took and its
CPU seconds as JSON. The mix is the one of background.py.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import load_gpu
import load_kernel
import load_nccl
from kafka import KafkaProducer
from msgspec import Struct
from msgspec.structs import replace

from evidence.transport import Kafka
from evidence.wire import encode

#: As in background.py: of ten messages one is a frame.
_MIX = ("gpu", "kernel", "kernel", "nccl", "kernel", "kernel", "kernel", "kernel", "kernel", "nccl")
_NODES = 1000
_RANKS = 64
#: Times that stand in the messages until they are sent, as many as a frame has ticks.
_HELD = [
    datetime(2001, 2, 3, 4, 5, 6, 100_000, UTC) + timedelta(seconds=second) for second in range(5)
]


@dataclass(slots=True)
class Made:
    """One encoded message and the times in it, each with how far it is before the sending."""

    key: bytes
    value: bytes
    held: tuple[tuple[bytes, timedelta], ...]
    #: A word that is another one in each message, or records would be the same one.
    number: bytes = b"@@@@@@@@"

    def at(self, number: int, now: datetime) -> bytes:
        """The message as it is sent at ``now``."""
        value = self.value.replace(self.number, b"%08d" % number)
        for held, back in self.held:
            value = value.replace(held, _words(now - back))
        return value


def _words(at: datetime) -> bytes:
    """A time as the wire has it, always with microseconds."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()


def _made(key: str, record: Struct) -> Made:
    value = encode(record)
    last = _HELD[-1]
    held = tuple((_words(at), last - at) for at in _HELD if _words(at) in value)
    return Made(key.encode(), value, held)


def _frames() -> list[Made]:
    """A frame of five ticks of every node."""
    made = []
    for number in range(_NODES):
        host = load_gpu.host_name(number)
        frame = load_gpu.Cards(host).frame(_HELD[-1])
        made.append(_made(host, replace(frame, id=f"g{host}@@@@@@@@")))
    return made


def _kernel() -> list[Made]:
    made = []
    for number, record in enumerate(load_kernel.records(load_kernel.noise(_NODES), "any")):
        host, at = load_gpu.host_name(number), _HELD[-1]
        told = replace(record, id="k@@@@@@@@", host=host, at=at, observed_at=at)
        made.append(_made(host, told))
    return made


def _nccl() -> list[Made]:
    """Ranks of jobs of 64 that start; ``@@@@@@@@`` is the job's number here."""
    made = []
    for record in load_nccl.job_records("train-@@@@@@@@", _RANKS, 0, 1):
        if record.kind == "comm-init":
            at = _HELD[-1]
            told = replace(record, id=f"n{record.rank}@@@@@@@@", at=at, observed_at=at)
            made.append(_made("train-@@@@@@@@", told))
    return made


def _turn(made: list[Made], each: int = 1) -> Iterator[tuple[bytes, Callable[[datetime], bytes]]]:
    """The messages of one kind, one after the other; ``each`` of them share a number."""
    for turn in itertools.count():
        one, number = made[turn % len(made)], turn // each
        key = one.key.replace(one.number, b"%08d" % number)
        yield key, partial(one.at, number)


def main() -> None:
    """Send."""
    bootstrap, prefix, rate, amount = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:5])
    mix = ("gpu",) if sys.argv[5:] == ["frames"] else _MIX
    kafka = Kafka(bootstrap=bootstrap, prefix=prefix)
    producer = KafkaProducer(
        **kafka.client(),
        acks="all",
        enable_idempotence=True,
        compression_type="lz4",
        linger_ms=5,
        batch_size=64 * 1024,
    )
    sources = {"gpu": _turn(_frames()), "kernel": _turn(_kernel()), "nccl": _turn(_nccl(), _RANKS)}
    topics = {name: kafka.topic(name) for name in sources}
    total = int(rate * amount) if rate else int(amount)
    print(json.dumps({"ready": True}), flush=True)
    began, cpu, sent = time.monotonic(), time.process_time(), 0
    while sent < total:
        due = min(total, int((time.monotonic() - began) * rate)) if rate else total
        now = datetime.now(UTC)
        for _ in range(min(due - sent, 200)):
            name = mix[sent % len(mix)]
            key, value = next(sources[name])
            producer.send(topics[name], key=key, value=value(now))
            sent += 1
        if sent >= due:
            time.sleep(0.002)
    producer.flush()
    spent = {"took_s": time.monotonic() - began, "cpu_s": time.process_time() - cpu}
    producer.close(timeout=10)
    print(json.dumps({"sent": sent, **spent}))


if __name__ == "__main__":
    main()
