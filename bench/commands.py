"""How long one consumer takes for 750 commands in a row: `python bench/commands.py --kafka apache`.

The adapter does nothing, so this is the consumer's own share: journal, acks, commits. Beside it the
same with 4 ms an act one by one, and with 4 ms for all of a batch.
"""

import argparse
import importlib.util
import json
import resource
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from evidence.decisions import AckStatus, Action, Cause, Command, Domain, DomainKind, Level
from evidence.transport import Kafka
from evidence.wire import cloudevents_headers, encode
from ringfence.cluster import ensure_topics
from ringfence.embedded import EmbeddedBroker
from schedulers.adapter import Outcome
from schedulers.consumer import SchedulerConfig, run

ROOT = Path(__file__).parents[1]
RIVAL_S = 303.7


@dataclass
class OneByOne:
    """Each act takes ``seconds``."""

    seconds: float = 0.0

    def apply(self, _command: Command) -> Outcome:
        """Do nothing, for a while."""
        if self.seconds:
            time.sleep(self.seconds)
        return Outcome(AckStatus.DONE)


@dataclass
class Batched(OneByOne):
    """All acts of a batch take ``seconds`` together."""

    def apply_all(self, commands: Sequence[Command]) -> list[Outcome]:
        """Do nothing, for a while, once."""
        if self.seconds:
            time.sleep(self.seconds)
        return [Outcome(AckStatus.DONE)] * len(commands)


def command(number: int, per_node: int) -> Command:
    """The isolate of one GPU, ``per_node`` of them on a node."""
    host = f"hpc-n{number // per_node:04d}"
    domain = Domain(kind=DomainKind.GPU, host=host, pci=f"0000:{number % per_node:02x}:00")
    now = datetime.now(UTC)
    return Command(
        id=f"c{number}", action=Action.ISOLATE, domain=domain, domain_id=domain.id,
        level=Level.DRAIN, cause=Cause.GPU_MEMORY, reason="row remap failed", incident="i",
        generation=1, issued_at=now, act_by=now + timedelta(minutes=10),
    )  # fmt: skip


def measure(kafka: Kafka, adapter: OneByOne, count: int, per_node: int) -> dict[str, Any]:
    """Seconds from the first command sent to the last ack read."""
    stop = threading.Event()
    reader = KafkaConsumer(
        kafka.topic("isolation.acks"),
        **kafka.client(),
        group_id=None,
        auto_offset_reset="earliest",
    )
    producer = KafkaProducer(**kafka.client(), linger_ms=5)
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        config = SchedulerConfig(kafka=kafka, state_dir=Path(folder), max_isolations=10**6)
        thread = threading.Thread(target=run, args=(config, adapter, stop))
        thread.start()
        topic = kafka.topic("isolation.commands")

        def send(one: Command) -> None:
            producer.send(
                topic, encode(one), key=one.domain_id.encode(), headers=cloudevents_headers(one)
            )

        send(command(10**6, 1))  # the consumer has joined when this is acked
        _read(reader, 1)
        cpu, began = _cpu(), time.monotonic()
        for number in range(count):
            send(command(number, per_node))
        _read(reader, count)
        took, used = time.monotonic() - began, _cpu() - cpu
        stop.set()
        thread.join()
    return {
        "adapter": type(adapter).__name__,
        "act_s": adapter.seconds,
        "commands": count,
        "gpus_a_node": per_node,
        "seconds": round(took, 2),
        "core_seconds": round(used, 2),
        "rival_seconds": RIVAL_S,
        "times_faster": round(RIVAL_S / took, 1),
    }


def _read(reader: KafkaConsumer, count: int) -> None:
    deadline = time.monotonic() + 300
    while count > 0:
        if time.monotonic() > deadline:
            raise SystemExit(f"{count} acks did not come")
        count -= sum(map(len, reader.poll(timeout_ms=50).values()))


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _broker(held: ExitStack, kind: str) -> str:
    if kind == "embedded":
        return held.enter_context(EmbeddedBroker()).bootstrap
    if kind != "apache":
        return kind
    spec = importlib.util.spec_from_file_location(
        "local_kafka", ROOT / "deploy/kafka/local_kafka.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["local_kafka"] = module
    spec.loader.exec_module(module)
    folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
    broker = module.ApacheKafka(folder).start()
    held.callback(broker.stop)
    return str(broker.bootstrap)


def main() -> None:
    """Measure each adapter and print one JSON line for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", default="apache", help="apache, embedded, or HOST:PORT")
    parser.add_argument("--count", type=int, default=750)
    given = parser.parse_args()
    cases = [
        (OneByOne(), 1),
        (Batched(), 1),
        (Batched(), 8),
        (OneByOne(0.004), 1),
        (Batched(0.004), 1),
    ]
    with ExitStack() as held:
        bootstrap = _broker(held, given.kafka)
        for adapter, per_node in cases:
            kafka = Kafka(bootstrap=bootstrap, prefix=f"b{uuid.uuid4().hex[:8]}.")
            ensure_topics(kafka)
            print(json.dumps(measure(kafka, adapter, given.count, per_node)), flush=True)


if __name__ == "__main__":
    main()
