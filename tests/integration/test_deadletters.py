"""Dead letters read and sent again, from the command line, against each broker."""

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from evidence.decisions import DeadLetter
from evidence.identity import digest
from evidence.records import KernelKind, KernelRecord, Tick
from evidence.transport import Kafka
from evidence.wire import encode
from ringfence import deadletters
from ringfence.cli import main

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

AT = datetime(2026, 10, 2, 4, 30, 0, tzinfo=UTC)
ODD = b'{"schema":"kernel/1","id":"\xff\xfe"}'


@pytest.fixture
def ringfence(any_kafka: Kafka, tmp_path: Path) -> Callable[..., Result]:
    """The command line, with settings that name the test's topics."""
    config = tmp_path / "ringfence.toml"
    config.write_text(
        f'[kafka]\nbootstrap = "{any_kafka.bootstrap}"\nprefix = "{any_kafka.prefix}"\n'
    )

    def call(*arguments: str) -> Result:
        given = ["--config", str(config), "deadletters", *arguments]
        result = CliRunner().invoke(main, given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def producer(any_kafka: Kafka) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(**any_kafka.client(), acks="all")
    yield producer
    producer.close(timeout=5)


def letter(**changes: Any) -> DeadLetter:
    given: dict[str, Any] = {
        "id": digest("letter", uuid.uuid4().hex),
        "at": AT,
        "topic": "kernel",
        "error": "step failed: ValueError: a step that cannot",
        "value": encode(
            KernelRecord(id="k1", observed_at=AT, raw="mce", kind=KernelKind.MCE, host="gx-31")
        ),
        "key": b"gx-31",
        "partition": 2,
        "offset": 77,
        "stage": "host",
        "headers": {"trace": "abc"},
    }
    return DeadLetter(**(given | changes))


def write(kafka: Kafka, producer: KafkaProducer, *letters: DeadLetter) -> None:
    for one in letters:
        name = kafka.topic("deadletters")
        producer.send(name, encode(one), key=one.topic.encode()).get(30)


def messages(kafka: Kafka, topic: str) -> list[Any]:
    consumer = KafkaConsumer(
        **kafka.client(), auto_offset_reset="earliest", fetch_max_wait_ms=20, group_id=None
    )
    name = kafka.topic(topic)
    numbers = consumer.partitions_for_topic(name)
    consumer.assign([TopicPartition(name, number) for number in sorted(numbers)])
    found: list[Any] = []
    for _ in range(4):  # the embedded broker tells no end that could be read to
        for batch in consumer.poll(timeout_ms=100).values():
            found += batch
    consumer.close(timeout_ms=1000)
    return found


def plain(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_letters_are_listed_by_topic_stage_time_and_words(
    any_kafka: Kafka, producer: KafkaProducer, ringfence: Callable[..., Result]
) -> None:
    old = letter(at=AT - timedelta(days=2), error="topic kernel: not a JSON object", value=ODD)
    job = letter(topic="nccl", stage="job", key=b"job-9")
    new = letter()
    write(any_kafka, producer, old, job, new, new)

    def ids(*filters: str) -> list[str]:
        found = ringfence("list", "--json", *filters)
        assert found.exit_code == 0
        return [one["id"] for one in plain(found)]

    assert ids() == [old.id, job.id, new.id]
    assert ids("--topic", "nccl") == [job.id]
    assert ids("--stage", "host") == [old.id, new.id]
    assert ids("--since", "2026-10-01") == [job.id, new.id]
    assert ids("--error", "NOT A JSON") == [old.id]
    assert ids("--error", "never said") == []
    (_, _, last) = plain(ringfence("list", "--json"))
    assert last == {
        "id": new.id, "at": "2026-10-02T04:30:00+00:00", "topic": "kernel", "stage": "host",
        "error": new.error, "key": "gx-31", "partition": 2, "offset": 77,
        "headers": {"trace": "abc"}, "bytes": len(new.value), "times": 2, "resent_at": None,
        "resent_by": None, "resent_to": None,
    }  # fmt: skip
    table = ringfence("list").stdout.splitlines()
    assert table[0].split("\t")[:4] == ["id", "at", "topic", "stage"]
    assert len(table) == 4


def test_one_letter_is_shown_whole_and_its_bytes_written_to_a_file(
    any_kafka: Kafka, producer: KafkaProducer, ringfence: Callable[..., Result], tmp_path: Path
) -> None:
    write(any_kafka, producer, letter(), odd := letter(value=ODD), letter())
    shown = ringfence("show", odd.id[:12])
    assert shown.exit_code == 0
    assert 'value: {"schema":"kernel/1","id":"\\xff\\xfe"}' in shown.stdout
    file = tmp_path / "bytes"
    assert ringfence("show", odd.id, "--value", str(file)).exit_code == 0
    assert file.read_bytes() == ODD
    unknown = ringfence("show", "nosuchid")
    assert unknown.exit_code == 2
    assert (
        unknown.stderr == "Error: No letter that is wanted has an id beginning with 'nosuchid'.\n"
    )


def test_a_letter_goes_to_its_topic_as_it_was_and_once(
    any_kafka: Kafka, producer: KafkaProducer, ringfence: Callable[..., Result]
) -> None:
    there = producer.send(any_kafka.topic("kernel"), b"{}", key=b"gx-31").get(30)
    write(any_kafka, producer, one := letter())

    dry = ringfence("resend", "--all")
    assert dry.exit_code == 0
    assert dry.stdout.splitlines() == [
        f"{one.id} would be sent: to {any_kafka.topic('kernel')}",
        "1 would be sent",
        "Nothing was sent; --yes sends.",
    ]
    assert len(messages(any_kafka, "kernel")) == 1

    done = ringfence("resend", one.id, "--yes")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "1 sent")
    (_, sent) = messages(any_kafka, "kernel")
    assert (sent.value, sent.key, sent.partition) == (one.value, one.key, there.partition)
    assert sorted(sent.headers) == [("ringfence-resent", one.id.encode()), ("trace", b"abc")]

    twice = ringfence("resend", one.id, "--yes")
    assert twice.exit_code == 0
    assert f"{one.id} was sent before: at " in twice.stdout
    assert f"to kernel/{sent.partition}/{sent.offset}" in twice.stdout
    assert len(messages(any_kafka, "kernel")) == 2
    (listed,) = plain(ringfence("list", "--json"))
    assert listed["resent_to"] == f"kernel/{sent.partition}/{sent.offset}"

    assert ringfence("resend", one.id, "--again", "--yes").exit_code == 0
    assert len(messages(any_kafka, "kernel")) == 3


def test_what_failed_again_is_known_and_does_not_go_round(
    any_kafka: Kafka, producer: KafkaProducer, ringfence: Callable[..., Result]
) -> None:
    first = letter()
    again = letter(headers={"trace": "abc", deadletters.RESENT: first.id})
    write(any_kafka, producer, again)
    refused = ringfence("resend", "--all", "--yes")
    assert refused.exit_code == 1
    assert f"it is letter {first.id}, which failed again" in refused.stdout
    assert messages(any_kafka, "kernel") == []
    assert ringfence("resend", "--all", "--yes", "--again").exit_code == 0
    (sent,) = messages(any_kafka, "kernel")
    assert dict(sent.headers)[deadletters.RESENT] == first.id.encode()


def test_letters_that_cannot_be_sent_are_refused_each_with_a_sentence(
    any_kafka: Kafka, producer: KafkaProducer, ringfence: Callable[..., Result]
) -> None:
    refused = [
        (
            letter(error="too large (first 262144 of 9000001 bytes kept)"),
            "only the first 262144 of",
        ),
        (letter(topic="tick", value=b""), "there is no message"),
        (letter(topic="isolation.commands"), "only the isolation stage writes isolation.commands"),
        (letter(topic="moods"), "moods is none of our topics"),
        (letter(value=b""), "it holds no message"),
        (letter(headers={"x": "\N{REPLACEMENT CHARACTER}"}), "its header x was not UTF-8"),
        (letter(value=encode(Tick(id="t", at=AT)), key=b"tick/1"), "it is a tick"),
    ]
    write(any_kafka, producer, *(one for one, _ in refused), good := letter())
    found = ringfence("resend", "--all", "--yes", "--json")
    assert found.exit_code == 1
    told = {one["id"]: one for one in plain(found)}
    for one, words in refused:
        assert told[one.id]["fate"] in ("refused", "failed")
        assert words in told[one.id]["words"]
    assert told[good.id]["fate"] == "sent"
    assert len(messages(any_kafka, "kernel")) == 1


def test_a_note_without_an_arrival_is_not_taken_for_one(
    any_kafka: Kafka, producer: KafkaProducer, ringfence: Callable[..., Result]
) -> None:
    one = letter()
    note = letter(id=one.id, value=b"", resent_at=AT, resent_by="kim")
    write(any_kafka, producer, one, note)
    found = ringfence("resend", "--all", "--yes")
    assert "by kim, perhaps: nothing tells that it arrived (--again sends it)" in found.stdout
    assert messages(any_kafka, "kernel") == []


def test_of_two_who_send_a_letter_at_once_one_is_told_so(
    any_kafka: Kafka, producer: KafkaProducer
) -> None:
    write(any_kafka, producer, one := letter())

    def told(who: str) -> Iterator[tuple[str, str]]:
        for _, fate, words in deadletters.resend(
            any_kafka, deadletters.Wanted(), by=who, now=AT, dry=False
        ):
            yield fate.value, words

    wanted = deadletters.Wanted()
    with deadletters._log(any_kafka) as log:
        chosen = deadletters._index(log, wanted)  # looked before the other one sent
        assert [fate for fate, _ in told("robin")] == ["sent"]
        late = deadletters._Sender(any_kafka, log, "kim", AT)
        ((found, fate, words),) = late.send(chosen)
    assert (found.letter.id, fate, words) == (
        one.id, deadletters.Fate.BEFORE, "by robin, at this moment",
    )  # fmt: skip
    assert len(messages(any_kafka, "kernel")) == 1


def test_without_a_word_which_letters_nothing_is_sent(ringfence: Callable[..., Result]) -> None:
    found = ringfence("resend", "--yes")
    assert found.exit_code == 2
    assert found.stderr.startswith("Error: say which letters: ids, --topic")
