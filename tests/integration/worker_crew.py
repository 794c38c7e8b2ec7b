"""Workers of one group, the hosts that feed them, and what came out; for several tests."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from kafka import KafkaConsumer, KafkaProducer

from evidence.decisions import Command, Verdict
from evidence.records import KernelRecord
from evidence.transport import Kafka
from evidence.wire import encode
from streams.ticks import TICK_KEY

ROOT = Path(__file__).parents[2]
PROCESS = Path(__file__).with_name("worker_process.py")
NOW = datetime(2026, 11, 3, 9, 12, 44, tzinfo=UTC)
HOSTS = [f"node-{number:02}" for number in range(16)]


def environment(kafka: Kafka) -> dict[str, str]:
    """Of a worker's process; it takes the way to a secured Kafka from here."""
    secured = {
        name: value
        for name, value in dataclasses.asdict(kafka).items()
        if name.startswith(("security", "sasl", "ssl"))
    }
    return os.environ | {"PYTHONPATH": str(ROOT), "KAFKA_SETTINGS": json.dumps(secured)}


class Crew:
    """Workers with a state folder each, hosts that send, and what came out."""

    def __init__(
        self, kafka: Kafka, folder: Path, *settings: str, hosts: Sequence[str] = HOSTS
    ) -> None:
        self.kafka = kafka
        self.hosts = hosts
        self.folder = folder
        self.settings = settings
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._before: dict[str, int] = {}
        self.sent: dict[str, int] = defaultdict(int)
        self.verdicts: list[Verdict] = []
        self.commands: list[Command] = []
        self._producer = KafkaProducer(**kafka.client(), acks="all", linger_ms=0)
        self._consumer = KafkaConsumer(
            **kafka.client(), auto_offset_reset="earliest", fetch_max_wait_ms=10
        )
        self._consumer.subscribe([kafka.topic(one) for one in ("verdicts", "isolation.commands")])
        self._sending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, name: str, *more: str) -> None:
        """Start a worker, or start it again on its folder."""
        with (self.folder / f"{name}.log").open("ab") as output:
            self._before[name] = output.tell()
            self.processes[name] = subprocess.Popen(
                [*self.command(name), *more],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(self.kafka),
            )

    def command(self, name: str) -> list[str]:
        """The command line of a worker."""
        kafka, folder = self.kafka, self.folder / name
        where = [kafka.bootstrap, kafka.prefix, str(kafka.partitions), str(folder)]
        return [sys.executable, str(PROCESS), *where, *self.settings]

    def signal(self, name: str, number: int) -> None:
        self.processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        self.processes[name].wait(10)

    def leave(self, name: str) -> None:
        """SIGTERM to a worker that takes part: it settles what it has and goes."""
        self.until(lambda: b"worker ready" in self._since_start(name))
        self.signal(name, signal.SIGTERM)
        assert self.processes[name].wait(20) == 0, self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _since_start(self, name: str) -> bytes:
        return (self.folder / f"{name}.log").read_bytes()[self._before[name] :]

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.processes)

    def send(self, rounds: int = 1) -> None:
        """A record of every host, in order."""
        for _ in range(rounds):
            for host in self.hosts:
                self.sent[host] += 1
                record = KernelRecord(
                    id=f"{host}-{self.sent[host]}",
                    observed_at=NOW,
                    raw="line",
                    kind="xid",
                    host=host,
                )
                topic = self.kafka.topic("kernel")
                self._producer.send(topic, key=host.encode(), value=encode(record))
            self._producer.flush()

    def keep_sending(self, every_s: float = 0.05) -> None:
        def send() -> None:
            while not self._sending.wait(every_s):
                self.send()

        self._sending.clear()
        self._thread = threading.Thread(target=send)
        self._thread.start()

    def stop_sending(self) -> None:
        self._sending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def read(self) -> None:
        for messages in self._consumer.poll(timeout_ms=100).values():
            for message in messages:
                if message.key == TICK_KEY:
                    continue
                if message.topic == self.kafka.topic("verdicts"):
                    self.verdicts.append(msgspec.json.decode(message.value, type=Verdict))
                else:
                    self.commands.append(msgspec.json.decode(message.value, type=Command))

    def told(self) -> set[str]:
        return {command.reason for command in self.commands}

    def until(self, enough: Callable[[], bool], within_s: float = 60.0) -> float:
        """Read until there is enough; a worker that ended by itself is started again."""
        began = time.monotonic()
        while not enough():
            assert time.monotonic() - began < within_s, (
                f"{len(self.told())} commands of {sum(self.sent.values())}\n{self.logs()}"
            )
            for name, process in list(self.processes.items()):
                if process.poll() not in (None, 0, -signal.SIGKILL):
                    self.start(name)
            self.read()
        return time.monotonic() - began

    def check(self, within_s: float = 60.0) -> None:
        """What must hold at the end: every record counted once, and commanded once."""
        self.stop_sending()
        right = {f"{host} {n + 1}" for host, sent in self.sent.items() for n in range(sent)}
        self.until(lambda: len(self.told()) >= len(right), within_s)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            self.read()
        assert self.told() == right
        for said in (self.verdicts, self.commands):
            words: dict[str, set[str]] = defaultdict(set)
            for one in said:
                words[one.id].add(one.reason)
            # A double is the same record: whoever acts on the id acts once.
            assert {key: found for key, found in words.items() if len(found) > 1} == {}
            assert len(words) == len(right)

    def close(self) -> None:
        self.stop_sending()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        self._producer.close(timeout=2)
        self._consumer.close(timeout_ms=2000)
