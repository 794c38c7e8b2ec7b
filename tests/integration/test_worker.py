"""The Faust worker as a process over a real broker, with small pure stages (worker_process.py)."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from evidence.decisions import Command, DeadLetter, DesiredState, Suspicion, Verdict
from evidence.records import KernelRecord
from evidence.topics import CLUSTER_KEY
from evidence.transport import Kafka
from evidence.wire import encode
from streams.ticks import TICK_KEY

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
PROCESS = Path(__file__).with_name("worker_process.py")
NOW = datetime(2026, 11, 3, 9, 12, 44, tzinfo=UTC)


class Bench:
    """One cluster's topics, the workers started on it, and what was read so far."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka = kafka
        self.folder = folder
        self.producer = KafkaProducer(**kafka.client(), acks="all", linger_ms=0)
        self.consumer = KafkaConsumer(
            **kafka.client(), auto_offset_reset="earliest", fetch_max_wait_ms=10
        )
        names = ("verdicts", "suspicions", "isolation.commands", "isolation.state", "deadletters")
        self.consumer.subscribe([kafka.topic(name) for name in names])
        self.read: dict[str, list[Any]] = {name: [] for name in names}
        self.started: list[subprocess.Popen[bytes]] = []

    def worker(self, *kill: str) -> subprocess.Popen[bytes]:
        """Start a worker; its output goes to a file in the test's folder."""
        log = self.folder / f"worker-{len(self.started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    str(PROCESS),
                    self.kafka.bootstrap,
                    self.kafka.prefix,
                    str(self.kafka.partitions),
                    str(self.folder / "state"),
                    *kill,
                ],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "BROKER_URL": "kafka://nowhere:1"},
            )
        self.started.append(process)
        return process

    def log(self) -> str:
        """What the last worker printed."""
        return (self.folder / f"worker-{len(self.started) - 1}.log").read_text(errors="replace")

    def send(self, topic: str, key: bytes | None, value: bytes | None) -> Any:
        sent = self.producer.send(self.kafka.topic(topic), key=key, value=value)
        return sent.get(20)

    def kernel(self, host: str, number: int, raw: str = "line") -> KernelRecord:
        record = KernelRecord(
            id=f"{host}-{number}", observed_at=NOW, raw=raw, kind="xid", host=host
        )
        self.send("kernel", host.encode(), encode(record))
        return record

    def until(
        self,
        enough: Callable[[dict[str, list[Any]]], bool],
        within_s: float = 60.0,
        *,
        supervised: bool = False,
    ) -> None:
        """Read outputs until there are enough; a supervised worker that ends is started again."""
        deadline = time.monotonic() + within_s
        while not enough(self.read):
            assert time.monotonic() < deadline, f"only {self.counts()}; log: {self.log()[-3000:]}"
            if supervised and self.started[-1].poll() is not None:
                self.worker()
            for messages in self.consumer.poll(timeout_ms=100).values():
                for message in messages:
                    if message.key != TICK_KEY:
                        short = message.topic.removeprefix(self.kafka.prefix)
                        self.read[short].append(message)

    def counts(self) -> dict[str, int]:
        return {name: len(messages) for name, messages in self.read.items()}

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        process.send_signal(signal.SIGTERM)
        return process.wait(20)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.producer.close(timeout=2)
        self.consumer.close(timeout_ms=2000)


@pytest.fixture
def bench(any_kafka: Kafka, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(any_kafka, tmp_path)
    yield bench
    bench.close()


def values(messages: Sequence[Any], kind: type[Any]) -> list[Any]:
    return [msgspec.json.decode(message.value, type=kind) for message in messages]


def reasons(messages: Sequence[Any]) -> set[str]:
    return {verdict.reason for verdict in values(messages, Verdict)}


def commanded(read: dict[str, list[Any]]) -> int:
    """How many different commands were read."""
    return len({one.id for one in values(read["isolation.commands"], Command)})


def test_records_become_verdicts_and_commands_with_the_right_keys_and_headers(
    bench: Bench,
) -> None:
    worker = bench.worker()
    record = bench.kernel("node-a", 1)

    bench.until(lambda read: bool(read["isolation.commands"] and read["isolation.state"]))

    [verdict_message] = bench.read["verdicts"]
    [verdict] = values([verdict_message], Verdict)
    assert verdict.incident == record.id
    assert verdict_message.key == CLUSTER_KEY
    headers = dict(verdict_message.headers)
    assert headers["ce_type"] == b"io.ringfence.verdict.v1"
    assert headers["ce_id"] == verdict.id.encode()

    [command_message] = bench.read["isolation.commands"]
    [command] = values([command_message], Command)
    assert command_message.key == b"node:node-a"
    assert dict(command_message.headers) == {
        "ce_specversion": b"1.0",
        "ce_id": command.id.encode(),
        "ce_source": b"/ringfence",
        "ce_type": b"io.ringfence.command.v1",
        "ce_time": command.issued_at.isoformat().encode(),
        "ce_subject": b"node:node-a",
        "content-type": b"application/json",
    }

    [state_message] = bench.read["isolation.state"]
    assert state_message.key == b"node:node-a"
    assert values([state_message], DesiredState)[0].isolated
    assert bench.stop(worker) == 0


def test_what_cannot_be_read_or_stepped_becomes_a_dead_letter_and_the_next_record_goes_on(
    bench: Bench,
) -> None:
    garbage = bytes(range(256)) * 4
    newer = json.dumps({"schema": "kernel/9", "id": "x", "host": "node-a"}).encode()
    half = encode(KernelRecord(id="half", observed_at=NOW, raw="r", kind="xid"))[:-9]
    sent = [
        bench.send("kernel", b"node-a", garbage),
        bench.send("kernel", b"node-a", newer),
        bench.send("gpu", b"node-a", half),
    ]
    failing = bench.kernel("node-a", 1, raw="raise")
    keyless = KernelRecord(id="k", observed_at=NOW, raw="r", kind="xid", host="node-a")
    bench.send("kernel", None, encode(keyless))
    bench.send("inventory", b"node-a", None)  # a tombstone: nothing is wrong with it
    bench.kernel("node-a", 2)

    bench.worker()
    bench.until(lambda read: bool(len(read["deadletters"]) >= 5 and read["verdicts"]))

    letters = {letter.value: letter for letter in values(bench.read["deadletters"], DeadLetter)}
    assert letters.keys() == {garbage, newer, half, encode(failing), encode(keyless)}
    for value, metadata in zip((garbage, newer, half), sent, strict=True):
        letter = letters[value]
        assert (letter.topic, letter.partition, letter.offset, letter.key, letter.stage) == (
            metadata.topic.removeprefix(bench.kafka.prefix),
            metadata.partition,
            metadata.offset,
            b"node-a",
            "tally",
        )
    assert "not a JSON object" in letters[garbage].error
    assert "kernel/9" in letters[newer].error
    assert letters[encode(failing)].error == "step failed: ValueError: a step that cannot"
    assert letters[encode(keyless)].error == "topic kernel: message without a key"
    assert {message.key for message in bench.read["deadletters"]} == {b"kernel", b"gpu"}
    assert reasons(bench.read["verdicts"]) == {"node-a 1"}


def test_keys_in_different_partitions_are_ticked_when_they_are_due(bench: Bench) -> None:
    hosts = [f"node-{number}" for number in range(12)]
    for host in hosts:
        bench.kernel(host, 1, raw="wait")

    bench.worker()
    bench.until(lambda read: len(read["suspicions"]) >= len(hosts))

    partitions = {
        message.partition for message in bench.read["suspicions"] if message.key == b"elsewhere"
    }
    assert len(partitions) == 1
    assert len(bench.read["suspicions"]) == len(hosts)  # each once: a tick steps only what is due
    assert {one.reason for one in values(bench.read["suspicions"], Suspicion)} == {"waited after 1"}


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["outputs-acknowledged", "state-kept", "acked"])
def test_a_worker_killed_anywhere_in_a_batch_loses_nothing_and_counts_nothing_twice(
    bench: Bench, point: str
) -> None:
    # A second batch surely comes: its record is sent when the first one's verdict is read.
    dying = bench.worker(f"{point}:2")
    bench.kernel("node-a", 1)
    bench.until(lambda read: len(read["verdicts"]) >= 1)
    for number in range(2, 21):
        bench.kernel("node-a", number)
    assert dying.wait(60) == -signal.SIGKILL

    worker = bench.worker()
    bench.kernel("node-a", 21)
    bench.until(
        lambda read: (
            len({one.id for one in values(read["verdicts"], Verdict)}) == 21
            and commanded(read) == 21
        ),
        within_s=90,
    )

    assert bench.stop(worker) == 0
    assert reasons(bench.read["verdicts"]) == {f"node-a {number}" for number in range(1, 22)}
    by_id: dict[str, set[bytes]] = {}
    for message in bench.read["verdicts"]:
        by_id.setdefault(dict(message.headers)["ce_id"].decode(), set()).add(message.value)
    assert [len(texts) for texts in by_id.values()] == [1] * 21  # a double is the same record


def test_state_survives_a_clean_restart_and_nothing_is_read_twice(bench: Bench) -> None:
    first = bench.worker()
    for number in range(1, 6):
        bench.kernel("node-a", number)
    bench.until(lambda read: len(read["isolation.commands"]) >= 5)
    assert bench.stop(first) == 0

    bench.worker()
    bench.kernel("node-a", 6)
    bench.until(lambda read: len(read["isolation.commands"]) >= 6)

    assert [one.reason for one in values(bench.read["verdicts"], Verdict)] == [
        f"node-a {number}" for number in range(1, 7)
    ]


@pytest.mark.slow
def test_a_second_worker_takes_over_and_no_record_is_lost_or_counted_twice(bench: Bench) -> None:
    hosts = [f"node-{number}" for number in range(12)]
    first = bench.worker()
    for number in range(1, 4):
        for host in hosts:
            bench.kernel(host, number)
    bench.until(lambda read: commanded(read) == 36)

    bench.worker()
    for number in range(4, 8):
        for host in hosts:
            bench.kernel(host, number)
        time.sleep(2)
    assert bench.stop(first) == 0
    for number in range(8, 10):
        for host in hosts:
            bench.kernel(host, number)
    bench.until(lambda read: commanded(read) == 108, within_s=90)

    right = {f"{host} {number}" for host in hosts for number in range(1, 10)}
    assert reasons(bench.read["verdicts"]) == right


def test_unequal_partition_counts_are_one_sentence_at_the_start(
    kafka: Kafka, tmp_path: Path
) -> None:
    admin = KafkaAdminClient(**kafka.client())
    odd = f"{kafka.prefix}odd."
    for name in ("kernel", "gpu", "suspicions", "context", "inventory"):
        count = 3 if name == "gpu" else 4
        admin.create_topics({odd + name: {"num_partitions": count, "replication_factor": 1}})
    admin.create_topics({odd + "verdicts": {"num_partitions": 1, "replication_factor": 1}})
    admin.close()

    ended = subprocess.run(
        [sys.executable, str(PROCESS), kafka.bootstrap, odd, "4", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 3
    last = ended.stderr.strip().splitlines()[-1]
    assert last == (
        "The input topics of the tally stage must have equal partition counts, but have: "
        f"{odd}kernel 4, {odd}gpu 3, {odd}suspicions 4, {odd}context 4, {odd}inventory 4."
    )
    assert "Traceback" not in ended.stderr


def test_missing_topics_are_one_sentence_at_the_start(kafka: Kafka, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(PROCESS), kafka.bootstrap, "nothing-here.", "4", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 3
    assert ended.stderr.strip().splitlines()[-1] == (
        f"Topic nothing-here.context does not exist at {kafka.bootstrap}."
    )
    assert "Traceback" not in ended.stderr


def test_a_message_as_large_as_the_broker_takes_becomes_a_dead_letter_too(bench: Bench) -> None:
    value = b"\xff" * 1_000_000
    bench.send("kernel", b"node-a", value)
    bench.kernel("node-a", 1)
    bench.worker()

    bench.until(lambda read: bool(read["deadletters"] and read["verdicts"]))

    [letter] = values(bench.read["deadletters"], DeadLetter)
    assert value.startswith(letter.value)
    assert letter.topic == "kernel"


@pytest.mark.chaos
@pytest.mark.kafka
@pytest.mark.slow
def test_a_broker_killed_and_back_costs_no_record(
    own_apache_kafka: Any, fresh_topics: Callable[..., Kafka], tmp_path: Path
) -> None:
    bench = Bench(fresh_topics(own_apache_kafka.bootstrap), tmp_path)
    try:
        bench.worker()
        for number in range(1, 4):
            bench.kernel("node-a", number)
        bench.until(lambda read: len(read["isolation.commands"]) >= 3)

        own_apache_kafka.kill()
        time.sleep(10)
        own_apache_kafka.start()
        for number in range(4, 8):
            bench.kernel("node-a", number)
        bench.until(lambda read: commanded(read) == 7, within_s=90, supervised=True)
        assert reasons(bench.read["verdicts"]) == {f"node-a {number}" for number in range(1, 8)}
    finally:
        bench.close()
