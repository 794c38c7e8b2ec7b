from datetime import UTC, datetime

import pytest
from msgspec import Struct, structs

from evidence.decisions import (
    Cause,
    Domain,
    DomainKind,
    EvidenceRef,
    Says,
    Status,
    Suspicion,
    Verdict,
    Witness,
)
from evidence.wire import encode
from streams.routing import Outgoing, outgoing

NOW = datetime(2026, 11, 3, 9, 12, 44, tzinfo=UTC)


def suspicion(host: str | None, domain_host: str | None, *reporters: str) -> Suspicion:
    return Suspicion(
        id="s",
        at=NOW,
        observed_at=NOW,
        witness=Witness.COLLECTIVE,
        says=Says.ACCUSES,
        kind="hang",
        domain=Domain(kind=DomainKind.JOB, host=domain_host, job="j"),
        host=host,
        evidence=tuple(EvidenceRef(id=name, source="nccl", host=name) for name in reporters),
    )


@pytest.mark.parametrize(
    ("said", "key"),
    [
        (suspicion("node-a", "node-b", "node-c"), b"node-a"),
        (suspicion(None, "node-b", "node-c"), b"node-b"),
        (suspicion(None, None, "node-c", "node-d"), b"node-c"),
    ],
)
def test_a_suspicion_goes_to_the_host_it_concerns_else_to_who_reported_it(
    said: Suspicion, key: bytes
) -> None:
    assert outgoing(said) == Outgoing("suspicions", key, encode(said))


def test_a_suspicion_that_names_no_host_at_all_has_nowhere_to_go() -> None:
    assert outgoing(suspicion(None, None)) is None


def test_a_suspicion_of_a_job_whose_lines_name_no_host_is_kept_under_the_job() -> None:
    said = structs.replace(suspicion(None, None), job="j")
    assert outgoing(said) == Outgoing("suspicions", b"j", encode(said))


def test_a_verdict_goes_to_the_one_isolation_stage_with_cloudevents_headers() -> None:
    verdict = Verdict(
        id="v",
        incident="i",
        revision=1,
        at=NOW,
        decided_at=NOW,
        status=Status.LOCALIZED,
        cause=Cause.GPU_LOST,
        domain=Domain(kind=DomainKind.GPU, host="node-a", pci="0000:3b:00"),
        confidence=1.0,
        reason="r",
    )

    sent = outgoing(verdict)

    assert sent is not None
    assert (sent.topic, sent.key, sent.value) == ("verdicts", b"cluster", encode(verdict))
    assert ("ce_subject", b"gpu:node-a/0000:3b:00") in (sent.headers or [])


def test_a_record_without_a_route_is_misuse() -> None:
    class Stray(Struct):
        pass

    with pytest.raises(KeyError):
        outgoing(Stray())
