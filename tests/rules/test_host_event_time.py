"""Records of one host by event time: late by up to the set lateness or by more, in any order.

The set lateness is ``settle_s``: what arrives within it is judged as if it came in order, whatever
the topic. What comes later is counted, and accuses nobody whom it would not accuse in order.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evidence.decisions import Cause, Domain, DomainKind, Says, Status
from evidence.records import ContextKind

CASES = HealthCheck.function_scoped_fixture
#: Times of arrival, all within the settling time of the first.
FIRST, LAST = 10.9, 12.6


def story(r: Any) -> dict[str, list[Any]]:
    """What the topics of one host bring within a second; nothing of it is acted upon at once.

    Card 0 has a memory fault that the driver tells twice, card 1 one that NVML tells as well and a
    job names, card 2 is reset on purpose, card 3 only ran a faulty program, card 4 is waited for.
    """
    return {
        "kernel": [
            *r.chain(10, 0),
            r.kernel(10.1, 1, code=48),
            r.kernel(10.15, 2, code=119),
            r.kernel(4.0, 3, code=31, pid=4711),
            r.kernel(4.01, 3, code=45, pid=4711),
        ],
        "gpu": [r.frame((10.3, {1: {"ecc_volatile_uncorrected": 2, "remap_pending": True}}))],
        "suspicions": [
            r.suspicion(10.6, 1, stalled_s=10.2, weight=0.7),
            r.suspicion(10.7, 4, stalled_s=10.2),
        ],
        "context": [r.context(10.05, ContextKind.GPU_RESET, gpu=2, until_s=40)],
    }


def say(verdict: Any) -> Any:
    return (
        verdict.incident,
        verdict.status,
        verdict.cause,
        verdict.domain,
        verdict.recovery,
        verdict.hard,
        verdict.testimony,
        verdict.explained_by,
        [ref.id for ref in verdict.evidence],
    )


@pytest.fixture
def told(new_node: Callable[[], Any], records: Any) -> Callable[..., list[Any]]:
    """What is said in the end when each record arrives at the time given for it."""

    def tell(times: Any, what: Callable[[Any], Any]) -> list[Any]:
        node, build = new_node(), type(records)()
        node.feed(build.quiet())
        made = [record for topic in story(build).values() for record in topic]
        arriving = sorted(zip(times, range(len(made)), strict=True))
        for when, number in arriving:
            node.take(made[number], when)
            node.tick(when)
        node.run_on()
        return sorted((what(one) for one in node.latest()), key=str)

    return tell


COUNT = 13


@settings(max_examples=60, deadline=None, suppress_health_check=[CASES])
@given(st.lists(st.floats(FIRST, LAST), min_size=COUNT, max_size=COUNT))
def test_within_the_set_lateness_no_order_between_the_topics_changes_what_is_said(
    told: Any, times: list[float]
) -> None:
    in_order = told([FIRST + n / 100 for n in range(COUNT)], say)
    assert told(times, say) == in_order
    assert {one[1] for one in in_order} >= {"localized", "suspected", "software"}


def test_all_of_the_story_is_drawn(records: Any) -> None:
    assert sum(map(len, story(records).values())) == COUNT


@settings(max_examples=80, deadline=None, suppress_health_check=[CASES])
@given(
    st.lists(
        st.sampled_from([0.0, 0.0, 1.0, 20.0, 120.0, 290.0, 900.0, 2_000.0, 8_000.0]),
        min_size=COUNT,
        max_size=COUNT,
    )
)
def test_records_that_are_late_by_any_time_accuse_nobody_for_sure_who_is_not_in_order(
    told: Any, delays: list[float]
) -> None:
    def sure(one: Any) -> Any:
        return (one.domain.pci, one.status) if one.status == "localized" else None

    in_order = set(told([FIRST + n / 100 for n in range(COUNT)], sure))
    late = set(told([FIRST + n / 100 + delay for n, delay in enumerate(delays)], sure))
    assert late <= in_order | {None}


def test_a_record_later_than_that_is_counted_and_told_as_a_revision(
    node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    node.feed([records.kernel(10, 1, code=48), records.kernel(14, 1, code=94)])
    node.run_on()
    first = node.latest()[0]
    assert first.late == 0
    node.take(records.kernel(9, 1, code=63), 30)
    node.run_on()
    (last,) = node.latest()
    assert (last.incident, last.revision > first.revision, last.late) == (first.incident, True, 1)


@pytest.mark.parametrize(("arrives", "late"), [(12, 0), (400, 0), (1_900, 1)])
def test_the_first_record_of_a_part_is_counted_too_when_it_may_be_over_since(
    arrives: float, late: int, node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    node.take(records.kernel(10, 1, code=48), arrives)
    node.run_on()
    assert [one.late for one in node.latest()] == [late]


def test_a_late_job_does_not_make_two_witnesses_of_one_that_is_over(
    node: Any, records: Any
) -> None:
    """A rank was waited for two hours before the card warned: the one is not the other."""
    node.feed(records.quiet())
    node.take(records.kernel(7_300, 1, code=48))
    node.take(records.suspicion(7_301, 1, stalled_s=100, weight=0.7))
    node.run_on()
    assert not any(one.status == "localized" for one in node.verdicts)


def test_a_late_word_of_the_fabric_that_a_link_is_up_changes_no_card(
    node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    node.feed(records.chain(10, 1))
    node.run_on()
    before = node.told()
    link = Domain(kind=DomainKind.LINK, switch="0xb8", port=3)
    node.take(
        records.suspicion(
            700, domain=link, witness="fabric", kind="ib-down", cause=Cause.IB_LINK,
            status=Status.RECOVERED, says=Says.CLEARS, stalled_s=5,
        )
    )  # fmt: skip
    node.run_on()
    assert node.told() == before
