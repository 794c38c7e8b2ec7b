from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.decisions import (
    Action,
    Cause,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    Hold,
    Level,
    Recovery,
    RequestAction,
    Status,
    Verdict,
)
from evidence.identity import digest
from evidence.records import Mig
from rules.isolation import IsolationState, rebuild, step
from rules.policy import load
from rules.stage import Arrived

from .isolation_stage import T0, Stage, card, node, request, roomy, rules, tick, verdict


def test_a_localized_verdict_gives_one_command_and_one_desired_state() -> None:
    outputs = Stage(rules()).take(verdict(), 5)
    now = T0 + timedelta(seconds=5)
    assert outputs[0] == Command(
        id=digest("gpu:gpu17/0000:4f:00", "isolate", "inc-1", 0),
        action=Action.ISOLATE,
        domain=card(),
        domain_id="gpu:gpu17/0000:4f:00",
        level=Level.DRAIN,
        cause=Cause.GPU_MEMORY,
        reason="Three witnesses agree.",
        incident="inc-1",
        generation=0,
        issued_at=now,
        verdict="v-inc-1-0",
        confidence=0.97,
        recovery=Recovery.DRAIN_RESET,
        act_by=now + timedelta(seconds=1800),
        evidence=("e1",),
    )
    hold = Hold(
        id="inc-1",
        cause=Cause.GPU_MEMORY,
        by="ringfence",
        at=T0,
        reason="Three witnesses agree.",
        level=Level.DRAIN,
    )
    (state,) = outputs[1:]
    assert isinstance(state, DesiredState)
    assert (state.domain_id, state.isolated, state.level, state.holds, state.generation) == (
        "gpu:gpu17/0000:4f:00",
        True,
        Level.DRAIN,
        (hold,),
        0,
    )


@pytest.mark.parametrize(
    "silent",
    [
        {"status": Status.SUSPECTED},
        {"status": Status.INSUFFICIENT},
        {"status": Status.SOFTWARE},
        {"status": Status.VICTIM},
        {"status": Status.RECOVERED},
        {"cause": Cause.SOFTWARE},
        {"cause": Cause.UNKNOWN},
        {"cause": Cause.FACILITY},
        {"explained_by": "maintenance-1"},
        {"victim_of": "v-0"},
        {"domain": Domain(kind=DomainKind.JOB, job="7")},
        {"domain": Domain(kind=DomainKind.GPU, rank=3)},
        {"domain": Domain(kind=DomainKind.GPU, host="gpu17", rank=3)},
        {"domain": Domain(kind=DomainKind.MIG, host="gpu17", pci="0000:4f:00")},
    ],
)
def test_what_is_not_sure_not_hardware_or_not_a_part_gives_nothing(
    silent: dict[str, object],
) -> None:
    stage = Stage(rules())
    before = stage.state
    assert stage.take(verdict(**silent)) == []
    common = stage.state.common  # what fails is remembered, to see whether others fail alike
    assert msgspec.structs.replace(before, common=common) == stage.state


@pytest.mark.parametrize(
    ("domain", "cause", "level"),
    [
        (card(), Cause.GPU_LOST, Level.DRAIN),
        (card(), Cause.GPU_DEGRADED, Level.CORDON),
        (node(), Cause.NODE, Level.DRAIN),
        (Domain(kind=DomainKind.SWITCH, switch="0x7fe1"), Cause.IB_SWITCH, Level.CORDON),
        (Domain(kind=DomainKind.LINK, switch="0x7fe1", port=9), Cause.IB_LINK, Level.CORDON),
        (
            Domain(kind=DomainKind.NVLINK, host="n1", pci="0000:4f:00", link=4),
            Cause.NVLINK,
            Level.DRAIN,
        ),
        (
            Domain(kind=DomainKind.MIG, host="n1", pci="0000:4f:00", mig=Mig(3)),
            Cause.GPU_MEMORY,
            Level.DRAIN,
        ),
    ],
)
def test_each_cause_has_its_level(domain: Domain, cause: Cause, level: Level) -> None:
    (command,) = Stage(rules()).commands(verdict(domain, cause=cause))
    assert (command.level, command.domain_id, command.held) == (level, domain.id, None)


def test_the_same_verdict_and_its_later_revisions_give_no_second_command() -> None:
    stage = Stage(roomy())
    assert len(stage.commands(verdict())) == 1
    assert stage.take(verdict()) == []
    assert stage.take(verdict(revision=1, at=T0 + timedelta(seconds=3)), 3) == []
    assert stage.take(verdict(node(), revision=2, at=T0 + timedelta(seconds=4)), 4) == []


def test_a_second_incident_of_an_isolated_part_adds_a_hold_and_no_command() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    (state,) = stage.take(verdict(incident="inc-2"), 60)
    assert isinstance(state, DesiredState)
    assert [hold.id for hold in state.holds] == ["inc-1", "inc-2"]


def test_a_worse_incident_of_an_isolated_part_raises_its_level() -> None:
    stage = Stage(rules())
    stage.take(verdict(cause=Cause.GPU_DEGRADED))
    (command,) = stage.commands(verdict(incident="inc-2", cause=Cause.GPU_LOST), 60)
    assert (command.level, command.held, command.incident) == (Level.DRAIN, None, "inc-2")


def test_a_stage_without_its_state_holds_every_verdict_and_serves_people() -> None:
    stage = Stage(roomy(), IsolationState())
    (command,) = stage.take(verdict())
    assert isinstance(command, Command)
    assert command.held is not None
    assert "not restored" in command.held
    assert len(stage.commands(request(RequestAction.RELEASE))) == 1


def test_the_stage_is_rebuilt_from_the_state_topic() -> None:
    stage = Stage(roomy())
    (isolated,) = stage.states(verdict(card(uuid="GPU-77")))
    stage.take(verdict(card("gpu18"), "inc-2"), 1)
    (released,) = stage.states(request(RequestAction.RELEASE, card("gpu18")), 50)
    again = Stage(roomy(), rebuild([isolated, released]))
    assert again.take(verdict(card(uuid="GPU-77"), revision=3), 60) == []
    old = verdict(card("gpu18"), "inc-5", at=T0 + timedelta(seconds=49))
    assert again.take(old, 61) == []
    (back,) = again.commands(request(RequestAction.RELEASE, card(pci=None, uuid="GPU-77")), 62)
    assert (back.domain_id, back.generation) == ("gpu:gpu17/0000:4f:00", 1)


def test_a_redelivered_record_changes_nothing() -> None:
    state, governed = rebuild(), roomy()
    first = Arrived("verdicts", verdict(), T0, offset=41)
    state, outputs = step(state, first, governed)
    assert len(outputs) == 2
    assert step(state, first, governed) == (state, [])
    older = Arrived("verdicts", verdict(card("gpu18"), "inc-0"), T0, offset=40)
    assert step(state, older, governed) == (state, [])
    other = Arrived("requests", request(RequestAction.RELEASE), T0, offset=0)
    state, outputs = step(state, other, governed)
    assert len(outputs) == 2
    assert state.offsets == {"verdicts": 41, "requests": 0}


def test_nothing_to_write_is_the_same_object() -> None:
    state = rebuild()
    for record in (verdict(status=Status.SOFTWARE), tick(9)[0]):
        assert step(state, Arrived("any", record, T0, offset=3), roomy())[0] is state


def test_two_runs_over_the_same_records_give_the_same_bytes() -> None:
    def run() -> list[bytes]:
        stage = Stage(rules())
        outputs = stage.take(verdict()) + stage.take(verdict(card("gpu18"), "inc-2"), 1)
        outputs += stage.take(*tick(4)) + stage.take(request(RequestAction.RELEASE), 5)
        return [msgspec.json.encode(out) for out in outputs]

    assert run() == run()


HOSTS = [f"gpu{number}" for number in range(5)]
VERDICTS = [
    verdict(card(host, pci), f"{host}-{pci}-{again}", at=T0 + timedelta(seconds=again))
    for host in HOSTS
    for pci in ("0000:1b:00", "0000:4f:00")
    for again in (0, 1)
]


@given(st.lists(st.sampled_from(VERDICTS), max_size=30), st.integers(1, 3))
def test_whatever_arrives_the_budget_holds_and_no_part_is_taken_out_twice(
    arriving: list[Verdict], nodes: int
) -> None:
    stage = Stage(rules(budget=replace(load().budget, node_absolute=float(nodes))))
    real: list[Command] = []
    for second, one in enumerate(arriving):
        real += [command for command in stage.commands(one, second) if command.held is None]
    assert len({command.domain.host for command in real}) <= nodes
    assert len({command.domain_id for command in real}) == len(real)
    assert len({command.id for command in real}) == len(real)


@given(st.permutations(VERDICTS[:8]))
def test_without_a_budget_the_order_of_verdicts_does_not_change_who_is_taken_out(
    arriving: list[Verdict],
) -> None:
    stage = Stage(roomy())
    out = {command.domain_id for one in arriving for command in stage.commands(one)}
    assert out == {one.domain.id for one in arriving}
