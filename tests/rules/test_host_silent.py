"""A host that is not heard any more: a fact, never proof, explained by plans, over when heard."""

from typing import Any

import pytest
from msgspec.structs import replace

from evidence.decisions import Cause, Domain, DomainKind, Says, Status, Witness
from evidence.records import ContextKind, KernelKind
from ringfence.drive import Driver
from rules import host
from rules.silence import TOGETHER
from rules.stage import Arrived
from rules.tables import Rules
from streams.ticks import StageTime

MINUTE = 60.0
#: When a host whose last frame came at 2 s is looked at, looked at again, and judged.
ASKED, SAID = 303.0, 367.0


def fall_silent(node: Any, *, until: float = SAID) -> None:
    """Ticks until then, as the stream sends them to whoever is due: within a second."""
    while (due := host.due(node.state)) is not None:
        seconds = (due - node.at(0)).total_seconds() + 0.7
        if seconds > until:
            return
        node.tick(seconds)


@pytest.fixture
def quiet(node: Any, records: Any) -> Any:
    node.feed(records.quiet())
    return node


def silent(node: Any) -> list[Any]:
    return [one for one in node.verdicts if one.rule == "silent-node"]


def test_a_host_that_reported_and_is_not_heard_any_more_is_told_once(quiet: Any) -> None:
    fall_silent(quiet, until=40 * MINUTE)
    (verdict,) = silent(quiet)
    assert (verdict.status, verdict.cause) == ("insufficient", "unknown")
    assert (verdict.domain.id, verdict.host) == ("node:gpu-r07-n3", "gpu-r07-n3")
    assert verdict.missing
    assert all(one.says == "blind" for one in verdict.testimony)
    assert verdict.muted == TOGETHER, "how many others are silent is not seen here"
    assert host.due(quiet.state) is None, "nothing more is waited for"


def test_it_is_told_after_five_minutes_and_a_second_look_and_not_before(quiet: Any) -> None:
    fall_silent(quiet, until=ASKED + 50)
    assert not silent(quiet)
    fall_silent(quiet)
    assert silent(quiet)


@pytest.mark.parametrize("word", ["frame", "line", "inventory"])
def test_whatever_it_sends_shows_that_it_lives(word: str, quiet: Any, records: Any) -> None:
    fall_silent(quiet)
    plain = {"kind": KernelKind.OTHER, "code": None, "pci": None, "message": "usb 1-1: new device"}
    said = {
        "frame": lambda: records.frame((400, {})),
        "line": lambda: records.kernel(400, **plain),
        "inventory": lambda: records.inventory(400),
    }[word]()
    quiet.take(said)
    first, last = silent(quiet)
    assert (last.incident, last.revision, last.status) == (first.incident, 2, "recovered")
    assert last.muted is None


@pytest.mark.parametrize("word", ["frame", "line"])
def test_a_word_between_the_two_looks_is_heard(word: str, quiet: Any, records: Any) -> None:
    fall_silent(quiet, until=ASKED + 10)
    plain = {"kind": KernelKind.OTHER, "code": None, "pci": None, "message": "usb 1-1: new device"}
    late = records.frame((-600, {})) if word == "frame" else records.kernel(320, **plain)
    quiet.take(late, 320)
    fall_silent(quiet, until=ASKED + 200)
    assert not silent(quiet)


def test_silence_comes_again_and_is_told_again(quiet: Any, records: Any) -> None:
    fall_silent(quiet)
    quiet.take(records.frame((400, {})))
    fall_silent(quiet, until=1000)
    assert [one.status for one in silent(quiet)] == ["insufficient", "recovered", "insufficient"]


def test_a_host_that_never_told_anything_regularly_is_not_waited_for(
    node: Any, records: Any
) -> None:
    node.take(records.inventory(0))
    node.take(records.kernel(5, 2, code=13))
    node.run_on()
    assert host.due(node.state) is None


def test_lines_keep_a_host_alive_whose_nvml_hangs(quiet: Any, records: Any) -> None:
    plain = {"kind": KernelKind.OTHER, "code": None, "pci": None}
    for minute in range(1, 30):
        seconds = minute * 100.0
        quiet.take(records.kernel(seconds, message=f"audit {minute}", **plain))
        if (due := host.due(quiet.state)) is not None and due <= quiet.at(seconds + 99):
            quiet.tick(seconds + 99)
    assert not silent(quiet)


def test_a_host_whose_clock_stands_still_is_heard(quiet: Any, records: Any) -> None:
    """Silence is of the broker's clock: an event time tells nothing of who lives."""
    for minute in range(1, 30):
        seconds = minute * 50.0
        quiet.take(records.frame((2, {})), seconds)
        if (due := host.due(quiet.state)) is not None and due <= quiet.at(seconds + 49):
            quiet.tick(seconds + 49)
    assert not silent(quiet)


# --- Plans and other witnesses ------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [ContextKind.REBOOT, ContextKind.MAINTENANCE, ContextKind.DRAIN], ids=str
)
def test_a_plan_explains_silence_until_it_ends(kind: ContextKind, quiet: Any, records: Any) -> None:
    quiet.take(records.context(10, kind, until_s=20 * MINUTE))
    fall_silent(quiet, until=20 * MINUTE)
    assert not silent(quiet)
    fall_silent(quiet, until=25 * MINUTE)
    (verdict,) = silent(quiet)
    assert (verdict.status, verdict.explained_by) == ("insufficient", None)


def test_a_plan_that_is_told_later_explains_what_was_said(quiet: Any, records: Any) -> None:
    fall_silent(quiet)
    quiet.take(records.context(400, ContextKind.MAINTENANCE, at_s=60, until_s=3600))
    last = silent(quiet)[-1]
    assert last.explained_by is not None
    assert "maintenance" in last.reason


def test_a_plan_for_one_card_does_not_explain_a_silent_host(quiet: Any, records: Any) -> None:
    quiet.take(records.context(10, ContextKind.GPU_RESET, gpu=1, until_s=3600))
    fall_silent(quiet)
    assert silent(quiet)


def test_a_job_that_waits_for_a_rank_there_makes_it_suspected(quiet: Any, records: Any) -> None:
    fall_silent(quiet)
    quiet.take(records.suspicion(700, 2, stalled_s=30))
    quiet.run_on()
    last = silent(quiet)[-1]
    assert (last.status, last.cause, last.muted) == ("suspected", "node", None)
    assert {str(one.witness) for one in last.testimony} == {"health", "collective"}


def test_its_links_going_down_make_it_suspected_and_never_more(quiet: Any, records: Any) -> None:
    quiet.take(records.inventory(3, hcas=()))
    link = Domain(kind=DomainKind.LINK, switch="0xb8", port=3)
    quiet.take(
        records.suspicion(
            250,
            domain=link,
            witness=Witness.FABRIC,
            kind="ib-down",
            cause=Cause.IB_LINK,
            says=Says.ACCUSES,
            stalled_s=20,
        )
    )
    fall_silent(quiet, until=3600)
    assert {str(one.status) for one in silent(quiet)} == {"suspected"}
    assert not any(one.status == "localized" for one in quiet.verdicts)


def test_no_silence_however_long_localizes_anything(quiet: Any) -> None:
    fall_silent(quiet, until=30 * 3600)
    assert {str(one.status) for one in quiet.verdicts} == {"insufficient"}


# --- Time that stood still ------------------------------------------------------------------------


def test_after_an_outage_of_the_ticks_the_first_look_says_nothing(quiet: Any, records: Any) -> None:
    """Kafka was away for an hour: the first tick finds nobody heard, then the spools arrive."""
    quiet.tick(3600)
    quiet.take(records.frame((100, {})), 3602)
    fall_silent(quiet, until=3880)
    assert not silent(quiet)


def test_two_gaps_in_the_ticks_are_no_silence_either(quiet: Any) -> None:
    quiet.tick(3600)
    quiet.tick(7200)
    quiet.run_on()
    assert not silent(quiet)


def test_a_worker_that_catches_up_sees_no_host_as_silent(rules: Rules, records: Any) -> None:
    """It was away for two hours: the backlog stands before the ticks that it sends itself."""
    time = StageTime(("kernel", "gpu", "suspicions", "context", "inventory"))
    topics = ("kernel", "gpu", "suspicions", "context", "inventory")
    hosts = {name: host.HostState() for name in ("gpu-r07-n3", "gpu-r07-n4")}
    told: list[Any] = []

    def step(name: str, record: Any, when: Any, topic: str = "gpu") -> None:
        arrived = Arrived(topic, record, when)
        hosts[name], said = host.step(hosts[name], arrived, rules)
        told.extend(said)

    def tick_all(order: tuple[str, ...], seconds: float) -> None:
        for topic in order:
            now = time.advance(topic, 0, records.tick(seconds).at)
            due = {} if now is None else {one: host.due(state) for one, state in hosts.items()}
            for name in [one for one, at in due.items() if at is not None and at <= now]:
                step(name, records.tick(seconds), now, "")

    backlog = [records.frame((n * 60.0, {})) for n in range(120)]
    for name in hosts:
        step(name, replace(backlog[0], host=name), backlog[0].observed_at)
    tick_all(topics, 30)
    # Down from here on. It comes back at 7,200 s and ticks every topic, behind what waits there.
    for seconds in (7_200, 7_201, 7_230, 7_261):
        tick_all(tuple(one for one in topics if one != "gpu"), seconds)
    for frame in backlog[1:]:
        for name in hosts:
            step(name, replace(frame, host=name), frame.observed_at)
    for seconds in (7_200, 7_201, 7_230, 7_261, 7_330):
        tick_all(topics, seconds)
    assert told == []


def test_the_driver_finds_a_host_silent_while_others_go_on_and_none_at_the_end_of_logs(
    rules: Rules, records: Any
) -> None:
    def told(*, live: bool) -> list[tuple[str, str | None]]:
        driver = Driver(rules, live=live)
        for minute in range(60):
            for name in ("gpu-a", "gpu-b"):
                if name == "gpu-a" or minute < 30:
                    frame = replace(records.frame((minute * 60.0, {})), host=name)
                    driver.add("gpu", name, frame, frame.observed_at)
        outcome = driver.run()
        said = [one for one in outcome.verdicts if one.rule == "silent-node"]
        return [(one.domain.id, one.muted) for one in said]

    assert told(live=True) == [("node:gpu-b", TOGETHER), ("node:gpu-b", None)]
    assert told(live=False) == []


def test_a_state_of_an_older_build_goes_on(quiet: Any, records: Any) -> None:
    quiet.state = replace(quiet.state, noted_at=None, silent_at=None)
    quiet.take(records.frame((5, {})))
    assert quiet.state.silent_at is not None
    assert Status.INSUFFICIENT not in {one.status for one in quiet.verdicts}
