from datetime import UTC, datetime

import msgspec

from evidence.decisions import DeadLetter
from streams.deadletters import KEPT_BYTES, cut, letter, undeliverable
from streams.routing import Outgoing

NOW = datetime(2026, 11, 3, 9, 12, 44, tzinfo=UTC)


def read(sent: Outgoing) -> DeadLetter:
    return msgspec.json.decode(sent.value, type=DeadLetter)


def test_a_dead_letter_keeps_its_message_byte_for_byte() -> None:
    value = bytes(range(256))
    sent = letter(
        "host",
        "not a JSON object",
        topic="kernel",
        at=NOW,
        key=b"node-a\xff",
        value=value,
        partition=3,
        offset=17,
        headers=[("trace", b"\xffx"), ("empty", None)],
    )

    kept = read(sent)
    assert (sent.topic, sent.key) == ("deadletters", b"kernel")
    assert (kept.value, kept.key, kept.partition, kept.offset) == (value, b"node-a\xff", 3, 17)
    assert (kept.stage, kept.error) == ("host", "not a JSON object")
    assert kept.headers == {"trace": "\N{REPLACEMENT CHARACTER}x", "empty": ""}


def test_the_same_message_has_the_same_dead_letter_and_another_offset_another() -> None:
    first, again, other = (
        read(letter("host", "e", topic="kernel", at=NOW, partition=0, offset=offset))
        for offset in (5, 5, 6)
    )

    assert first == again
    assert first.id != other.id


def test_failures_on_ticks_have_dead_letters_of_their_own_by_key() -> None:
    ids = {
        read(letter("host", "e", topic="tick", at=NOW, key=key, partition=0)).id
        for key in (b"node-a", b"node-b")
    }

    assert len(ids) == 2


def test_a_dead_letter_that_is_too_large_is_cut_and_says_so() -> None:
    whole = letter("host", "bad", topic="gpu", at=NOW, value=b"x" * 900_000, partition=0, offset=1)

    smaller = read(cut(whole))

    assert smaller.value == b"x" * KEPT_BYTES
    assert smaller.error == f"bad (first {KEPT_BYTES} of 900000 bytes kept)"
    assert smaller.id == read(whole).id


def test_an_output_that_no_broker_takes_becomes_a_dead_letter_of_its_topic() -> None:
    refused = Outgoing("verdicts", b"cluster", b"y" * 2_000_000)

    kept = read(undeliverable("host", refused, "too large to send", NOW))

    assert (kept.topic, kept.key, kept.value) == ("verdicts", b"cluster", b"y" * KEPT_BYTES)
    assert kept.error.startswith("too large to send (first")
