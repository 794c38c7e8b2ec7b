"""No order of arrival and no batching changes what is said, whatever kinds of evidence meet."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evidence.decisions import Cause, Domain, DomainKind
from evidence.records import GpuEventKind, GpuStatus, KernelKind

PEER_REASON = (33 << 20 | 0x5C6, 0, 0, 0, 0, 0)
OWN_REASON = (4 << 20 | 0x5C6, 0, 0, 0, 0, 0)
LOST = {"status": GpuStatus.LOST, "error": 15}
TWIN = {"kind": KernelKind.NVRM, "code": 79, "message": "GPU has fallen off the bus."}
CASES = HealthCheck.function_scoped_fixture


def soft(r: Any) -> list[Any]:
    """Links, stand-ins and the lines they stand for, applications on MIG instances: none hard."""
    return [
        r.kernel(10, 3, code=149, link=1, registers=PEER_REASON, severity="fatal"),
        r.kernel(10.01, 6, code=149, link=8, registers=OWN_REASON, severity="fatal"),
        r.kernel(10.3, 3, code=45, pid=70, message="Ch 0000000b"),
        r.event(10.02, 3, data=149),
        r.event(10.05, 6, data=149),
        r.kernel(10.1, 2, code=48),
        r.event(10.15, 2, data=48),
        r.event(10.2, 2, GpuEventKind.DRAM_RETIREMENT),
        r.event(10.4, 7, data=31, gi=3),
        r.kernel(10.5, 4, code=74, link=9, registers=(0, 0, 0x10000, 0, 0, 0, 0)),
        r.event(10.6, 1, data=999),
        r.kernel(10.7, 1, code=62),
        r.event(10.8, 0, GpuEventKind.UNAVAILABLE),
    ]


def hard(r: Any) -> list[Any]:
    """A card off the bus as its line, the line's twin and both of NVML tell, beside victims."""
    return [
        r.kernel(10, 1, code=79),
        r.kernel(10.001, 1, **TWIN),
        r.event(10.05, 1, data=79),
        r.frame((10.2, {1: LOST})),
        r.kernel(10.1, 4, code=74, link=9),
        r.kernel(10.12, 6, code=74, link=2),
        r.kernel(10.4, 6, code=154, recovery_action="GPU Reset Required"),
        r.event(10.41, 6, data=74),
        r.kernel(10.3, 1, code=45),
    ]


def arrivals(count: int) -> Any:
    """An order, and what of it comes in one batch: arrivals within the settling time."""
    return st.tuples(
        st.permutations(range(count)),
        st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.3]), min_size=count, max_size=count),
    )


@pytest.fixture
def told(new_node: Callable[[], Any], records: Any) -> Callable[..., list[Any]]:
    def tell(make: Any, order: Any, waits: Any, say: Callable[[Any], Any]) -> list[Any]:
        node, build = new_node(), type(records)()
        node.feed(build.quiet())
        made, when = make(build), 10.9
        for number, wait in zip(order, waits, strict=True):
            when = min(when + wait, 12.4)
            node.take(made[number], when)
        node.run_on()
        return sorted((say(verdict) for verdict in node.latest()), key=str)

    return tell


@settings(max_examples=60, deadline=None, suppress_health_check=[CASES])
@given(arrivals(13))
def test_any_order_and_batching_of_what_settles_gives_the_same_verdicts(
    told: Callable[..., list[Any]], drawn: Any
) -> None:
    def say(verdict: Any) -> Any:
        return (
            verdict.incident,
            verdict.status,
            verdict.cause,
            verdict.domain,
            verdict.recovery,
            verdict.testimony,
            verdict.reason,
            [ref.id for ref in verdict.evidence],
        )

    assert told(soft, *drawn, say) == told(soft, range(13), [0.0] * 13, say)


@settings(max_examples=60, deadline=None, suppress_health_check=[CASES])
@given(arrivals(9))
def test_any_order_and_batching_of_a_hard_fact_and_its_company_ends_in_the_same_verdicts(
    told: Callable[..., list[Any]], drawn: Any
) -> None:
    def say(verdict: Any) -> Any:
        return (verdict.status, verdict.cause, verdict.domain, verdict.recovery, verdict.hard)

    assert told(hard, *drawn, say) == told(hard, range(9), [0.0] * 9, say)


KINDS = (
    ("a card", lambda r: [r.kernel(10, 2, code=119)]),
    ("a card that nobody can judge", lambda r: [r.kernel(10, 2, code=191)]),
    ("a switch", lambda r: [r.sxid(10, 20034, "fatal")]),
    ("a port", lambda r: [r.port(10, "fatal")]),
    ("a node", lambda r: [r.frame((10, {-1: LOST}))]),
    ("a service of a node", lambda r: [r.service(10, 9)]),
    (
        "host memory",
        lambda r: [
            r.kernel(10, kind=KernelKind.MCE, code=None, pci=None, severity="uncorrectable")
        ],
    ),
    (
        "a network link",
        lambda r: [
            r.suspicion(
                10,
                domain=Domain(kind=DomainKind.LINK, switch="0xb8", port=3),
                cause=Cause.IB_LINK,
            )
        ],
    ),
    ("a job", lambda r: [r.suspicion(10, None, status="insufficient")]),
)


@pytest.mark.parametrize(("sentence", "make"), KINDS, ids=[one[0] for one in KINDS])
def test_every_verdict_that_decides_nothing_says_what_each_witness_weighs(
    sentence: str, make: Any, node: Any, records: Any
) -> None:
    node.take(records.inventory(0))
    node.feed(make(records))
    node.run_on()
    assert node.latest(), sentence
    for verdict in node.latest():
        assert verdict.status in ("suspected", "insufficient"), sentence
        assert verdict.testimony, sentence
        assert all(one.words for one in verdict.testimony), sentence
        assert "Weights: " in verdict.reason, sentence
        for one in verdict.testimony:
            assert one.says == "blind" or f"({one.weight:.2f})" in verdict.reason, sentence
