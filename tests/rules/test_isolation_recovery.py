"""A part returns when its repair was seen and nothing was said against it for a while."""

from datetime import timedelta

import pytest

from evidence.decisions import (
    AckStatus,
    Action,
    Cause,
    Command,
    DesiredState,
    Level,
    RequestAction,
    Status,
    Verdict,
)
from rules.isolation import due
from rules.policy import Mode, Pool, RecoveryPolicy, Releases

from .isolation_stage import T0, Stage, ack, card, node, request, roomy, rules, tick, verdict

AUTOMATIC = RecoveryPolicy(Releases.AUTOMATIC, 600.0)
PROPOSE = RecoveryPolicy(Releases.PROPOSE, 600.0)
NEVER = RecoveryPolicy(Releases.NEVER, 600.0)


def well(incident: str = "inc-1", **fields: object) -> Verdict:
    return verdict(
        fields.pop("domain", None), incident, revision=1, status=Status.RECOVERED, **fields
    )  # type: ignore[arg-type]


def out_and_well(recovery: RecoveryPolicy, **changes: object) -> Stage:
    """A card that was taken out, and reads well again at second 100."""
    stage = Stage(roomy(recovery=recovery, **changes))
    (command,) = stage.commands(verdict())
    stage.take(ack(command), 1)
    assert stage.take(well(), 100) == []
    return stage


def test_by_default_a_release_is_proposed_after_a_clean_hour_and_nothing_is_released() -> None:
    stage = Stage(rules())
    (command,) = stage.commands(verdict())
    stage.take(ack(command), 1)
    assert stage.take(well(), 100) == []
    assert due(stage.state) == T0 + timedelta(seconds=3700)
    assert stage.take(*tick(3699)) == []
    (state,) = stage.take(*tick(3700))
    assert isinstance(state, DesiredState)
    assert (state.isolated, state.note) == (
        True,
        "release proposed: it works again since 2027-03-14 03:01:40 UTC and stayed clean for"
        " 3600 s",
    )
    assert due(stage.state) is None
    assert stage.take(*tick(9000)) == []


def test_the_policy_may_make_it() -> None:
    stage = out_and_well(AUTOMATIC)
    assert stage.take(*tick(699)) == []
    back, state = stage.take(*tick(700))
    assert isinstance(back, Command)
    assert isinstance(state, DesiredState)
    assert (back.action, back.by, state.isolated) == (Action.RELEASE, "ringfence", False)
    assert back.reason == (
        "Released: it works again since 2027-03-14 03:01:40 UTC and stayed clean for 600 s."
    )


def test_the_older_key_means_the_same() -> None:
    stage = out_and_well(PROPOSE, automatic_release=True)
    assert [one.action for one in stage.commands(*tick(700))] == [Action.RELEASE]


def test_the_policy_may_forbid_it() -> None:
    stage = out_and_well(NEVER)
    assert due(stage.state) is None
    assert stage.take(*tick(9000)) == []


@pytest.mark.parametrize("recovery", [AUTOMATIC, PROPOSE])
def test_what_is_said_against_it_meanwhile_starts_the_clock_anew(
    recovery: RecoveryPolicy,
) -> None:
    stage = out_and_well(recovery)
    odd = {"status": Status.SUSPECTED, "cause": Cause.GPU_DEGRADED}
    stage.take(verdict(incident="inc-2", at=T0 + timedelta(seconds=500), **odd), 500)
    assert stage.take(*tick(700)) == []
    assert stage.take(*tick(1100)) != []


def test_the_same_fault_again_ends_the_recovery() -> None:
    stage = out_and_well(AUTOMATIC)
    stage.take(verdict(revision=2, at=T0 + timedelta(seconds=300)), 300)
    assert stage.take(*tick(100_000)) == []
    assert stage.state.parts["gpu:gpu17/0000:4f:00"].holds != ()


def test_a_fault_of_its_node_starts_the_clock_anew_and_one_of_a_neighbour_does_not() -> None:
    stage = out_and_well(PROPOSE)
    later = {"status": Status.SUSPECTED, "at": T0 + timedelta(seconds=400)}
    stage.take(verdict(card(pci="0000:9b:00"), "inc-3", **later), 400)
    assert due(stage.state) == T0 + timedelta(seconds=700)
    stage.take(verdict(node(), "inc-4", cause=Cause.NODE, **later), 500)
    assert due(stage.state) == T0 + timedelta(seconds=1100)


def test_a_proposal_is_taken_back_when_something_is_said_against_the_part() -> None:
    stage = out_and_well(PROPOSE)
    stage.take(*tick(700))
    later = {"status": Status.SUSPECTED, "at": T0 + timedelta(seconds=800), "reason": "Slow."}
    (state,) = stage.states(verdict(incident="inc-2", **later), 800)
    assert (state.isolated, state.note) == (True, "release proposed no more: Slow.")
    (again,) = stage.states(*tick(1400))
    assert (again.note or "").startswith("release proposed: ")


@pytest.mark.parametrize("action", [RequestAction.ISOLATE, RequestAction.HOLD])
@pytest.mark.parametrize("recovery", [AUTOMATIC, PROPOSE])
def test_what_a_person_took_out_or_holds_is_never_released_by_itself(
    action: RequestAction, recovery: RecoveryPolicy
) -> None:
    stage = Stage(roomy(recovery=recovery))
    stage.take(verdict())
    stage.take(request(action), 1)
    stage.take(well(), 100)
    outputs = stage.take(*tick(9000))
    assert [
        one for one in outputs if isinstance(one, Command) and one.action is Action.RELEASE
    ] == []
    part = stage.state.parts["gpu:gpu17/0000:4f:00"]
    assert "ana" in [hold.by for hold in part.holds]
    assert part.proposed_at is None


def test_of_two_holds_only_the_one_that_is_over_is_lifted() -> None:
    stage = out_and_well(AUTOMATIC)
    stage.take(verdict(incident="inc-2", status=Status.LOCALIZED), 50)
    part = stage.state.parts["gpu:gpu17/0000:4f:00"]
    assert sorted(hold.id for hold in part.holds) == ["inc-1", "inc-2"]
    states = stage.states(*tick(720))
    assert [hold.id for hold in states[-1].holds] == ["inc-2"]


def test_failing_again_after_an_automatic_release_takes_the_next_level() -> None:
    pools = {"default": Pool(at_most=Level.EVICT)}
    stage = out_and_well(AUTOMATIC, pools=pools)
    stage.take(*tick(700))
    (again,) = stage.commands(verdict(incident="inc-9", at=T0 + timedelta(seconds=900)), 900)
    assert (again.level, again.generation) == (Level.EVICT, 1)


def test_shadow_shows_the_release_that_would_be_made() -> None:
    stage = Stage(rules(mode=Mode.SHADOW, recovery=AUTOMATIC))
    stage.take(verdict())
    stage.take(well(), 100)
    (back,) = [one for one in stage.commands(*tick(700)) if one.action is Action.RELEASE]
    assert back.dry_run


# --- What people do besides ---------------------------------------------------------------------


def test_one_held_command_can_be_let_go() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    (held,) = stage.commands(verdict(card("gpu18"), "inc-2", pool="training"), 1)
    assert held.held is not None
    stage.take(request(RequestAction.RESUME, card("gpu18"), reason="looked at"), 4000)
    (going,) = [
        one.command for one in stage.state.outbox.values() if one.command.domain.host == "gpu18"
    ]
    assert (going.held, going.by, going.level) == (None, "ana", held.level)
    assert going.reason == "Three witnesses agree. (let go by ana: looked at)"
    assert stage.state.parts[held.domain_id].held is None
    assert stage.take(request(RequestAction.RESUME, card("gpu18"), id="r2"), 4001) == []


def test_a_held_command_that_its_scheduler_skipped_can_still_be_let_go() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    (held,) = stage.commands(verdict(card("gpu18"), "inc-2"), 1)
    stage.take(ack(held, AckStatus.SKIPPED), 2)
    assert held.id not in stage.state.outbox
    going, state = stage.take(request(RequestAction.RESUME, card("gpu18")), 60)
    assert isinstance(going, Command)
    assert isinstance(state, DesiredState)
    assert (going.held, going.domain_id, state.isolated) == (None, held.domain_id, True)


def test_letting_go_works_in_shadow_mode() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    stage.take(verdict())
    stage.take(verdict(card("gpu18"), "inc-2"), 1)
    (going,) = stage.commands(request(RequestAction.RESUME, card("gpu18")), 2)
    assert (going.dry_run, going.held) == (False, None)


def test_lifting_a_hold_leaves_the_other_reasons() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    stage.take(request(RequestAction.HOLD), 1)
    assert stage.take(request(RequestAction.LIFT, by="bo", id="r2"), 2) == []
    (state,) = stage.states(request(RequestAction.LIFT, id="r3"), 3)
    assert (state.isolated, [hold.id for hold in state.holds]) == (True, ["inc-1"])


def test_lifting_the_last_hold_returns_the_part() -> None:
    stage = Stage(rules())
    stage.take(request(RequestAction.HOLD))
    (back,) = stage.commands(request(RequestAction.LIFT, id="r2"), 3)
    assert back.action is Action.RELEASE
