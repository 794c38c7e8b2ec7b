from datetime import timedelta

import pytest

from evidence.decisions import (
    Action,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    EvidenceRef,
    Level,
    RequestAction,
    Status,
)
from evidence.identity import digest
from rules.policy import Pool, RecoveryPolicy, Releases

from .isolation_stage import T0, Stage, card, node, request, roomy, rules, verdict

AT_ONCE = RecoveryPolicy(Releases.AUTOMATIC, 0.0)


def test_a_release_begins_the_next_generation_and_withdraws_the_pending_isolate() -> None:
    stage = Stage(rules())
    (out,) = stage.commands(verdict())
    outputs = stage.take(request(RequestAction.RELEASE), 10)
    back, state = outputs
    assert isinstance(back, Command)
    assert isinstance(state, DesiredState)
    assert back.id == digest("gpu:gpu17/0000:4f:00", "release", "inc-1", 1)
    assert (back.generation, back.by, back.reason) == (1, "ana", "tested")
    assert (state.isolated, state.generation) == (False, 1)
    assert set(stage.state.outbox) == {back.id} != {out.id}


def test_what_a_person_released_is_not_isolated_again_for_the_same_evidence() -> None:
    stage = Stage(roomy())
    stage.take(verdict())
    stage.take(request(RequestAction.RELEASE), 10)
    assert stage.take(verdict(revision=7, at=T0 + timedelta(seconds=90)), 90) == []


def test_an_incident_that_a_release_ended_counts_again_for_what_happened_after_it() -> None:
    stage = Stage(roomy())
    stage.take(verdict())
    stage.take(request(RequestAction.RELEASE), 10)
    after = T0 + timedelta(seconds=90)
    seen = EvidenceRef(id="e2", source="gpu", at=after)
    (again,) = stage.commands(verdict(revision=7, at=after, evidence=(seen,)), 91)
    assert (again.action, again.generation, again.incident) == (Action.ISOLATE, 1, "inc-1")
    assert stage.take(verdict(revision=8, at=after, evidence=(seen,)), 92) == []


def test_evidence_older_than_the_last_release_never_counts() -> None:
    stage = Stage(roomy())
    stage.take(verdict())
    stage.take(request(RequestAction.RELEASE), 100)
    assert stage.take(verdict(incident="older", at=T0 + timedelta(seconds=99)), 101) == []
    newer = verdict(incident="newer", at=T0 + timedelta(seconds=102))
    assert len(stage.commands(newer, 103)) == 1


def test_failing_again_within_the_cool_down_escalates_up_to_the_pools_limit() -> None:
    pools = {"default": Pool(at_most=Level.EVICT), "mild": Pool(at_most=Level.DRAIN)}
    stage = Stage(roomy(pools=pools))
    later = {"at": T0 + timedelta(seconds=200)}
    stage.take(verdict())
    stage.take(verdict(card("gpu18"), "inc-2"))
    stage.take(request(RequestAction.RELEASE), 100)
    stage.take(request(RequestAction.RELEASE, card("gpu18"), id="r-2"), 100)
    (again,) = stage.commands(verdict(incident="inc-3", **later), 200)
    (capped,) = stage.commands(verdict(card("gpu18"), "inc-4", pool="mild", **later), 200)
    assert (again.level, again.generation) == (Level.EVICT, 1)
    assert capped.level is Level.DRAIN


def test_after_the_cool_down_the_cause_decides_again() -> None:
    stage = Stage(roomy(pools={"default": Pool(at_most=Level.EVICT)}))
    stage.take(verdict())
    stage.take(request(RequestAction.RELEASE), 100)
    day = 86400.0 + 101
    later = verdict(incident="inc-2", at=T0 + timedelta(seconds=day))
    assert stage.commands(later, day)[0].level is Level.DRAIN


def test_nothing_returns_by_itself_unless_the_policy_says_so() -> None:
    well = verdict(status=Status.RECOVERED)
    stage = Stage(rules())
    stage.take(verdict())
    assert stage.take(well, 50) == []
    stage.rules = rules(recovery=AT_ONCE)
    (back,) = stage.commands(well, 60)
    assert back.action is Action.RELEASE


def test_an_automatic_release_keeps_what_a_person_took_out() -> None:
    stage = Stage(rules(recovery=AT_ONCE))
    stage.take(verdict())
    stage.take(request(RequestAction.ISOLATE), 1)
    (state,) = stage.take(verdict(status=Status.RECOVERED), 60)
    assert isinstance(state, DesiredState)
    assert [hold.by for hold in state.holds] == ["ana"]


def test_a_hold_is_lifted_only_by_who_set_it() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    stage.take(request(RequestAction.HOLD, by="bo"), 1)
    (state,) = stage.take(request(RequestAction.RELEASE), 2)
    assert isinstance(state, DesiredState)
    assert (state.isolated, [hold.by for hold in state.holds]) == (True, ["bo"])
    (back,) = stage.commands(request(RequestAction.RELEASE, id="r-2", by="bo"), 3)
    assert back.action is Action.RELEASE


def test_a_hold_on_a_part_in_service_takes_it_out() -> None:
    (command,) = Stage(rules()).commands(request(RequestAction.HOLD))
    assert (command.action, command.level) == (Action.ISOLATE, Level.CORDON)


def test_a_part_that_nobody_isolated_can_be_released_too() -> None:
    (back,) = Stage(rules()).commands(request(RequestAction.RELEASE, node("gpu44")))
    assert (back.action, back.domain_id, back.generation) == (Action.RELEASE, "node:gpu44", 1)


def test_the_same_request_counts_once() -> None:
    stage = Stage(rules())
    assert len(stage.commands(request(RequestAction.RELEASE))) == 1
    assert stage.take(request(RequestAction.RELEASE), 5) == []


def test_a_request_about_no_part_gives_nothing() -> None:
    assert (
        Stage(rules()).take(request(RequestAction.ISOLATE, Domain(kind=DomainKind.JOB, job="1")))
        == []
    )


def test_an_automatic_release_lifts_only_the_hold_that_is_over() -> None:
    stage = Stage(rules(recovery=AT_ONCE))
    stage.take(verdict())
    stage.take(verdict(incident="inc-2"), 1)
    (state,) = stage.take(verdict(revision=1, status=Status.RECOVERED), 60)
    assert isinstance(state, DesiredState)
    assert (state.isolated, [hold.id for hold in state.holds]) == (True, ["inc-2"])
    (back,) = stage.commands(verdict(incident="inc-2", revision=1, status=Status.RECOVERED), 61)
    assert back.action is Action.RELEASE


@pytest.mark.parametrize("status", [Status.RECOVERED, Status.VICTIM, Status.SOFTWARE])
def test_a_held_command_is_withdrawn_when_its_incident_is_no_reason_any_more(
    status: Status,
) -> None:
    stage = Stage(rules())
    stage.take(verdict())
    (held,) = stage.commands(verdict(card("gpu18"), "inc-2"), 1)
    assert held.held is not None
    stage.take(verdict(card("gpu18"), "inc-2", revision=1, status=status), 2)
    assert held.id not in stage.state.outbox
    assert stage.state.parts[held.domain_id].held is None
