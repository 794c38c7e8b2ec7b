"""Injects faults as agents send them and waits for their commands, each of which is acked."""

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import load_gpu
import load_kernel
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from rig import BenchError

from collectors.shipping.shipper import Shipper
from evidence.decisions import Ack, AckStatus, Command
from evidence.identity import digest
from evidence.topics import CLUSTER_KEY
from evidence.transport import Kafka
from evidence.wire import cloudevents_headers, decode, encode

__all__ = ["EVERY_S", "POLICY", "Watch", "hard", "settled"]

#: Commands are real and nothing is held; ``{settle_s}``: how long isolation waits for other hosts.
POLICY = """\
[isolation.mode]
value = "enforce"
why = "Commands are real in the bench."
source = "bench/watch.py"

[isolation.settle_s]
value = {settle_s}
why = "How long a verdict waits for other hosts."
source = "bench/watch.py"

[budget.node_absolute]
value = 1e9
why = "Every injected fault must be answered, whatever it costs."
source = "bench/watch.py"

[widening.common_nodes]
value = 1000000
why = "The same fault on many hosts is the bench's doing, not a common cause."
source = "bench/watch.py"
"""
#: Between two faults, on average. A real fleet of 1,000 nodes has a few a day. The spans are drawn,
#: or they would keep step with the worker's ticks.
EVERY_S = 0.25


class Watch:
    """Injects faults and waits for their commands; acks each command once."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.shipper = Shipper(kafka, client_id="bench", burst=math.inf)
        self._producer = KafkaProducer(**kafka.client(), acks="all", linger_ms=0)
        self._consumer = KafkaConsumer(**kafka.client(), fetch_max_wait_ms=100)
        self._place = TopicPartition(kafka.topic("isolation.commands"), 0)
        # Nobody else reads or writes deadletters here: it serves to measure one hop.
        self._probe = TopicPartition(kafka.topic("deadletters"), 0)
        places = [self._place, self._probe]
        self._consumer.assign(places)
        self._consumer.seek_to_end(*places)
        for place in places:
            self._consumer.position(place)
        self._sent: dict[str, float] = {}
        self._probed: dict[bytes, float] = {}
        self._took_ms: dict[str, float] = {}
        self._hops_ms: list[float] = []
        self._hosts = 0

    def inject(
        self,
        count: int,
        fault: Callable[["Watch", str], None],
        every_s: float = EVERY_S,
        grace_s: float = 30.0,
    ) -> list[float]:
        """Milliseconds of ``count`` faults on hosts of their own, from send to command.

        Raises BenchError when one has no command ``grace_s`` after they should have been sent.
        """
        draw = random.Random(self._hosts)
        hosts = [f"faulty{self._hosts + number:05d}" for number in range(count)]
        self._hosts += count
        self._took_ms.clear()

        def send() -> None:
            for host in hosts:
                fault(self, host)
                time.sleep(draw.uniform(0.2, 1.8) * every_s)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        deadline = time.monotonic() + count * every_s + grace_s
        while len(self._took_ms) < count:
            if time.monotonic() > deadline:
                raise BenchError(f"Only {len(self._took_ms)} of {count} faults got a command.")
            self._take()
        sender.join()
        return list(self._took_ms.values())

    def hops(self, count: int) -> list[float]:
        """Milliseconds of ``count`` single records from a producer to our consumer."""
        self._hops_ms.clear()
        for number in range(count):
            value = f"probe {number}".encode()
            self._probed[value] = time.perf_counter()
            self._producer.send(self._probe.topic, key=b"probe", value=value)
            until = time.monotonic() + 0.05
            while time.monotonic() < until or value in self._probed:
                self._take()
                if time.monotonic() > until + 30:
                    raise BenchError("A record did not come back within 30 s.")
        return self._hops_ms

    def last(self, host: str, send: Callable[[], None]) -> None:
        """Send the last evidence of a fault and note when."""
        self._sent[host] = time.perf_counter()
        send()

    def _take(self) -> None:
        for messages in self._consumer.poll(timeout_ms=50).values():
            now = time.perf_counter()
            for message in messages:
                self._note(message, now)

    def _note(self, message: Any, now: float) -> None:  # noqa: ANN401 (kafka-python has no types)
        if message.topic == self._probe.topic:
            sent = self._probed.pop(message.value, None)
            if sent is not None:
                self._hops_ms.append((now - sent) * 1000)
            return
        command = decode("isolation.commands", message.value)
        assert isinstance(command, Command)
        host = command.domain.host or ""
        if command.dry_run or command.held:
            raise BenchError(f"A command of the bench was not real: {command.held or 'dry run'}")
        sent = self._sent.pop(host, None)
        if sent is not None:
            self._took_ms[host] = (now - sent) * 1000
            self._ack(command)

    def _ack(self, command: Command) -> None:
        ack = Ack(
            id=digest("ack", "bench", command.id),
            command=command.id,
            domain_id=command.domain_id,
            at=datetime.now(UTC),
            scheduler="bench",
            status=AckStatus.DONE,
        )
        self._producer.send(
            self._kafka.topic("isolation.acks"),
            key=CLUSTER_KEY,
            value=encode(ack),
            headers=cloudevents_headers(ack),
        )

    def close(self) -> None:
        """Close the clients."""
        self.shipper.close(2.0)
        with contextlib.suppress(KafkaError):  # what is not acked now is nobody's loss here
            self._producer.close(timeout=5)
        self._consumer.close()


def hard(watch: Watch, host: str) -> None:
    """A card leaves the bus: one line is enough, and nothing waits."""
    record = load_kernel.fallen_off(host, load_kernel.BUSES[0], datetime.now(UTC))
    watch.last(host, lambda: watch.shipper.send("kernel", host, record))


def settled(watch: Watch, host: str) -> None:
    """An uncorrectable error that NVML counts and the kernel log tells: two witnesses, no hurry."""
    cards = load_gpu.Cards(host)
    watch.shipper.send("gpu", host, cards.frame(datetime.now(UTC), 1))
    grown = cards.frame(
        datetime.now(UTC),
        1,
        ecc_volatile_uncorrected=1,
        ecc_aggregate_uncorrected=1,
        remapped_uncorrectable=1,
        remap_pending=True,
    )
    watch.shipper.send("gpu", host, grown)
    watch.shipper.flush(5.0)
    told = load_kernel.chain(host, load_kernel.BUSES[0], datetime.now(UTC), 1)[0]
    watch.last(host, lambda: watch.shipper.send("kernel", host, told))
