"""A consumer that trusts nobody: forged, replayed and garbled commands over a real broker."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from msgspec.structs import replace

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Cause,
    Command,
    Domain,
    DomainKind,
    Level,
)
from evidence.signing import Signer
from evidence.transport import Kafka
from evidence.wire import decode, encode
from ringfence.keys import new
from schedulers.adapter import Outcome
from schedulers.consumer import SchedulerConfig, run

pytestmark = [pytest.mark.integration, pytest.mark.kafka]
WITHIN_S = 60.0
_Headers = list[tuple[str, bytes]]


@pytest.fixture
def kafka(apache_kafka: Any, fresh_topics: Callable[..., Kafka]) -> Kafka:
    """Fresh topics on Apache Kafka, which lets a consumer join at once."""
    return fresh_topics(apache_kafka.bootstrap)


class FileScheduler:
    """A scheduler as small as can be: a file a node that is out, and a log of what was done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def apply(self, command: Command) -> Outcome:
        with (self.folder / "log").open("a") as log:
            log.write(f"{command.action} {command.domain.host} {command.level}\n")
        mark = self.folder / f"{command.domain.host}.out"
        if command.action is Action.ISOLATE:
            mark.write_text(command.id)
        else:
            mark.unlink(missing_ok=True)
        return Outcome(AckStatus.DONE, "written")

    @property
    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []


class ManyAtOnce(FileScheduler):
    """The same, for many commands at once."""

    def apply_all(self, commands: Sequence[Command]) -> list[Outcome]:
        return [self.apply(command) for command in commands]


def _command(ident: str, host: str = "hpc-n041", **fields: Any) -> Command:
    domain = Domain(kind=DomainKind.NODE, host=host)
    plain: dict[str, Any] = {
        "id": ident,
        "action": Action.ISOLATE,
        "domain": domain,
        "domain_id": domain.id,
        "level": Level.DRAIN,
        "cause": Cause.NODE,
        "reason": "machine check",
        "incident": "i1",
        "generation": 1,
        "issued_at": datetime.now(UTC),
        "act_by": datetime.now(UTC) + timedelta(minutes=10),
    }
    return Command(**plain | fields)


class Talk:
    """Sends commands and waits for what becomes of them."""

    def __init__(self, kafka: Kafka) -> None:
        self.topic = kafka.topic("isolation.commands")
        self._producer = KafkaProducer(**kafka.client())
        names = [kafka.topic("isolation.acks"), kafka.topic("deadletters")]
        self._reader = KafkaConsumer(
            *names, **kafka.client(), group_id=None, auto_offset_reset="earliest"
        )
        self._acks = names[0]
        self.acks: list[Ack] = []
        self.letters: list[Any] = []

    def send(self, value: bytes, headers: _Headers | None = None) -> None:
        self._producer.send(self.topic, value, key=b"?", headers=headers or [])

    def signed(self, command: Command, signer: Signer, topic: str | None = None) -> None:
        value = encode(command)
        self.send(value, signer.headers(topic or self.topic, value))

    def flush(self) -> None:
        self._producer.flush(30)

    def answers(self, count: int) -> list[Ack]:
        """All acks so far, once there are ``count`` acks and dead letters."""
        self._producer.flush(30)
        deadline = time.monotonic() + WITHIN_S
        while len(self.acks) + len(self.letters) < count:
            assert time.monotonic() < deadline, (len(self.acks), len(self.letters), count)
            for messages in self._reader.poll(timeout_ms=200).values():
                for message in messages:
                    if message.topic == self._acks:
                        self.acks.append(decode("isolation.acks", message.value))
                    else:
                        self.letters.append(decode("deadletters", message.value))
        return self.acks

    def close(self) -> None:
        self._producer.close()
        self._reader.close()


@contextmanager
def _consumer(
    kafka: Kafka, folder: Path, adapter: FileScheduler, **settings: Any
) -> Iterator[Talk]:
    stop = threading.Event()
    failed: list[BaseException] = []
    config = SchedulerConfig(
        kafka=kafka, name="files", state_dir=folder, retry_wait_s=0.01, **settings
    )

    def work() -> None:
        try:
            run(config, adapter, stop)
        except BaseException as error:  # noqa: BLE001 (told to the test)
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    talk = Talk(kafka)
    try:
        yield talk
    finally:
        stop.set()
        thread.join(60)
        talk.close()
    assert not thread.is_alive()
    assert failed == []


def _key(folder: Path, name: str) -> Signer:
    private, _ = new(folder, name)
    return Signer.read(private)


def test_what_is_not_genuine_changes_nothing_and_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    site = FileScheduler(tmp_path / "site")
    ours, thief = _key(tmp_path / "keys", "a"), _key(tmp_path / "thief", "a")
    stranger = _key(tmp_path / "stranger", "z")
    now = datetime.now(UTC)
    genuine = _command("c1")
    with _consumer(kafka, tmp_path / "state", site, verify_keys=tmp_path / "keys") as talk:
        talk.signed(genuine, ours)
        talk.send(encode(_command("unsigned", "n2")))
        value = encode(_command("altered", "n3"))
        talk.send(value.replace(b"n3", b"n4"), ours.headers(talk.topic, value))
        talk.signed(_command("stolen-name", "n5"), thief)
        talk.signed(_command("stranger", "n6"), stranger)
        talk.signed(_command("other-cluster", "n7"), ours, "other.isolation.commands")
        value = encode(_command("twice", "n8"))
        talk.send(value, ours.headers(talk.topic, value) * 2)
        talk.send(
            encode(_command("noise", "n9")), [("ringfence-signature", b"\xff\x00"), ("x", b"")]
        )
        talk.signed(_command("expired", "n10", act_by=now - timedelta(seconds=1)), ours)
        talk.signed(replace(genuine, level=Level.EVICT), ours)
        acks = list(talk.answers(10))
        assert site.log == ["isolate hpc-n041 drain"]
        talk.signed(_command("r1", action=Action.RELEASE, generation=2, act_by=None), ours)
        talk.signed(_command("old", generation=1), ours)
        talk.signed(genuine, ours)
        talk.signed(_command("new", "n11"), ours)
        last = list(talk.answers(14))[10:]
    assert [(ack.command, ack.status) for ack in acks] == [
        ("c1", AckStatus.DONE),
        ("unsigned", AckStatus.REFUSED),
        ("altered", AckStatus.REFUSED),
        ("stolen-name", AckStatus.REFUSED),
        ("stranger", AckStatus.REFUSED),
        ("other-cluster", AckStatus.REFUSED),
        ("twice", AckStatus.REFUSED),
        ("noise", AckStatus.REFUSED),
        ("expired", AckStatus.EXPIRED),
        ("c1", AckStatus.REFUSED),
    ]
    assert [ack.detail.partition(":")[0] for ack in acks[1:8]] == [
        "it is not signed",
        "its signature with the key 'a' does not fit",
        "its signature with the key 'a' does not fit",
        "it is signed with the key 'z', which is not trusted here",
        "its signature with the key 'a' does not fit",
        "it needs one header ringfence-signature and one ringfence-key",
        "it needs one header ringfence-signature and one ringfence-key",
    ]
    assert acks[9].detail == "replayed: c1 was carried out before with another content"
    assert [(ack.command, ack.status) for ack in last] == [
        ("r1", AckStatus.DONE),
        ("old", AckStatus.REFUSED),
        ("c1", AckStatus.DONE),  # from memory: it was done, and is not done again
        ("new", AckStatus.DONE),
    ]
    assert last[1].detail == (
        "out of generation: it is of generation 1, and 2 was seen of node:hpc-n041"
    )
    assert site.log == ["isolate hpc-n041 drain", "release hpc-n041 drain", "isolate n11 drain"]
    assert [path.name for path in site.folder.glob("*.out")] == ["n11.out"]


def test_keys_come_and_go_without_a_restart(kafka: Kafka, tmp_path: Path) -> None:
    site = FileScheduler(tmp_path / "site")
    keys = tmp_path / "keys"
    first = _key(keys, "2026-a")
    second = _key(tmp_path / "later", "2026-b")
    with _consumer(kafka, tmp_path / "state", site, verify_keys=keys) as talk:
        talk.signed(_command("c1", "n1"), first)
        talk.signed(_command("c2", "n2"), second)
        assert [ack.status for ack in talk.answers(2)] == [AckStatus.DONE, AckStatus.REFUSED]
        (keys / "2026-b.pem").write_bytes((tmp_path / "later/2026-b.pem").read_bytes())
        talk.signed(_command("c3", "n3"), second)
        talk.signed(_command("c4", "n4"), first)
        assert [ack.status for ack in talk.answers(4)[2:]] == [AckStatus.DONE] * 2
        (keys / "2026-a.pem").unlink()
        talk.signed(_command("c5", "n5"), first)
        assert [ack.status for ack in talk.answers(5)[4:]] == [AckStatus.REFUSED]
        (keys / "2026-b.pem").write_text("no key")  # fails closed
        talk.signed(_command("c6", "n6"), second)
        assert [ack.status for ack in talk.answers(6)[5:]] == [AckStatus.REFUSED]
    assert len(site.log) == 3


_ODD = [
    None, True, 0, -1, 2**63, 10**40, 1e308, "", " ", "\x00", "\ud800", "a" * 3000, "n\n1",
    [], {}, [[]], {"kind": "gpu"}, {"kind": "rack", "rack": "r1"}, "9999-12-31T23:59:59.999999Z",
    "0001-01-01T00:00:00", "2026-11-03T02:14:09", "evict", "release", "../../etc/passwd",
]  # fmt: skip


def _mutated(chance: random.Random, number: int) -> bytes:
    """A valid command with some of its fields, or some of its bytes, made odd."""
    host = f"n{number % 40}"
    fields: dict[str, Any] = json.loads(encode(_command(f"f{number}", host)))
    for _ in range(chance.randrange(4)):
        name = chance.choice(list(fields))
        inside = fields["domain"]
        if name == "domain" and isinstance(inside, dict) and chance.random() < 0.7:
            fields["domain"] = inside | {
                chance.choice(["host", "kind", "pci"]): chance.choice(_ODD)
            }
        elif chance.random() < 0.2:
            del fields[name]
            if name == "domain":
                break
        else:
            fields[name] = chance.choice(_ODD)
        fields.setdefault("domain", {})
    value = bytearray(json.dumps(fields, ensure_ascii=True).encode())
    if chance.random() < 0.3:
        for _ in range(chance.randrange(1, 6)):
            value[chance.randrange(len(value))] = chance.randrange(256)
    return bytes(value[: chance.randrange(len(value))] if chance.random() < 0.1 else value)


class _Mangled(str):
    """A header's name that is no UTF-8 on the wire."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"\xff\xfe" + super().encode(encoding, errors)


@pytest.mark.parametrize(
    ("keyed", "many"),
    [(False, True), (True, False)],
    ids=["without-keys-many-at-once", "with-keys-one-by-one"],
)
def test_a_fuzzed_command_topic_crashes_no_consumer(
    kafka: Kafka, tmp_path: Path, *, keyed: bool, many: bool
) -> None:
    site = (ManyAtOnce if many else FileScheduler)(tmp_path / "site")
    ours = _key(tmp_path / "keys", "a")
    chance = random.Random(20261103)
    keys = tmp_path / "keys" if keyed else None
    limits = {"max_isolations": 1000, "attempts": 1}
    with _consumer(kafka, tmp_path / "state", site, verify_keys=keys, **limits) as talk:
        count = 0
        for number in range(400):
            if number % 4 == 0:
                value = chance.randbytes(chance.randrange(300))
            else:
                value = _mutated(chance, number)
            headers = [(chance.choice(["a", "ringfence-key"]), chance.randbytes(3))] * (number % 2)
            talk.send(value, headers)
            count += 1
        talk.flush()  # what cannot be taken apart takes its batch with it
        talk.send(encode(_command("mangled", "n1")), [(_Mangled("x"), b"")])
        talk.flush()
        talk.signed(_command("last", "last"), ours)
        acks = talk.answers(count + 2)
    assert acks[-1].command == "last"
    assert acks[-1].status is AckStatus.DONE
    assert len(talk.letters) > 100
    statuses = {ack.status for ack in acks[:-1]}
    if keyed:
        assert statuses == {AckStatus.REFUSED}
        assert site.log == ["isolate last drain"]
    else:
        assert AckStatus.DONE in statuses


def test_a_scheduler_in_dry_run_carries_nothing_out(kafka: Kafka, tmp_path: Path) -> None:
    site = FileScheduler(tmp_path / "site")
    with _consumer(kafka, tmp_path / "state", site, dry_run=True) as talk:
        talk.send(encode(_command("c1")))
        talk.send(encode(_command("c2", action=Action.RELEASE, generation=2)))
        acks = talk.answers(2)
    assert [(ack.status, ack.detail) for ack in acks] == [
        (AckStatus.SKIPPED, "dry run: this scheduler carries nothing out")
    ] * 2
    assert site.log == []
