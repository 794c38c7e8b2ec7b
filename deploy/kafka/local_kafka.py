# ruff: noqa: INP001, T201 (a script beside its pom, not a package; it prints)
"""One Apache Kafka broker (KRaft) on loopback, out of Maven Central: for tests and benchmarks.

Not a deployment: one node, plain text, small heap. Run it by hand until Ctrl-C with
``python deploy/kafka/local_kafka.py --port 9092 --data ./kafka-data``.
"""

import argparse
import base64
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Self

from ringfence.embedded import BrokerError, broker_answers, die_with_parent, free_port

__all__ = ["ApacheKafka", "KafkaCluster", "KafkaUnavailable", "class_path", "main"]

POM = Path(__file__).with_name("pom.xml")
_LOOPBACK = "127.0.0.1"
_MAVEN_S = 900
_OLDEST_JAVA = 17  # Kafka 4 brokers need it

# openjdk version "17.0.15" 2025-04-15
_JAVA_VERSION = re.compile(r'version "(\d+)')
# [2026-11-03 09:12:44,101] INFO [KafkaRaftServer nodeId=1] Kafka Server started
_STARTED = b"Kafka Server started"

_PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}/log
auto.create.topics.enable=false
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=8388608
log.index.size.max.bytes=1048576
"""


class KafkaUnavailable(BrokerError):  # noqa: N818 (a state, as operators say it)
    """Apache Kafka cannot be had on this machine; the message says what is missing."""


def version(pom: Path = POM) -> str:
    """The Kafka version that the pom pins."""
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    found = ET.parse(pom).getroot().findtext("m:properties/m:kafka.version", namespaces=space)  # noqa: S314 (our own file)
    assert found is not None, f"{pom} has no kafka.version"
    return found


def cache_folder() -> Path:
    """Where downloads are kept between checkouts: ``RINGFENCE_CACHE`` or ~/.cache/ringfence."""
    return Path(os.environ.get("RINGFENCE_CACHE") or Path.home() / ".cache" / "ringfence")


def class_path(cache: Path | None = None) -> Path:
    """The folder with Kafka's jars, fetched with Maven the first time and kept.

    Raises KafkaUnavailable where Java 17 or Maven is missing or Maven cannot resolve the jars.
    """
    java()
    cache = cache or cache_folder()
    folder = cache / f"kafka-{version()}-{hashlib.sha256(POM.read_bytes()).hexdigest()[:8]}"
    if (folder / ".complete").exists():
        return folder
    if shutil.which("mvn") is None:
        raise KafkaUnavailable("Maven (mvn) is missing: it fetches Apache Kafka.")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once fetch once
        if not (folder / ".complete").exists():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    print(f"Fetching Apache Kafka {version()} with Maven into {folder}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        jars = Path(scratch) / "jars"
        command = [
            "mvn",
            "--batch-mode",
            "--quiet",
            "-Dstyle.color=never",
            f"--file={POM}",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={jars}",
        ]
        try:
            # No terminal, no colours: its first error line becomes our sentence.
            done = subprocess.run(
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_MAVEN_S,
            )
        except subprocess.TimeoutExpired as error:
            raise KafkaUnavailable(f"Maven did not finish within {_MAVEN_S} s.") from error
        if done.returncode != 0 or not any(jars.glob("kafka_2.13-*.jar")):
            said = (done.stdout + done.stderr).strip().splitlines()
            reason = next((line for line in said if "ERROR" in line), said[-1] if said else "")
            raise KafkaUnavailable(f"Maven could not fetch Apache Kafka: {reason.strip()[:400]}")
        shutil.rmtree(folder, ignore_errors=True)
        jars.rename(folder)
        (folder / ".complete").touch()


def java() -> str:
    """The java program; raises KafkaUnavailable where it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if found is None:
        raise KafkaUnavailable("Java is missing: Apache Kafka 4 needs Java 17 or newer.")
    said = subprocess.run(
        [found, "-version"], check=False, capture_output=True, text=True, timeout=60
    )
    match = _JAVA_VERSION.search(said.stderr + said.stdout)
    if match is None or int(match[1]) < _OLDEST_JAVA:
        first = (said.stderr + said.stdout).strip().partition("\n")[0]
        raise KafkaUnavailable(f"Apache Kafka 4 needs Java 17 or newer, {found} is: {first}")
    return found


class ApacheKafka:
    """One broker with its own storage folder; `kill` is kill -9, `start` continues on that storage.

    ``port`` None takes a free one, kept over restarts. Raises KafkaUnavailable where it cannot be
    had, BrokerError where it does not come up within ``ready_s``.
    """

    def __init__(
        self,
        data: Path,
        port: int | None = None,
        *,
        heap_mb: int = 512,
        ready_s: float = 90.0,
        settings: dict[str, str] | None = None,
        cluster: "KafkaCluster | None" = None,
        node: int = 1,
    ) -> None:
        self.data = data
        self.node = node
        self._cluster = cluster
        self._wanted = port
        self._heap_mb = heap_mb
        self._ready_s = ready_s
        self._settings = settings or {}
        self._ports: tuple[int, int] | None = None
        self._said_before = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Where clients connect, ``127.0.0.1:PORT``; known once started."""
        if self._ports is None:
            raise BrokerError("The broker has no address before it was started.")
        return f"{_LOOPBACK}:{self._ports[0]}"

    @property
    def log(self) -> Path:
        """The broker's own log, over all its starts."""
        return self.data / "kafka.log"

    @property
    def alive(self) -> bool:
        """Whether the broker process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The broker's process; known once started."""
        if self._process is None:
            raise BrokerError("The broker has no process before it was started.")
        return self._process.pid

    @property
    def voter(self) -> str:
        """This broker as a controller of its quorum, ``1@127.0.0.1:PORT``."""
        ports = self._take_ports()
        return f"{self.node}@{_LOOPBACK}:{ports[1]}"

    def start(self) -> Self:
        """Start the broker on its storage (formatted the first time); return when it serves."""
        self.launch()
        self.wait()
        return self

    def launch(self) -> None:
        """Start the broker's process without waiting: one of three serves when two are there."""
        if self.alive:
            return
        jars = class_path()
        self.data.mkdir(parents=True, exist_ok=True)
        self._take_ports()
        properties = self._write_properties()
        if not (self.data / "log" / "meta.properties").exists():
            self._format(jars, properties)
        with self.log.open("ab") as output:
            self._said_before = output.tell()  # an earlier start said the same words
            self._process = subprocess.Popen(
                [*self._jvm(jars), "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 (one system call)
            )

    def wait(self) -> None:
        """Return when the broker serves; raises BrokerError when it does not in time."""
        assert self._ports is not None
        deadline = time.monotonic() + self._ready_s
        with self.log.open("rb") as output:
            output.seek(self._said_before)
            while not (_saw(output, _STARTED) and broker_answers(_LOOPBACK, self._ports[0])):
                if not self.alive or time.monotonic() > deadline:
                    self.kill()
                    raise BrokerError(f"Apache Kafka did not start; its log is {self.log}")
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill the broker as a power cut would (SIGKILL) and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self, grace_s: float = 20.0) -> None:
        """Stop the broker in order, by force after ``grace_s``."""
        if self._process is not None and self.alive:
            self._process.terminate()
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _jvm(self, jars: Path) -> list[str]:
        return [
            java(),
            f"-Xms{min(256, self._heap_mb)}m",
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",  # starts faster and leaves the cores to what is tested
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.kafka.server=info",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss,SSS",
            "-cp",
            f"{jars}/*",
        ]

    def _take_ports(self) -> tuple[int, int]:
        """Ports of clients and controller: free ones the first time, the same ones ever after."""
        if self._ports is None:
            self._ports = (free_port(self._wanted), free_port(None))
        return self._ports

    def _write_properties(self) -> Path:
        port, controller = self._take_ports()
        text = _PROPERTIES.format(
            host=_LOOPBACK,
            port=port,
            controller=controller,
            data=self.data,
            node=self.node,
            voters=self.voter if self._cluster is None else self._cluster.voters,
        )
        text += "".join(f"{name}={value}\n" for name, value in self._settings.items())
        path = self.data / "server.properties"
        path.write_text(text)
        return path

    def _format(self, jars: Path, properties: Path) -> None:
        cluster = _cluster_id() if self._cluster is None else self._cluster.id
        arguments = ["--config", str(properties), "--cluster-id", cluster]
        done = subprocess.run(
            [*self._jvm(jars), "kafka.tools.StorageTool", "format", *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self._ready_s,
        )
        if done.returncode != 0:
            raise BrokerError(f"Kafka's storage was not formatted: {done.stderr.strip()[-400:]}")


class KafkaCluster:
    """Brokers that form one cluster, each a controller too; topics are kept on up to three.

    ``brokers[n].kill()`` and ``.start()`` act on one of them. A write is acknowledged by two.
    """

    def __init__(
        self,
        data: Path,
        count: int = 3,
        *,
        heap_mb: int = 320,
        settings: dict[str, str] | None = None,
    ) -> None:
        copies = str(min(count, 3))
        shared = {
            "default.replication.factor": copies,
            "min.insync.replicas": str(min(count, 2)),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "share.coordinator.state.topic.replication.factor": copies,
        }
        self.id = _cluster_id()
        self.brokers = [
            ApacheKafka(
                data / f"broker-{node}",
                heap_mb=heap_mb,
                settings=shared | (settings or {}),
                cluster=self,
                node=node,
            )
            for node in range(1, count + 1)
        ]

    @property
    def voters(self) -> str:
        """Every controller, as Kafka's settings name them."""
        return ",".join(broker.voter for broker in self.brokers)

    @property
    def bootstrap(self) -> str:
        """Where clients connect: all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> Self:
        """Start all brokers; return when all serve."""
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait()
        return self

    def stop(self) -> None:
        """Stop all brokers; the last ones have no quorum left to say goodbye to."""
        for broker in self.brokers:
            broker.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _cluster_id() -> str:
    name = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    return "R" + name[1:]  # a leading dash would read as a flag


def _saw(output: IO[bytes], words: bytes) -> bool:
    """Whether ``words`` stand in the log past where it is open; stays put until they do."""
    at = output.tell()
    found = words in output.read()
    output.seek(at)
    return found


@contextmanager
def _data_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="ringfence-kafka-") as scratch:
        yield Path(scratch)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Run one broker until Ctrl-C or SIGTERM; 2 where it cannot be had."""
    parser = argparse.ArgumentParser(description="Run one Apache Kafka broker on loopback.")
    parser.add_argument("--port", type=int, default=9092, help="port of clients (9092)")
    parser.add_argument("--data", type=Path, help="storage folder (default: a temporary one)")
    parser.add_argument("--heap-mb", type=int, default=512, help="JVM heap (512)")
    parser.add_argument("--fetch", action="store_true", help="only fetch the jars, start nothing")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    try:
        if given.fetch:
            print(class_path())
            return 0
        with (
            _data_folder(given.data) as data,
            ApacheKafka(data, given.port, heap_mb=given.heap_mb) as broker,
        ):
            print(f"Apache Kafka {version()} serves {broker.bootstrap}, log {broker.log}")
            while broker.alive:
                time.sleep(0.5)
            print(f"The broker died; its log is {broker.log}", file=sys.stderr)
            return 1
    except BrokerError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
