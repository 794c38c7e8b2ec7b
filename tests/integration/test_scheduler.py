"""The scheduler's consumer with the adapter exec, over real brokers."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import UnknownBrokerIdError

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Cause,
    Command,
    DeadLetter,
    Domain,
    DomainKind,
    Level,
)
from evidence.transport import Kafka
from evidence.wire import cloudevents_headers, decode, encode
from ringfence.embedded import free_port
from schedulers.adapter import SchedulerError
from schedulers.consumer import SchedulerConfig, run
from schedulers.exec import ExecAdapter

pytestmark = pytest.mark.integration
WITHIN_S = 60.0


def _command(ident: str, **fields: Any) -> Command:
    domain = Domain(kind=DomainKind.GPU, host="hpc-n041", pci="0000:5e:00")
    plain: dict[str, Any] = {
        "id": ident,
        "action": Action.ISOLATE,
        "domain": domain,
        "domain_id": domain.id,
        "level": Level.DRAIN,
        "cause": Cause.GPU_MEMORY,
        "reason": "row remap pending",
        "incident": "i1",
        "generation": 1,
        "issued_at": datetime.now(UTC),
        "act_by": datetime.now(UTC) + timedelta(minutes=10),
    }
    return Command(**plain | fields)


def _send(kafka: Kafka, *values: Command | bytes) -> None:
    producer = KafkaProducer(**kafka.client())
    for value in values:
        producer.send(
            kafka.topic("isolation.commands"),
            encode(value) if isinstance(value, Command) else value,
            key=value.domain_id.encode() if isinstance(value, Command) else b"?",
            headers=cloudevents_headers(value)
            if isinstance(value, Command)
            else [("odd", b"\xff")],
        ).get(30)
    producer.close()


@contextmanager
def _reading(kafka: Kafka, topic: str) -> Iterator[Callable[[int], list[Any]]]:
    """Messages of one topic from its beginning: ``take(n)`` waits until there are ``n``."""
    consumer = KafkaConsumer(
        kafka.topic(topic), **kafka.client(), auto_offset_reset="earliest", group_id=None
    )
    seen: list[Any] = []

    def take(count: int) -> list[Any]:
        deadline = time.monotonic() + WITHIN_S
        while len(seen) < count:
            assert time.monotonic() < deadline, f"{len(seen)} of {count} on {topic}"
            for messages in consumer.poll(timeout_ms=200).values():
                seen.extend(messages)
        return seen

    yield take
    consumer.close()


def _acks(messages: list[Any]) -> list[Ack]:
    return [decode("isolation.acks", message.value) for message in messages]


@contextmanager
def _scheduler(kafka: Kafka, folder: Path, program: list[str]) -> Iterator[None]:
    """The consumer in a thread of this process, with the real adapter."""
    stop = threading.Event()
    config = SchedulerConfig(kafka=kafka, name="exec", state_dir=folder, retry_wait_s=0.05)
    adapter = ExecAdapter(program, timeout_s=20)
    thread = threading.Thread(target=run, args=(config, adapter, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def _noting(folder: Path, then: str = "exit 0") -> list[str]:
    """A program that notes each run in ``folder/runs``."""
    return ["/bin/sh", "-c", f"echo $RINGFENCE_COMMAND_ID >> {folder}/runs; {then}"]


def _runs(folder: Path) -> list[str]:
    path = folder / "runs"
    return path.read_text().split() if path.exists() else []


def test_a_command_sent_again_runs_the_program_once_and_is_acked_again(
    any_kafka: Kafka, tmp_path: Path
) -> None:
    command = _command("c1")
    with (
        _scheduler(any_kafka, tmp_path / "state", _noting(tmp_path, "echo drained")),
        _reading(any_kafka, "isolation.acks") as take,
    ):
        _send(any_kafka, command)
        take(1)
        _send(any_kafka, command, command)
        messages = take(3)
    acks = _acks(messages)
    assert _runs(tmp_path) == ["c1"]
    assert acks[0] == acks[1] == acks[2]
    assert (acks[0].status, acks[0].exit_code, acks[0].detail) == (AckStatus.DONE, 0, "drained")
    assert messages[0].key == b"cluster"
    headers = dict(messages[0].headers)
    assert headers["ce_type"] == b"io.ringfence.ack.v1"
    assert headers["ce_id"] == acks[0].id.encode()
    assert headers["ce_subject"] == b"gpu:hpc-n041/0000:5e:00"


def test_a_restart_neither_runs_the_program_again_nor_reads_old_commands_again(
    any_kafka: Kafka, tmp_path: Path
) -> None:
    program = _noting(tmp_path)
    with _reading(any_kafka, "isolation.acks") as take:
        with _scheduler(any_kafka, tmp_path / "state", program):
            _send(any_kafka, _command("c1"))
            take(1)
        with _scheduler(any_kafka, tmp_path / "state", program):
            _send(any_kafka, _command("c2"), _command("c1"))
            acks = _acks(take(3))
    assert [ack.command for ack in acks] == ["c1", "c2", "c1"]
    assert _runs(tmp_path) == ["c1", "c2"]


def test_expired_dry_run_and_held_commands_are_acked_and_nothing_runs(
    any_kafka: Kafka, tmp_path: Path
) -> None:
    _send(
        any_kafka,
        _command("late", act_by=datetime.now(UTC) - timedelta(seconds=1)),
        _command("dry", dry_run=True),
        _command("held", held="budget of 1 node an hour is used"),
        _command("back", action=Action.RELEASE, act_by=datetime.now(UTC) - timedelta(days=1)),
    )
    with (
        _scheduler(any_kafka, tmp_path / "state", _noting(tmp_path)),
        _reading(any_kafka, "isolation.acks") as take,
    ):
        acks = _acks(take(4))
    assert [(ack.command, ack.status) for ack in acks] == [
        ("late", AckStatus.EXPIRED),
        ("dry", AckStatus.SKIPPED),
        ("held", AckStatus.SKIPPED),
        ("back", AckStatus.DONE),
    ]
    assert acks[2].detail == "held: budget of 1 node an hour is used"
    assert _runs(tmp_path) == ["back"]


def test_a_failing_program_is_tried_three_times_and_the_next_command_still_runs(
    any_kafka: Kafka, tmp_path: Path
) -> None:
    _send(any_kafka, _command("bad"), _command("good"))
    fails = "[ $RINGFENCE_COMMAND_ID = good ] || { echo 'node is unknown' >&2; exit 4; }"
    with (
        _scheduler(any_kafka, tmp_path / "state", _noting(tmp_path, fails)),
        _reading(any_kafka, "isolation.acks") as take,
    ):
        bad, good = _acks(take(2))
    assert (bad.status, bad.exit_code, bad.attempt) == (AckStatus.FAILED, 4, 3)
    assert bad.detail == "exit code 4: node is unknown"
    assert good.status is AckStatus.DONE
    assert _runs(tmp_path) == ["bad", "bad", "bad", "good"]


def test_garbage_goes_to_deadletters_byte_for_byte_and_nothing_else_is_lost(
    any_kafka: Kafka, tmp_path: Path
) -> None:
    noise = bytes(range(256)) * 8
    newer = encode(_command("c9")).replace(b"command/1", b"command/2")
    almost_too_large = b"\x00" * 1_000_000
    half = encode(_command("c8"))[:40]
    garbage = [noise, half, newer, almost_too_large, b"[" * 100_000, b"", b"null"]
    _send(any_kafka, *garbage, _command("c1"))
    with (
        _scheduler(any_kafka, tmp_path / "state", _noting(tmp_path)),
        _reading(any_kafka, "isolation.acks") as acks,
        _reading(any_kafka, "deadletters") as letters,
    ):
        assert _acks(acks(1))[0].command == "c1"
        messages = letters(len(garbage))
    kept: list[DeadLetter] = [decode("deadletters", message.value) for message in messages]
    assert [letter.value for letter in kept] == garbage
    assert [letter.offset for letter in kept] == list(range(len(garbage)))
    assert {letter.stage for letter in kept} == {"scheduler"}
    assert "this build reads command/1" in kept[2].error
    assert messages[0].key == b"isolation.commands"


_PROCESS = """
import sys, threading
from pathlib import Path
from evidence.transport import Kafka
from schedulers.consumer import SchedulerConfig, run
from schedulers.exec import ExecAdapter
bootstrap, prefix, folder, script = sys.argv[1:]
kafka = Kafka(bootstrap=bootstrap, prefix=prefix)
config = SchedulerConfig(kafka=kafka, state_dir=Path(folder), retry_wait_s=0.05)
run(config, ExecAdapter(["/bin/sh", "-c", script], timeout_s=60), threading.Event())
"""


def _process(kafka: Kafka, folder: Path, script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROCESS, kafka.bootstrap, kafka.prefix, str(folder), script]
    )


def _wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.chaos
@pytest.mark.timeout(240)  # brokers and members are waited for, on a busy machine longer
def test_a_scheduler_killed_in_the_middle_of_a_command_carries_it_out_again(
    any_kafka: Kafka, tmp_path: Path
) -> None:
    # The first run hangs until it is killed; the second finds the file and is done.
    script = (
        f"echo $RINGFENCE_COMMAND_ID $$ >> {tmp_path}/runs; [ -e {tmp_path}/go ] || exec sleep 600"
    )
    first = _process(any_kafka, tmp_path / "state", script)
    try:
        _send(any_kafka, _command("c1"), _command("c2"))
        _wait_for(lambda: len(_runs(tmp_path)) == 2)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    (tmp_path / "go").touch()
    second = _process(any_kafka, tmp_path / "state", script)
    try:
        with _reading(any_kafka, "isolation.acks") as take:
            acks = _acks(take(2))
    finally:
        second.kill()
        second.wait()
    assert [(ack.command, ack.status, ack.attempt) for ack in acks] == [
        ("c1", AckStatus.DONE, 2),
        ("c2", AckStatus.DONE, 1),
    ]
    assert _runs(tmp_path)[0::2] == ["c1", "c1", "c2"]


@pytest.mark.kafka
@pytest.mark.chaos
@pytest.mark.timeout(240)  # brokers and members are waited for, on a busy machine longer
def test_a_killed_broker_loses_no_command_and_doubles_none(
    own_apache_kafka: Any, fresh_topics: Callable[..., Kafka], tmp_path: Path
) -> None:
    kafka = fresh_topics(own_apache_kafka.bootstrap)
    slow = _noting(tmp_path, f"until [ -e {tmp_path}/go ]; do sleep 0.1; done")
    with _scheduler(kafka, tmp_path / "state", slow):
        _send(kafka, _command("c1"))
        _wait_for(lambda: _runs(tmp_path) == ["c1"])
        own_apache_kafka.kill()  # while the program runs: its ack meets a dead broker
        (tmp_path / "go").touch()
        own_apache_kafka.start()
        _send(kafka, _command("c2"))
        with _reading(kafka, "isolation.acks") as take:
            # An ack whose offset could not be committed is sent again, the same: not a second run.
            acks = _acks(take(2))
            while {ack.command for ack in acks} != {"c1", "c2"}:
                acks = _acks(take(len(acks) + 1))
    assert {(ack.command, ack.status) for ack in acks} == {
        ("c1", AckStatus.DONE),
        ("c2", AckStatus.DONE),
    }
    assert _runs(tmp_path) == ["c1", "c2"]


def test_a_kafka_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    nowhere = Kafka(bootstrap=f"127.0.0.1:{free_port(None)}")
    config = SchedulerConfig(kafka=nowhere, state_dir=tmp_path, start_within_s=0.5)
    with pytest.raises(SchedulerError, match=f"No Kafka answers at {nowhere.bootstrap}"):
        run(config, ExecAdapter(["/bin/true"]), threading.Event())


def test_a_command_that_an_error_of_the_reader_swallowed_is_read_again(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python 3.0.12 can fail in a poll whose messages its position is behind already."""
    polled = KafkaConsumer.poll
    swallowed: list[Any] = []

    def poll(self: KafkaConsumer, *rest: Any, **named: Any) -> Any:
        found = polled(self, *rest, **named)
        if not swallowed and any(place.topic.endswith("commands") for place in found):
            swallowed.append(found)
            raise UnknownBrokerIdError(3)
        return found

    monkeypatch.setattr(KafkaConsumer, "poll", poll)
    with (
        _scheduler(kafka, tmp_path / "state", _noting(tmp_path)),
        _reading(kafka, "isolation.acks") as take,
    ):
        _send(kafka, _command("c1"))
        (ack,) = _acks(take(1))
    assert swallowed
    assert (ack.command, ack.status) == ("c1", AckStatus.DONE)
    assert _runs(tmp_path) == ["c1"]
