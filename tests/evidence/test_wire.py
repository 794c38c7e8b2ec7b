import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence import decisions, records
from evidence.topics import TOPICS, Key
from evidence.wire import DecodeError, cloudevents_headers, decode, encode

AT = datetime(2026, 3, 4, 5, 6, 7, 891011, tzinfo=UTC)
PCI = "0000:4c:00"
GPU = decisions.Domain(kind=decisions.DomainKind.GPU, host="n4", pci="0000:4c:00")
COMMAND = decisions.Command(
    id="c0",
    action=decisions.Action.ISOLATE,
    domain=GPU,
    domain_id=GPU.id,
    level=decisions.Level.DRAIN,
    cause=decisions.Cause.GPU_MEMORY,
    reason="why",
    incident="i0",
    generation=0,
    issued_at=AT,
)
XID = records.KernelRecord(
    id="k0",
    observed_at=AT,
    raw="NVRM: Xid (PCI:0000:4c:00): 79, GPU has fallen off the bus.",
    kind=records.KernelKind.XID,
    host="n4",
    code=79,
    pci="0000:4c:00",
    mig=records.Mig(gi=3),
)


def test_a_record_comes_back_as_it_went() -> None:
    assert decode("kernel", encode(XID)) == XID
    assert decode("isolation.commands", encode(COMMAND)) == COMMAND


def test_schema_is_always_written_and_defaults_never() -> None:
    plain = json.loads(encode(XID))
    assert plain["schema"] == "kernel/1"
    assert set(plain) == {
        "schema", "id", "observed_at", "raw", "kind", "host", "code", "pci", "mig",
    }  # fmt: skip


def test_a_newer_minor_version_flows_through() -> None:
    plain = json.loads(encode(XID)) | {"learned_later": {"x": [1]}}
    assert decode("kernel", json.dumps(plain).encode()) == XID


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"\xff\xfe\x00", "topic kernel: not a JSON object"),
        (b"", "topic kernel: not a JSON object"),
        (b"[1, 2]", "topic kernel: not a JSON object"),
        (b"[" * 200_000, "topic kernel: not a JSON object"),
        (b'{"schema": "kernel/2"}', "record of schema 'kernel/2', this build reads kernel/1"),
        (b'{"schema": "gpu/1"}', "record of schema 'gpu/1', this build reads kernel/1"),
        (b'{"schema": "kernel/1", "id": 3}', "Expected `str`, got `int`"),
        (b'{"schema": "kernel/1"}', "missing required field"),
        (b'{"schema": 7}', "topic kernel: "),
    ],
)
def test_what_is_no_record_is_refused_in_one_sentence(value: bytes, sentence: str) -> None:
    with pytest.raises(DecodeError) as refused:
        decode("kernel", value)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.sampled_from(sorted(TOPICS)), st.binary(max_size=200))
def test_random_bytes_are_refused_and_nothing_worse(topic: str, value: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(topic, value)


def test_every_topic_reads_what_it_carries() -> None:
    for topic in TOPICS.values():
        for kind in topic.types:
            schema = msgspec.json.schema(kind)
            assert schema["$ref"].endswith(kind.__name__)
            tag = kind.__struct_config__.tag
            assert schema["$defs"][kind.__name__]["properties"]["schema"]["enum"] == [tag]


def test_topics_keyed_alike_have_equal_partition_counts() -> None:
    keyed = [topic for topic in TOPICS.values() if topic.key in (Key.HOST, Key.JOB, Key.SUBNET)]
    assert {topic.partitions(6) for topic in keyed} == {6}
    assert TOPICS["verdicts"].partitions(6) == 1


def test_commands_carry_cloudevents_attributes() -> None:
    headers = dict(cloudevents_headers(COMMAND))
    assert headers == {
        "ce_specversion": b"1.0",
        "ce_id": b"c0",
        "ce_source": b"/ringfence",
        "ce_type": b"io.ringfence.command.v1",
        "ce_time": b"2026-03-04T05:06:07.891011+00:00",
        "ce_subject": b"gpu:n4/0000:4c:00",
        "content-type": b"application/json",
    }


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ({"kind": "gpu", "host": "n4", "pci": "0000:4c:00", "uuid": "GPU-1"}, "gpu:n4/0000:4c:00"),
        ({"kind": "gpu", "host": "n4", "uuid": "GPU-1"}, "gpu:n4/GPU-1"),
        ({"kind": "gpu", "host": "n4", "index": 0}, "gpu:n4/0"),
        ({"kind": "mig", "host": "n4", "pci": PCI, "mig": {"gi": 2}}, "mig:n4/0000:4c:00/2"),
        ({"kind": "node", "host": "n4"}, "node:n4"),
        ({"kind": "link", "switch": "0xa1", "port": 7}, "link:0xa1/7"),
        ({"kind": "switch", "switch": "0xa1"}, "switch:0xa1"),
        ({"kind": "rack", "rack": "r2"}, "rack:r2"),
        ({"kind": "job", "job": "j9"}, "job:j9"),
        ({"kind": "nvlink", "host": "n4", "pci": PCI, "link": 3}, "nvlink:n4/0000:4c:00/3"),
    ],
)  # fmt: skip
def test_a_domain_is_named_by_its_place(domain: dict[str, Any], expected: str) -> None:
    assert msgspec.convert(domain, decisions.Domain).id == expected
