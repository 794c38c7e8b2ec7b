"""What the measurements over Kafka stand on: one Apache Kafka, fresh topics, the parts' processes.

Nothing of it outlives the bench: every process is a child that dies with it, every folder is
temporary.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any, Self

import load_gpu
from kafka import KafkaProducer, TopicPartition

from collectors.shipping.shipper import Shipper
from evidence.transport import Kafka
from evidence.wire import encode
from ringfence.cluster import ensure_topics
from ringfence.embedded import die_with_parent
from ringfence.parts import Parts

__all__ = ["Backlog", "BenchError", "Child", "Rig"]

ROOT = Path(__file__).parents[1]
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """A measurement could not be made; the message is one sentence."""


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far, to 10 ms; raises OSError when it is gone."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


class Child:
    """A process of ours that is measured: its CPU time, its log, its end."""

    def __init__(
        self, argv: tuple[str, ...], log: Path, more: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        environment = {name: v for name, v in os.environ.items() if "RINGFENCE" not in name}
        environment |= more or {}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                argv,
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | {"PYTHONPATH": str(ROOT)},
                start_new_session=True,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 (one system call)
            )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU seconds of all its threads so far, to 10 ms; raises BenchError when it is gone."""
        try:
            return cpu_s(self._process.pid)
        except OSError as error:
            raise BenchError(f"A process ended early; its log ends: {self.tail()}") from error

    def says(self, words: str, within_s: float = 60.0) -> None:
        """Wait until its log has these words; raises BenchError when they do not come."""
        self.until(lambda: words in self.text(), f"the words {words!r}", within_s)

    def until(self, done: Callable[[], bool], what: str, within_s: float) -> None:
        """Wait for ``done``; raises BenchError when it does not come, or the process ends."""
        deadline = time.monotonic() + within_s
        while not done():
            if not self.alive:
                raise BenchError(f"A process ended before {what}; its log ends: {self.tail()}")
            if time.monotonic() > deadline:
                raise BenchError(f"Waited {within_s:.0f} s for {what}; log: {self.tail()}")
            time.sleep(0.02)

    def text(self) -> str:
        """Its output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def tail(self) -> str:
        """The end of its output, on one line."""
        return " | ".join(self.text().splitlines()[-4:])[-600:]

    def wait(self, within_s: float) -> str:
        """Wait for its own end; returns its output. Raises BenchError when it failed."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"A process did not end in {within_s:.0f} s: {self.tail()}") from None
        if code != 0:
            raise BenchError(f"A process failed; its log ends: {self.tail()}")
        return self.text()

    def stop(self, grace_s: float = 20.0) -> None:
        """Ask it to end, by force after ``grace_s``."""
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Backlog:
    """GPU frames that wait in a topic, with a lost card before and behind them in each partition.

    The lost cards are answered by verdicts at once, which is how one sees from outside when a
    worker began on a partition and when it was through.
    """

    def __init__(self, kafka: Kafka, frames: int, ticks: int = load_gpu.TICKS) -> None:
        self.kafka = kafka
        self.frames = frames
        self.ticks = ticks
        #: Core seconds of making and sending it.
        self.producer_s = 0.0
        self.hosts = min(256, max(8, frames // 8))
        self.snapshots = 0
        self.began_hosts = {f"before-{number}" for number in range(kafka.partitions)}
        self.ended_hosts = {f"behind-{number}" for number in range(kafka.partitions)}

    def produce(self) -> Self:
        """Send it all as agents do: through their shipper, a frame a message."""
        now, cpu = datetime.now(UTC), time.process_time()
        self._mark(self.began_hosts, now)
        shipper = Shipper(self.kafka, client_id="bench")
        each = self.frames // self.hosts
        end = now - timedelta(seconds=1)
        for frame in load_gpu.frames(self.hosts, each, end, ticks=self.ticks, ailing=True):
            shipper.send("gpu", frame.host, frame)
            self.snapshots += load_gpu.GPUS * self.ticks
            while shipper.pending > 500:
                time.sleep(0.005)
        left = shipper.close(timeout_s=60)
        self.frames = each * self.hosts
        if left or shipper.dropped or shipper.refused:
            raise BenchError(f"The backlog was not taken: {left} left, {shipper.dropped} dropped.")
        self._mark(self.ended_hosts, now)
        self.producer_s = time.process_time() - cpu
        return self

    def _mark(self, hosts: set[str], at: datetime) -> None:
        producer = KafkaProducer(**self.kafka.client(), acks="all")
        for partition, host in enumerate(sorted(hosts)):
            record = encode(load_gpu.lost(host, at))
            sent = producer.send(
                self.kafka.topic("gpu"), key=host.encode(), value=record, partition=partition
            )
            sent.get(30)
        producer.close()

    def places(self) -> list[TopicPartition]:
        """The partitions it lies in."""
        return [
            TopicPartition(self.kafka.topic("gpu"), number)
            for number in range(self.kafka.partitions)
        ]


class Rig:
    """Everything of one bench run; a context manager. The broker starts when first asked for."""

    def __init__(self, *, quick: bool, log: IO[str] = sys.stderr) -> None:
        self.quick = quick
        self._log = log
        self._held = ExitStack()
        self._broker: Any = None
        self._backlog: Backlog | None = None
        self._folder: Path | None = None
        self._children = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    def say(self, sentence: str) -> None:
        """Tell how far the bench is."""
        self._log.write(f"{sentence}\n")
        self._log.flush()

    @property
    def folder(self) -> Path:
        """A folder that is removed at the end."""
        if self._folder is None:
            scratch = tempfile.TemporaryDirectory(prefix="ringfence-bench-")
            self._folder = Path(self._held.enter_context(scratch))
        return self._folder

    @property
    def bootstrap(self) -> str:
        """One Apache Kafka, or the broker in KAFKA_BOOTSTRAP. Raises BenchError without either."""
        given = os.environ.get("KAFKA_BOOTSTRAP")
        if given:
            return given
        if self._broker is None:
            module = _local_kafka()
            self.say(f"starting Apache Kafka {module.version()}")
            try:
                self._broker = module.ApacheKafka(self.folder / "kafka").start()
            except module.BrokerError as error:
                raise BenchError(str(error)) from error
            self._held.callback(self._broker.stop)
        return str(self._broker.bootstrap)

    def broker_s(self) -> float:
        """CPU seconds of our broker so far; 0 for one that was given."""
        return cpu_s(self._broker.pid) if self._broker is not None else 0.0

    def kafka(self) -> Kafka:
        """Fresh topics under a prefix of their own."""
        kafka = Kafka(bootstrap=self.bootstrap, prefix=f"bench-{uuid.uuid4().hex[:8]}.")
        ensure_topics(kafka)
        return kafka

    def backlog(self) -> Backlog:
        """The GPU frames that stream and sink are measured on, produced once."""
        if self._backlog is None:
            backlog = Backlog(self.kafka(), 400 if self.quick else 12_000)
            self.say(f"sending a backlog of {backlog.frames} GPU frames")
            self._backlog = backlog.produce()
        return self._backlog

    def parts(self, kafka: Kafka, name: str, settings: str = "") -> Parts:
        """Command lines of the real parts, with a folder and TOML settings of their own."""
        folder = self.folder / name
        folder.mkdir()
        config = folder / "ringfence.toml"
        text = f'[kafka]\nprefix = "{kafka.prefix}"\npartitions = {kafka.partitions}\n{settings}'
        config.write_text(text, encoding="utf-8")
        return Parts(folder, kafka.bootstrap, config)

    def start(
        self, argv: tuple[str, ...], name: str, more: Mapping[str, str] | None = None
    ) -> Child:
        """Start a process that ends with the bench; ``more`` is added to its environment."""
        self._children += 1
        child = Child(argv, self.folder / f"{self._children:02d}-{name}.log", more)
        self._held.callback(child.stop)
        return child

    def script(self, name: str, *arguments: object) -> tuple[str, ...]:
        """The command line of one of the bench's own programs."""
        return (sys.executable, str(ROOT / "bench" / name), *map(str, arguments))


def _local_kafka() -> ModuleType:
    """The script deploy/kafka/local_kafka.py, which belongs to no package."""
    name = "local_kafka"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "deploy/kafka/local_kafka.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
