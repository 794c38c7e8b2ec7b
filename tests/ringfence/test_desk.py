from datetime import UTC, datetime, timedelta

import pytest

from evidence.decisions import Domain, DomainKind, Level, RequestAction
from evidence.records import ContextKind
from ringfence import desk

AT = datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC)


def test_an_announcement_names_what_when_where_and_who() -> None:
    record = desk.context_record(
        kind="gpu-reset",
        host="n1",
        pci="00000000:3B:00.0",
        at=AT,
        until=AT + timedelta(minutes=5),
        by="ada",
        reason="row remap",
    )
    assert (record.kind, record.pci, record.by) == (ContextKind.GPU_RESET, "0000:3b:00", "ada")
    assert record.until == AT + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("gpu:n1/0000:3B:00.0", Domain(kind=DomainKind.GPU, host="n1", pci="0000:3b:00")),
        ("gpu:n1/GPU-77", Domain(kind=DomainKind.GPU, host="n1", uuid="GPU-77")),
        ("node:n1", Domain(kind=DomainKind.NODE, host="n1")),
        ("link:0xe41d/17", Domain(kind=DomainKind.LINK, switch="0xe41d", port=17)),
        ("switch:0xe41d", Domain(kind=DomainKind.SWITCH, switch="0xe41d")),
        ("rack:r7", Domain(kind=DomainKind.RACK, rack="r7")),
    ],
)
def test_a_request_names_a_domain_as_it_is_printed(text: str, domain: Domain) -> None:
    record = desk.request(action="isolate", domain=text, at=AT, by="ada", level="drain")
    assert record.domain == domain
    assert (record.action, record.level) == (RequestAction.ISOLATE, Level.DRAIN)


@pytest.mark.parametrize("text", ["", "n1", "gpu:n1", "gpu:n1/xyz", "node:", "link:a/b", "cpu:n1"])
def test_what_is_no_domain_is_refused_with_the_shapes_there_are(text: str) -> None:
    with pytest.raises(desk.DeskError, match=r"no domain|not a PCI address"):
        desk.request(action="release", domain=text, at=AT, by="ada")


def test_what_cannot_be_announced_is_refused_with_what_can() -> None:
    with pytest.raises(desk.DeskError, match="known: allocation, drain, maintenance"):
        desk.context_record(kind="party", host="n1", at=AT)
