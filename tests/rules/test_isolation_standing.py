"""What shadow only showed is done for real when the policy lets it, if it still stands."""

from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

import pytest

from evidence.decisions import AckStatus, Action, Command, RequestAction, Status
from rules.isolation import due
from rules.policy import Mode, Pool, load
from rules.rulebook import Maturity

from .isolation_stage import T0, Stage, ack, card, request, roomy, rules, tick, verdict

SHADOW = roomy(mode=Mode.SHADOW)
MINUTE = 60.0


def shown(*hosts: str) -> Stage:
    stage = Stage(SHADOW)
    for host in hosts or ("gpu17",):
        (command,) = stage.commands(verdict(card(host), f"inc-{host}"))
        stage.take(ack(command, AckStatus.SKIPPED), 1)
    return stage


def test_raising_the_mode_isolates_what_was_only_shown() -> None:
    stage = shown()
    stage.rules = roomy()
    assert due(stage.state) == T0 + timedelta(seconds=MINUTE)
    (command,) = stage.commands(*tick(MINUTE))
    assert (command.action, command.dry_run, command.held) == (Action.ISOLATE, False, None)
    assert command.incident == "inc-gpu17"
    assert stage.state.standing == ()
    stage.take(ack(command), 61)
    assert due(stage.state) is None


def test_while_the_mode_stays_shadow_nothing_is_shown_twice() -> None:
    stage = shown()
    for minute in range(1, 10):
        assert stage.take(*tick(minute * MINUTE)) == []
    assert len(stage.state.standing) == 1


def test_a_next_revision_is_acted_upon_without_waiting_for_the_minute() -> None:
    stage = shown()
    stage.rules = roomy()
    (command,) = stage.commands(verdict(card(), "inc-gpu17", revision=1), 5)
    assert not command.dry_run
    assert stage.take(*tick(MINUTE)) == [command]  # its repeat, as nobody answered yet


@pytest.mark.parametrize(
    "over",
    [
        {"status": Status.RECOVERED},
        {"status": Status.VICTIM, "victim_of": "v-9"},
        {"status": Status.SUSPECTED},
        {"explained_by": "maintenance"},
    ],
)
def test_what_is_over_or_explained_by_then_is_not_isolated(over: dict[str, object]) -> None:
    stage = shown()
    stage.take(verdict(card(), "inc-gpu17", revision=1, **over), 5)
    stage.rules = roomy()
    assert stage.take(*tick(MINUTE)) == []
    assert due(stage.state) is None


def test_what_a_person_released_by_then_is_not_isolated() -> None:
    stage = shown()
    (back,) = stage.commands(request(RequestAction.RELEASE), 5)
    stage.take(ack(back), 6)
    stage.rules = roomy()
    assert [one for one in stage.commands(*tick(MINUTE)) if one.action is Action.ISOLATE] == []


def test_what_another_card_took_the_place_of_is_not_isolated() -> None:
    stage = Stage(SHADOW)
    stage.take(verdict(card(uuid="GPU-old")))
    stage.take(verdict(card(uuid="GPU-new"), "inc-2", status=Status.SUSPECTED), 5)
    stage.rules = roomy()
    assert [one for one in stage.commands(*tick(MINUTE)) if not one.dry_run] == []


def test_what_was_shown_a_day_ago_needs_a_look_first() -> None:
    stage = shown()
    stage.rules = roomy()
    assert stage.take(*tick(86_401)) == []
    assert (stage.state.standing, due(stage.state)) == ((), None)


def test_the_budget_counts_for_what_stands_too() -> None:
    stage = shown("gpu19", "gpu17", "gpu18")
    stage.rules = rules()
    commands = stage.commands(*tick(MINUTE))
    assert [(one.domain.host, one.held is None) for one in commands] == [
        ("gpu17", True),
        ("gpu18", False),
        ("gpu19", False),
    ]


def test_a_pool_and_a_rule_can_be_raised_alone() -> None:
    young = {**load().rules, "two-witnesses": {"maturity": Maturity.SHADOW}}
    stage = Stage(roomy(rules=MappingProxyType(young)))
    stage.take(verdict(rule="two-witnesses"))
    stage.rules = roomy()
    assert [one.dry_run for one in stage.commands(*tick(MINUTE))][-1] is False

    stage = Stage(roomy(mode=Mode.SHADOW))
    stage.take(verdict(pool="pilot"))
    stage.take(verdict(card("gpu18"), "inc-2"))
    pools = {"default": Pool(), "pilot": Pool(mode=Mode.ENFORCE)}
    stage.rules = roomy(mode=Mode.SHADOW, pools=pools)
    real = [one for one in stage.commands(*tick(MINUTE)) if not one.dry_run]
    assert [one.domain.host for one in real] == ["gpu17"]


def test_what_stood_and_the_state_it_was_kept_in_are_one() -> None:
    stage = shown("gpu17", "gpu18")
    again = Stage(roomy(), stage.state)
    (first, second) = again.commands(*tick(MINUTE))
    assert isinstance(first, Command)
    assert (first.domain.host, second.domain.host) == ("gpu17", "gpu18")
    assert replace(load()).stands_for_s == 86_400
