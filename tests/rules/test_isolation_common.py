"""Many nodes failing alike: one alarm that names what they share, and soft commands held."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence.decisions import (
    Cause,
    Command,
    Domain,
    DomainKind,
    EvidenceRef,
    RequestAction,
    Status,
    Verdict,
)
from rules.isolation import Output, due, settles, step
from rules.policy import Mode, load
from rules.stage import Arrived

from .isolation_stage import T0, Governed, Stage, card, node, request, rules, tick, verdict


def failing(number: int, second: float = 0.0, **fields: object) -> Verdict:
    """One of many nodes after a driver upgrade: GSP time-outs on its first card."""
    host = f"hpc-a{number:04d}"
    line = f"NVRM: Xid (PCI:0000:4f:00): 119, pid=3127, name=python3, Timeout on GPU {number}"
    told: dict[str, object] = {
        "at": T0 + timedelta(seconds=second),
        "decided_at": T0 + timedelta(seconds=second),
        "cause": Cause.GPU_FIRMWARE,
        "host": host,
        "rack": f"r{number // 4}",
        "pool": "training",
        "driver": "580.65.06",
        "rule": "xid-119",
        "revision": 1,
        "evidence": (EvidenceRef(id=f"e{number}", source="kernel", text=line),),
    }
    told |= {"domain": card(host), "incident": f"inc-{number}"}
    return verdict(**{**told, **fields})  # type: ignore[arg-type]


class Bare(Stage):
    """The stage without the checks of each step, which cost more than hundreds of steps."""

    def take(self, record: msgspec.Struct, second: float = 0.0) -> list[Output]:
        arrived = Arrived("any", record, T0 + timedelta(seconds=second))
        self.state, outputs = step(self.state, arrived, self.rules)
        return outputs


def budget(nodes: float) -> Governed:
    return rules(budget=replace(load().budget, node_absolute=nodes))


def alarms(stage: Stage, arriving: Sequence[tuple[Verdict, float]]) -> list[Verdict]:
    outputs = [out for one, second in arriving for out in stage.take(one, second)]
    return [out for out in outputs if isinstance(out, Verdict)]


def until_quiet(stage: Stage) -> list[Verdict]:
    told = []
    while (at := settles(stage.state)) is not None:
        outputs = stage.take(*tick((at - T0).total_seconds()))
        told += [out for out in outputs if isinstance(out, Verdict)]
    return told


def test_with_the_default_budget_750_nodes_give_one_command_and_one_alarm_of_the_cause() -> None:
    stage = Bare(rules())
    outputs = [
        (number, out)
        for number in range(750)
        for out in stage.take(failing(number, number / 250), number / 250)
    ]
    commands = [out for _, out in outputs if isinstance(out, Command)]
    told = [out for _, out in outputs if isinstance(out, Verdict)] + until_quiet(stage)
    assert len([one for one in commands if one.held is None]) == 1
    assert len([one for one in commands if one.held is not None]) == 749
    assert len({one.incident for one in told}) == 1
    assert [one.revision for one in told] == list(range(1, 9))
    last = told[-1]
    assert (last.status, last.cause, last.rule) == (
        Status.SUSPECTED,
        Cause.GPU_FIRMWARE,
        "common-cause",
    )
    assert (last.pool, last.driver, last.rack) == ("training", "580.65.06", None)
    assert last.reason.startswith(
        "750 nodes failed alike (gpu-firmware) from 03:00:00 to 03:00:02 UTC; in common: Xid 119,"
        " driver 580.65.06, pool training, 188 racks (hpc-a0000, hpc-a0001,"
    )


def test_its_alarm_comes_back_from_the_topic_and_changes_nothing() -> None:
    stage = Stage(rules())
    told = alarms(stage, [(failing(number), 1.0) for number in range(8)])
    before = stage.state
    assert stage.take(told[0], 1.0) == []
    assert stage.state == before


def test_what_is_soft_is_held_as_one_of_many_where_the_budget_has_room_and_hard_is_not() -> None:
    stage = Stage(budget(100))
    for number in range(8):
        stage.take(failing(number, number), number)
    (soft,) = [stage.take(failing(20, 8, hard=False), 8)]
    assert soft == []
    commands = [out for out in stage.take(*tick(19)) if isinstance(out, Command)]
    (held,) = [one for one in commands if one.incident == "inc-20"]
    assert held.held is not None
    assert held.held.startswith("Common cause: 9 nodes failed with gpu-firmware within minutes")
    (hard,) = stage.commands(failing(21, 19), 19)
    assert hard.held is None


def test_another_cause_and_another_time_are_not_held() -> None:
    stage = Stage(budget(100))
    for number in range(8):
        stage.take(failing(number, number), number)
    stage.take(failing(30, 9, hard=False, cause=Cause.GPU_MEMORY), 9)
    stage.take(failing(31, 5000, hard=False), 5000)
    commands = {one.incident: one.held for one in stage.commands(*tick(5011))}
    commands |= {one.command.incident: one.command.held for one in stage.state.outbox.values()}
    assert commands["inc-31"] is None
    assert commands["inc-30"] is None


def test_a_release_goes_out_while_the_breaker_holds() -> None:
    stage = Stage(rules())
    for number in range(40):
        stage.take(failing(number), 1)
    back = stage.commands(request(RequestAction.RELEASE, card("hpc-a0000")), 2)
    assert [one.held for one in back] == [None]


@pytest.mark.parametrize(
    "arriving",
    [
        pytest.param([failing(n) for n in range(7)], id="too few"),
        pytest.param([failing(n, n * 120) for n in range(8)], id="not within minutes"),
        pytest.param(
            [failing(1, domain=card("a", f"0000:{n:02x}:00"), incident=f"i{n}") for n in range(8)],
            id="cards of one node",
        ),
        pytest.param([failing(n, status=Status.INSUFFICIENT) for n in range(9)], id="not sure"),
        pytest.param([failing(n, explained_by="plan") for n in range(9)], id="planned"),
        pytest.param([failing(n, muted="stale") for n in range(9)], id="old news"),
        pytest.param([failing(n, cause=Cause.SOFTWARE) for n in range(9)], id="software"),
        pytest.param(
            [
                failing(n, domain=node(f"n{n}"), cause=Cause.NODE, status=Status.SUSPECTED)
                for n in range(9)
            ],
            id="nodes of which one witness speaks",
        ),
    ],
)  # fmt: skip
def test_less_than_that_is_no_common_cause(arriving: list[Verdict]) -> None:
    stage = Stage(rules())
    assert alarms(stage, [(one, (one.at - T0).total_seconds()) for one in arriving]) == []
    assert until_quiet(stage) == []


def test_suspected_nodes_are_alarmed_once_too_and_nothing_is_commanded() -> None:
    stage = Stage(rules())
    arriving = [(failing(number, status=Status.SUSPECTED), 1.0) for number in range(12)]
    told = alarms(stage, arriving) + until_quiet(stage)
    assert [one.reason.partition(" ")[0] for one in told] == ["8", "12"]
    assert stage.state.outbox == {}


def test_it_is_over_when_few_are_left_and_says_so_once() -> None:
    stage = Stage(rules())
    alarms(stage, [(failing(number), 1.0) for number in range(9)])
    until_quiet(stage)
    well = [(failing(n, status=Status.RECOVERED, revision=2), 60.0 + n) for n in range(9)]
    (last,) = alarms(stage, well)
    assert last.status is Status.RECOVERED
    assert last.reason == (
        "The nodes that failed alike (gpu-firmware) work again, or were seen to; still failing:"
        " hpc-a0002, hpc-a0003, hpc-a0004, hpc-a0005, hpc-a0006, hpc-a0007, hpc-a0008."
    )
    assert stage.state.common.surges == {}


def test_releasing_its_nodes_by_hand_ends_it() -> None:
    stage = Stage(budget(100))
    alarms(stage, [(failing(number), 1.0) for number in range(8)])
    until_quiet(stage)
    back = request(RequestAction.RELEASE, card("hpc-a0003"))
    stage.take(back, 100)
    told = stage.take(*tick(111))
    assert [one.status for one in told if isinstance(one, Verdict)] == [Status.RECOVERED]


def test_an_alarm_is_forgotten_after_a_day() -> None:
    stage = Stage(rules())
    alarms(stage, [(failing(number), 1.0) for number in range(8)])
    until_quiet(stage)
    day = 86_400.0
    assert due(stage.state) is not None
    told = [out for out in stage.take(*tick(day)) if isinstance(out, Verdict)]
    assert [one.status for one in told] == [Status.RECOVERED]


def test_a_rack_that_has_its_own_verdict_is_not_told_twice() -> None:
    stage = Stage(rules())
    down = [
        (
            failing(
                number,
                domain=node(f"hpc-a{number:04d}"),
                cause=Cause.NODE,
                rack="r7",
                victims=(card("x"), card("y")),
            ),
            number / 10,
        )
        for number in range(9)
    ]
    told = alarms(stage, down) + until_quiet(stage)
    assert [(one.rule, one.domain.kind) for one in told] == [("rack", DomainKind.RACK)]


SOFT = [failing(number, number % 7, hard=False) for number in range(12)]


@given(st.permutations(SOFT), st.sampled_from((1.0, 5.0, 100.0)))
@settings(max_examples=40, deadline=None)
def test_any_order_of_arrival_holds_and_names_the_same(
    arriving: list[Verdict], nodes: float
) -> None:
    def run(order: Sequence[Verdict]) -> tuple[object, ...]:
        stage = Stage(budget(nodes))
        told = alarms(stage, [(one, number / 2) for number, one in enumerate(order)])
        told += until_quiet(stage)
        pending = stage.state.outbox.values()
        commands = {(o.command.id, o.command.held is not None) for o in pending}
        return sorted(commands), told[-1].reason, told[-1].victims

    assert run(arriving) == run(SOFT)


def test_shadow_says_it_too() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    assert len(alarms(stage, [(failing(number), 1.0) for number in range(8)])) == 1


def test_thousands_are_counted_and_the_state_stays_small() -> None:
    stage = Bare(rules(settle_s=0.0, mode=Mode.SHADOW))
    told = alarms(stage, [(failing(n, status=Status.SUSPECTED), 1.0) for n in range(1500)])
    told += until_quiet(stage)
    surge = stage.state.common.surges["gpu-firmware"]
    assert (len(surge.members), surge.more, surge.count) == (1024, 476, 1500)
    assert told[-1].reason.startswith("1500 nodes failed alike")
    assert len(told) == 9
    assert len(msgspec.json.encode(stage.state.common)) < 200_000


def test_what_is_wider_than_a_node_is_left_to_its_own_budget() -> None:
    governed = rules(budget=replace(load().budget, node_absolute=100.0, rack_absolute=1.0))
    stage = Stage(governed)
    for number in range(8):
        stage.take(failing(number, cause=Cause.NODE, domain=node(f"hpc-a{number:04d}")), 1)
    rack = Domain(kind=DomainKind.RACK, rack="r1")
    stage.take(verdict(rack, "inc-rack", cause=Cause.NODE, hard=False, rule="rack"), 2)
    (command,) = [one for one in stage.commands(*tick(12)) if one.domain == rack]
    assert command.held is None
