"""Many silent hosts are ourselves: one verdict, and no number of them makes more alarms."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence.decisions import Cause, Command, Domain, DomainKind, EvidenceRef, Status, Verdict
from rules.isolation import due, settles
from rules.silence import TOGETHER
from tests.rules.isolation_stage import T0, Stage, roomy, tick, verdict

WAIT = 180.0
MANY = 8


def silence(number: int, at: float = 0.0, **fields: Any) -> Verdict:
    """What the host stage says of a host that fell silent at ``at``."""
    name = f"node-{number:04d}"
    told: dict[str, Any] = {
        "at": T0 + timedelta(seconds=at),
        "status": Status.INSUFFICIENT,
        "cause": Cause.UNKNOWN,
        "hard": False,
        "rule": "silent-node",
        "muted": TOGETHER,
        "host": name,
        "rack": f"r{number % 40}",
        "revision": 1,
        "evidence": (EvidenceRef(id=f"f{number}", source="gpu"),),
    }
    domain = Domain(kind=DomainKind.NODE, host=name)
    return verdict(domain, f"silent-{name}-{at:.0f}", **{**told, **fields})


def heard(number: int, at: float = 0.0) -> Verdict:
    """What it says when the host is heard again."""
    return silence(number, at, status=Status.RECOVERED, revision=2, muted=None)


class Watch:
    """The stage and all verdicts that it said, each of which it reads again."""

    def __init__(self) -> None:
        self.stage = Stage(roomy())
        self.said: list[Verdict] = []

    def take(self, record: msgspec.Struct, second: float) -> list[Verdict]:
        said = [one for one in self.stage.take(record, second) if isinstance(one, Verdict)]
        for one in said:
            assert self.stage.take(one, second) == [], "what it says changes nothing for itself"
        self.said += said
        return said

    def run_on(self) -> None:
        while (at := settles(self.stage.state)) is not None:
            self.take(*tick((at - T0).total_seconds()))

    def alarms(self) -> list[str]:
        return [f"{one.status} {one.domain.id}" for one in self.said if one.muted is None]


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_one_silent_host_is_said_by_itself_after_the_wait(watch: Watch) -> None:
    assert watch.take(silence(7), 5) == []
    assert settles(watch.stage.state) == T0 + timedelta(seconds=5 + WAIT)
    (said,) = watch.take(*tick(5 + WAIT))
    assert (said.incident, said.revision) == ("silent-node-0007-0", 1)
    assert (said.status, said.muted, said.domain.id) == ("insufficient", None, "node:node-0007")
    assert due(watch.stage.state) is None


def test_a_host_that_is_heard_within_the_wait_is_not_said(watch: Watch) -> None:
    watch.take(silence(7), 5)
    watch.take(heard(7), 50)
    watch.run_on()
    assert watch.said == []


def test_hosts_that_fall_silent_now_and_then_are_each_said(watch: Watch) -> None:
    for number in range(20):
        watch.take(silence(number, number * 200.0), number * 200.0 + 5)
        watch.take(*tick(number * 200.0 + 199))
    watch.run_on()
    assert len(watch.alarms()) == 20
    assert {one.rule for one in watch.said} == {"silent-node"}


def test_two_thousand_silent_hosts_make_a_handful_of_words_about_our_own_pipeline(
    watch: Watch,
) -> None:
    for number in range(2_048):
        watch.take(silence(number, number % 90), 100 + number * 0.02)
    watch.run_on()
    assert {one.rule for one in watch.said} == {"silent-hosts"}
    assert len({one.incident for one in watch.said}) == 1
    assert [one.revision for one in watch.said] == list(range(1, len(watch.said) + 1))
    assert len(watch.said) <= 9, "once, and at each doubling"
    assert "our own pipeline" in watch.said[0].reason
    last = watch.said[-1]
    assert last.status is Status.INSUFFICIENT
    assert len(msgspec.json.encode(last)) < 32_000
    assert len(msgspec.json.encode(watch.stage.state)) < 600_000


def test_when_they_are_heard_again_it_is_said_once_and_who_is_still_silent_by_name(
    watch: Watch,
) -> None:
    for number in range(2_048):
        watch.take(silence(number, number % 60), 100 + number * 0.01)
    before = len(watch.said)
    for number in range(2_046):
        watch.take(heard(number, number % 60), 400 + number * 0.01)
    watch.run_on()
    over, *alone = watch.said[before:]
    assert (over.status, over.rule) == ("recovered", "silent-hosts")
    assert over.incident == watch.said[0].incident
    assert {one.rule for one in alone} <= {"silent-node"}
    assert len(alone) < MANY


def test_a_few_that_stay_away_after_the_others_are_back_are_said_one_by_one(watch: Watch) -> None:
    for number in range(100):
        watch.take(silence(number), 100 + number * 0.01)
    for number in range(98):
        watch.take(heard(number), 400 + number)
    watch.run_on()
    alone = {one.domain.id for one in watch.said if one.rule == "silent-node"}
    assert {"node:node-0098", "node:node-0099"} <= alone


def test_hosts_of_one_rack_name_the_rack_and_isolate_nothing(watch: Watch) -> None:
    for number in range(16):
        outputs = watch.stage.take(silence(number, rack="r07"), 100 + number)
        assert not any(isinstance(one, Command) for one in outputs)
        watch.said += [one for one in outputs if isinstance(one, Verdict)]
    (first, *_) = watch.said
    assert (first.domain.id, first.status) == ("rack:r07", "insufficient")
    assert "its power or network" in first.reason


def test_a_host_that_falls_silent_long_after_the_many_is_said_by_itself(watch: Watch) -> None:
    for number in range(20):
        watch.take(silence(number), 100 + number)
    watch.take(silence(500, 5_000), 5_400)
    watch.run_on()
    assert "insufficient node:node-0500" in watch.alarms()


def test_hosts_that_never_come_back_are_forgotten_after_a_day(watch: Watch) -> None:
    for number in range(20):
        watch.take(silence(number), 100 + number)
    day = 86_400.0
    watch.take(silence(900, day + 600), day + 1_000)
    watch.run_on()
    assert watch.alarms()[-2:] == ["recovered job:ringfence", "insufficient node:node-0900"]
    assert len(watch.stage.state.outage.hosts) == 1


def test_a_host_with_another_witness_counts_and_is_not_said_twice(watch: Watch) -> None:
    watch.take(silence(3, status=Status.SUSPECTED, cause=Cause.NODE, muted=None), 10)
    watch.run_on()
    assert watch.said == []
    for number in range(10, 10 + MANY - 1):
        watch.take(silence(number), 20)
    assert [one.rule for one in watch.said] == ["silent-hosts"]


def test_a_planned_silence_counts_for_nothing(watch: Watch) -> None:
    for number in range(30):
        watch.take(silence(number, explained_by="ctx", muted=None), 10)
    watch.run_on()
    assert watch.said == []


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(12)), st.sets(st.integers(0, 11), max_size=3))
def test_the_order_in_which_hosts_are_found_silent_changes_nothing(
    order: list[int], back: set[int]
) -> None:
    def told(numbers: Any) -> list[tuple[str, str]]:
        watch = Watch()
        for number in numbers:
            watch.take(silence(number, number), 100)
        for number in sorted(back):
            watch.take(heard(number, number), 150)
        watch.run_on()
        last = {one.incident: one for one in watch.said}
        return sorted((one.domain.id, one.status) for one in last.values())

    assert told(order) == told(range(12))
